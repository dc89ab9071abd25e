"""Private torch APIs: how an operator passes the levels of torch.func.

`opforge wheel` copies this file into each wheel, so it imports nothing of opforge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# The kernels with which a level takes a call over, and gives it to the next one.
INTO_LEVEL = "FuncTorchDynamicLayerFrontMode"
OUT_OF_LEVEL = "FuncTorchDynamicLayerBackMode"


def around_level(
    library: torch.library.Library,
    name: str,
    key: str,
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Wrap the kernel that torch has for an op at one of these keys."""
    kernel = make(kernel_at(name, key).call_boxed)
    library.impl(name.partition("::")[2], kernel, key, with_keyset=True)


def kernel_at(name: str, key: str) -> Any:
    return torch._C._dispatch_get_computed_kernel_for_dispatch_key(name, key)


def is_differentiated(value: Any) -> bool:
    """Whether a level of `torch.func.grad`, `vjp` or `jvp` follows this tensor."""
    if not isinstance(value, torch.Tensor) or not torch._C._functorch.is_gradtrackingtensor(value):
        return False
    if torch.is_grad_enabled() and value.requires_grad:
        return True
    return torch.autograd.forward_ad.unpack_dual(value).tangent is not None
