"""Flattens tensor lists for autograd, which tracks only tensors that are arguments themselves.

[a, [b, c], 3]  <->  [a, b, c, 3] with counts [None, 2, None]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

Counts = list[int | None]


def expand(values: Sequence[Any]) -> tuple[list[Any], Counts]:
    """Flatten the tensor lists among the values; lists without a tensor stay as they are."""
    expanded: list[Any] = []
    counts: Counts = []
    for value in values:
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            expanded += value
            counts.append(len(value))
        else:
            expanded.append(value)
            counts.append(None)
    return expanded, counts


def regroup(expanded: Sequence[Any], counts: Counts) -> list[Any]:
    """The inverse of `expand`."""
    values = iter(expanded)
    return [next(values) if n is None else list(itertools.islice(values, n)) for n in counts]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of one argument: itself, its elements, or none."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    return [v for v in value if isinstance(v, torch.Tensor)]
