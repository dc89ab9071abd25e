"""Calls an operator's C functions by ctypes: `native.open` and `opforge.load` both call so."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import WrongArgument
from ..ir.abi import MAX_RANK
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Param, ScalarParam, TensorParam
from .manifest_reader import ManifestOp
from .shared_library import SharedLibrary

# DLPack's.
CPU, CUDA, ROCM, MANAGED = 1, 2, 10, 13
Sizes = ctypes.c_int64 * MAX_RANK
_FLOATS = {"float": ctypes.c_float, "double": ctypes.c_double}
_INTEGERS: dict[str, Any] = {
    f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


class OpforgeTensor(ctypes.Structure):
    """The library's, which is DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class OperatorCall:
    """One operator, over values in the order of its C parameters; a choice is given by its index.

    `describe` makes the struct of a tensor, given the stream of the call. With `host_memory`,
    CPU memory is passed as that of device 0 of the vendor that the library was built for.
    """

    def __init__(
        self,
        library: SharedLibrary,
        described: ManifestOp,
        describe: Callable[[Any, int], OpforgeTensor],
        *,
        host_memory: bool,
    ) -> None:
        self._library = library
        self._function = described.function
        self._params = described.op.params
        self._outputs = described.op.outputs
        self._describe = describe
        self._host_memory = host_memory
        self._archs = library.contents.archs

    def __call__(
        self,
        values: Sequence[Any],
        *,
        stream: int,
        out: Sequence[Any] | None = None,
        implementation: int | None = None,
    ) -> Any:
        """What the operator returns: outputs that torch allocates, unless `out` has them."""
        forced = [] if implementation is None else [ctypes.c_int(implementation)]
        ending = "_with" if forced else ""
        pairs = zip(self._params, values, strict=True)
        inputs = [*forced, *(self._input(param, value, stream) for param, value in pairs)]
        outputs = self._allocated(ending, inputs) if out is None else out
        passed = [self._tensor("out", output, stream) for output in outputs]
        handle = ctypes.c_void_p(stream)
        self._library.call(self._function + ending, [*inputs, *passed, handle])
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def _input(self, param: Param, value: Any, stream: int) -> Any:
        if isinstance(param, TensorParam):
            return self._tensor(param.name, value, stream)
        return ctypes.c_int(value) if isinstance(param, ChoiceParam) else self._scalar(param, value)

    def _tensor(self, name: str, value: Any, stream: int) -> Any:
        if value is None:
            return None
        try:
            tensor = self._describe(value, stream)
        except WrongArgument as error:
            error.parameter = name
            raise error.locate(self._function, None) from None
        if self._host_memory and tensor.device_type == CPU:
            tensor.device_type, tensor.device_id = gpu_type(self._archs), 0
        return ctypes.byref(tensor)

    def _scalar(self, param: ScalarParam, value: Any) -> Any:
        c = DTYPES[param.dtype].c
        try:
            if c in _FLOATS:
                return _FLOATS[c](float(value))
            number = _INTEGERS[c](operator.index(value))
        except (TypeError, ValueError):
            what = f"is {value!r}, expected a number for {param.dtype}"
        else:
            if number.value == operator.index(value):
                return number
            what = f"is {value!r}, which {param.dtype} does not hold"
        raise WrongArgument(what, op=self._function, parameter=param.name)

    def _allocated(self, ending: str, inputs: list[Any]) -> list[Any]:
        if not self._outputs:
            return []
        filled = [OpforgeTensor(shape=Sizes(), strides=Sizes()) for _ in self._outputs]
        arguments = [*inputs, *map(ctypes.byref, filled)]
        self._library.call(f"{self._function}_outputs{ending}", arguments)
        if importlib.util.find_spec("torch") is None:
            what = "there is no torch to allocate outputs with"
            raise WrongArgument(what, op=self._function, fix="give them as out=")
        return [self._empty(tensor) for tensor in filled]

    def _empty(self, tensor: OpforgeTensor) -> Any:
        """None for an output that the call does not have."""
        if tensor.bits == 0:
            return None
        import torch  # noqa: PLC0415 - only where outputs are allocated

        return torch.empty_strided(
            tensor.shape[: tensor.ndim],
            tensor.strides[: tensor.ndim],
            dtype=_torch_dtypes()[tensor.code, tensor.bits],
            device="cpu" if self._host_memory else torch.device("cuda", tensor.device_id),
        )


@functools.cache
def _torch_dtypes() -> dict[tuple[int, int], Any]:
    import torch  # noqa: PLC0415 - as above

    return {(d.code, d.bits): getattr(torch, d.torch) for d in DTYPES.values()}


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def gpu_type(archs: Sequence[str] = ()) -> int:
    """That of a library for one vendor; else of torch's `cuda` devices, or of the driver here."""
    vendors = {ROCM if arch.startswith("gfx") else CUDA for arch in archs}
    if len(vendors) == 1:
        return vendors.pop()
    torchs = torch_gpu_type()
    # torch for CUDA is what pip installs, also where the GPU is AMD's or there is none.
    for types, mode in (({torchs}, 0), ({CUDA, ROCM}, os.RTLD_NOLOAD), ({CUDA, ROCM}, 0)):
        for type_, file in DRIVERS:
            if type_ in types and _opens(file, mode):
                return type_
    return torchs or CUDA


def torch_gpu_type() -> int | None:
    """That of torch's `cuda` devices; None in a torch for CPUs, or without torch."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.version.hip or torch.version.cuda):
        return None
    return ROCM if torch.version.hip else CUDA


DRIVERS = (
    (CUDA, "libcuda.so.1"),
    *((ROCM, f"libamdhip64.so{version}") for version in ("", ".7", ".6")),
)


def _opens(file: str, mode: int = 0) -> bool:
    try:
        ctypes.CDLL(file, mode=os.RTLD_NOW | mode)
    except OSError:
        return False
    return True


def current_stream(values: Iterable[Any]) -> int:
    """The current stream of torch on the device of the first CUDA tensor."""
    for value in values:
        if is_torch(value) and value.is_cuda:
            return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
    return 0
