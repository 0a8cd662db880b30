"""The one door to array-api-compat: which namespace an array belongs to, and whether several belong together."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .protocol import Array, Namespace

if TYPE_CHECKING:
    import array_api_compat
else:
    try:  # beside this package, in one that has taken both over
        from ... import array_api_compat
    except ImportError:
        import array_api_compat

_OPTIONAL = frozenset({"columns", "exclude", "mask", "positives", "weights"})

_OF_OTHER_MEANING = {
    "MaskedArray": "whose mask most functions would ignore: losses take one by mask=",
    "matrix": "whose operators mean something else",
}
"""Subclasses of arrays, by their names, to which functions of arrays do other things; and what."""

namespaces: dict[type, Namespace] = {}
_provided: dict[str, Callable[[], Namespace]] = {}  # by the top-level module of the array type


def provide_namespace(module: str, load: Callable[[], Namespace]) -> None:
    """Take for the arrays of a top-level module the namespace that `load` returns, instead of the library's own."""
    _provided[module] = load


def library_namespace(array: Array) -> Namespace:
    """The namespace of the library that made `array`, with array-api-compat's corrections."""
    if "torch" in _provided and isinstance(array, getattr(_pytorch(), "Tensor", ())):
        # torch.compile cannot read the names of all subclasses: str.partition of nn.Parameter's module is refused.
        return _provided["torch"]()
    other = next((kind.__name__ for kind in type(array).__mro__ if kind.__name__ in _OF_OTHER_MEANING), None)
    if other is not None:
        raise TypeError(f"expected an array, got a {other}, {_OF_OTHER_MEANING[other]}; convert it to an array first")
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
    """PyTorch where it has been imported, or None."""
    return sys.modules.get("torch")


def is_being_compiled(array: Array) -> bool:
    """Whether torch.compile or torch.export traces what is done with `array`.

    What is remembered from call to call is then left as it is: a graph is compiled again once that has changed.
    """
    return isinstance(array, getattr(_pytorch(), "Tensor", ())) and bool(_pytorch().compiler.is_compiling())


def _name_of(array: Array) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"


def namespace_of(array: Array, *others: Array) -> Namespace:
    """The namespace to compute with: the library's own, or the recording one if an array is on the tape."""
    for other in others:
        if not hasattr(array, "__recorded__"):
            array = other if hasattr(other, "__recorded__") else array
    found = namespaces.get(type(array))  # a plain lookup, which torch.compile can follow
    if found is not None:
        return found
    if hasattr(array, "__recorded__"):
        return array.__array_namespace__()  # depends on the array inside, not on the type
    if hasattr(array, "device_mesh") and hasattr(array, "placements"):
        raise TypeError(
            f"expected an array that is whole in this process, got a {type(array).__name__} with placements "
            f"{array.placements}; take its to_local(), the rows of this process, or its full_tensor()"
        )
    found = library_namespace(array)
    if not is_being_compiled(array):
        namespaces[type(array)] = found
    return found


def is_array(x: Any) -> bool:
    """Whether `x` is an array of some library (a NumPy scalar counts as one)."""
    if type(x) in {int, float}:  # torch.compile refuses hasattr of a number that it has made symbolic
        return False
    if isinstance(x, getattr(_pytorch(), "Tensor", ())):
        return True  # a nested one too, whose shape raises a RuntimeError: `common_namespace` refuses it by name
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_number(x: Any) -> bool:
    """Whether `x` is a real number and no array; NumPy's scalars are, to be used with the arrays of any library."""
    if isinstance(x, (int, float)):
        return not isinstance(x, bool)
    return isinstance(x, numbers.Real)


def device_of(array: Array) -> Any:
    """The device of `array`, or None where there is none to speak of (a tracer, a sharded array)."""
    return getattr(array, "device", None)


def on_accelerator(x: Array) -> bool:
    """Whether an array is not on the processor, where a call costs more, and a cache is no measure."""
    device = device_of(x)
    return device is not None and device != "cpu" and "cpu" not in str(device).lower()


def common_namespace(**arrays: Array | None) -> tuple[Namespace, list[Any]]:
    """Return the common namespace of the named arguments, and the arguments as arrays of it.

    None passes through where the argument of that name is optional.

    Arrays of swapped byte order come back in that of the machine.

    Raises
    ------
    TypeError
        If an argument is no array, or a sparse or nested tensor, or two belong to different libraries.
    ValueError
        If two arrays live on different devices.
    """
    named: list[tuple[str, Array]] = [(name, x) for name, x in arrays.items() if x is not None or name not in _OPTIONAL]
    _check_dense(named)
    if _alike([x for _, x in named]):
        return namespace_of(named[0][1]), [x if x is None else native(x) for x in arrays.values()]
    named = named or list(arrays.items())  # an argument alone is not optional, whatever its name
    first_name, first = named[0]
    spaces = [_space_of(name, x) for name, x in named]
    space = next((s for s in spaces if hasattr(s, "base_namespace")), spaces[0])
    base = getattr(space, "base_namespace", space)
    for (name, _), other in zip(named, spaces, strict=True):
        # By name if need be: the namespace may come from another copy of array-api-compat.
        if getattr(other, "base_namespace", other) is not base and _title(other) != _title(base):
            raise TypeError(
                f"{name}: expected an array of the same library as {first_name}, got {_title(other)} beside "
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
    found = [x if x is None else native(x) for x in arrays.values()]
    if space is base:
        return space, found
    lifted = iter(space.lift_like(*(x for x in found if x is not None)))
    return space, [None if x is None else next(lifted) for x in found]


def _check_dense(named: list[tuple[str, Any]]) -> None:
    """None may be a sparse or nested tensor of PyTorch, for which most functions are missing; even `shape` may be."""
    torch = _pytorch()
    if torch is None or torch.compiler.is_compiling():  # which bans `layout` in the backward pass of a Function
        return
    for name, x in named:
        if isinstance(x, torch.Tensor) and (x.layout is not torch.strided or x.is_nested):
            got, remedy = ("a nested one", "to_padded_tensor") if x.is_nested else (str(x.layout), "to_dense")
            raise TypeError(f"{name}: expected a dense tensor, got {got}; convert it with {remedy}")


def native(x: Array) -> Array:
    """`x` in the byte order of the machine, which the results of NumPy's functions have."""
    return x if getattr(x.dtype, "isnative", True) else namespace_of(x).astype(x, x.dtype.newbyteorder("="))


def _space_of(name: str, x: Any) -> Namespace:
    """The namespace of an argument, which must be an array."""
    if not is_array(x):
        remedy = "options are keywords, as in temperature=..." if is_number(x) else "convert it with asarray first"
        raise TypeError(
            f"{name}: expected an array (NumPy, PyTorch, JAX, CuPy or another array-API library), got "
            f"{type(x).__name__}; {remedy}"
        )
    try:
        return namespace_of(x)
    except TypeError as error:  # it has a shape and a dtype, and is no array, or none that is whole, for all that
        expected = "expected an array of a library that follows the array API, got one of another"
        raise TypeError(
            f"{name}: {error}" if str(error).startswith("expected") else f"{name}: {expected}: {error}"
        ) from error


def _alike(arrays: list[Any]) -> bool:
    """Whether these are arrays of a type seen before, on one device and, if recorded, by the same recording."""
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
    """The groups of arrays, all on the tape if one of them is."""
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
