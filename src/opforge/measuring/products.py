"""Products that an op makes with torch, as launches of the kernel that a library has for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .. import _compat
from ..arch import HOPPER
from ..errors import OpforgeError
from ..native.device.gemm import FULL_TUNER, HALF_TUNER, gemm_kernel
from ..native.frontend.expand import Declared
from ..native.tracing.case_builder import first_walk
from ..native.tracing.launches import first_config
from ..native.tracing.torch_calls.matmul import FUNCTIONS
from ..native.tracing.tracer import nested_body
from ..registry import Entry
from ..tuning.choose import Choice

_ATEN = torch.ops.aten
_TUNERS = {torch.float16: HALF_TUNER, torch.bfloat16: HALF_TUNER, torch.float32: FULL_TUNER}
# Whether a body makes products does not depend on it.
_ARCH = HOPPER


def runs_interpreted() -> bool:
    return bool(_compat.kernels.is_interpreted(gemm_kernel))


def calls_product(entry: Entry, declared: Declared) -> bool:
    """Whether a library of the op would launch the kernel, in one trace of each case."""
    asked: list[Any] = []

    def choose(tuner: Any, arguments: dict[str, Any]) -> Choice:
        asked.append(tuner)
        return first_config(tuner, arguments)

    for case in declared.cases:
        # The build says why a case cannot be traced.
        with contextlib.suppress(OpforgeError):
            first_walk(entry, declared, case, (_ARCH,), choose)
        if any(tuner is own for tuner in asked for own in _TUNERS.values()):
            return True
    return False


def products_by_kernel(device: str) -> AbstractContextManager[None]:
    """Let this thread's `mm` and the like on a device launch the kernel, autotuned."""

    def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        make = _PRODUCTS.get(func)
        if make is not None and _has_kernel(args, device):
            return make(*args, **kwargs)
        body = None if make is not None else nested_body(func)
        if body is None:
            return func(*args, **kwargs)
        # Torch disables a mode while the mode handles a call.
        with products_by_kernel(device):
            return body(*args, **kwargs)

    return _compat.tracing.watching(answer, FUNCTIONS)


def _has_kernel(tensors: tuple[Any, ...], device: str) -> bool:
    *_, a, b = tensors
    return a.dtype in _TUNERS and a.device.type == device and a.numel() > 0 and b.numel() > 0


def _product(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, a_columns, a_line = _lines(a)
    b, b_columns, b_line = _lines(b)
    if c is None:
        c, beta = out, 0.0
    c = c.expand(out.shape)
    c = c if c.stride(-1) == 1 else c.contiguous()
    count = out.shape[0] if out.dim() == 3 else 1
    _TUNERS[a.dtype][lambda meta: (count * meta["down"] * meta["across"],)](
        a, b, c, out, float(alpha), float(beta), m, n, k, _stack(a), a_line, _stack(b), b_line,
        _stack(c), c.stride(-2), A_COLUMNS=a_columns, B_COLUMNS=b_columns,
    )  # fmt: skip
    return out


def _lines(x: Tensor) -> tuple[Tensor, bool, int]:
    """x, whether its columns rather than its rows are dense, and the stride of these lines."""
    if x.stride(-1) != 1 and x.stride(-2) != 1:
        x = x.contiguous()
    columns = x.stride(-1) != 1
    return x, columns, x.stride(-1 if columns else -2)


def _stack(x: Tensor) -> int:
    return x.stride(0) if x.dim() == 3 else 0


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b, None, 1.0, 0.0)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _product(a, b, c, alpha, beta)


_PRODUCTS: dict[Any, Callable[..., Tensor]] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.addmm.default: _addmm,
    _ATEN.baddbmm.default: _addmm,
}
