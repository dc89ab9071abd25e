"""Calls of loaded operators with torch tensors by ctypes, where there is no adapter."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import NativeCallFailed, WrongArgument
from ..native.ir.abi import MAX_RANK
from ..native.library.c_call import (
    CPU,
    CUDA,
    OperatorCall,
    OpforgeTensor,
    Sizes,
    current_stream,
    torch_gpu_type,
)
from ..native.library.manifest_reader import ManifestOp
from ..native.library.shared_library import SharedLibrary
from .arguments import DTYPE_OF, CallBinding, uncovered

# Statuses of calls that the library was not built for; with others something is broken.
NOT_COVERED = frozenset({"UNCOVERED", "INVALID_ARGUMENT"})


class Caller:
    """One operator over its flat arguments; raises `Uncovered` where the library does not serve."""

    def __init__(self, library: SharedLibrary, described: ManifestOp, *, host_memory: bool) -> None:
        self._bind = CallBinding(described.op)
        self._names = [param.name for param in described.op.params]
        self._call = OperatorCall(library, described, _describe, host_memory=host_memory)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._bind(args, kwargs)
        values = [given[name] for name in self._names]
        try:
            return self._call(values, stream=current_stream(values))
        except WrongArgument as error:
            raise uncovered(f"{error.op}: {error.parameter} {error.what}") from None
        except NativeCallFailed as error:
            if error.status in NOT_COVERED:
                raise uncovered(str(error), error.status) from None
            raise


def _describe(tensor: torch.Tensor, _stream: int) -> OpforgeTensor:
    dtype = DTYPE_OF.get(tensor.dtype)
    rank = tensor.dim()
    if dtype is None or rank > MAX_RANK:
        what = f"dtype {tensor.dtype}" if dtype is None else f"{rank} dimensions"
        raise WrongArgument(f"has {what}, which no library is built for")
    place = (torch_gpu_type() or CUDA, tensor.get_device()) if tensor.is_cuda else (CPU, 0)
    return OpforgeTensor(
        tensor.data_ptr(), *place, rank, dtype.code, dtype.bits, 1,
        Sizes(*tensor.shape), Sizes(*tensor.stride()), 0,
    )  # fmt: skip
