"""Namespaces of arrays, by array-api-compat, which only this module imports."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .protocol import Array, Namespace

if TYPE_CHECKING:
    import array_api_compat
else:
    try:  # vendored next to this package
        from ... import array_api_compat
    except ImportError:
        import array_api_compat

_OPTIONAL = frozenset({"columns", "exclude", "mask", "pair_weights", "positives", "weights"})

_UNSUPPORTED = {
    "MaskedArray": "whose mask most functions would ignore: losses take one by mask=",
    "matrix": "whose operators mean something else",
}
"""Names of array subclasses that behave differently, with the reason."""

namespaces: dict[type, Namespace] = {}
_provided: dict[str, Callable[[], Namespace]] = {}  # by the top-level module of the array type


def provide_namespace(module: str, load: Callable[[], Namespace]) -> None:
    """Use the namespace that `load` returns for the arrays of a top-level module, instead of the library's own."""
    _provided[module] = load


def library_namespace(array: Array) -> Namespace:
    """Namespace of the library of `array`, with array-api-compat's corrections."""
    if "torch" in _provided and isinstance(array, getattr(_pytorch(), "Tensor", ())):
        # torch.compile cannot trace str.partition of the module name of nn.Parameter.
        return _provided["torch"]()
    other = next((kind.__name__ for kind in type(array).__mro__ if kind.__name__ in _UNSUPPORTED), None)
    if other is not None:
        raise TypeError(f"expected an array, got a {other}, {_UNSUPPORTED[other]}; convert it to an array first")
    load = _provided.get(type(array).__module__.partition(".")[0])
    if load is not None:
        return load()
    if hasattr(array, "value") and not hasattr(type(array), "__array_namespace__"):
        raise TypeError(f"expected an array, got {_name_of(array)}, which holds one; pass that, as in x[...]")
    try:
        return array_api_compat.array_namespace(array)
    except TypeError as error:
        raise TypeError(
            f"{_name_of(array)} arrays do not say which namespace they belong to (__array_namespace__): their library "
            f"does not follow the array API; convert them to one that does"
        ) from error


def _pytorch() -> Any:
    """PyTorch, or None if it has not been imported."""
    return sys.modules.get("torch")


def is_compiling() -> bool:
    """Whether torch.compile or torch.export traces the caller."""
    compiler = getattr(_pytorch(), "compiler", None)  # another thread may be importing it
    return compiler is not None and bool(compiler.is_compiling())


def is_being_compiled(array: Array) -> bool:
    """Whether torch.compile or torch.export traces operations on `array`.

    Caches are not written then: the change would trigger a recompilation.
    """
    return isinstance(array, getattr(_pytorch(), "Tensor", ())) and is_compiling()


def _name_of(array: Array) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"


def namespace_of(array: Array, *others: Array) -> Namespace:
    """Namespace to compute with: the recording one if an array is on the tape, else the library's."""
    for other in others:
        if not hasattr(array, "__recorded__"):
            array = other if hasattr(other, "__recorded__") else array
    space = namespaces.get(type(array))  # a plain lookup, which torch.compile can trace
    if space is not None:
        return space
    if hasattr(array, "__recorded__"):
        return array.__array_namespace__()  # depends on the recorded array, not on the type
    if hasattr(array, "device_mesh") and hasattr(array, "placements"):
        raise TypeError(
            f"expected an array that is whole in this process, got a {type(array).__name__} with placements "
            f"{array.placements}; pass its to_local(), the rows of this process, or its full_tensor()"
        )
    space = library_namespace(array)
    if not is_being_compiled(array):
        namespaces[type(array)] = space
    return space


def is_array(x: Any) -> bool:
    """Whether `x` is an array of some library; NumPy scalars count as arrays."""
    if type(x) in {int, float}:  # torch.compile refuses hasattr of a symbolic number
        return False
    if isinstance(x, getattr(_pytorch(), "Tensor", ())):
        return True  # `shape` of a nested tensor raises RuntimeError; `common_namespace` refuses it with a message
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_number(x: Any) -> bool:
    """Whether `x` is a real number, Python's or a NumPy scalar."""
    if isinstance(x, (int, float)):
        return not isinstance(x, bool)
    return isinstance(x, numbers.Real)


def device_of(array: Array) -> Any:
    """Device of `array`; None if it has none (a tracer, a sharded array) or may be moved (JAX's uncommitted arrays).

    An array that JAX makes on a named device is tied to it, and so is all that is computed from it.
    """
    device = getattr(array, "device", None)
    if device is None or not getattr(array, "committed", True):
        return None
    return None if hasattr(device, "device_set") else device  # JAX's sharding


def common_namespace(**arrays: Array | None) -> tuple[Namespace, list[Any]]:
    """Return the common namespace of the named arguments, and the arguments as its arrays.

    None is kept if the argument of that name is optional. Arrays of swapped byte order are converted to native order.

    Raises
    ------
    TypeError
        If an argument is no array, is a sparse or nested tensor, or two belong to different libraries.
    ValueError
        If two arrays live on different devices.
    """
    named: list[tuple[str, Array]] = [(name, x) for name, x in arrays.items() if x is not None or name not in _OPTIONAL]
    _check_dense(named)
    if _alike([x for _, x in named]):
        return namespace_of(named[0][1]), [x if x is None else native(x) for x in arrays.values()]
    named = named or list(arrays.items())  # a single argument is not optional
    first_name, first = named[0]
    spaces = [_space_of(name, x) for name, x in named]
    space = next((s for s in spaces if hasattr(s, "base_namespace")), spaces[0])
    base = getattr(space, "base_namespace", space)
    for (name, _), other in zip(named, spaces, strict=True):
        # Also equal by name: the namespace may come from another copy of array-api-compat.
        if getattr(other, "base_namespace", other) is not base and _title(other) != _title(base):
            raise TypeError(
                f"{name}: expected an array of the same library as {first_name}, got {_title(other)} and "
                f"{_title(spaces[0])}; convert one of them"
            )
    device = device_of(first)
    for name, x in named[1:]:
        other_device = device_of(x)
        if device is not None and other_device is not None and other_device != device:
            raise ValueError(
                f"{name}: expected an array on the device of {first_name}, {device}, got one on {other_device}; "
                f"move one of them with {'to(device)' if hasattr(x, 'to') else 'to_device'}"
            )
    converted = [x if x is None else native(x) for x in arrays.values()]
    if space is base:
        return space, converted
    lifted = iter(space.lift_like(*(x for x in converted if x is not None)))
    return space, [None if x is None else next(lifted) for x in converted]


def _check_dense(named: list[tuple[str, Any]]) -> None:
    """Refuse sparse and nested tensors of PyTorch, which lack most functions, and sometimes `shape`."""
    torch = _pytorch()
    if torch is None or torch.compiler.is_compiling():  # `layout` cannot be traced in the backward pass of a Function
        return
    for name, x in named:
        if isinstance(x, torch.Tensor) and (x.layout is not torch.strided or x.is_nested):
            got, remedy = ("a nested one", "to_padded_tensor") if x.is_nested else (str(x.layout), "to_dense")
            raise TypeError(f"{name}: expected a dense tensor, got {got}; convert it with {remedy}")


def cast(x: Array, dtype: Any) -> Array:
    """`x` in a dtype; itself if it has it, so that no operation is recorded."""
    return x if x.dtype == dtype else namespace_of(x).astype(x, dtype)


def native(x: Array) -> Array:
    """`x` in native byte order, which the results of NumPy's functions have."""
    return x if getattr(x.dtype, "isnative", True) else namespace_of(x).astype(x, x.dtype.newbyteorder("="))


def _space_of(name: str, x: Any) -> Namespace:
    """Namespace of an argument, which must be an array."""
    if not is_array(x):
        remedy = "; convert it with asarray first"
        if is_number(x):
            remedy = "" if name in _OPTIONAL else "; options are keywords, as in temperature=..."
        raise TypeError(
            f"{name}: expected an array (NumPy, PyTorch, JAX, CuPy or another array-API library), got "
            f"{type(x).__name__}{'' if x is None else remedy}"
        )
    if type(x).__name__ == "PRNGKeyArray":
        raise TypeError(f"{name}: expected an array of numbers, got random keys of JAX; losses draw nothing")
    try:
        return namespace_of(x)
    except TypeError as error:
        expected = "expected an array of a library that follows the array API, got one of another"
        raise TypeError(
            f"{name}: {error}" if str(error).startswith("expected") else f"{name}: {expected}: {error}"
        ) from error


def _alike(arrays: list[Any]) -> bool:
    """Whether all arrays have the same known type and device and, if recorded, the same tape."""
    if not arrays:
        return False
    first = arrays[0]
    kind = type(first)
    if kind not in namespaces and not hasattr(first, "__recorded__"):
        return False
    device = device_of(first)
    level = getattr(first, "level", None)
    return all(
        type(x) is kind
        and device_of(x) == device
        and (level is None or (x.level == level and x.namespace is first.namespace))
        for x in arrays[1:]
    )


def lift_to_tape(*groups: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """Groups of arrays, all lifted to the tape if one of them is on it."""
    recorded = [x for group in groups for x in group if type(x) not in namespaces and hasattr(x, "__recorded__")]
    if not recorded:
        return list(groups)
    space = namespace_of(recorded[0])
    lifted = iter(space.lift_like(*(x for group in groups for x in group)))
    return [tuple(next(lifted) for _ in group) for group in groups]


def _title(space: Namespace) -> str:
    library: Any = space
    while hasattr(library, "base_namespace"):
        library = library.base_namespace
    name = str(library.__name__)
    return name.rpartition("array_api_compat.")[2].partition(".")[0]
