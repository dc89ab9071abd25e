"""Tensors and numbers for one call of an op at given sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..native.frontend.expand import Declared
from ..native.ir.cases import TensorCase
from ..native.ir.dtypes import DTYPES
from ..native.ir.expr import evaluate
from ..native.ir.interface import ScalarParam
from .sizes import Point


def call_of(
    declared: Declared, point: Point, defaults: Mapping[str, Any], device: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`fn(*args, **kwargs)` for a point; a float is its default, or 1.

    Tensors are contiguous. Floats are random; integers are 0, because they may be indices.
    """
    leaves: dict[str, Any] = {}
    for tensor in point.case.tensors:
        if tensor.present:
            leaves[tensor.param] = _tensor(tensor, point.values, device)
    for param in declared.params:
        if isinstance(param, ScalarParam):
            default = defaults.get(param.name)
            default = default if isinstance(default, float) else 1.0
            leaves[param.name] = point.values.get(param.name, default)
    return declared.arguments(point.case, leaves)


def _tensor(tensor: TensorCase, values: Mapping[str, int], device: str) -> torch.Tensor:
    shape = [int(evaluate(term, values)) for term in tensor.shape]
    dtype = getattr(torch, DTYPES[tensor.dtype].torch)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(math.prod(shape) % 2**31)
    return torch.randn(shape, generator=generator, device=device).to(dtype)
