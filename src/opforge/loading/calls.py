"""Calls of a library's C functions with torch tensors, by ctypes: for want of an adapter."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ..errors import NativeCallFailed
from ..native.ir.abi import MAX_RANK
from ..native.ir.dtypes import DTYPES
from ..native.ir.interface import ChoiceParam, Op, Param, ScalarParam, TensorParam
from ..native.library.ctypes_ops import FLOATS, INTEGERS, OpforgeTensor
from ..native.library.shared_library import SharedLibrary
from .arguments import DTYPE_OF, TORCH_OF, Binding, uncovered

_CPU, _CUDA = 1, 2
# Statuses of calls that the library was not built for; with others something is broken.
NOT_COVERED = frozenset({"UNCOVERED", "INVALID_ARGUMENT"})
_Sizes = ctypes.c_int64 * MAX_RANK


class Caller:
    """One operator over its flat arguments; raises `Uncovered` where the library does not serve.

    With `host_memory`, memory of the CPU is passed as that of device 0.
    """

    def __init__(self, library: SharedLibrary, op: Op, function: str, *, host_memory: bool) -> None:
        self._library = library
        self._op = op
        self._function = function
        self._bind = Binding(op)
        self._host_memory = host_memory
        self._tensors = [p.name for p in op.params if isinstance(p, TensorParam)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._bind(args, kwargs)
        device = next((given[n].device for n in self._tensors if given[n] is not None), None)
        inputs = [self._lowered(param, given[param.name]) for param in self._op.params]
        made = self._made(inputs, device)
        outputs = [None if t is None else self._tensor("out", t) for t in made]
        stream = ctypes.c_void_p(_stream(device))
        self._call(self._function, [*inputs, *outputs, stream])
        if not self._op.returns:
            return None
        return made[0] if len(made) == 1 else tuple(made)

    def _made(self, inputs: list[Any], device: torch.device | None) -> list[torch.Tensor | None]:
        if not self._op.outputs:
            return []
        filled = [OpforgeTensor(shape=_Sizes(), strides=_Sizes()) for _ in self._op.outputs]
        self._call(f"{self._function}_outputs", [*inputs, *map(ctypes.byref, filled)])
        return [_empty(tensor, device) for tensor in filled]

    def _call(self, function: str, arguments: list[Any]) -> None:
        try:
            self._library.call(function, arguments)
        except NativeCallFailed as error:
            if error.status in NOT_COVERED:
                raise uncovered(str(error), error.status) from None
            raise

    def _lowered(self, param: Param, value: Any) -> Any:
        if isinstance(param, TensorParam):
            return None if value is None else self._tensor(param.name, value)
        if isinstance(param, ChoiceParam):
            return ctypes.c_int(value)
        return self._scalar(param, value)

    def _scalar(self, param: ScalarParam, value: Any) -> Any:
        c = DTYPES[param.dtype].c
        if c in FLOATS:
            return FLOATS[c](value)
        number = INTEGERS[c](value)
        if number.value != value:
            raise uncovered(
                f"{self._function}: {param.name} is {value}, which {param.dtype} does not hold"
            )
        return number

    def _tensor(self, name: str, tensor: torch.Tensor) -> Any:
        dtype = DTYPE_OF.get(tensor.dtype)
        rank = tensor.dim()
        if dtype is None or rank > MAX_RANK:
            what = f"dtype {tensor.dtype}" if dtype is None else f"{rank} dimensions"
            raise uncovered(f"{self._function}: {name} has {what}, which no library is built for")
        place = (_CUDA, tensor.get_device()) if tensor.is_cuda else (_CPU, 0)
        if self._host_memory and tensor.device.type == "cpu":
            place = (_CUDA, 0)
        return ctypes.byref(
            OpforgeTensor(
                tensor.data_ptr(), *place, rank, dtype.code, dtype.bits, 1,
                _Sizes(*tensor.shape), _Sizes(*tensor.stride()), 0,
            )
        )  # fmt: skip


def _empty(tensor: OpforgeTensor, device: torch.device | None) -> torch.Tensor | None:
    """None for an output that the call does not have."""
    if tensor.bits == 0:
        return None
    rank = tensor.ndim
    return torch.empty_strided(
        tensor.shape[:rank],
        tensor.strides[:rank],
        dtype=TORCH_OF[tensor.code, tensor.bits],
        device=torch.device("cuda", tensor.device_id) if device is None else device,
    )


def _stream(device: torch.device | None) -> int:
    if device is None or device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)
