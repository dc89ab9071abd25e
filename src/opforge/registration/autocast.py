"""Autocast: floating-point inputs are cast, then the op runs with autocast off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption


def read_autocast(option: Any) -> dict[str, torch.dtype]:
    """`torch.float16` -> CUDA and CPU; `{"cuda": torch.bfloat16}` -> CUDA only."""
    if option is None:
        return {}
    chosen = dict(option) if isinstance(option, Mapping) else {"cuda": option, "cpu": option}
    for device, dtype in chosen.items():
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise BadOption(
                f"autocast={option!r}: {dtype!r} is not a floating-point dtype",
                fix="autocast=torch.float16, or autocast={'cuda': torch.bfloat16}",
            )
        if not _has_autocast(device):
            raise BadOption(
                f"autocast={option!r}: no autocast for device {device!r}",
                fix="use a device type such as 'cuda' or 'cpu'",
            )
    return chosen


def _has_autocast(device: Any) -> bool:
    try:
        # torch has it for "cuda:0" as well, and fails when it is to be used.
        return torch.device(device).index is None and torch.amp.is_autocast_available(device)
    except (RuntimeError, TypeError):
        # torch raises for what is not a device type.
        return False


def make_autocast_kernel(overload: Any, device_type: str, dtype: torch.dtype) -> Callable[..., Any]:
    key = _compat.autocast_key(device_type)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _compat.without_key(key):
            cast = [_cast(a, device_type, dtype) for a in args]
            return overload(*cast, **{k: _cast(v, device_type, dtype) for k, v in kwargs.items()})

    return kernel


def _cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = (
            value.is_floating_point()
            and value.device.type == device_type
            and value.dtype is not torch.float64
        )
        return value.to(dtype) if eligible else value
    if isinstance(value, (list, tuple)):
        return [_cast(v, device_type, dtype) for v in value]
    return value
