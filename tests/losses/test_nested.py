"""Losses of nested embeddings: the sum over prefixes, for all losses and arguments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from mpmath import mp, mpf

import portable_nce as pnce
from portable_nce.testing import oracles
from portable_nce.testing.cases import sixteenths
from portable_nce.testing.variants import differentiate

if TYPE_CHECKING:
    from collections.abc import Callable

    from portable_nce.testing.variants import Variant

SIXTEEN_BITS = pytest.mark.parametrize(
    ("variant", "dtype"), [("numpy", "float16"), ("torch", "bfloat16")], indirect=["variant"]
)
N, D = 4, 5
WIDTHS, WEIGHTS = (2, 5, 3), (0.5, 1.0, 2.0)


def vectors(variant: Variant, *seeds: int, dtype: str | None = None) -> list[Any]:
    """Make embeddings of numbers that are exact in every dtype."""
    return [variant.floats(sixteenths((N, D), seed), dtype) for seed in seeds]


LOSSES: dict[str, tuple[Callable[..., Any], int]] = {
    "info_nce": (pnce.info_nce, 2),
    "info_nce shared": (pnce.info_nce, 3),
    "nt_xent three views": (pnce.nt_xent, 3),
    "clip": (partial(pnce.clip, logit_scale=5.0), 2),
    "moco_v3": (pnce.moco_v3, 4),
    "triplet": (partial(pnce.triplet, reduction="sum"), 3),
}
"""Losses and their numbers of embedding arrays."""


@pytest.mark.parametrize("name", LOSSES)
def test_the_sum_of_prefixes(variant: Variant, name: str) -> None:
    """Value and gradients are weighted sums of the loss on manual prefixes."""
    loss, count = LOSSES[name]
    arrays = vectors(variant, *range(count))
    nested = pnce.matryoshka(loss, WIDTHS, weights=WEIGHTS)

    value, slopes = differentiate(nested, arrays)
    parts = [differentiate(lambda *x, d=width: loss(*(z[:, :d] for z in x)), arrays) for width in WIDTHS]
    wanted = mp.fdot(WEIGHTS, [variant.to_list(part) for part, _ in parts])
    assert oracles.error(variant.to_list(value), wanted) <= 8 * variant.eps()
    for k, slope in enumerate(slopes):
        sums = [
            [mp.fdot(WEIGHTS, numbers) for numbers in zip(*rows, strict=True)]
            for rows in zip(*(variant.to_list(part[k]) for _, part in parts), strict=True)
        ]
        assert oracles.error(variant.to_list(slope), sums) <= 16 * variant.eps()


def test_rows_stay_rows(variant: Variant) -> None:
    x, y = vectors(variant, 1, 2)
    rows = pnce.matryoshka(pnce.info_nce, WIDTHS)(x, y, reduction="none")
    mean = pnce.matryoshka(pnce.info_nce, WIDTHS)(x, y)
    assert (tuple(rows.shape), tuple(mean.shape)) == ((N,), ())
    listed = [mpf(number) for number in variant.to_list(rows)]
    assert oracles.error(variant.to_list(mean), sum(listed, start=mpf(0)) / N) <= 8 * variant.eps()


def test_matryoshka_cuts_embeddings_only(variant: Variant) -> None:
    """Embeddings are cut, also in a queue; teachers, guides, labels, grades, masks and a queue's flags are not."""
    x, y, other, further = vectors(variant, 1, 2, 3, 4)
    a, b = x[:, :2], y[:, :2]
    labels, temperature = variant.array([0, 1, 0, 1]), variant.floats(0.5)
    grades, mask = variant.floats([0.5, 1.0, 0.5, 0.0]), variant.array([[i != 3 for _ in range(N)] for i in range(N)])
    queue = pnce.queue_push(pnce.queue_init(x, size=6), y)
    short = queue._replace(rows=queue.rows[:, :2])
    gist = partial(pnce.gist_embed, margin=0.1)
    weighted = pnce.matryoshka(pnce.info_nce, [3, 2], weights=[0.0, 2.0])

    def cut(loss: Any, **options: Any) -> Callable[..., Any]:
        return pnce.matryoshka(loss, [2], **options)

    def named(*, first: Any, second: Any) -> Any:
        return pnce.info_nce(first, second)

    for name, found, wanted in (
        ("teachers", cut(pnce.distillation)(x, y, other, y), pnce.distillation(a, b, other, y)),
        ("guides", cut(gist)(x, y, y, other), gist(a, b, y, other)),
        # A `partial` has one argument less: uncut arguments are matched by name.
        ("bound", cut(partial(pnce.distillation, a))(y, other, further), pnce.distillation(a, b, other, further)),
        ("labels", cut(pnce.supcon)(x, labels, temperature=temperature), pnce.supcon(a, labels, temperature=0.5)),
        ("grades", cut(pnce.cosent)(x, y, grades), pnce.cosent(a, b, grades)),
        ("queue", cut(pnce.moco)(x, y, queue), pnce.moco(a, b, short)),
        ("mask", cut(pnce.info_nce)(x, y, mask=mask), pnce.info_nce(a, b, mask=mask)),
        ("a keyword", cut(lambda p, *, q: pnce.info_nce(p, q), arrays=["q"])(x, q=y), pnce.info_nce(a, b)),
        ("keywords", cut(named, arrays=["first", "second"])(first=x, second=y), pnce.info_nce(a, b)),
        ("a dict", cut(lambda p, q: pnce.info_nce(p, q["y"]))(x, {"y": y}), pnce.info_nce(a, b)),
        ("a weight of 0", weighted(x, y), 2.0 * pnce.info_nce(a, b)),
    ):
        assert variant.to_list(found) == variant.to_list(wanted), name


def test_embeddings_with_three_axes_are_cut_at_the_last(variant: Variant) -> None:
    """Separate negatives (N, K, D), with K different from all widths."""
    x, y = vectors(variant, 1, 2)
    own = variant.floats(sixteenths((N, 7, D), 3))
    value, slopes = differentiate(pnce.matryoshka(pnce.info_nce, [2]), [x, y, own])
    wanted, expected = differentiate(lambda a, b, c: pnce.info_nce(a[:, :2], b[:, :2], c[:, :, :2]), [x, y, own])
    assert variant.to_list(value) == variant.to_list(wanted)
    assert [variant.to_list(slope) for slope in slopes] == [variant.to_list(slope) for slope in expected]


def test_the_first_embeddings_say_what_the_full_width_is(variant: Variant) -> None:
    """Arrays of other widths, integers and booleans are passed unchanged, also in lists and tuples."""
    x, y = vectors(variant, 1, 2)
    narrow, wide = x[:, :3], variant.floats(sixteenths((N, 2 * D), 3))
    numbers, marks = variant.array([[1] * D] * N), variant.array([[True] * D] * N)
    seen = []

    def loss(*arguments: Any) -> Any:
        a, (b, *others), listed = arguments
        seen.append([tuple(array.shape) for array in (a, b, *others, *listed)])
        assert (type(arguments[1]), type(listed)) == (tuple, list)
        return pnce.info_nce(a, b)

    value = pnce.matryoshka(loss, [2])(x, (y, narrow), [numbers, marks, wide])
    assert seen == [[(N, 2), (N, 2), (N, 3), (N, D), (N, D), (N, 2 * D)]]
    assert variant.to_list(value) == variant.to_list(pnce.info_nce(x[:, :2], y[:, :2]))


@SIXTEEN_BITS
def test_teachers_do_not_decide_the_dtype(variant: Variant, dtype: str) -> None:
    """The dtypes of a teacher and of arrays of another width have no effect."""
    x, y = vectors(variant, 1, 2, dtype=dtype)
    teachers = vectors(variant, 3, 4, dtype="float32")
    assert pnce.matryoshka(pnce.distillation, [2, D])(x, y, *teachers).dtype == x.dtype
    beside = pnce.matryoshka(lambda a, b, other: pnce.info_nce(a, b, weights=other[:, 0] ** 2), [2])
    assert beside(x, y, teachers[0][:, :3]).dtype == x.dtype


@SIXTEEN_BITS
def test_sixteen_bits_are_rounded_once(variant: Variant, dtype: str) -> None:
    """Forty times the same width: forty roundings of the sum or its gradient would show."""
    arrays, wide = ([*vectors(variant, 1, 2, dtype=x), variant.floats(0.5, x)] for x in (dtype, "float32"))
    nested = pnce.matryoshka(pnce.info_nce, [3] * 40 + [D])
    value, slopes = differentiate(lambda x, y, t: nested(x, y, temperature=t), arrays)
    exact, steep = differentiate(lambda x, y, t: nested(x, y, temperature=t), wide)
    assert (value.dtype, slopes[0].dtype) == (arrays[0].dtype, arrays[0].dtype)
    for found, wanted in zip((value, *slopes), (exact, *steep), strict=True):
        assert oracles.error(variant.to_list(found), oracles.exact(variant.to_list(wanted))) <= variant.eps(dtype)


def test_matryoshka_refuses_widths_and_losses_that_do_not_fit(variant: Variant) -> None:
    (x,) = vectors(variant, 1)
    with pytest.raises(ValueError, match=r"\Awidths: expected at most the 5 features of the embeddings, got 6"):
        pnce.matryoshka(pnce.info_nce, [6])(x, x)
    with pytest.raises(TypeError, match=r"\Aloss: expected embeddings among the arguments"):
        pnce.matryoshka(pnce.info_nce, [2])(x[:, 0], x[:, 0])
    with pytest.raises(TypeError, match=r"\Aloss: expected a function that returns an array, got tuple"):
        pnce.matryoshka(pnce.sogclr, [2])(x, x, x[:, 0])
    with pytest.raises(TypeError, match=r"\Aarrays: expected names of keyword arguments that are given, got 'key'"):
        pnce.matryoshka(pnce.info_nce, [2], arrays=["key"])(x, x)


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "options"),
    [
        (TypeError, "loss", ("info_nce", [2]), {}),
        (TypeError, "widths", (pnce.info_nce, 2), {}),
        (TypeError, "widths", (pnce.info_nce, [2.0]), {}),
        (ValueError, "widths", (pnce.info_nce, [0, 2]), {}),
        (ValueError, "widths", (pnce.info_nce, []), {}),
        (ValueError, "weights", (pnce.info_nce, [2, 3]), {"weights": [1.0]}),
        (ValueError, "weights", (pnce.info_nce, [2]), {"weights": [-1.0]}),
        (ValueError, "weights", (pnce.info_nce, [2, 3]), {"weights": [-1.0, 1.0]}),
        (TypeError, "weights", (pnce.info_nce, [2]), {"weights": ["1"]}),
        (TypeError, "weights", (pnce.info_nce, [2]), {"weights": 1.0}),
        (TypeError, "arrays", (pnce.info_nce, [2]), {"arrays": "key"}),
        (TypeError, "arrays", (pnce.info_nce, [2]), {"arrays": [1]}),
    ],
)
def test_options_that_are_refused(kind: type[Exception], name: str, arguments: Any, options: Any) -> None:
    with pytest.raises(kind, match=rf"\A{name}: expected"):
        pnce.matryoshka(*arguments, **options)


def test_a_nested_loss_says_what_it_is() -> None:
    made = pnce.matryoshka(pnce.info_nce, (2, 4), weights=(1.0, 0.5))
    assert repr(made) == "<matryoshka of info_nce, widths (2, 4), weights (1.0, 0.5)>"
