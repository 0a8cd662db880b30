"""Types of arrays: byte orders, subclasses of arrays, and tensors without arithmetic."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import portable_nce as pnce
from portable_nce.testing import CASES
from portable_nce.testing.variants import VARIANTS, case_arrays, differentiate

from calls import shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from portable_nce.testing.cases import Case

CASES_OF = {loss: [case for case in CASES if case.loss == loss] for loss in {case.loss: None for case in CASES}}
DENSE_OF = {loss: [case for case in cases if "streamed" not in case.name] for loss, cases in CASES_OF.items()}


# Arrays from HDF5, FITS and NetCDF are big-endian.
@pytest.mark.parametrize("cases", shares(case for case in CASES if "streamed" not in case.name))
def test_the_byte_order_changes_nothing(cases: list[Case]) -> None:
    """In all arrays or in one; results have native byte order."""
    for case in cases:
        arrays = case_arrays(VARIANTS["numpy"], case, "float64")
        swapped = [x.astype(x.dtype.newbyteorder()) for x in arrays]
        value, gradients = differentiate(case.function, arrays, len(case.arguments))
        found, slopes = differentiate(case.function, swapped, len(case.arguments))
        alone = [case.function(*arrays[:k], x, *arrays[k + 1 :]) for k, x in enumerate(swapped)]
        pairs = [(value, found), *((case.function(*arrays), x) for x in (case.function(*swapped), *alone))]
        for x, y in [*pairs, *zip(gradients, slopes, strict=True)]:
            assert y.dtype == x.dtype, case.name
            np.testing.assert_array_equal(y, x, err_msg=case.name)


@pytest.mark.parametrize("cases", shares(case for case in CASES if "streamed" not in case.name))
def test_numpy_may_raise_floating_point_errors_but_underflow(cases: list[Case]) -> None:
    for case in cases:
        arrays = case_arrays(VARIANTS["numpy"], case, "float32")
        with np.errstate(all="raise", under="ignore"):
            for _ in range(2):
                differentiate(case.function, arrays, len(case.arguments))
                case.function(*arrays)


@pytest.mark.parametrize("make", [lambda x: np.ma.masked_array(x, x > 0.5), np.matrix], ids=["masked", "matrix"])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_whose_operations_mean_something_else_are_refused(make: Callable[[Any], Any]) -> None:
    x, odd = np.eye(3), make(np.eye(3))
    for call in (
        *(lambda: pnce.info_nce(odd, x), lambda: pnce.info_nce(x, x, weights=odd), lambda: pnce.triplet(odd, odd, odd)),
        *(lambda: pnce.bounds.info_nce(odd), lambda: pnce.diagnostics.uniformity(odd)),
        lambda: pnce.grad(lambda a: (a * a).sum())(odd),
    ):
        with pytest.raises(TypeError, match=r"expected an array, got a (MaskedArray|matrix), whose"):
            call()


UNUSUAL: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (lambda x: x.ndim > 0, lambda x: x.to_sparse()),
    (lambda x: x.ndim > 0, lambda x: torch.nested.nested_tensor([*x.unbind()], dtype=x.dtype)),
    (lambda x: x.ndim > 1, lambda x: torch.nested.nested_tensor([*x.unbind()], dtype=x.dtype, layout=torch.jagged)),
    (torch.is_floating_point, lambda x: x.to(torch.float8_e4m3fn)),
]
"""Which tensors can be what has no arithmetic, and how."""


@pytest.mark.parametrize("loss", DENSE_OF)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_arithmetic_are_refused_by_name(loss: str) -> None:
    for case in DENSE_OF[loss]:
        tensors = case_arrays(VARIANTS["torch"], case, "float32")
        for k, x in enumerate(tensors):
            forms = [make for fits, make in UNUSUAL if fits(x)]
            if not forms:
                continue
            odd = forms[(len(case.name) + k) % len(forms)](x)
            with pytest.raises(TypeError, match=r"^[\w. \[\]]+: expected "):
                case.function(*tensors[:k], odd, *tensors[k + 1 :])


WITH_A_MASK = [
    function
    for module in (pnce.bounds, pnce.from_scores)
    for function in (getattr(module, name) for name in module.__all__)
    for names in (inspect.signature(function).parameters,)
    if "mask" in names and [name for name, x in names.items() if x.default is x.empty] == ["scores"]
]
"""Functions of scores alone."""


@pytest.mark.parametrize("function", WITH_A_MASK)
def test_tensors_whose_negative_is_yet_to_be_computed(function: Callable[..., Any]) -> None:
    """PyTorch makes them of complex numbers, and refuses their bits; also with positives by index or by flags."""
    made, diagonal = torch.Generator().manual_seed(0), torch.eye(100, dtype=torch.bool)
    scores, flags = torch.randn(100, 100, generator=made), torch.rand(100, 100, generator=made) < 0.2
    lazy = torch.complex(torch.zeros_like(scores), -scores).conj().imag
    assert lazy.is_neg()
    assert torch.equal(lazy, scores)
    forms: list[dict[str, Any]] = [{"mask": flags | diagonal}]
    if "positives" in inspect.signature(function).parameters:
        forms += [{"positives": torch.arange(100).roll(1)}]
        forms += [{"positives": flags}] if function.__module__ == pnce.from_scores.supcon.__module__ else []
    for form in forms:
        for found in (function(lazy, **form) for _ in range(3)):
            torch.testing.assert_close(found, function(scores, **form), rtol=0.0, atol=0.0)
