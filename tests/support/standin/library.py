"""Builds libraries and calls them with torch tensors, in host memory or on a GPU."""

import ctypes
import json
from pathlib import Path

import torch

from opforge.native.artifacts.toolchain import compile_library
from opforge.native.codegen import sources
from opforge.native.ir.abi import MAX_RANK, STATUS_NAMES
from opforge.native.ir.dtypes import DTYPES
from opforge.native.library import ctypes_ops

# DLPack's.
CUDA, ROCM = 2, 10
_SCALARS = {
    "float": ctypes.c_float, "double": ctypes.c_double,
    **{f"int{b}_t": getattr(ctypes, f"c_int{b}") for b in (8, 16, 32, 64)},
    **{f"uint{b}_t": getattr(ctypes, f"c_uint{b}") for b in (8, 16, 32, 64)},
}  # fmt: skip
_BY_TORCH = {getattr(torch, d.torch): d for d in DTYPES.values()}
_BY_CODE = {(d.code, d.bits): getattr(torch, d.torch) for d in DTYPES.values()}


class Refused(Exception):
    """A status other than OK, and its text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class OpforgeTensor(ctypes_ops.OpforgeTensor):
    """Made from torch tensors, and converted back."""

    # DLPack's number of the device type; the fixture of the stand-in sets it.
    gpu = CUDA

    @classmethod
    def of(cls, tensor: torch.Tensor, device: int = 0) -> "OpforgeTensor":
        """Over a tensor's memory; a CPU tensor is described as being on GPU `device`."""
        dtype = _BY_TORCH[tensor.dtype]
        device = tensor.device.index if tensor.is_cuda else device
        made = cls(
            tensor.data_ptr(), cls.gpu, device, tensor.dim(), dtype.code, dtype.bits, 1,
            numbers(tensor.shape), numbers(tensor.stride()), 0,
        )  # fmt: skip
        made.keep = tensor
        return made

    def placed(self) -> "OpforgeTensor":
        """Itself, on the stand-in in use: it may have been made before that was known."""
        if self.device_type in {CUDA, ROCM}:
            self.device_type = self.gpu
        return self

    @classmethod
    def empty(cls) -> "OpforgeTensor":
        """For `_outputs` to fill."""
        return cls(shape=numbers([0] * MAX_RANK), strides=numbers([0] * MAX_RANK))

    def allocate(self, device: torch.device | None = None) -> torch.Tensor:
        dtype = _BY_CODE[self.code, self.bits]
        return torch.empty_strided(self.sizes, self.stride, dtype=dtype, device=device)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[i] for i in range(self.ndim))

    @property
    def stride(self) -> tuple[int, ...]:
        return tuple(self.strides[i] for i in range(self.ndim))


def numbers(values) -> ctypes.Array:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def write(library, folder: Path, **adapters: bool) -> Path:
    """With `torch=True` the torch adapter, too, and so on, as `sources` takes them."""
    for path, content in sources(library, **adapters).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder


def build(library, folder: Path) -> "NativeLibrary":
    """Write, compile and load a program's library."""
    write(library, folder)
    # The tests only need the libraries' results, so they are compiled quickly.
    compile_library(folder, library.name, flags=("-O0",))
    return NativeLibrary(folder, library.name)


class NativeLibrary:
    """A built library; the stand-in treats the memory of CPU tensors as a GPU's."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder
        self.c = ctypes.CDLL(str(folder / "lib" / f"lib{name}.so"))
        for text in ("last_error", "manifest"):
            self.function(text).restype = ctypes.c_char_p
        self.manifest = json.loads(self.function("manifest")())
        self.ops = {op["name"]: op for op in self.manifest["ops"]}

    def function(self, name: str):
        return getattr(self.c, f"{self.name}_{name}")

    def operator(self, op: str, ending: str = ""):
        return getattr(self.c, self.ops[op]["function"] + ending)

    def load(self, device: int = 0) -> None:
        self.check(self.function("load")(device))

    def unload(self, device: int = 0) -> None:
        self.check(self.function("unload")(device))

    def check(self, status: int) -> None:
        if status != 0:
            raise Refused(STATUS_NAMES[status], self.function("last_error")().decode())

    def call(self, op: str, *arguments, stream: int | None = None, device: int = 0) -> None:
        """Inputs, then outputs: torch tensors, OpforgeTensors, numbers, enum positions, None."""
        given = self._arguments(op, arguments, device)
        self.check(self.operator(op)(*given, ctypes.c_void_p(stream)))

    def outputs(self, op: str, *inputs, device: int = 0) -> list[OpforgeTensor]:
        filled = [OpforgeTensor.empty() for _ in self.ops[op]["outputs"]]
        given = self._arguments(op, (*inputs, *filled), device)
        self.check(self.operator(op, "_outputs")(*given))
        return filled

    def workspace(self, op: str, *arguments, device: int = 0) -> int:
        """Inputs, then outputs, as for `call`."""
        found = ctypes.c_int64(-1)
        given = self._arguments(op, arguments, device)
        self.check(self.operator(op, "_workspace")(*given, ctypes.byref(found)))
        return found.value

    def run(self, op: str, *inputs, stream: int | None = None, device: int = 0) -> list:
        """Allocate what `_outputs` says and call; None for an absent output."""
        place = next((i.device for i in inputs if isinstance(i, torch.Tensor)), None)
        made = [
            None if o.bits == 0 else o.allocate(place)
            for o in (self.outputs(op, *inputs, device=device) if self.ops[op]["outputs"] else [])
        ]
        self.call(op, *inputs, *made, stream=stream, device=device)
        return made

    def _arguments(self, op: str, arguments: tuple, device: int) -> list:
        described = self.ops[op]
        kinds = [*described["params"], *({"kind": "tensor"} for _ in described["outputs"])]
        return [_argument(k, a, device) for k, a in zip(kinds, arguments, strict=True)]


def _argument(kind: dict, value, device: int):
    if kind["kind"] == "scalar":
        return _SCALARS[DTYPES[kind["dtype"]].c](value)
    if kind["kind"] == "choice":
        return ctypes.c_int(value)
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        value = OpforgeTensor.of(value, device)
    return ctypes.byref(value)
