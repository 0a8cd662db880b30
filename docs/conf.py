"""Configuration of Sphinx; ``python -m nox -s docs`` builds the site."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import portable_nce  # noqa: E402  (after the path)

project = "portable_nce"
author = copyright = "The portable_nce authors"  # noqa: A001  (the name that Sphinx reads)

REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")  # owner/name, set by GitHub Actions
REVISION = os.environ.get("GITHUB_SHA", "main")
TAGGED = os.environ.get("GITHUB_REF_TYPE") == "tag"
version = release = portable_nce.__version__ if TAGGED or not REPOSITORY else "dev"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",  # links to the source of functions, which need no network
    "sphinx-mathjax-offline",  # formulas need no network
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "gallery_pictures",
    "public_names",
    "reference",
    "repository_links",
    "search_words",
    "tables",
]

templates_path = ["_templates"]
exclude_patterns = ["_build", "gallery/*", "**/GALLERY_HEADER.rst"]
nitpicky = True
default_role = "name"  # of _ext/public_names.py
toc_object_entries = False

# Markdown that GitHub renders as well.

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# The reference: one page per public name, from its docstring.

autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"  # types and shapes are in the sections of numpydoc
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False

# Buttons that copy code: without prompts and without what it prints.

copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_selector = "div:not(.highlight-text, .highlight-none) > div.highlight pre"

# The gallery: scripts that run when the site is built.

sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["auto_gallery"],
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("portable_nce",),
    "backreferences_dir": None,
    "image_srcset": ["2x"],
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "write_computation_times": False,
}

# The site.

html_theme = "pydata_sphinx_theme"
html_title = f"portable_nce {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_sidebars: dict[str, list[str]] = {"index": []}

repository_url = f"https://github.com/{REPOSITORY}" if REPOSITORY else ""
repository_revision = REVISION

# With an address, the site has a version switcher; `nox -s docs` writes the shared list of versions.

SITE = "https://{}.github.io/{}".format(*REPOSITORY.split("/")) if REPOSITORY else ""
html_baseurl = f"{SITE}/{'stable' if TAGGED else 'dev'}/" if SITE else ""
addressed: dict[str, Any] = {
    "github_url": repository_url,
    "switcher": {"json_url": f"{SITE}/switcher.json", "version_match": release},
    "check_switcher": False,  # building the site needs no network
    "show_version_warning_banner": True,
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
}

html_theme_options: dict[str, Any] = {
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    **(addressed if SITE else {}),
}
