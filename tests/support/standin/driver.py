"""Builds and steers the stand-in libcuda."""

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = [
    str(Path(__file__).with_name(f"{name}.c"))
    for name in ("libcuda", "graphs", "remote", "tensor_maps")
]
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared")
LAUNCH_FAILED = 719
MULTIPROCESSORS, MAJOR, MINOR, SHARED_OPTIN = 16, 75, 76, 97


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


@functools.cache
def build_standin() -> Path:
    """`libcuda.so.1` in its own folder, for LD_LIBRARY_PATH or to be loaded."""
    folder = Path(tempfile.mkdtemp(prefix="opforge-standin-"))
    library = folder / "libcuda.so.1"
    soname = "-Wl,-soname,libcuda.so.1"
    subprocess.run(["cc", *FLAGS, soname, *SOURCES, "-o", str(library), "-lpthread"], check=True)
    return library


@functools.cache
def load_standin() -> "StandIn":
    """Loads it into this process, where a library that opens libcuda.so.1 finds it."""
    mapped = Path("/proc/self/maps").read_text()
    if "libcuda.so" in mapped:
        raise RuntimeError("this process has a CUDA driver already; run these tests in another")
    return StandIn(ctypes.CDLL(str(build_standin()), mode=ctypes.RTLD_GLOBAL))


class StandIn:
    """The tests' view of the driver; `launches` and `calls` are those since `reset`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.standin_stream.restype = ctypes.c_void_p
        library.standin_call.restype = ctypes.c_char_p
        library.standin_allocated.restype = ctypes.c_uint64
        self.launches: list[Launched] = []
        self.errors: list[BaseException] = []
        self.execute: Callable[[Launched], None] | None = None
        # Kept, because C holds only its address.
        self._hook = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Record))(self._launched)
        library.standin_on_launch(self._hook)

    def reset(self, devices: int = 1, capability: tuple[int, int] = (8, 0)) -> None:
        self.launches.clear()
        self.errors.clear()
        self.execute = None
        self.fail(0)
        self.hide(0)
        self.capture(0)
        self._library.standin_set_current(-1)
        self._library.standin_devices(devices)
        for device in range(max(devices, 1)):
            self.set(device, MAJOR, capability[0])
            self.set(device, MINOR, capability[1])
            self.set(device, MULTIPROCESSORS, 108)
            self.set(device, SHARED_OPTIN, 166912)
        self.forget_calls()

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
