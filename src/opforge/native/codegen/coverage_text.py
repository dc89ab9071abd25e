"""The names of an operator's implementations, and what each covers, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.case_text import conditions
from ..ir.cases import Bound, Case
from ..ir.dtypes import DTYPES
from ..ir.interface import ChoiceParam, Implementation, Op, TensorParam


def source(implementation: Implementation) -> str:
    """`mylib::add_flat (ops/add/op.py:30)`."""
    where = f" ({implementation.location})" if implementation.location else ""
    return f"{implementation.torch_name or implementation.name}{where}"


def guards(op: Op, index: int) -> str:
    """A line per parameter that is restricted, and per path that is not built.

    x: fp16 or fp32 (T), 2-d (rows, hidden <= 8192), compact
    mode: RELU or NONE
    not where rows > 1000: aten.mm at ops.py:62
    """
    cases = [case for case in op.cases if case.implementation == index]
    declared = dict(op.served_by[index].takes)
    lines: list[str] = []
    for param in op.params:
        if isinstance(param, TensorParam):
            taken = declared.get(param.name) or _tensor(cases, param)
            lines.append(f"{param.name}: {' '.join(taken.split())}")
        elif isinstance(param, ChoiceParam):
            lines.append(f"{param.name}: {_choice(cases, param)}")
    lines += [f"{name}: {declared[name]}" for name in op.outputs if name in declared]
    lines += _bounds(op, cases)
    lines += _conditions(cases)
    return "\n".join(dict.fromkeys(lines)) or "any call"


def _tensor(cases: list[Case], param: TensorParam) -> str:
    """`fp16 or fp32; [m, n]`: what the cases take, each thing once."""
    found = [t for case in cases for t in case.tensors if t.param == param.name]
    present = [t for t in found if t.present]
    dtypes = dict.fromkeys(DTYPES[t.dtype].name for t in present)
    shapes = dict.fromkeys(
        f"[{', '.join(map(str, t.shape))}], {'compact' if t.strides is None else 'any strides'}"
        for t in present
    )
    shown = [f"{' or '.join(dtypes)}, {' or '.join(shapes)}"] if present else []
    return " or ".join([*shown, *(["NULL"] if len(present) < len(found) else [])])


def _choice(cases: list[Case], param: ChoiceParam) -> str:
    taken = {dict(case.choices).get(param.name) for case in cases}
    return " or ".join(label for i, label in enumerate(param.labels) if i in taken)


def _bounds(op: Op, cases: list[Case]) -> Iterator[str]:
    """Of scalars, and of sizes if no declaration says them."""
    said = any(one.takes for one in op.served_by)
    sizes = {str(size) for case in cases for t in case.tensors for size in t.shape}
    for case in cases:
        for bound in case.bounds:
            if bound.var not in sizes or not said:
                yield from _bound(bound)


def _bound(bound: Bound) -> Iterator[str]:
    if bound.values:
        yield f"{bound.var}: {' or '.join(map(str, bound.values))}"
    elif bound.high is not None:
        yield f"{bound.var}: {bound.low} to {bound.high}"
    elif bound.low:
        yield f"{bound.var}: at least {bound.low}"


def _conditions(cases: list[Case]) -> Iterator[str]:
    for case in cases:
        built = [path for path in case.paths if not path.refused]
        if len(built) == 1 and built[0].guards:
            yield f"where {conditions(built[0])}"
        for path in case.paths:
            if path.refused:
                yield f"not where {conditions(path)}: {' '.join(path.why.split())}"
