"""Array libraries for the commands: opened by name, filled from nested lists, read back as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .._core.checks import nearest
from .._core.protocol import Adapter
from .._core.registry import known_backends, load_backend

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OpenLibrary", "Refused", "Unavailable", "load_adapter", "open_library", "require"]

EXTRAS = ("numpy", "torch", "jax", "cupy", "mlx")


class Unavailable(Exception):  # noqa: N818  (reads better without "Error")
    """A requirement of the command is missing; the message names it and the remedy."""

    status = 1


class Refused(Unavailable):
    """A file or an option cannot be used, as argparse refuses others."""

    status = 2


@dataclass(frozen=True, slots=True)
class OpenLibrary:
    """Working array library.

    Attributes
    ----------
    name : str
        Name of its backend.
    adapter : Adapter
        The backend.
    namespace : module
        Namespace of its functions and dtypes.
    """

    name: str
    adapter: Adapter
    namespace: Any

    def dtype(self, name: str) -> Any:
        """Dtype of that name."""
        return getattr(self.namespace, name) if hasattr(self.namespace, name) else getattr(self.namespace, f"{name}_")

    def asarray(self, values: Any, dtype: str) -> Any:
        """Array from nested lists or a NumPy array, on the library's default device."""
        return self.namespace.asarray(values, dtype=self.dtype(dtype))

    def to_list(self, x: Any) -> Any:
        """Entries as a nested list; needs NumPy for libraries whose arrays have no `tolist`."""
        if self.name == "torch":
            x = x.detach().cpu()
        return x.tolist() if hasattr(x, "tolist") else self.to_numpy(x).tolist()

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """NumPy array of the same values."""
        import numpy as np

        match self.name:
            case "cupy":
                return np.asarray(x.get())
            case "torch":
                return np.asarray(x.detach().cpu())
            case "numpy" | "jax" | "mlx":
                return np.asarray(x)
            case _:
                return np.from_dlpack(x)


def open_library(name: str) -> OpenLibrary:
    """Import a library and its backend; enables 64-bit numbers of JAX in this process.

    Raises
    ------
    Unavailable
        If it is unknown, not installed, does not import, or has no device.
    """
    known = known_backends()
    if name not in known:
        near = nearest(name, known)
        others = "others are served once a distribution announces an adapter by an entry point"
        remedy = near or f"; {_WITHOUT_ARRAY_API.get(name.lower(), others)}"
        raise Unavailable(f"--backend: expected one of {', '.join(known)}, got {name!r}{remedy}")
    try:
        result = find_spec(name)
    except (ImportError, ValueError):
        result = None
    if result is None:
        raise Unavailable(f"the backend {name!r} is not installed; pip install {_package(name)}")
    try:
        if name == "jax":
            import_module("jax").config.update("jax_enable_x64", True)  # noqa: FBT003  (JAX's signature)
        adapter = load_adapter(name)
        namespace = import_module({"jax": "jax.numpy", "mlx": "mlx.core"}.get(name, name))
        if not adapter.devices and name == "cupy":
            raise RuntimeError("CuPy finds no CUDA device")  # noqa: TRY301  (reported like the framework's own errors)
    except Exception as error:
        raise Unavailable(f"the backend {name!r} is installed but does not work: {reason(error)}") from error
    return OpenLibrary(name, adapter, namespace)


_WITHOUT_ARRAY_API: dict[str, str] = dict.fromkeys(
    ("tensorflow", "keras"),
    "TensorFlow does not follow the array API: run Keras on PyTorch or JAX, or pass NumPy arrays",
)
"""Remedies for libraries that cannot be served."""


def _package(name: str) -> str:
    """What pip installs for a backend."""
    return f'"portable_nce[{name}]", or -e ".[{name}]" in a clone' if name in EXTRAS else name


def load_adapter(name: str) -> Adapter:
    """Backend of that name, after importing its library."""
    import_module(name)
    return load_backend(name)


def reason(error: BaseException) -> str:
    """One-line description of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def require(modules: dict[str, str], extra: str) -> None:
    """Check that modules, given as module -> distribution, are installed.

    Raises
    ------
    Unavailable
        If some are missing; the message names them and the extra to install.
    """
    missing = [distribution for module, distribution in modules.items() if find_spec(module) is None]
    if missing:
        raise Unavailable(f'{", ".join(missing)} not installed; pip install "portable_nce[{extra}]"')
