"""Checks of arguments: shapes, dtypes, Python numbers, and array entries that can be read without waiting."""

from __future__ import annotations

import inspect
import math
import operator
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, get_args

from .namespace import cast, common_namespace, device_of, is_array, is_being_compiled, is_number, namespace_of, native
from .protocol import Array, Namespace
from .registry import COMPILER, adapter_of, on_accelerator, outside_of_compiler
from .tracing import refuse_trace
from .types import BlockSize, Parameters, Precision, Result


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """`value` must be one of the strings `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        near = nearest(value, allowed) if value is None or isinstance(value, str) else ""
        raise ValueError(f"{name}: expected one of {choices}, got {shown(value)}{near}")


def shown(value: object) -> str:
    """Text of a value for messages; of arrays and other objects, which may be long, the type."""
    return repr(value) if value is None or isinstance(value, (str, int, float)) else type(value).__name__


def if_traced(name: str, value: object) -> str:
    """Remedy for an option that a compiled function has as an argument; empty for others."""
    if "Tracer" not in type(value).__name__:
        return ""
    return f"; in a compiled function, options are static: compile it with static_argnames=({name!r},)"


def nearest(value: object, allowed: Collection[str]) -> str:
    """Remedy that names the nearest of the strings `allowed`; empty if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415  (only for messages)

    plain = {re.sub(r"\W|_", "", name).lower(): name for name in allowed}
    same = plain.get(re.sub(r"\W|_", "", str(value)).lower())
    near = [same] if same else get_close_matches(str(value), allowed, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_precision(value: object) -> None:
    """`precision` must be None or one of its names."""
    if value is not None and (not isinstance(value, str) or value not in get_args(Precision)):
        raise ValueError(f"precision: expected None, 'high' or 'highest', got {shown(value)}")


def check_bool(name: str, value: object) -> bool:
    """Return `value`, which must be True or False, as a Python bool."""
    if value is True or value is False:
        return value
    if "bool" in type(value).__name__ and any(base.__name__ == "generic" for base in type(value).__mro__):
        return bool(value)  # a NumPy scalar
    raise TypeError(f"{name}: expected True or False, got {shown(value)}{if_traced(name, value)}")


def as_integer(value: Any) -> int | None:
    """Python int of an integer scalar of any library; None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, type)) or not hasattr(value, "__index__") or (is_array(value) and not is_number(value)):
        return None
    return operator.index(value)


def check_whole_number(name: str, value: Any, *, least: int = 1) -> int:
    """Return `value`, which must be an integer scalar of any library, and not less than `least`."""
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}{if_traced(name, value)}")
    if number < least:
        raise ValueError(f"{name}: expected at least {least}, got {number}")
    return number


def check_callable(name: str, value: object) -> None:
    """`value` must be callable."""
    if not callable(value):
        raise TypeError(f"{name}: expected a function, got {type(value).__name__}")


def check_called(name: str, value: Any, room: str) -> None:
    """Refuse a class, a module, and a function of this package whose result is expected."""
    title, package = getattr(value, "__name__", ""), f"{__name__.rpartition('._core')[0]}."
    module = str(value.__module__) if isinstance(value, FunctionType) else ""
    if module.startswith(package + room):
        raise TypeError(f"{name}: expected what {room}.{title}(...) returns, got {title} itself; call it")
    if module.startswith(package) and not module.startswith(f"{package}testing."):
        raise TypeError(f"{name}: expected a name or what portable_nce.{room} returns, got the function {title}")
    if isinstance(value, (type, ModuleType)):
        kind = "class" if isinstance(value, type) else "module"
        raise TypeError(
            f"{name}: expected a name, a function or what portable_nce.{room} returns, got the {kind} {title}"
        )


def is_half(dtype: Any) -> bool:
    """Whether `dtype` is float16 or bfloat16, of any library."""
    return "float16" in str(dtype)


def is_floating(xp: Namespace, dtype: Any) -> bool:
    """Whether losses accept `dtype`, a real floating-point dtype of 16 bits or more."""
    if dtype in (xp.float32, xp.float64) or is_half(dtype):
        return True
    # 8-bit floats have no arithmetic in PyTorch and no promotion in JAX.
    return bool(xp.isdtype(dtype, "real floating")) and getattr(dtype, "itemsize", 2) > 1


def cast_hint(x: Array, dtype: Any = None, *, integers: bool = False) -> str:
    """Call that converts arrays of this library, for messages: to `dtype`, or to floating-point numbers or integers."""
    if dtype is not None:
        return f"to({dtype})" if hasattr(x, "to") else f"astype({str(dtype).rpartition('.')[2]!r})"
    if hasattr(x, "long"):
        return "long()" if integers else "float()"
    return f"astype({'int32' if integers else 'float32'!r})"


def check_floating(xp: Namespace, **arrays: Array) -> None:
    """The arrays must have one real floating-point dtype; 16-bit ones and float32 may be mixed."""
    first_name, first = next(iter(arrays.items()))
    for place, (name, x) in enumerate(arrays.items()):
        if x.dtype == first.dtype and (x.dtype == xp.float32 or is_floating(xp, x.dtype)):
            continue
        if not is_floating(xp, x.dtype):
            are_targets = place == 1 and len(x.shape) == 1 and xp.isdtype(x.dtype, "integral")
            remedy = f"convert it with {name}.{cast_hint(x)}"
            if are_targets:
                remedy = (
                    "targets come after weight"
                    if name == "weight"
                    else "for labels, use supcon; for scores and the columns of the positives, use "
                    "portable_nce.from_scores"
                )
            raise TypeError(f"{name}: expected a real floating-point dtype of 16 bits or more, got {x.dtype}; {remedy}")
        if not all(is_half(y.dtype) or y.dtype == xp.float32 for y in (x, first)):
            raise TypeError(
                f"{name}: expected the dtype of {first_name}, {first.dtype}, got {x.dtype}; convert one, as with "
                f"{name}.{cast_hint(x, first.dtype)}"
            )


def check_library(name: str, x: Array) -> None:
    """`x` must be an array of a library that has an adapter."""
    try:
        adapter_of(x)
    except TypeError as error:
        raise TypeError(f"{name}: expected an array of a library with an adapter, got another: {error}") from error


def common_dtype(xp: Namespace, *arrays: Array) -> Any:
    """Dtype of a result of these arrays: their common one, or float32 if 16-bit ones are mixed."""
    first, *others = (native(x).dtype for x in arrays)
    return first if all(dtype == first for dtype in others) else xp.float32


def check_mask(xp: Namespace, name: str, x: Array, shape: tuple[int, ...]) -> None:
    """`x` must be a boolean array of the given shape."""
    if not xp.isdtype(x.dtype, "bool"):
        raise TypeError(
            f"{name}: expected a boolean array (True keeps a pair), got dtype {x.dtype}; compare, as in {name} != 0"
        )
    check_shape(name, x, shape)


def check_integers(xp: Namespace, name: str, x: Array, shape: tuple[int, ...], *, several: str = "") -> None:
    """`x` must be an integer array of the given shape; `several` is a remedy for several integers of each row."""
    got, one_each = tuple(x.shape), len(shape) == 1
    if one_each and len(got) == 2 and got[:1] == shape:  # noqa: PLR2004  (a matrix)
        remedy = f"{name}[:, 0]" if got[1] == 1 else f"{name}.argmax(axis=1), if it is one-hot{several}"
        error = ValueError if xp.isdtype(x.dtype, "integral") else TypeError
        raise error(f"{name}: expected integers of shape {shape}, got {x.dtype} of shape {got}; pass {remedy}")
    if not xp.isdtype(x.dtype, "integral"):
        converted = xp.isdtype(x.dtype, ("numeric", "bool"))
        remedy = f"convert it with {name}.{cast_hint(x, integers=True)}" if converted else "number the values"
        raise TypeError(f"{name}: expected an integer dtype, got {x.dtype}; {remedy}")
    check_shape(name, x, shape)


def indices_of(xp: Namespace, name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """`x`, an integer array of the given shape, in a dtype that every library accepts for indices.

    PyTorch indexes with int32 and int64, and has no minimum of unsigned integers. Too large values become negative.
    """
    check_integers(xp, name, x, shape)
    if x.dtype in {xp.int32, xp.int64}:
        return x
    return xp.astype(x, xp.arange(1, device=device_of(x)).dtype)


def check_indices(
    name: str,
    x: Array,
    count: int,
    of_what: str,
    *,
    smallest: float = 0,
    remedy: str = "leave rows out by weights or a mask",
) -> bool:
    """`x` must hold indices from `smallest` to `count` - 1; return whether its entries could be read and checked."""
    if is_empty(x):
        return True
    for number in readable_entries(x, least, largest):
        if number is None:
            return False
        if not smallest <= number < count:
            raise ValueError(
                f"{name}: expected indices from 0 to {count - 1}, of {of_what}, got {int(number)}; {remedy}"
            )
    return True


def check_shape(name: str, x: Array, shape: tuple[int, ...], remedy: str = "") -> None:
    """`x` must have the given shape."""
    got, shape = tuple(x.shape), tuple(shape)  # PyTorch prints its own otherwise
    if got != shape:
        remedy = f"pass {name}.T" if len(got) == 2 and got == shape[::-1] else remedy  # noqa: PLR2004  (a matrix)
        if len(shape) == 1 and got in {(*shape, 1), (1, *shape)}:
            remedy = f"pass {name}[:, 0]" if got[1:] == (1,) else f"pass {name}[0]"
        raise ValueError(f"{name}: expected shape {shape}, got {got}{remedy and f'; {remedy}'}")


def check_rows(name: str, x: Array, first: Array, remedy: str = "") -> None:
    """`x` must have as many rows as `first`; the width may differ. `remedy` is for more rows."""
    if x.shape[:1] != first.shape[:1]:  # only then: torch.compile would add a guard that compares rows and width
        transposed, more = tuple(x.shape) == tuple(first.shape)[::-1], tuple(x.shape[:1]) > tuple(first.shape[:1])
        wanted = tuple(first.shape) if transposed else (first.shape[0], *x.shape[1:])
        check_shape(name, x, wanted, remedy if more and not transposed else "")


def check_width(name: str, x: Array, width: int) -> None:
    """The rows of `x` must have `width` features."""
    if x.shape[-1] != width:
        remedy = f"; pass {name}.T" if tuple(x.shape[:-1]) == (width,) else ""
        raise ValueError(f"{name}: expected {width} features along the last axis, got shape {tuple(x.shape)}{remedy}")


RANKS_MAY_BE_EMPTY: ContextVar[bool] = ContextVar("RANKS_MAY_BE_EMPTY", default=False)
"""Whether arrays may have no rows here: within a loss on ranks that compare their sizes."""


def _widths(shape: tuple[int, ...], axes: str) -> list[int]:
    """Lengths of the axes that are not those of rows, columns or classes."""
    names = axes.strip("()").split(", ")
    return [length for name, length in zip(names, shape, strict=True) if name not in {"N", "K", "M", "V", "B"}]


def shape_of(name: str, x: Array, axes: str, *, may_be_empty: bool | None = None) -> tuple[int, ...]:
    """Shape of `x`, which must have as many axes as `axes` names, as in "(N, D)", and none of length 0.

    `may_be_empty`: whether there may be no rows; None if there may be none on a rank.
    """
    shape = tuple(x.shape)
    if any(length is None or length != length for length in shape):  # noqa: PLR0124  (None by the standard, NaN in Dask)
        raise ValueError(f"{name}: expected known lengths of {axes}, got shape {shape}; compute them first")
    if len(shape) != axes.count(",") + 1:
        remedy = ""
        if axes == "(N, D)" and len(shape) == 1:
            is_labels = namespace_of(x).isdtype(x.dtype, ("integral", "bool"))
            column = f"; one row has nothing to be compared with; of samples of one feature, pass {name}[:, None]"
            remedy = "; labels come after embeddings" if is_labels else column
        elif axes == "(N, D)" and len(shape) == 3:  # noqa: PLR2004  (views or tokens)
            remedy = f"; merge the leading axes, as in {name}.reshape((-1, {shape[-1]})), with one label for each row"
        elif axes == "(N, D)":
            remedy = "; pass one vector for each sample, such as the output of an encoder"
        raise ValueError(f"{name}: expected shape {axes}, got {shape}{remedy}")
    if 0 in shape:
        allowed = RANKS_MAY_BE_EMPTY.get() if may_be_empty is None else may_be_empty
        if allowed and 0 not in _widths(shape, axes):
            return shape
        raise ValueError(f"{name}: expected at least one entry along every axis of {axes}, got shape {shape}")
    return shape


_DOUBLE = (sys.float_info.min, sys.float_info.max)
SINGLE = (2.0**-126, (2.0 - 2.0**-23) * 2.0**127)
"""Smallest normal and largest number of float64 and float32."""


def check_number(name: str, value: Any, *, above: float = -math.inf, limits: tuple[float, float] = SINGLE) -> float:
    """Return `value`, which must be a finite number greater than `above`, and within the limits of a dtype.

    A positive number that is too small for the dtype is 0: some libraries take it as that, and others do not.
    """
    if not is_number(value):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}{if_traced(name, value)}")
    value = value if isinstance(value, (int, float)) else float(value)
    low, high = limits if above == 0 else (-limits[1], limits[1])
    if not (above < value and low <= value <= high):
        got = value if isinstance(value, float) or abs(value) < 2**64 else "a longer integer"
        limit = "" if above == -math.inf else f" greater than {above:g}"
        message = f"{name}: expected a finite number{limit}, got {got}"
        if above < value and abs(value) < math.inf:
            message = f"{name}: expected a number between {low:.3g} and {high:.3g}, got {got}"
        raise ValueError(message)
    return 0.0 if 0.0 < value < limits[0] else float(value)


def positive_scalar(xp: Namespace, name: str, value: Any, like: Array) -> Any:
    """Positive number as a Python float, or an array of one entry as a 0-d array of the dtype of `like`."""
    return scalar(xp, name, value, like, above=0.0)


def temperature_of(xp: Namespace, value: Any, rows: int, like: Array, *, views: int = 1, shared: bool = False) -> Any:
    """Temperature: a number, a 0-d array, or an array with one entry per row, in the dtype of `like`.

    With several `views`, it may have one entry per sample. In a batch `shared` by ranks, an array of shape (1,) counts
    as per-row until the ranks agree.
    """
    each = [(length,) for length in (rows, rows // views) if length != 1 or shared]
    if not is_array(value) or is_number(value) or value.shape not in each:
        return positive_scalar(xp, "temperature", value, like)
    check_floating(xp, temperature=value)
    check_entries("temperature", value, 0.0)
    return cast(value, like.dtype)


def scalar(xp: Namespace, name: str, value: Any, like: Array, *, above: float = -math.inf) -> Any:
    """Number as a Python float, or an array of one entry as a 0-d array of the dtype of `like`."""
    check_scalar(name, value, above=above, limits=SINGLE if like.dtype == xp.float32 else _DOUBLE)
    return float(value) if is_number(value) else cast(xp.reshape(value, ()), like.dtype)


_WEAK = 0.005, 0.2
"""Range of usual temperatures. As factors of cosines, they make scores that hardly differ."""

_USUAL_SCALES = (10.0, 1 / 0.07, 20.0, 50.0, 100.0)
"""Scales of cosines at which trainings start or end; models hold their logarithms."""


_LEAST_LEARNED_SCALE, _MOST_LEARNED_TEMPERATURE = 4.7, 1.5
"""Limits of learned numbers: logarithms of scales up to 100 are below the first."""


def check_scale_of_cosines(name: str, value: Any, x: Array | None = None) -> None:
    """Warn if a number is the inverse or the logarithm of a usual temperature or scale; `x` is an embedding."""
    if is_being_compiled(x) or not is_number(value):  # a guard on the number would compile a graph for each value
        return
    if not 0 < value <= 1.0 / _WEAK[0]:  # compared before it is a float, which long integers are not
        return
    number = float(value)
    scale = 1.0 / number if name == "temperature" else number
    if _WEAK[0] <= scale <= _WEAK[1]:
        wanted = f"below {1.0 / _WEAK[1]:g}" if name == "temperature" else f"above {_WEAK[1]:g}"
        other = "a scale" if name == "temperature" else "a temperature"
        warn(
            f"{name}: expected a number {wanted} with cosines, got {number:.4g}, which keeps all scores within "
            f"±{scale:.3g}; if it is {other}, pass its reciprocal, {1.0 / number:.4g}"
        )
    if name != "temperature" and any(math.isclose(math.exp(number), usual, rel_tol=1e-3) for usual in _USUAL_SCALES):
        warn(
            f"{name}: expected the factor of the scores, got {number:.4g}, which is the logarithm of "
            f"{math.exp(number):.4g}; if it is a logarithm, pass its exponential"
        )


def check_learned_scale_of_cosines(name: str, value: Any) -> None:
    """Warn if an array of one entry can be read and looks like the logarithm of a scale, or like a scale."""
    number = None if is_number(value) else readable_number(value)
    if number is None or not 0.0 < number < math.inf:
        return
    if name == "temperature" and number > _MOST_LEARNED_TEMPERATURE:
        warn(
            f"{name}: expected an array below {_MOST_LEARNED_TEMPERATURE:g} with cosines, got one above; if it is a "
            "scale, pass its reciprocal"
        )
    elif name == "logit_scale" and number < _LEAST_LEARNED_SCALE:
        warn(
            f"{name}: expected the factor of the scores, mostly 10 to 100 with cosines, got an array below "
            f"{_LEAST_LEARNED_SCALE:.2g}; if it is a logarithm, as models hold it, pass its exponential, as in "
            f"{name}=log_scale.exp()"
        )


def _holds_numbers(x: Array) -> bool:
    """Whether an array that has not been checked yet holds integers or real numbers."""
    if not any(kind in str(x.dtype) for kind in ("int", "float")):
        return False
    try:
        return isinstance(x.shape, tuple)
    except RuntimeError:  # PyTorch's nested tensors have none
        return False


def readable_number(value: Any) -> float | None:
    """A Python number, or that of an array of one entry if it can be read; None for anything else."""
    if is_number(value):
        try:
            return float(value)
        except OverflowError:  # a long integer
            return None
    if not is_array(value) or not _holds_numbers(value) or value.shape not in {(), (1,)}:
        return None
    try:
        return readable_entry(value, least)
    except TypeError:  # of another library, as later checks say
        return None


def warn_of_number(name: str, value: Any, x: Array | None, *, least: float = -math.inf, most: float = math.inf) -> None:
    """Warn if a number, or an array of one entry that can be read, is possible, but hardly meant."""
    number = None if is_being_compiled(x) else readable_number(value)
    if number is not None and not least <= number <= most and not math.isnan(number):
        limit = f"at least {least:g}" if number < least else f"at most {most:g}"
        got = f"{number:.4g}" if is_number(value) else "an array of another"
        warn(f"{name}: expected a number of {limit}, got {got}; if this is meant, ignore the warning")


_FEW_ENTRIES = 4


def check_log_probabilities(name: str, x: Array) -> None:
    """Warn if the entries can be read and are probabilities or counts.

    Probabilities are in (0, 1], where logarithms of different counts are not: log 1 = 0, log 3 > 1. Counts are whole
    numbers, which logarithms of counts above 1 are not. A few entries may be anything.
    """
    low, high = readable_entries(x, least, largest)
    if low is None or high is None or not 0.0 < low < high < math.inf or math.prod(x.shape) < _FEW_ENTRIES:
        return
    if high <= 1.0:
        warn(f"{name}: expected logarithms, got entries between 0 and 1; of probabilities, take the log")
    elif low >= 1.0 and readable_entry(x, _all_whole):
        warn(f"{name}: expected logarithms, got whole numbers of at least 1; of counts, take the log")


def _all_whole(xp: Namespace, x: Array) -> Array:
    return xp.all(xp.floor(x) == x)


def warn(message: str) -> None:
    """Issue a UserWarning at the line that called the package.

    A message names no entries of arrays: with those of each step, Python would show it again in each step.
    """
    refuse_trace("a warning")
    package = __name__.rpartition("._core.")[0]
    frame, level = sys._getframe(), 1  # noqa: SLF001  (`inspect.currentframe` is the same)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(f"{package}."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def check_scalar_or_rows(name: str, value: Any, *, above: float = -math.inf, rows: int | None = None) -> None:
    """`value` must be a number greater than `above`, or a real floating-point array of one entry or of shape (N,)."""
    shape = value.shape if is_array(value) else ()
    if isinstance(shape, tuple) and len(shape) == 1 and shape[0] != 1 and (rows is None or shape[0] == rows):
        check_floating(common_namespace(**{name: value})[0], **{name: value})
        check_entries(name, value, above)
    else:
        check_scalar(name, value, above=above)


def check_scalar(name: str, value: Any, *, above: float = -math.inf, limits: tuple[float, float] = _DOUBLE) -> None:
    """`value` must be a number greater than `above`, or a real floating-point array of one entry."""
    if is_number(value):
        check_number(name, value, above=above, limits=limits)
        return
    if not is_array(value):
        remedy = "; convert it with asarray first" if isinstance(value, (list, tuple)) else ""
        raise TypeError(f"{name}: expected a number or an array of one entry, got {type(value).__name__}{remedy}")
    xp, _ = common_namespace(**{name: value})
    if math.prod(value.shape) != 1:
        each = ", or of shape (N,) with one for each row," if name == "temperature" else ","
        column = f"; pass {name}[:, 0]" if name == "temperature" and tuple(value.shape[1:]) == (1,) else ""
        raise ValueError(
            f"{name}: expected a number or an array of one entry{each} got shape {tuple(value.shape)}{column}"
        )
    check_floating(xp, **{name: value})
    check_entries(name, value, above)


def is_empty(x: Array) -> bool:
    """Whether an array has no entries; False if lengths are symbols of a compiler."""
    return any(isinstance(length, int) and length == 0 for length in x.shape)


def is_readable(x: Array) -> bool:
    """Whether entries of `x` can be read without waiting for a device or a compiler."""
    adapter = adapter_of(x)
    return adapter.mode == "eager" and adapter.reads_values and not on_accelerator(x)


def readable_entry(x: Array, reduce: Callable[[Namespace, Array], Array]) -> float | None:
    """Value of a reduction of an array, or None if its entries cannot be read without waiting."""
    return readable_entries(x, reduce)[0]


def readable_entries(x: Array, *reductions: Callable[[Namespace, Array], Array]) -> tuple[float | None, ...]:
    """Values of several reductions of an array, or Nones if its entries cannot be read without waiting."""
    while hasattr(x, "__recorded__"):  # nested tapes of higher-order derivatives
        x = x.__recorded__
    if not is_readable(x):
        return (None,) * len(reductions)
    if is_empty(x):  # of a rank without rows
        return tuple([float(reduce is all_entries) for reduce in reductions])
    adapter = adapter_of(x)
    xp, x, read = namespace_of(x), adapter.stop_gradient(x), adapter.concrete_value
    if x.shape == ():
        number = read(x)
        return (number,) * len(reductions)
    both = reductions == (least, largest)
    return tuple([read(part) for part in (adapter.extremes(x) if both else [reduce(xp, x) for reduce in reductions])])


def least(xp: Namespace, x: Array) -> Array:
    """The smallest entry."""
    return xp.min(x)


def all_entries(xp: Namespace, x: Array) -> Array:
    """Whether all entries are True."""
    return xp.all(x)


def largest(xp: Namespace, x: Array) -> Array:
    """The largest entry."""
    return xp.max(x)


def check_entries(name: str, value: Array, above: float) -> None:
    """The entries must be finite and greater than `above`, if they can be read; NaN passes, and makes the loss NaN."""
    if above == -math.inf or is_empty(value):
        return
    check_library(name, value)
    smallest = (_DOUBLE if str(value.dtype).endswith("float64") else SINGLE)[0]
    for extreme in (least, largest)[: 1 + (math.prod(value.shape) > 1)]:
        number = readable_entry(value, extreme)
        if number is not None and (number <= above or number == math.inf):
            raise ValueError(f"{name}: expected a finite number greater than {above:g}, got {number}")
        if number is not None and above == 0.0 and number < smallest:  # its reciprocal may be infinite
            raise ValueError(f"{name}: expected a number of at least {smallest:.3g}, got {number}")


def row_weights(xp: Namespace, weights: Array | None, rows: int, like: Array) -> Array | None:
    """Row weights in the dtype of `like`, or None."""
    if weights is None:
        return None
    if not (is_floating(xp, weights.dtype) or xp.isdtype(weights.dtype, ("integral", "bool"))):
        hint = f"convert it with weights.{cast_hint(weights)}"
        raise TypeError(f"weights: expected a real dtype, got {weights.dtype}; {hint}")
    check_shape("weights", weights, (rows,))
    return cast(weights, like.dtype)


def _negative_of(weights: Any) -> float | None:
    """The smallest of the weights if it can be read and is negative."""
    if not is_array(weights) or not _holds_numbers(weights) or is_empty(weights):
        return None
    try:
        low = readable_entry(weights, least)
    except (RuntimeError, TypeError):  # of another library, or without numbers, as later checks say
        return None
    return low if low is not None and low < 0.0 else None


def refuse_negative(name: str, weights: Any) -> None:
    """Weights whose logarithm is taken must not be negative, if they can be read."""
    low = _negative_of(weights)
    if low is not None:
        raise ValueError(f"{name}: expected numbers of at least 0, got {low:g}; 0 leaves a pair out")


def warn_of_negative(name: str, weights: Any) -> None:
    """Warn if weights can be read and one is negative: a mean divides by their sum."""
    low = _negative_of(weights)
    if low is not None:
        warn(f"{name}: expected numbers of at least 0, got negative ones, whose loss grows where it should fall")


def check_pair_weights(xp: Namespace, name: str, weights: Array, shape: tuple[int, ...]) -> None:
    """The weights of pairs must be real floating-point numbers of the given shape, and not negative if readable."""
    check_floating(xp, **{name: weights})
    check_shape(name, weights, shape)
    refuse_negative(name, weights)


def check_block_size(block_size: Any) -> BlockSize:
    """Return `block_size`, which must be "auto", None, or a positive integer."""
    if block_size is None or (isinstance(block_size, str) and block_size == "auto"):
        return "auto" if block_size else None
    number = as_integer(block_size)
    if number is None or number < 1:
        got = f"{shown(block_size)}{if_traced('block_size', block_size)}"
        raise ValueError(f'block_size: expected a positive integer, "auto" or None, got {got}')
    return number


# Errors for calls that do not fit a signature

_SCALES = {"temperature": -1, "tau": -1, "logit_scale": 1, "scale": 1}
"""Names of the factor of the scores and of its inverse, with the exponent."""


FUNCTIONS: list[Callable[..., Any]] = []
"""The functions of the package whose arguments are explained."""


def explained(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Function that raises a helpful error for arguments that do not fit its signature."""

    @wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            outside = outside_of_compiler() if COMPILER in sys.modules else None
            return function(*args, **options) if outside is None else outside(function, args, options)
        except TypeError:
            reason = misfit(function, args, options)
            if reason is None:
                raise
            raise TypeError(_remedy(function, args, options, reason)) from None

    FUNCTIONS.append(function)
    return call


def explained_method(remedy: str = "") -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorator of a method that is called as its object is, as `explained`; `remedy` is for too many arguments."""

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(method)
        def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
            try:
                return method(*args, **options)
            except TypeError:
                reason = misfit(method, args, options)
                if reason is None:
                    raise
                owner: Any = args[0]
                bound, loss = method.__get__(owner), getattr(owner, "function", None)
                message = _remedy(bound, args[1:], options, reason, type(owner).__name__, getattr(loss, "__name__", ""))
                raise TypeError(message + remedy) from None

        return call

    return decorate


def refuses_other_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a public module: an error that names what to use instead."""

    def get(name: str) -> Any:
        from .._hints.names import no_attribute  # noqa: PLC0415  (only for messages)

        raise no_attribute(module, name)

    return get


def misfit(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> str | None:
    """Reason why arguments do not fit the signature of a function, or None if they fit."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # a built-in without a signature
        return None
    return None


def _remedy(  # noqa: PLR0917  (what a call has)
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    reason: str,
    name: str = "",
    loss: str = "",
) -> str:
    """Message for arguments that do not fit the signature of a function, or of an object `name` of a `loss`."""
    parameters = inspect.signature(function).parameters
    name, loss, names = name or function.__name__, loss or function.__name__, [*parameters]
    arrays = [p.name for p in parameters.values() if p.kind not in {p.KEYWORD_ONLY, p.VAR_KEYWORD}]
    required = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    positional = f"pass {', '.join(required)} by position" if len(args) < len(required) else ""
    unknown = next((option for option in options if option not in names), None)
    if unknown is not None:
        return unknown_option(unknown, options[unknown], name, names, positional, module=function.__module__)
    if positional and (named := next((option for option in options if option in required), None)):
        return f"{named}: expected no keyword in {name}, got {named}=...; {positional}"
    keys = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    missing = next((key for key in keys if key not in options), None)
    if len(required) <= len(args) <= len(arrays) and missing is not None:
        return f"{name}: expected the option {missing!r}, got none; pass {missing}=..."
    if len(args) <= len(arrays):
        needed = [p.name for p in parameters.values() if p.name in arrays and p.default is p.empty]
        needed = [key for key in needed if parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL]
        optional = "".join(f" ({key} is optional)" for key in arrays if key not in needed)
        from .._hints.options import remedy_for_missing  # noqa: PLC0415  (only for messages)

        hint = remedy_for_missing(loss, args, FUNCTIONS)
        return f"{name}: expected {', '.join(needed)}{optional}, got too few: {reason}{hint and f'; {hint}'}"
    expected = ", ".join(arrays) or "no array"
    if names[:1] == ["scores"]:
        expected = "a K × N matrix of scores, for example critic(x, y)"
    keywords = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    remedy = "".join(f"; options are keywords, as in {option}=..." for option in keywords[:1])
    return f"{name}: expected {expected}, got {len(args)} positional arguments{remedy}"


def unknown_option(
    unknown: str, value: Any, name: str, names: list[str], positional: str = "", *, module: str | None = None
) -> str:
    """Message for an option that the function `name` of a module does not have."""
    scale = next((other for other in names if other in _SCALES), None)
    if unknown in _SCALES and scale is not None:
        inverse = f" = 1 / {unknown}" if _SCALES[unknown] != _SCALES[scale] else ""
        return f"{unknown}: expected {scale}{inverse} in {name}, got {unknown}"
    if unknown in _SCALES and {"scores", "data_scores"} & {*names} and "clip" not in names:
        return f"{unknown}: expected none in {name}, got {shown(value)}; scores include it"
    from .._hints.options import remedy_for  # noqa: PLC0415  (only for messages)

    remedy = (
        remedy_for(unknown, name, module, names, FUNCTIONS) or nearest(unknown, names).removeprefix("; ") or positional
    )
    return f"{unknown}: expected an option of {name}, got {unknown!r}{remedy and f'; {remedy}'}"
