"""Texts that say what the pictures of the gallery show, for readers who do not see them.

sphinx-gallery takes the titles of figures for such texts, and these figures have none. The texts are written into the
page, and into the list of scripts for the picture that stands there.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.util import logging

PICTURES: Final = {
    "plot_01_digits": (
        "Three rows of ten digits: each as it is, and two distorted views of it.",
        "Map of the features: the digits form clusters, nearly one for each class.",
    ),
    "plot_02_saturation": (
        "Relative error of the gradient against the margin: cross_entropy loses all digits, portable_nce keeps them.",
    ),
    "plot_03_bounds": (
        "Bounds during training: InfoNCE stops at log 64, SMILE and the plug-in go on upwards, NWJ is noisy.",
    ),
    "plot_04_small_batches": ("Retrieval by epoch in batches of 16: FlatNCE is above InfoNCE.",),
    "plot_05_supcon": ("Features of digits on a circle: each class has an arc of its own, except 8 and 9.",),
    "plot_06_toy_language": (
        "Logarithm of the normaliser by step: local NCE brings it to 0, ranking NCE leaves it at five.",
        "Distance from the true probabilities by step: all three fall, that of local NCE more slowly.",
    ),
    "plot_07_critic_on_the_tape": ("Contours of the trained critic over the pairs, which lie along the diagonal.",),
    "plot_08_new_array_library": (
        "Largest array by batch size: quadratic without blocks, nearly constant with blocks of 64 rows.",
    ),
    "plot_09_clip": ("Digits that five captions find; wrong ones have a frame.",),
    "plot_10_queue": (
        "Retrieval by momentum of the slow encoder: with a queue it is above the line without, from 0.9 on.",
    ),
    "plot_11_recommender": (
        "Scores against true log-probabilities: on the line with the logQ correction, flat without.",
    ),
    "plot_12_local_information": (
        "Pairs in the plane, coloured by their local information: positive near the relation, negative away from it.",
        "Local transfer entropy by time, averaged: above 0 in the shaded times in which the series is driven.",
    ),
}
"""What each picture of a script shows, in their order."""
THUMBNAILS: Final = {"plot_01_digits": 1}
"""Number of the picture in the list of scripts, where it is not the first."""

PICTURE = re.compile(r'(<img src="[^"]*sphx_glr_(plot_\w+)_(\d{3})\.png"[^>]*? alt=")[^"]*"')
THUMBNAIL = re.compile(r'(<img alt=")(" src="[^"]*sphx_glr_(plot_\w+)_thumb\.png")')
LOGGER = logging.getLogger(__name__)


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], document: object) -> None:
    """Write the texts into a page of the gallery."""
    del app, template, document
    if not page.startswith("auto_gallery/") or "body" not in context:
        return

    def picture(found: re.Match[str]) -> str:
        texts, place = PICTURES.get(found[2], ()), int(found[3]) - 1
        if place >= len(texts):
            LOGGER.warning("%s: expected a text for each picture; add it to docs/_ext/gallery_pictures.py", found[2])
            return found[0]
        return f'{found[1]}{texts[place]}"'

    def thumbnail(found: re.Match[str]) -> str:
        texts = PICTURES.get(found[3], ("",))
        return f"{found[1]}{texts[THUMBNAILS.get(found[3], 0)]}{found[2]}"

    context["body"] = THUMBNAIL.sub(thumbnail, PICTURE.sub(picture, context["body"]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
