"""The extension that serves launches, built once, and what it is given."""

import ctypes
import functools
import importlib.util
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from opforge.arch import CUDA, Arch
from opforge.serving.build import build_extension
from opforge.serving.manifest import EXTENSION
from support.native.hand_made import cubin
from support.standin.driver import AMD, Launched, StandIn

READ = {
    "p": ctypes.c_uint64, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64, "fp32": ctypes.c_float, "fp64": ctypes.c_double, "u1": ctypes.c_uint8,
}  # fmt: skip


@functools.cache
def extension() -> ModuleType:
    path = build_extension(Path(tempfile.mkdtemp(prefix="opforge-served-")))
    spec = importlib.util.spec_from_file_location(EXTENSION, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Tensor:
    """What a launch asks of a tensor."""

    dtype: object
    address: int = 0x7000_0000

    def data_ptr(self) -> int:
        return self.address


def param(name, *, constexpr=False, specializes=True, aligns=True, typed=False, **default):
    """A parameter as `Kernel` takes it; `default=...` gives it one."""
    has_default = "default" in default
    return (name, constexpr, has_default, default.get("default"), specializes, aligns, typed)


@dataclass
class Serving:
    """The extension on the stand-in, with what Python does around it."""

    module: ModuleType
    standin: StandIn
    device: int = 0
    stream: int = 0
    handed: list = field(default_factory=list)
    # What people are told of each, and what would help.
    told: list = field(default_factory=list)
    allocated: list = field(default_factory=list)
    # Kept, because only images that exist can be unloaded.
    images: list = field(default_factory=list)

    def __post_init__(self):
        self.configure()

    def configure(self, *hooks):
        vendor = int(self.standin.vendor is AMD)
        functions = (lambda _: self.stream, lambda: self.device, self.allocate)
        self.module.configure(*functions, hooks, vendor)

    def allocate(self, size, align, stream):
        self.allocated.append((size, align, stream))
        return Tensor(None, 0xABC000)

    def hand_over(self, grid, args, kwargs, reason, told, remedy):  # noqa: PLR0917
        self.told.append((told, remedy))
        self.handed.append((grid, args, kwargs, reason))
        return "handed over"

    def image(
        self, symbol="add", archs=(80,), *, threads=128, shared=0, num_ctas=1, cooperative=False,
        scratch=(0, 1), more=(),
    ):  # fmt: skip
        functions = []
        for arch in archs:
            content = cubin(symbol, Arch(CUDA, arch))
            functions.append(
                (arch, content, symbol, threads, shared, num_ctas, cooperative, *scratch, *more)
            )
        self.images.append(self.module.Image(functions))
        return self.images[-1]

    def kernel(self, *params, name="add", watch=(), defaults=None):
        return self.module.Kernel(name, params, self.hand_over, watch, defaults or {})

    def simple(self, dtype, *types, image=None, name="add"):
        """A kernel of `x` and `n`, with one variant per pair of types."""
        kernel = self.kernel(param("x"), param("n"), name=name)
        made = [(pair, image or self.image(name)) for pair in types or [("p", "i32")]]
        kernel.add((), (dtype, "int"), {}, made)
        return kernel

    def read_arguments(self, *types):
        """From now on, what launches get; filled as they happen."""
        seen = []

        def execute(launched: Launched) -> None:
            seen.append(tuple(launched.read(i, READ[t]) for i, t in enumerate(types)))

        self.standin.execute = execute
        return seen
