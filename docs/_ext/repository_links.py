"""Links from the pages to files that are not pages, such as ``../examples/saturation.py``.

On GitHub a relative link shows the file. On the site it becomes a link to GitHub, or plain text if the address of the
repository is unknown (a local build). A script of the gallery is a page of the site. A link to a file that does not
exist is a warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Rewrite links that MyST takes for downloads, or for pages, outside of the docs folder."""

    default_priority = 5  # before Sphinx collects downloads

    def apply(self, **_: Any) -> None:
        """Replace the references of one page."""
        page = Path(self.env.doc2path(self.env.docname))
        pages, root = Path(self.env.srcdir), Path(self.env.srcdir).parent
        for node in list(self.document.findall(addnodes.download_reference)):
            target = (page.parent / node["reftarget"]).resolve()
            if target.parent == pages / "gallery" and target.exists():
                self.to_gallery(node, target)
            elif not target.is_relative_to(pages):  # otherwise it is a download of the site
                self.replace(node, target, root)
        for node in list(self.document.findall(addnodes.pending_xref)):
            name = Path(str(node["reftarget"]))
            if name == Path("gallery/GALLERY_HEADER"):
                node["reftarget"] = "auto_gallery/index"  # where the built gallery is
            if node.get("refdomain") == "doc" and name.is_relative_to(root) and not name.is_relative_to(pages):
                anchor = node["reftargetid"]
                self.replace(node, Path(f"{name}.md"), root, f"#{anchor}" if anchor else "")

    def to_gallery(self, node: nodes.Element, script: Path) -> None:
        """Replace a reference by a link to the page of a gallery script."""
        target = f"/auto_gallery/{script.stem}"
        options = {"refdomain": "std", "reftype": "doc", "refexplicit": True, "refwarn": True}
        node.replace_self(
            addnodes.pending_xref("", *node.children, refdoc=self.env.docname, reftarget=target, **options)
        )

    def replace(self, node: nodes.Element, target: Path, root: Path, anchor: str = "") -> None:
        """Replace a reference by a link to GitHub, or by plain text."""
        if not target.exists() or not target.is_relative_to(root):
            LOGGER.warning("link to %s: expected a file of the repository", target, location=node)
        texts = [text for child in node.children for text in child.children]
        if self.config.repository_url:
            path = target.relative_to(root).as_posix()
            kind = "tree" if target.is_dir() else "blob"
            uri = f"{self.config.repository_url}/{kind}/{self.config.repository_revision}/{path}{anchor}"
            node.replace_self(nodes.reference("", "", *texts, refuri=uri, internal=False))
        else:
            node.replace_self(texts)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_config_value("repository_url", "", "env", str)
    app.add_config_value("repository_revision", "main", "env", str)
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
