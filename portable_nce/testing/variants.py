"""The table of variants: one framework on one device in one mode, with its arrays and conversions.

Tests get arrays from their variant and convert results to nested Python lists; they import no framework. Until a
variant is started, this module needs only the standard library, so that noxfile.py can read the table.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .cases import Case

Nested: TypeAlias = Any
"""A number, or a list of nested numbers."""

EXACT_DIGITS = 50
"""Decimal digits of the mparray variant."""

EPS: Mapping[str, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The gap between 1 and the next number, by dtype."""

SMALLEST_NORMAL: Mapping[str, float] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
}
"""The smallest positive number of full precision, by dtype."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One framework on one device in one mode.

    Attributes
    ----------
    name
        Value of ``--variant``.
    module
        Module that must be installed.
    library
        Distribution of the module, as nox installs it.
    gpu
        Whether it needs a GPU.
    dtypes
        Names of the floating-point dtypes that the suite runs in, widest first.
    further_dtypes
        Other dtypes of the library, which another variant runs in.
    compiles
        Whether every operation is compiled for every shape and dtype, so that new shapes are expensive.
    index_dtype
        Integer dtype of indices and labels.
    largest
        Largest number of rows in a test: exact arithmetic is slow.
    repeats
        Whether it runs the streamed repetitions of dense cases; otherwise another variant of the library does.
    half_products
        Whether 16-bit embeddings are multiplied in 16 bits.
    rank_processes
        Whether ranks are processes, joined by `rank_groups`: threads would block one another on the device.
    slice
        Parts of the names of tests in the default run; all tests if empty.
    cases
        Cases in the default run: all, or one of each form of call, loss and regime, or module and regime.
    harmless
        Warnings of the library that are not errors, as Python filters: ``"ignore:message:category"``.
    """

    name: str
    module: str
    library: str
    gpu: bool = False
    dtypes: tuple[str, ...] = ("float64", "float32")
    further_dtypes: tuple[str, ...] = ()
    compiles: bool = False
    index_dtype: str = "int64"
    largest: int = 65
    repeats: bool = True
    half_products: bool = False
    rank_processes: bool = False
    slice: tuple[str, ...] = ()
    cases: Literal["all", "forms", "losses", "modules"] = "losses"
    harmless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what would fail far from here, or run no test."""
        for name in ("dtypes", "further_dtypes", "slice", "harmless"):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name}: expected a tuple, got {value!r}; write a comma: ({value!r},)")
        if not self.dtypes or not {*self.dtypes, *self.further_dtypes} <= EPS.keys():
            got = f"{self.dtypes!r} and further_dtypes={self.further_dtypes!r}"
            raise ValueError(f"dtypes: expected at least one of {', '.join(EPS)}, got {got}")

    def obstacle(self) -> str | None:
        """Reason why this variant cannot run here, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"the module {self.module!r} is not installed"
        return None

    def start(self) -> None:
        """Configure the framework, once per process, before its first array."""

    def active(self) -> AbstractContextManager[Any]:
        """Context of one test: settings that other variants of the library must not see."""
        return nullcontext()

    def rank_groups(self, rank: int, size: int, store: Path, timeout: float) -> Callable[[int], Any]:
        """Join processes that meet at the file `store`; return the groups of the first ranks, by their number.

        A group has the methods of `portable_nce.Communicator`, and raises a RuntimeError after `timeout` seconds.
        """
        raise NotImplementedError(f"{self.name}: expected the method rank_groups, since its ranks are processes")

    @property
    def xp(self) -> Any:
        """The framework's namespace."""
        return importlib.import_module(self.module)

    @property
    def device(self) -> Any:
        """Device of every array of this variant; None for the framework's default."""
        return None

    @property
    def other_device(self) -> Any:
        """A second device for tests of mismatches; None if there is only one."""
        return None

    def dtype(self, name: str) -> Any:
        """The framework's dtype of that name."""
        return getattr(self.xp, "bool_" if name == "bool" and not hasattr(self.xp, "bool") else name)

    def array(self, nested: Nested, dtype: str | None = None, *, device: Any = None) -> Any:
        """Make an array: floats in ``dtype`` (default: the widest), booleans and integers in their own dtype."""
        kind = kind_of(nested)
        name = {"bool": "bool", "int": self.index_dtype}.get(kind, dtype or self.dtypes[0])
        if kind == "int" and dtype is not None and dtype not in EPS:
            name = dtype
        return self.place(nested, name, self.device if device is None else device)

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        """Make an array of exactly this dtype on exactly this device."""
        return self.xp.asarray(nested, dtype=self.dtype(dtype), device=device)

    def floats(self, nested: Nested, dtype: str | None = None) -> Any:
        """Make a floating-point array, also from integers."""
        return self.place(nested, dtype or self.dtypes[0], self.device)

    def to_list(self, x: Any) -> Nested:
        """Nested Python numbers of an array: floats, or mpf where the array holds more digits."""
        if hasattr(x, "tolist"):  # not in the standard
            return x.tolist()
        if len(x.shape):
            return [self.to_list(x[k, ...]) for k in range(x.shape[0])]
        number = {"bool": bool, "integral": int, "real floating": float}
        return next(convert(x) for kind, convert in number.items() if self.xp.isdtype(x.dtype, kind))

    def eps(self, dtype: str | None = None) -> float:
        """Machine epsilon of the arithmetic used for this dtype (default: the widest)."""
        return EPS[dtype or self.dtypes[0]]

    def device_of(self, x: Any) -> Any:
        """Device of an array, comparable with ``device``."""
        return getattr(x, "device", None)


def kind_of(nested: Nested) -> str:
    """Kind of nested numbers (booleans, integers or floats), by the first of them."""
    while isinstance(nested, Sequence):
        if not nested:
            return "float"
        nested = nested[0]
    return "bool" if isinstance(nested, bool) else "int" if isinstance(nested, int) else "float"


@dataclass(frozen=True, kw_only=True)
class NumPy(Variant):
    """NumPy, optionally with read-only arrays."""

    module: str = "numpy"
    library: str = "numpy"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16")
    cases: Literal["all", "forms", "losses", "modules"] = "all"
    writeable: bool = True

    @property
    def device(self) -> Any:
        return "cpu"

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        del device
        x = self.xp.array(nested, dtype=self.dtype(dtype))
        x.flags.writeable = self.writeable
        return x


@dataclass(frozen=True, kw_only=True)
class Strict(Variant):
    """array-api-strict: only what the standard guarantees exists."""

    module: str = "array_api_strict"
    library: str = "array-api-strict"
    device_name: str = "CPU_DEVICE"
    flags: Mapping[str, Any] | None = None

    def start(self) -> None:
        if self.flags is not None:
            latest = importlib.import_module("array_api_strict._flags").supported_versions[-1]
            self.xp.set_array_api_strict_flags(api_version=latest, **self.flags)

    @property
    def device(self) -> Any:
        return self.xp.Device(self.device_name)

    @property
    def other_device(self) -> Any:
        return self.xp.Device("device2")

    def to_list(self, x: Any) -> Nested:
        numpy = importlib.import_module("numpy")
        return numpy.asarray(x.to_device(self.xp.Device("CPU_DEVICE"))).tolist()


@dataclass(frozen=True, kw_only=True)
class Torch(Variant):
    """PyTorch, eager."""

    module: str = "torch"
    library: str = "torch"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    device_type: str = "cpu"

    def obstacle(self) -> str | None:
        if (reason := super().obstacle()) is not None:
            return reason
        if self.device_type == "cuda" and not self.xp.cuda.is_available():
            return "PyTorch finds no CUDA device (torch.cuda.is_available() is False)"
        return None

    def start(self) -> None:
        self.xp.set_float32_matmul_precision("highest")
        self.xp.set_num_threads(1)  # thousands of small operations

    @property
    def device(self) -> Any:
        return self.xp.device(self.device_type, 0) if self.device_type == "cuda" else self.xp.device(self.device_type)

    @property
    def other_device(self) -> Any:
        return self.xp.device("cpu" if self.device_type == "cuda" else "meta")

    def rank_groups(self, rank: int, size: int, store: Path, timeout: float) -> Callable[[int], Any]:
        distributed = importlib.import_module("torch.distributed")
        # gloo, since NCCL takes one rank for each device.
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        limit = timedelta(seconds=timeout)
        groups = {count: distributed.new_group(range(count), timeout=limit) for count in range(1, size + 1)}
        communicator = importlib.import_module(
            f"{__name__.rpartition('.testing.')[0]}.backends.torch_ranks"
        ).communicator
        return lambda count: communicator(groups[count])

    def to_list(self, x: Any) -> Nested:
        return x.detach().cpu().tolist()


@dataclass(frozen=True, kw_only=True)
class TorchBlind(Torch):
    """PyTorch on the CPU as on a GPU: no entry can be read, and tiles are those of an accelerator.

    With `half_products`, it emulates the 16-bit products of a GPU: inputs are rounded, sums are float32. With
    `fused_steps`, the steps of all sweeps are compiled, without generating kernels.
    """

    fused_steps: bool = False

    @contextmanager
    def active(self) -> Iterator[None]:
        package = __name__.rpartition(".testing.")[0]
        adapter = importlib.import_module(f"{package}._core.registry").adapter_of(self.xp.zeros(1))
        replaced = {"reads_values": False, "concrete_value": _none, "concrete_values": _none}
        with ExitStack() as stack:
            for name, value in replaced.items():
                stack.enter_context(mock.patch.object(adapter, name, value))
            for name in CHOOSE_BY_DEVICE:
                module = importlib.import_module(f"{package}.{name}")
                stack.enter_context(mock.patch.object(module, "on_accelerator", _true))
            if self.half_products:
                devices = {*adapter.half_devices, "cpu"}
                stack.enter_context(mock.patch.object(adapter, "half_devices", devices))
            if self.fused_steps:
                fusing = importlib.import_module(f"{package}._execution.fusing")
                compiler = importlib.import_module(f"{package}.backends.torch_fused")
                for owner, name, value in (
                    (adapter, "fused_devices", {"cpu"}),
                    (compiler, "BACKEND", "aot_eager"),
                    (fusing, "pays_to_fuse", _pays),
                    (importlib.import_module(f"{package}._execution.choice"), "pays_to_fuse", _pays),
                ):
                    stack.enter_context(mock.patch.object(owner, name, value))
                stack.enter_context(mock.patch.dict(fusing.STEPS, clear=True))
                stack.callback(fusing.fuse_steps, fusing.fuse_steps(enabled=True))
            # The keys of kept choices do not contain what is replaced.
            stack.enter_context(mock.patch.dict(importlib.import_module(f"{package}._core.calls").KINDS, clear=True))
            yield


@dataclass(frozen=True, kw_only=True)
class TorchFused(Torch):
    """PyTorch, with the steps of sweeps of any size compiled."""

    @contextmanager
    def active(self) -> Iterator[None]:
        package = __name__.rpartition(".testing.")[0]
        fusing = importlib.import_module(f"{package}._execution.fusing")
        with ExitStack() as stack:
            for module in (fusing, importlib.import_module(f"{package}._execution.matrix")):
                stack.enter_context(mock.patch.object(module, "pays_to_fuse", _pays))
            stack.callback(fusing.fuse_steps, fusing.fuse_steps(enabled=True))
            yield


def _none(_: Any) -> None:
    """None, for any array."""


def _pays(*_: int, **__: bool) -> bool:
    """True, for any shape."""
    return True


def _true(_: Any) -> bool:
    """True, for any array; a mock could not be compiled."""
    return True


CHOOSE_BY_DEVICE = ("_core.checks", "_execution.fusing", "_execution.tiling")
"""Modules that ask whether an array is on an accelerator."""


@dataclass(frozen=True, kw_only=True)
class Jax(Variant):
    """JAX, eager, with or without 64-bit numbers; on the CPU it uses the second of two devices."""

    module: str = "jax"
    library: str = "jax"
    dtypes: tuple[str, ...] = ("float64",)
    further_dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    compiles: bool = True
    platform: str = "cpu"
    x64: bool = True

    def obstacle(self) -> str | None:
        if (reason := super().obstacle()) is not None:
            return reason
        try:
            self.xp.devices(self.platform)
        except RuntimeError as error:
            return f"JAX finds no {self.platform} device ({error})"
        return None

    def start(self) -> None:
        self.xp.config.update("jax_enable_x64", self.x64)
        self.xp.config.update("jax_default_matmul_precision", "highest")

    @property
    def xp(self) -> Any:
        # Two CPU devices, so that one is not the default; JAX reads this when it first lists devices.
        if self.platform == "cpu" and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
        return importlib.import_module("jax")

    def dtype(self, name: str) -> Any:
        return self.xp.numpy.dtype(name)

    @property
    def device(self) -> Any:
        return self.xp.devices(self.platform)[-1]

    @property
    def other_device(self) -> Any:
        return self.xp.devices("cpu")[0]

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        return self.xp.device_put(self.xp.numpy.asarray(nested, dtype=self.dtype(dtype)), device)


@dataclass(frozen=True, kw_only=True)
class CuPy(Variant):
    """CuPy on a GPU."""

    module: str = "cupy"
    library: str = "cupy"
    gpu: bool = True
    dtypes: tuple[str, ...] = ("float64", "float32", "float16")

    def obstacle(self) -> str | None:
        if (reason := super().obstacle()) is not None:
            return reason
        try:
            count = self.xp.cuda.runtime.getDeviceCount()
        except self.xp.cuda.runtime.CUDARuntimeError as error:
            return f"CuPy finds no CUDA device ({error})"
        return None if count else "CuPy finds no CUDA device"

    @property
    def device(self) -> Any:
        return self.xp.cuda.Device(0)

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        with device:
            return self.xp.asarray(nested, dtype=self.dtype(dtype))


@dataclass(frozen=True, kw_only=True)
class Mlx(Variant):
    """MLX on the CPU, its only device with float64; its arrays have no device."""

    module: str = "mlx"
    library: str = "mlx"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")

    def start(self) -> None:
        self.xp.set_default_device(self.xp.cpu)

    @property
    def xp(self) -> Any:
        return importlib.import_module("mlx.core")

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        del device
        return self.xp.array(nested, dtype=self.dtype(dtype))

    def device_of(self, x: Any) -> Any:
        del x


@dataclass(frozen=True, kw_only=True)
class MPArray(Variant):
    """mparray: numbers of any number of digits, under the name float64."""

    module: str = "mparray"
    library: str = "mparray"
    dtypes: tuple[str, ...] = ("float64",)
    largest: int = 8

    def start(self) -> None:
        importlib.import_module("mpmath").mp.dps = EXACT_DIGITS

    @property
    def device(self) -> Any:
        return "cpu"

    def place(self, nested: Nested, dtype: str, device: Any) -> Any:
        # NumPy makes an object array of a list with mpf numbers unless a dtype is given.
        return self.xp.asarray(nested, dtype=importlib.import_module("numpy").dtype(dtype), device=device)

    def to_list(self, x: Any) -> Nested:
        return x._data.tolist()  # noqa: SLF001  (the library has no public access to its digits)

    def eps(self, dtype: str | None = None) -> float:
        del dtype
        return 10.0 ** (1 - EXACT_DIGITS)


STRICTEST: Mapping[str, Any] = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        NumPy(name="numpy"),
        NumPy(name="numpy-readonly", writeable=False),
        Strict(name="array-api-strict"),
        Strict(name="array-api-strict-strictest", flags=STRICTEST, device_name="device1"),
        Strict(name="array-api-strict-device", device_name="device1"),
        Torch(name="torch"),
        TorchBlind(
            name="torch-blind",
            cases="forms",
            slice=("values_and_gradients", "saturation", "thirty_two", "awkward", "ranks"),
        ),
        TorchBlind(
            name="torch-halves",
            dtypes=("float32", "float16", "bfloat16"),
            further_dtypes=("float64",),
            half_products=True,
            cases="forms",
            slice=("values_and_gradients", "saturation", "thirty_two", "awkward", "ranks"),
        ),
        Torch(name="torch-cuda", device_type="cuda", gpu=True, half_products=True, rank_processes=True),
        Jax(
            name="jax-x64",
            slice=(
                *("test_case", "value_and_grad.py", "dtypes.py", "bad_input", "bounds_and_density", "streamed"),
                *(
                    "out_of_range",
                    "ranks",
                    "masked",
                    "minus_infinity",
                    "nothing_is_left",
                    "last_that_were_pushed",
                    "no_gradient",
                    "among_the_keys",
                ),
            ),
        ),
        Jax(
            name="jax-x32",
            x64=False,
            dtypes=("float32", "float16", "bfloat16"),
            further_dtypes=(),
            index_dtype="int32",
            repeats=False,
            cases="modules",
            slice=("test_case", "sixteen", "saturation", "every_dtype", "queue_keeps", "holds_the_last"),
        ),
        Jax(name="jax-cuda", platform="cuda", gpu=True, half_products=True),
        CuPy(name="cupy"),
        Mlx(name="mlx"),
        MPArray(
            name="mparray",
            slice=(
                *("values_and_gradients", "value_and_grad.py", "dtypes.py", "awkward", "bad_input"),
                *("density.py::test_dual_critic", "log_n_ceiling", "standard_error"),
            ),
        ),
    )
}
"""All variants of the package, by name."""

FUSED = TorchBlind(
    name="torch-fused",
    dtypes=("float32", "bfloat16"),
    further_dtypes=("float64", "float16"),
    half_products=True,
    fused_steps=True,
)
"""PyTorch with compiled steps, as ``--variant portable_nce.testing.variants:FUSED``: each case takes seconds."""


FUSED_CUDA = TorchFused(
    name="torch-cuda-fused",
    device_type="cuda",
    gpu=True,
    half_products=True,
    dtypes=("float32", "bfloat16"),
    further_dtypes=(),
)
"""Likewise on CUDA, with the kernels."""


class UnknownVariantError(LookupError):
    """Raised for an unknown variant name, with the reason."""


_OTHERS: dict[str, Variant] = {}
"""Variants found as ``module:attribute``, by name."""


def find_variant(name: str) -> Variant:
    """Return the variant of a name, or of a third party's ``module:attribute``, which then has a name as well."""
    known = VARIANTS.get(name) or _OTHERS.get(name)
    if known is not None:
        return known
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise UnknownVariantError(f"no such variant; expected module:attribute or one of: {', '.join(VARIANTS)}")
    try:
        variant = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnknownVariantError(str(error)) from error
    if not isinstance(variant, Variant):
        raise UnknownVariantError(f"expected an instance of portable_nce.testing.Variant, got {type(variant).__name__}")
    if (VARIANTS.get(variant.name) or _OTHERS.setdefault(variant.name, variant)) is not variant:
        raise UnknownVariantError(f"its name, {variant.name!r}, is that of another variant")
    return variant


@cache
def started(name: str) -> Variant:
    """Return the variant of that name, with its framework configured."""
    variant = find_variant(name)
    variant.start()
    return variant


def generator(seed: int) -> random.Random:
    """Random number generator of a seed."""
    return random.Random(seed)


class ForeignArray:
    """Array of a library that no variant has, for tests of mixed namespaces; it has no entries."""

    dtype = "float64"
    device = "cpu"

    def __init__(self, nested: Nested) -> None:
        self.shape: tuple[int, ...] = ()
        while isinstance(nested, list):
            self.shape = (*self.shape, len(nested))
            nested = nested[0]

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return _FOREIGN


_FOREIGN = ModuleType("foreign_library")
vars(_FOREIGN).update(
    {name: name for name in ("bool", "int64", "float32", "float64")},
    isdtype=lambda dtype, kind: kind == "real floating" and dtype.startswith("float"),
)


def flatten(nested: Nested) -> list[Any]:
    """List the numbers of a nested list in row-major order."""
    if isinstance(nested, Sequence):
        return [number for item in nested for number in flatten(item)]
    return [nested]


def case_arrays(variant: Variant, case: Case, dtype: str) -> list[Any]:
    """Make the arrays of a case, in the order of its function's parameters."""
    arguments = [variant.floats(nested, dtype) for nested in case.arguments.values()]
    return arguments + [variant.array(nested, dtype) for nested in case.constants.values()]


def assert_belongs(variant: Variant, result: Any, example: Any, shape: tuple[int, ...]) -> None:
    """Assert that a result is an array of this shape, and of the example's library, dtype and device.

    On JAX it is tied to its device only if the example is. It need not be: JAX ties no gradient to a device that does
    not depend on the argument, but makes zeros on the default device.
    """
    namespace = importlib.import_module(f"{__name__.rpartition('.testing.')[0]}._core.namespace").library_namespace
    assert namespace(result) is namespace(example)
    assert type(result) is type(example)
    assert tuple(result.shape) == shape
    assert result.dtype == example.dtype
    device = variant.device_of(example) if variant.device is None else variant.device
    found = variant.device_of(result)
    assert found == device, f"device of the result: expected {device!r}, got {found!r}"
    tied, may_be = (getattr(x, "committed", None) for x in (result, example))
    assert may_be or not tied, f"tied to a device: expected {may_be}, got {tied}"


def differentiate(
    function: Callable[..., Any], arrays: Sequence[Any], count: int | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """Value and gradients of a function with respect to its first arguments (default: all)."""
    argnums = tuple(range(len(arrays) if count is None else count))
    from ._package import pnce

    value, gradients = pnce.value_and_grad(function, argnums=argnums)(*arrays)
    return value, gradients


@cache
def _case_table(rows: int) -> Mapping[str, Case]:
    from .cases import make_cases

    return {case.name: case for case in make_cases(rows)}


def case_named(name: str, rows: int = 3) -> Case:
    """The case of that name, at a size."""
    return _case_table(rows)[name]
