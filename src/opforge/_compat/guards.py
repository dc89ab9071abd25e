"""Private torch APIs: whether the dispatcher would do more to a call than find a kernel.

What a thread has switched on (levels of torch.func, autocast, tracing, inference mode) is in the
keys of its calls, and torch's own guards for tensors compare these.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from .dispatcher import backend_key, backend_of, without_key

# What guards do not see. A profiler and function modes have no key. Modes have one, which is left
# out of account while torch's own mode for make_fx is on (torch 2.11 to 2.15).
count_modes = torch._C._len_torch_dispatch_stack
is_profiled = torch._C._autograd._profiler_enabled
has_function_modes = torch._C._is_torch_function_mode_enabled
increment_versions = torch._C._increment_version

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_Key = torch._C.DispatchKey


class Absent(torch.Tensor):
    """Stands for None where a tensor may be; no other tensor has this type."""


def absent() -> torch.Tensor:
    return torch.empty(0, device="cpu").as_subclass(Absent)


class Keys:
    """The keys of a call, read off its tensors and the thread, as the dispatcher reads them.

    `passed`: a key that the op has no kernel at, and passes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], passed: str) -> None:
        given = functools.reduce(operator.or_, map(torch._C._dispatch_keys, tensors))
        included = torch._C._dispatch_tls_local_include_set()
        keys = (given | included) - torch._C._dispatch_tls_local_exclude_set()
        below = keys.remove(_Key.AutogradFunctionality)
        self.has_autograd = below.raw_repr() != keys.raw_repr()
        self.counts_writes = keys.has(_Key.ADInplaceOrView)
        if hasattr(_Key, passed):
            below = below.remove(getattr(_Key, passed))
        self.below = below.remove(_Key.ADInplaceOrView).remove(_Key.BackendSelect)

    def backend(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The key of the dense backend that a call of plain tensors comes to; None for others."""
        backend = backend_of(self.below)
        is_dense = backend == backend_key(tensors[0].device.type)
        return backend if is_dense else None


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are tensors, and of no subclass."""
    return all(type(t) in _PLAIN_TYPES for t in tensors)


def guard(tensors: Sequence[torch.Tensor], backend: str) -> Callable[..., bool] | None:
    """A test that tensors, and the thread, are to the dispatcher what these are now.

    It compares types, keys, dtypes, devices, ranks, and `requires_grad`, and keeps none of the
    tensors. None if it does not know them: one tensor given twice is not recognised.
    """
    unknown: list[Any] = [[None] * t.dim() for t in tensors]
    guards: Any = TensorGuards(*tensors, dynamic_dims_sizes=unknown, dynamic_dims_strides=unknown)
    check: Callable[..., bool] = guards.check
    with without_key(backend):
        overlooks_keys = check(*tensors)
    return check if check(*tensors) and not overlooks_keys else None
