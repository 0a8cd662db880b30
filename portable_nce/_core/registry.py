"""Registry of adapters by array library: built-in table, registrations, entry points.

An adapter is imported with the first array of its library.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from .namespace import is_array, is_being_compiled, library_namespace, namespace_of, provide_namespace
from .protocol import Adapter, Array, Differentiation

ENTRY_POINT_GROUP = "portable_nce.backends"

# Top-level module of an array type -> file of its adapter in backends/.
_BUILT_IN = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "cupy": "cupy",
    "mlx": "mlx",
    "array_api_strict": "generic",
    "mparray": "generic",
}
_ALIASES = {"jaxlib": "jax"}

# Top-level module of an array type -> file of its namespace in backends/; array-api-compat's is slower or missing.
_NAMESPACES = {"numpy": "numpy_namespace", "torch": "torch_namespace", "mlx": "mlx_namespace"}

_NEEDED = [x for x in (*Differentiation.__annotations__, *vars(Differentiation)) if not x.startswith("_")]
"""Required members of an adapter."""

_FUNCTIONS = (  # noqa: SIM905  (a list would take a page)
    "abs all any arange argmax argsort asarray astype bool broadcast_to concat equal exp expand_dims expm1 finfo "
    "float32 float64 floor full full_like greater greater_equal iinfo int32 int64 int8 isdtype isfinite isinf isnan "
    "less less_equal log log1p logical_and logical_not logical_or matmul matrix_transpose max maximum mean min "
    "negative not_equal ones ones_like permute_dims pow reshape searchsorted sort sqrt squeeze stack subtract "
    "sum take tanh where zeros zeros_like"
).split()
"""Members of the array API's namespace that losses use; on ranks also `roll` and `uint8`."""

_registered: dict[str, Adapter | None] = {}  # by module; None for the tape
_loaded: dict[str, Adapter] = {}
adapters: dict[type, Adapter] = {}


def register_backend(module: str, adapter: Differentiation | None = None) -> None:
    """Register the adapter that differentiates the arrays of a module.

    Parameters
    ----------
    module : str
        Top-level module in which the array type is defined, such as ``"numpy"``.
    adapter : object, optional
        Object with a `name` and the methods of `portable_nce.Adapter`. It must have `stop_gradient`, `value_and_grad`,
        `custom_vjp` and `value_and_vjp`; the others have defaults by functions of the array API. None uses the
        package's own reverse-mode tape, which works with any library that follows the array API.

    Raises
    ------
    TypeError
        If `module` is not a string or `adapter` lacks a method without a default.
    ValueError
        If `module` is not the name of a top-level module, or without an adapter cannot be imported; if it is a
        namespace of arrays that lacks functions of the array API.

    Notes
    -----
    A distribution can register its adapter by an entry point in the group ``portable_nce.backends`` whose name is the
    module and whose object is the adapter. It is loaded with the first array of that module.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> pnce.register_backend("array_api_strict")
    """
    if not isinstance(module, str):
        raise TypeError(f"register_backend: expected the name of a module, got {type(module).__name__}")
    if not module.isidentifier():
        raise ValueError(f"register_backend: expected the name of a top-level module, got {module!r}")
    if adapter is None and not _is_importable(module):
        raise ValueError(
            f"register_backend: expected a module that can be imported, got {module!r}, which is not installed"
        )
    if module not in _BUILT_IN and hasattr(sys.modules.get(module), "asarray"):
        _check_complete(sys.modules[module], f"register_backend: expected {module}")
    if isinstance(adapter, type):
        raise TypeError(
            f"register_backend: expected an adapter, got the class {adapter.__name__}; make an instance of it"
        )
    if adapter is not None:
        missing = [name for name in _NEEDED if not hasattr(adapter, name)]
        if missing:
            raise TypeError(
                f"register_backend: expected an adapter, got {type(adapter).__name__} without {', '.join(missing)}"
            )
    _registered[module] = None if adapter is None else _completed(adapter)
    _loaded.pop(module, None)
    adapters.clear()


def backends_available() -> tuple[str, ...]:
    """Return the names of the array libraries that are installed and have an adapter.

    Returns
    -------
    tuple of str
        Module names: built-in ones first, then registered ones, then those of entry points.

    Examples
    --------
    >>> import portable_nce as pnce
    >>> "numpy" in pnce.backends_available()
    True
    """
    return tuple(name for name in known_backends() if _is_importable(name))


def known_backends() -> tuple[str, ...]:
    """Names of the array libraries that have an adapter, installed or not."""
    names = (_ALIASES.get(name, name) for name, file in _BUILT_IN.items() if _is_copied(file))
    return tuple(dict.fromkeys([*names, *_registered, *_entry_points()]))


def _is_copied(file: str) -> bool:
    """Whether the package has the file of an adapter, which a copy in another library may leave out."""
    try:
        return _is_importable(f"{str(__package__).rpartition('.')[0]}.backends.{file}")
    except ModuleNotFoundError:  # a source tree has them beside the package
        return True


def _is_importable(module: str) -> bool:
    from importlib.util import find_spec  # noqa: PLC0415  (not needed to compute anything)

    return sys.modules.get(module) is not None or (module not in sys.modules and find_spec(module) is not None)


def adapter_of(array: Array) -> Adapter:
    """Adapter of the library of `array`."""
    adapter = adapters.get(type(array))
    if adapter is not None:
        return adapter
    recorded = getattr(array, "__recorded__", None)
    if recorded is not None:
        adapter = adapters.get(type(recorded))
        return adapter_of(recorded) if adapter is None else adapter
    if is_being_compiled(array):
        from ..backends.torch_compiler import untraced  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

        return load_backend(untraced(_loaded_library, type(array)))
    library = _loaded_library(type(array))
    if library is not None:
        _check_complete(library_namespace(array), f"x: expected an array of {library}")
        adapters[type(array)] = load_backend(library)
        return adapters[type(array)]
    if not is_array(array):
        raise TypeError(f"x: expected an array, got {type(array).__name__}; convert it with asarray first")
    module = type(array).__module__.partition(".")[0]
    message = f"no backend is registered for {type(array).__module__}.{type(array).__qualname__} arrays"
    try:
        library_namespace(array)
    except TypeError as error:
        message += f": {error}"
    else:
        message += f'; portable_nce.register_backend("{module}") serves them with the built-in tape'
    raise TypeError(message)


def recorder(adapter: Adapter, kernels: Iterable[str], recording: Any) -> Any:
    """Adapter of arrays that record operations, for the library of an adapter."""
    return _import_backend("traced").Recorder(adapter, namespace_of, kernels, recording)


def on_accelerator(x: Array) -> bool:
    """Whether an array is not on the CPU; one without a device (MLX, under jit) is on the default device."""
    device = getattr(x, "device", None)
    if device is None:
        device = next(iter(adapter_of(x).devices), None)
    return device is not None and device != "cpu" and "cpu" not in str(device).lower()


def _check_complete(space: Any, expected: str) -> None:
    """Check that a namespace has what losses use."""
    missing = [name for name in _FUNCTIONS if not hasattr(space, name)]
    if missing:
        some = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")  # noqa: PLR2004  (in one line)
        raise ValueError(
            f"{expected} with the functions of the array API, got a library that lacks {some}; pass arrays of a "
            f"complete one, such as NumPy"
        )


def _loaded_library(kind: type) -> str | None:
    """Module whose adapter, now loaded, serves a type of arrays; None if there is none.

    The adapter of a subclass takes precedence over the adapter of its base.
    """
    for base in kind.__mro__:
        module = base.__module__.partition(".")[0]
        if module in _registered or module in _BUILT_IN or module in _entry_points():
            library = _ALIASES.get(module, module)
            load_backend(library)
            return library
    return None


def communicator_of(group: Any) -> Any:
    """Communicator that a library has for a group of its processes, or None; names are axes of JAX."""
    module = "jax" if isinstance(group, (str, tuple)) else type(group).__module__.partition(".")[0]
    if module not in _BUILT_IN:
        return None
    return load_backend(_ALIASES.get(module, module)).communicator(group)


COMPILER = "torch._dynamo"
"""Module whose compiler traces calls of losses, if it is loaded."""


def outside_of_compiler() -> Callable[..., Any] | None:
    """Function (function, args, options) that calls a function untraced; None if the loaded compiler can trace losses.

    In code that is being compiled, the call then runs between two compiled parts.
    """
    try:  # another thread may be importing it: the statement waits
        from ..backends import torch_compiler  # pyright: ignore[reportMissingImports]  # noqa: PLC0415
    except ImportError:  # a vendored copy without the adapter of torch
        return None
    outside: Callable[..., Any] | None = torch_compiler.outside
    return outside


def load_backend(module: str) -> Adapter:
    """Adapter for the arrays of a module, imported on first use."""
    adapter = _loaded.get(module)
    # Concurrent threads may each load it; all use the first.
    return _loaded.setdefault(module, _load(module)) if adapter is None else adapter


def _load(module: str) -> Adapter:
    adapter: Adapter | None = None
    file = _BUILT_IN.get(module)
    if module in _registered:
        adapter = _registered[module]
    elif file is None:
        adapter = _load_entry_point(module)
    elif file != "generic":
        adapter = _import_backend(file).adapter(namespace_of)
    return _import_backend("generic").adapter(namespace_of, module) if adapter is None else adapter


def _import_backend(file: str) -> Any:
    try:
        if file == "torch":
            from ..backends import torch  # pyright: ignore[reportMissingImports]  # noqa: PLC0415  (torch.compile can trace an import statement, but not import_module)

            return torch
        if file == "torch_namespace":
            from ..backends import torch_namespace  # pyright: ignore[reportMissingImports]  # noqa: PLC0415

            return torch_namespace
        return import_module(f"..backends.{file}", __package__)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and str(error.name).rpartition(".")[2] == "backends":
            _import_folder_beside()
            return _import_backend(file)
        if not _is_copied(file):
            library = file.removesuffix("_namespace")
            raise ImportError(
                f"this copy of portable_nce has no adapter for {library}; copy it again with --library {library}"
            ) from error
        raise


def _import_folder_beside() -> None:
    """Import the folder `backends` of a source tree, which lies beside this package, as the package's own.

    After ``pip install .`` in a clone, Python finds the source tree before the installed package in that folder.
    """
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415  (in a source tree only)
    from pathlib import Path  # noqa: PLC0415

    package = str(__package__).rpartition(".")[0]
    folder = Path(__file__).parents[2] / "backends"
    place = folder / "__init__.py"
    spec = spec_from_file_location(f"{package}.backends", place, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not (folder / "tape.py").is_file():
        raise ImportError(f"{package}.backends: expected the folder of adapters, got none; install the package again")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[package].backends = module  # type: ignore[attr-defined]  # as an import statement does


def _namespace_in(file: str) -> Callable[[], Any]:
    return lambda: _import_backend(file).namespace


for _module, _file in _NAMESPACES.items():
    provide_namespace(_module, _namespace_in(_file))


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # noqa: PLC0415  (slow to import, rarely needed)

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(module: str) -> Adapter | None:
    """Adapter of an entry point, or None with a warning if it does not load."""
    point = _entry_points()[module]
    try:
        announced = point.load()
    except Exception as error:  # noqa: BLE001  (a third party's module may fail in any way)
        warnings.warn(f"the adapter that {point} announces does not load: {error!r}", RuntimeWarning, stacklevel=4)
        return None
    return _completed(announced() if isinstance(announced, type) else announced)


def _completed(adapter: Any) -> Adapter:
    """Adapter completed with defaults."""
    if isinstance(adapter, Adapter):
        return adapter
    completed: Adapter = _import_backend("defaults").Completed(adapter, namespace_of)
    return completed
