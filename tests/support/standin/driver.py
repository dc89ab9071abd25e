"""Builds and steers the stand-ins for libcuda and libamdhip64."""

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def _files(*names: str) -> list[str]:
    return [str(Path(__file__).with_name(f"{name}.c")) for name in names]


SOURCES = _files("gpu", "libcuda", "graphs", "remote", "tensor_maps")
# In one process with libcuda's: each calls its own functions.
FLAGS = (
    "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-Wl,-Bsymbolic",
)  # fmt: skip
LAUNCH_FAILED = 719
# CUDA's numbers; the other stand-in knows them, too.
WARP_SIZE, MULTIPROCESSORS, MAJOR, MINOR, SHARED_OPTIN = 10, 16, 75, 76, 97


@dataclass(frozen=True, eq=False)
class Vendor:
    """What the two stand-ins differ in; `calls` is by CUDA's name, where HIP has another."""

    name: str
    file: str
    sources: list[str]
    # DLPack's number of the device type.
    device_type: int
    calls: dict[str, str]
    errors: dict[int, str]

    def call(self, name: str) -> str:
        """`cuLaunchKernel` -> as this driver calls it."""
        return name if self is NVIDIA else self.calls.get(name, f"hip{name.removeprefix('cu')}")


NVIDIA = Vendor(
    "nvidia", "libcuda.so.1", SOURCES, 2, {},
    {1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 100: "CUDA_ERROR_NO_DEVICE",
     719: "CUDA_ERROR_LAUNCH_FAILED"},
)  # fmt: skip
AMD = Vendor(
    "amd", "libamdhip64.so", _files("gpu", "libamdhip64", "remote"), 10,
    {"cuLaunchKernel": "hipModuleLaunchKernel", "cuMemAllocAsync": "hipMallocAsync",
     "cuMemFreeAsync": "hipFreeAsync", "cuDeviceGetCount": "hipGetDeviceCount",
     "cuStreamGetCtx": "hipStreamGetDevice", "cuMemsetD2D32Async": "hipMemset2DAsync"},
    {1: "hipErrorInvalidValue", 2: "hipErrorOutOfMemory", 100: "hipErrorNoDevice",
     719: "hipErrorLaunchFailure"},
)  # fmt: skip


class Trapped(Exception):
    """A kernel stops the GPU's work."""


class _Record(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("image", ctypes.c_void_p),
        ("function", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("cooperative", ctypes.c_int),
        ("programmatic", ctypes.c_int),
        ("spread", ctypes.c_int),
        ("has_attributes", ctypes.c_int),
        ("in_graph", ctypes.c_int),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
    ]


@dataclass
class Launched:
    """A launch as the driver received it; its parameters can be read only while it runs."""

    device: int
    stream: int
    image: bytes
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: int
    cooperative: bool
    programmatic: bool
    spread: bool
    has_attributes: bool
    in_graph: bool
    _parameters: object = field(repr=False)

    def read(self, index: int, ctype: type) -> object:
        """The index-th argument: `launched.read(3, ctypes.c_int32)`."""
        found = ctypes.cast(self._parameters[index], ctypes.POINTER(ctype)).contents
        if isinstance(found, ctypes.Structure):
            # What it is in lasts as long as the launch.
            return ctype.from_buffer_copy(found)
        return found.value


def image_at(address: int) -> bytes:
    """A cubin, which ends with its section table, or PTX, which ends with a zero byte."""
    if ctypes.string_at(address, 4) != b"\x7fELF":
        return ctypes.string_at(address)
    header = ctypes.string_at(address, 64)
    table = int.from_bytes(header[40:48], "little")
    entry, count = (int.from_bytes(header[i : i + 2], "little") for i in (58, 60))
    # Triton's cubins end in their program headers.
    segments = int.from_bytes(header[32:40], "little")
    size, number = (int.from_bytes(header[i : i + 2], "little") for i in (54, 56))
    return ctypes.string_at(address, max(table + entry * count, segments + size * number))


def build_standin(vendor: Vendor = NVIDIA) -> Path:
    """`libcuda.so.1` in its own folder, for LD_LIBRARY_PATH or to be loaded."""
    return _built(vendor)


@functools.cache
def _built(vendor: Vendor) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="opforge-standin-"))
    library = folder / vendor.file
    sources = [f"-Wl,-soname,{vendor.file}", *vendor.sources]
    subprocess.run(["cc", *FLAGS, *sources, "-o", str(library), "-lpthread"], check=True)
    return library


def load_standin(vendor: Vendor = NVIDIA) -> "StandIn":
    """Loads it into this process, where a library that opens libcuda.so.1 finds it."""
    return _loaded(vendor)


# With and without the argument, it is the same stand-in.
@functools.cache
def _loaded(vendor: Vendor) -> "StandIn":
    mapped = Path("/proc/self/maps").read_text()
    if vendor.file.removesuffix(".1") in mapped:
        raise RuntimeError("this process has that driver already; run these tests in another")
    mode = ctypes.RTLD_GLOBAL if vendor is NVIDIA else ctypes.RTLD_LOCAL
    return StandIn(ctypes.CDLL(str(build_standin(vendor)), mode=mode), vendor)


class StandIn:
    """The tests' view of the driver; `launches` and `calls` are those since `reset`."""

    def __init__(self, library: ctypes.CDLL, vendor: Vendor = NVIDIA) -> None:
        self._library = library
        self.vendor = vendor
        library.standin_stream.restype = ctypes.c_void_p
        library.standin_call.restype = ctypes.c_char_p
        library.standin_allocated.restype = ctypes.c_uint64
        self.launches: list[Launched] = []
        self.errors: list[BaseException] = []
        self.execute: Callable[[Launched], None] | None = None
        # Kept, because C holds only its address.
        self._hook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Record))(self._launched)
        library.standin_on_launch(self._hook)

    def reset(
        self, devices: int = 1, capability: tuple[int, int] = (8, 0), arch: str = "gfx942"
    ) -> None:
        """`capability` is for NVIDIA's devices, `arch` for AMD's."""
        self.launches.clear()
        self.errors.clear()
        self.execute = None
        self.fail(0)
        self.hide(0)
        if self.vendor is NVIDIA:
            self.capture(0)
        self._library.standin_set_current(-1)
        self._library.standin_devices(devices)
        for device in range(max(devices, 1)):
            self.set(device, MAJOR, capability[0])
            self.set(device, MINOR, capability[1])
            self.set(device, MULTIPROCESSORS, 108)
            self.set(device, SHARED_OPTIN, 232448 if capability >= (9, 0) else 166912)
            if self.vendor is AMD:
                self.set_arch(device, arch)
        self.forget_calls()

    def set_arch(self, device: int, arch: str) -> None:
        """Of AMD's: `gfx942`, in full `gfx942:sramecc+:xnack-`."""
        number = int(arch.removeprefix("gfx").partition(":")[0], 16)
        major, minor = number >> 8, number >> 4 & 15
        self.set(device, MAJOR, int(f"{major:x}"))
        self.set(device, MINOR, minor)
        self.set(device, WARP_SIZE, 32 if number >= 0x1000 else 64)
        self.name_arch(device, arch if ":" in arch else f"{arch}:sramecc+:xnack-")

    def name_arch(self, device: int, name: str) -> None:
        """What HIP says of the device, whatever it is."""
        self._library.standin_arch(device, name.encode())

    def set(self, device: int, attribute: int, value: int) -> None:
        self._library.standin_attribute(device, attribute, value)

    def fail(self, nth: int, result: int = 1, name: str | None = None) -> None:
        """Fail the nth call from now, of that name or of any; 0 cancels it."""
        self._library.standin_fail(nth, name.encode() if name else None, result)

    def fail_from(self, nth: int, result: int = 1) -> None:
        """Fail the nth call from now and all that follow, until `fail(0)`."""
        self._library.standin_fail_from(nth, result)

    def hide(self, address: int) -> None:
        """Let an address count as memory of the host, which no device reaches; 0 for none."""
        self._library.standin_unreachable(ctypes.c_uint64(address))

    def stream(self, device: int = 0, *, primary: bool = True) -> int:
        return self._library.standin_stream(device, int(primary))

    def set_current(self, device: int) -> None:
        """Make a device's primary context current, as torch does; -1 for none."""
        self._library.standin_set_current(device)

    @property
    def calls(self) -> list[str]:
        count = self._library.standin_call_count()
        return [self._library.standin_call(i).decode() for i in range(count)]

    def forget_calls(self) -> None:
        self._library.standin_forget_calls()

    @property
    def alive(self) -> dict[str, int]:
        names = ("modules", "allocations", "contexts")
        return {n: getattr(self._library, f"standin_live_{n}")() for n in names}

    @property
    def graphs(self) -> int:
        """CUDA graphs that are there, and their executables."""
        return self._library.standin_graphs()

    @property
    def last_error(self) -> int:
        """What another library in this thread would find after its own launch; HIP's alone."""
        return 0 if self.vendor is NVIDIA else self._library.standin_last_error()

    def capture(self, stream: int) -> None:
        """Let a stream count as captured; 0 for none."""
        self._library.standin_capture(ctypes.c_void_p(stream))

    @property
    def allocated(self) -> int:
        """The bytes of all allocations until now."""
        return self._library.standin_allocated()

    @property
    def depth(self) -> int:
        """Contexts that this thread has pushed and not popped."""
        return self._library.standin_depth()

    def _launched(self, pointer: object) -> int:
        record = pointer.contents
        launched = Launched(
            record.device, record.stream or 0, image_at(record.image), record.function.decode(),
            tuple(record.grid), tuple(record.block), record.shared, record.cluster,
            bool(record.cooperative), bool(record.programmatic), bool(record.spread),
            bool(record.has_attributes), bool(record.in_graph), record.parameters,
        )  # fmt: skip
        self.launches.append(launched)
        try:
            if self.execute is not None:
                self.execute(launched)
        except BaseException as error:  # noqa: BLE001 - it cannot pass through C; tests look here
            if isinstance(error.__cause__, Trapped):
                # A GPU stops when the launch was accepted, and no call succeeds from then on.
                self.fail_from(1, LAUNCH_FAILED)
                return 0
            self.errors.append(error)
            return LAUNCH_FAILED
        return 0
