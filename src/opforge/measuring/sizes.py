"""The sizes at which an op is measured, the user's or the declared ones, and a call at each.

--sizes m=1,16,256     the size m            --sizes x.shape[0]=8,64   one of a `...`
--sizes x.shape=8,64   every size of a `...` of x; likewise s of `*s`
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import BadOption
from ..native.frontend.expand import Declared
from ..native.ir.cases import Bound, Case, TensorCase
from ..native.ir.dtypes import DTYPES
from ..native.ir.expr import evaluate
from ..native.ir.interface import ScalarParam

Sizes = Mapping[str, Sequence[int]]


def parse(texts: Iterable[str]) -> dict[str, list[int]]:
    """`("m=1,16", "n=4096")` -> `{"m": [1, 16], "n": [4096]}`."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        try:
            numbers = [int(v) for v in values.split(",")]
        except ValueError:
            numbers = []
        if not equals or not name.strip() or not numbers:
            raise BadOption(f"--sizes {text} cannot be read", fix="--sizes m=1,16,256,4096")
        if min(numbers) < 1:
            raise BadOption(
                f"--sizes {text} has a size below 1, where there is nothing to measure",
                fix="--sizes m=1,16,256,4096",
            )
        found.setdefault(name.strip(), []).extend(numbers)
    return found


@dataclass(frozen=True)
class Point:
    """A case, and a value for each of its sizes and integers."""

    case: Case
    values: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def points(declared: Declared, given: Sizes) -> Iterator[Point]:
    """Every combination of sizes, case by case."""
    for case in declared.cases:
        asked = {b.var: b for b in case.bounds}
        for param in declared.params:
            if isinstance(param, ScalarParam) and not param.dtype.startswith(("fp", "bf")):
                asked.setdefault(param.name, Bound(param.name, low=-(2**63)))
        tried = {name: _tried(bound, given) for name, bound in asked.items()}
        missing = [name for name, values in tried.items() if not values]
        if missing:
            raise BadOption(
                f"no sizes to measure were given for {', '.join(missing)}",
                fix=" ".join(f"--sizes {n}=1,16,256,4096" for n in missing),
            )
        for name, bound in asked.items():
            _check(bound, tried[name])
        for values in itertools.product(*tried.values()):
            yield Point(case, dict(zip(tried, values, strict=True)))


def _tried(bound: Bound, given: Sizes) -> list[int]:
    for name in (bound.var, bound.var.partition("[")[0]):
        if name in given:
            return list(dict.fromkeys(given[name]))
    if bound.values:
        return [value for value in bound.values if value > 0]
    return [bound.low] if bound.low == bound.high else []


def _check(bound: Bound, values: Sequence[int]) -> None:
    for value in values:
        inside = value >= bound.low and (bound.high is None or value <= bound.high)
        if not inside or (bound.values and value not in bound.values):
            ends = f"{bound.low} to {'any' if bound.high is None else bound.high}"
            allowed = ", ".join(map(str, bound.values)) or ends
            raise BadOption(
                f"{bound.var} = {value} was not declared",
                found=f"declared: {allowed}",
                fix=f"choose --sizes {bound.var} from what is declared, or declare more",
            )


def unused(given: Sizes, ops: Iterable[Declared]) -> list[str]:
    """Names that no op has; they are probably misspelled."""
    known: set[str] = set()
    for declared in ops:
        for case in declared.cases:
            known |= {b.var for b in case.bounds} | {b.var.partition("[")[0] for b in case.bounds}
        known |= {p.name for p in declared.params if isinstance(p, ScalarParam)}
    return [name for name in given if name not in known]


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
