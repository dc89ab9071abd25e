"""Functions of torch that a trace answers itself, before torch takes them apart in C++.

There a traced tensor is not on the GPU, so that `x.cuda()` would be a copy, and `torch.tensor`
wants plain numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from ..._compat.tracing import Traced
from ..symbolic.symint import is_symbolic
from .torch_calls import calls, matmul


def _to(x: Traced, *args: Any, **kwargs: Any) -> Any:
    """`x.to(...)` without the GPU, on which x is."""
    if args and isinstance(args[0], Traced):
        args = (args[0].dtype, *args[1:])
    if args and _is_gpu(args[0]):
        args = args[1:]
    elif _is_gpu(kwargs.get("device")):
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    if args and args[0] is None:
        args = (x.dtype, *args[1:])
    if not args and "dtype" not in kwargs:
        kwargs["dtype"] = x.dtype
    return torch.Tensor.to(x, *args, **kwargs)


def _cuda(x: Traced, device: Any = None, *_: Any, **kwargs: Any) -> Any:
    given = isinstance(device, (str, torch.device))
    return _to(x, device if given else torch.device("cuda", device or 0), **kwargs)


def _is_gpu(given: Any) -> bool:
    return isinstance(given, (str, torch.device)) and calls.is_gpu(torch.device(given))


def _tensor(data: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if is_symbolic(data):
        return torch.full((), data, dtype=dtype, device="cuda")
    return torch.tensor(data, dtype=dtype, **kwargs)


def _new_tensor(x: Traced, data: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return _tensor(data, dtype=dtype or x.dtype, **{"device": x.device, **kwargs})


FUNCTIONS: dict[Any, Any] = {
    **matmul.FUNCTIONS,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.new_tensor: _new_tensor,
    torch.tensor: _tensor,
}
