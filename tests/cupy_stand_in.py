"""A stand-in for CuPy on NumPy: `install` makes it importable as `cupy` where there is no GPU.

It has names of CuPy 14.2, and refuses what CuPy refuses: NumPy's arrays as arguments, conversion to NumPy, keywords and
kinds of sorting that CuPy does not have, devices as keys. Results are arrays, also those without axes. `WAITS` counts
what would wait for the device. `VARIANT` runs the conformance suite on it: ``--variant=cupy_stand_in:VARIANT``.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from portable_nce.testing.variants import CuPy

VERSION: Final = "14.2.0"

FUNCTIONS: Final = """
all allclose amax amin any arange argmax argmin argpartition argsort argwhere around array_equal array_split
astype atleast_1d atleast_2d atleast_3d average bincount broadcast_arrays broadcast_to clip column_stack
compress concat concatenate copy count_nonzero cross cumprod cumsum cumulative_prod cumulative_sum delete diag
diagflat diagonal diff digitize dot dstack einsum empty empty_like expand_dims eye flatnonzero flip fliplr
flipud full full_like imag inner isclose isin isneginf isposinf linspace matrix_transpose max mean meshgrid
min moveaxis ndim nonzero ones ones_like outer permute_dims prod ptp ravel real repeat reshape roll rollaxis
rot90 round searchsorted shape size sort split squeeze stack std sum swapaxes take take_along_axis tensordot
tile trace transpose tril triu unique unique_all unique_counts unique_inverse unique_values var vdot vstack
where zeros zeros_like
"""
UFUNCS: Final = """
abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh
bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceil conj conjugate
copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs floor floor_divide fmax fmin fmod
greater greater_equal heaviside hypot invert isfinite isinf isnan left_shift less less_equal log log10 log1p
log2 logaddexp logical_and logical_not logical_or logical_xor matmul maximum minimum multiply negative
nextafter not_equal positive pow power rad2deg radians reciprocal remainder right_shift rint sign signbit sin
sinh sqrt square subtract tan tanh true_divide trunc
"""
SAME: Final = """
bool bool_ broadcast_shapes complex128 complex64 complexfloating dtype e finfo float16 float32 float64
floating iinfo inf int16 int32 int64 int8 integer intp isdtype issubdtype nan newaxis number pi promote_types
signedinteger uint16 uint32 uint64 uint8 unsignedinteger
"""
"""Names that are NumPy's own in CuPy too."""
LINALG: Final = "cholesky cond det eigh eigvalsh inv lstsq matrix_power matrix_rank norm pinv qr slogdet solve svd"
METHODS: Final = """
all any argmax argmin argpartition astype clip conj conjugate copy cumprod cumsum diagonal dot fill flatten
max mean min nonzero prod ptp put ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace
transpose var view
"""
"""Names that CuPy has. Before you add one, look up that CuPy has it with the same keywords."""

MISSING_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(keywords.split())
    for name, keywords in {
        "": "correction device initial like max mean min mode ndmax sorted stable where",
        "argpartition": "kind order",
        "argsort": "order",
        "broadcast_to": "subok",
        "copy": "subok",
        "count_nonzero": "keepdims",
        "isin": "kind",
        "sort": "order",
    }.items()
}
"""Keywords that NumPy has and CuPy has not: of any function, and of one."""

WAITING: Final = "argwhere bincount flatnonzero nonzero unique unique_all unique_counts unique_inverse unique_values"
"""Functions whose result has a shape that depends on entries, for which CuPy waits."""

WAITS: Final[Counter[str]] = Counter()
"""Number of times that an operation would have waited for the device, by operation and place in the code."""

SCALARS: Final = (bool, int, float, complex, np.generic)


def _wait(operation: str) -> None:
    """Count a wait."""
    frame = next(f for f in reversed(traceback.extract_stack()) if f.filename not in {__file__, np.__file__})
    WAITS[f"{operation} at {frame.filename}:{frame.lineno}"] += 1


class Device:
    """A device; it has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, number: Any = None) -> None:
        self.id: int = number.id if isinstance(number, Device) else int(number or 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the device."""


class ndarray(NDArrayOperatorsMixin):  # noqa: N801  (CuPy's name)
    """An array: NumPy's, which only this module sees."""

    __module__ = "cupy"
    __slots__ = ("held",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: Any) -> None:
        self.held = np.asarray(held)
        if not self.held.flags.writeable:  # a view, such as a diagonal
            self.held.flags.writeable = True

    device = Device(0)

    def __getattr__(self, name: str) -> Any:
        if name in {"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"}:
            return getattr(self.held, name)
        if name in {"T", "mT", "real"}:
            return ndarray(getattr(self.held, name))
        if name not in METHODS.split():
            raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")
        return _function(name, getattr(self.held, name))

    def sort(self, axis: int = -1, *, kind: str | None = None) -> None:
        """Sort in place."""
        self.held.sort(axis=axis, kind=_stable(kind))

    def argsort(self, axis: int = -1, *, kind: str | None = None) -> ndarray:
        """Order of the entries."""
        return ndarray(self.held.argsort(axis=axis, kind=_stable(kind)))

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        own = getattr(sys.modules["cupy"], ufunc.__name__, None)
        known = all(isinstance(x, (ndarray, np.ndarray, *SCALARS)) for x in inputs)
        return own(*inputs, **options) if known and own is not None and method == "__call__" else NotImplemented

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        space = "cupy.linalg" if function.__module__ == "numpy.linalg" else "cupy"
        own = getattr(sys.modules[space], function.__name__, None)
        if own is None or not all(issubclass(kind, (ndarray, np.ndarray)) for kind in types):
            return NotImplemented
        return own(*arguments, **options)

    def __getitem__(self, key: Any) -> ndarray:
        return ndarray(self.held[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held[_key(key)] = _held(value)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return repr(self.held)

    def __format__(self, specification: str) -> str:
        return format(self.held[()], specification)


def _reading(name: str) -> Callable[[ndarray], Any]:
    """A method that gives Python's or NumPy's numbers, for which CuPy waits."""

    def read(self: ndarray) -> Any:
        _wait(name)
        return getattr(self.held, name)()

    return read


for _name in ("__bool__", "__complex__", "__float__", "__index__", "__int__", "item", "tolist"):
    setattr(ndarray, _name, _reading(_name))
ndarray.get = _reading("copy")  # type: ignore[attr-defined]


def _held(x: Any) -> Any:
    """NumPy's array of an array, also in containers."""
    if isinstance(x, ndarray):
        return x.held
    if isinstance(x, np.ndarray) or hasattr(x, "__recorded__"):
        raise TypeError(f"Unsupported type {type(x)}")
    return type(x)(map(_held, x)) if type(x) in {tuple, list} else x


def _made(x: Any) -> Any:
    """Arrays of NumPy's results, also in containers."""
    if isinstance(x, (np.ndarray, np.generic)):
        return ndarray(x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*map(_made, x))
    return type(x)(map(_made, x)) if isinstance(x, (tuple, list)) else x


def _key(key: Any) -> Any:
    """NumPy's index of an index; CuPy counts the entries of a mask on the host, even to assign one number."""
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, ndarray) and part.dtype == np.bool_:
            _wait("boolean index")
        if isinstance(part, list):
            raise IndexError("CuPy takes no list as an index")
    return _held(key)


def _stable(kind: str | None) -> Any:
    if kind not in {None, "stable"}:
        raise ValueError(f"kind can only be None or 'stable' but got {kind!r}")
    return "stable"


def _function(name: str, of_numpy: Any) -> Callable[..., Any]:
    """A function of NumPy with the refusals of CuPy; without warnings of numbers, which CuPy does not have."""
    missing = MISSING_KEYWORDS[""] | MISSING_KEYWORDS.get(name, frozenset())

    def call(*arguments: Any, **options: Any) -> Any:
        if unknown := missing & options.keys():
            raise TypeError(f"{name}() got an unexpected keyword argument {sorted(unknown)}")
        if name in WAITING.split() or (name == "where" and len(arguments) == 1):
            _wait(name)
        if name in {"argsort", "sort"}:
            options["kind"] = _stable(options.get("kind"))
        if name in {"concat", "concatenate", "stack"} and not all(isinstance(x, ndarray) for x in arguments[0]):
            raise TypeError("Only cupy arrays can be concatenated")
        with np.errstate(all="ignore"):
            result = of_numpy(*map(_held, arguments), **{key: _held(x) for key, x in options.items()})
        out = options.get("out")
        return _made(result) if out is None else out[0] if isinstance(out, tuple) else out

    call.__name__ = call.__qualname__ = name
    return call


def _ufunc(name: str) -> Any:
    """A ufunc of CuPy, with the dtypes of its `at`."""
    of_numpy = getattr(np, name)
    call: Any = _function(name, of_numpy)

    def at(x: ndarray, indices: Any, values: Any) -> None:
        if x.dtype not in {np.dtype(kind) for kind in ("float16", "float32", "float64", "int32", "uint32", "uint64")}:
            raise TypeError(f"`{name}.at` of dtype {x.dtype} is not supported")
        of_numpy.at(x.held, _held(indices), _held(values))

    call.at = at
    return call


def fill_diagonal(a: ndarray, val: Any) -> None:
    """Fill the diagonal of a matrix; NumPy would repeat an array of another length."""
    if isinstance(val, ndarray) and val.size not in {1, min(a.shape)}:
        raise ValueError(f"could not broadcast input array from shape {val.shape} into shape ({min(a.shape)},)")
    np.fill_diagonal(a.held, _held(val))


def _plain(x: Any) -> Any:
    """NumPy's array of nested numbers and arrays."""
    if isinstance(x, (list, tuple)):
        return [_plain(part) for part in x]
    return x.held if isinstance(x, ndarray) else x


def array(obj: Any, dtype: Any = None, copy: Any = True) -> ndarray:  # noqa: FBT002  (CuPy's)
    """Make an array, also from NumPy's."""
    same = isinstance(obj, ndarray) and not copy and dtype in {None, obj.dtype}
    return obj if same else ndarray(np.array(_plain(obj), dtype=dtype))


def asarray(a: Any, dtype: Any = None) -> ndarray:
    """Make an array, unless it is one."""
    return array(a, dtype, copy=False)


def _of_dtypes(of_numpy: Any) -> Callable[..., Any]:
    """A function of arrays and dtypes that gives no array."""
    return lambda *arguments: of_numpy(*(getattr(x, "dtype", x) for x in arguments))


def _module(name: str, **names: Any) -> ModuleType:
    """Make a module that can be imported and found."""
    made = sys.modules[name] = ModuleType(name)
    made.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    vars(made).update(names, __all__=[key for key in names if not key.startswith("_")])
    return made


def install() -> None:
    """Make the stand-in importable as `cupy`."""
    if getattr(sys.modules.get("cupy"), "ndarray", None) is ndarray:
        return
    device = _module("cupy.cuda.device", Device=Device)
    properties = {"totalGlobalMem": 2**34}
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1, getDeviceProperties=lambda _: properties, CUDARuntimeError=RuntimeError
    )
    cuda = _module("cupy.cuda", Device=Device, Stream=type("Stream", (), {}), device=device, runtime=runtime)
    functions = {name: _function(name, getattr(np, name)) for name in FUNCTIONS.split()}
    functions |= {name: _ufunc(name) for name in UFUNCS.split()}
    functions |= {name: _of_dtypes(getattr(np, name)) for name in ("can_cast", "result_type")}
    functions |= {"array": array, "asarray": asarray, "fill_diagonal": fill_diagonal}
    _module(
        "cupy",
        **functions,
        **{name: getattr(np, name) for name in SAME.split()},
        cuda=cuda,
        fft=_module("cupy.fft"),
        linalg=_module("cupy.linalg", **{name: _function(name, getattr(np.linalg, name)) for name in LINALG.split()}),
        ndarray=ndarray,
        __version__=VERSION,
    )


@dataclass(frozen=True, kw_only=True)
class StandIn(CuPy):
    """The adapter of CuPy on the stand-in."""

    library: str = "numpy"
    gpu: bool = False

    def obstacle(self) -> str | None:
        """None: it runs everywhere."""
        return None

    def start(self) -> None:
        """Install the stand-in, in place of CuPy if there is one."""
        install()


VARIANT: Final = StandIn(name="cupy-stand-in")
