"""Runs launches of other programs: they load the stand-in, and it sends them here."""

import contextlib
import ctypes
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .driver import LAUNCH_FAILED, NVIDIA, Vendor, build_standin
from .interpreter import Interpreter

ADDRESS = 0x100000000000
BYTES = 64 << 20
# Of mmap: PROT_READ | PROT_WRITE, and MAP_SHARED | MAP_FIXED.
READ_WRITE, SHARED_FIXED = 3, 0x11


@dataclass(frozen=True)
class Sent:
    """A launch whose parameters came as bytes."""

    image: bytes
    grid: tuple[int, int, int]
    cluster: int
    parameters: tuple[bytes, ...]

    def read(self, index: int, ctype: type) -> object:
        return ctype.from_buffer_copy(self.parameters[index]).value


class Server:
    """`launches` and `errors` are those of one program's run."""

    def __init__(self, interpreter: Interpreter, folder: Path, vendor: Vendor) -> None:
        self.launches: list[Sent] = []
        self.errors: list[BaseException] = []
        self.environment = {
            "LD_LIBRARY_PATH": str(build_standin(vendor).parent),
            "STANDIN_SERVER": str(folder / "socket"),
            "STANDIN_MEMORY": str(folder / "memory"),
        }
        self._interpreter = interpreter
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.environment["STANDIN_SERVER"])
        self._listening.listen()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, connection.makefile("rwb") as stream:
                    while self._answer_one(stream):
                        stream.flush()

    def _refuse_foreign(self, sent: Sent) -> None:
        """Memory that the program has by other means is not in this process."""
        for index, name in self._interpreter.pointers(sent.image):
            address = sent.read(index, ctypes.c_uint64)
            if address and not ADDRESS <= address < ADDRESS + BYTES:
                raise ValueError(
                    f"{name} points to {address:#x}, which the program has not allocated with the "
                    "driver; allocate it with cuMemAlloc or hipMalloc"
                )

    def _answer_one(self, stream) -> bool:
        header = stream.read(40)
        if len(header) < 40:
            return False
        length, x, y, z, cluster = struct.unpack("<5Q", header)
        image = stream.read(length)
        sizes = self._interpreter.parameter_sizes(image)
        stream.write(struct.pack(f"<{1 + len(sizes)}i", len(sizes), *sizes))
        stream.flush()
        sent = Sent(image, (x, y, z), cluster, tuple(stream.read(n) for n in sizes))
        self.launches.append(sent)
        result = 0
        try:
            self._refuse_foreign(sent)
            self._interpreter(sent)
        except BaseException as error:  # noqa: BLE001 - the program is told; tests look here
            self.errors.append(error)
            result = LAUNCH_FAILED
        stream.write(struct.pack("<i", result))
        return True


@contextlib.contextmanager
def serving(interpreter: Interpreter, vendor: Vendor = NVIDIA) -> Iterator[Server]:
    """Start programs with `server.environment` meanwhile."""
    # Short: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="standin-", dir="/tmp") as temporary:
        server = Server(interpreter, Path(temporary), vendor)
        with _shared(server.environment["STANDIN_MEMORY"]):
            thread = threading.Thread(target=server.answer, daemon=True)
            thread.start()
            try:
                yield server
            finally:
                server.close()
                thread.join(10)


@contextlib.contextmanager
def _shared(path: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address, size = ctypes.c_void_p(ADDRESS), ctypes.c_size_t(BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, BYTES)
        found = libc.mmap(address, size, READ_WRITE, SHARED_FIXED, descriptor, ctypes.c_long(0))
    finally:
        os.close(descriptor)
    if found != ADDRESS:
        raise OSError(ctypes.get_errno(), "cannot map the memory that launches share")
    try:
        yield
    finally:
        libc.munmap(address, size)
