"""Cases, the conditions of their paths and what an implementation covers, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...arch import HIP, Arch
from .abi import ARCH, VENDOR
from .cases import Bound, Case, Path
from .expr import text_of_all
from .interface import ChoiceParam, Implementation, Op, Param, TensorParam

_VENDOR_NUMBER = re.compile(rf"({re.escape(VENDOR)} [!=]= )(\d+)")
_ARCH_NUMBER = re.compile(
    rf"(?P<before>{re.escape(ARCH)} [!=<>]=? )(?P<right>\d+)"
    rf"|(?P<left>\d+)(?P<behind> [!=<>]=? {re.escape(ARCH)})"
)


def describe(case: Case, params: Sequence[Param]) -> str:
    """`x fp16 2-d, w absent, mode 'fast'` for messages."""
    parts = [
        f"{t.param} {t.dtype} {len(t.shape)}-d" if t.present else f"{t.param} absent"
        for t in case.tensors
    ]
    values = {p.name: p.values for p in params if isinstance(p, ChoiceParam)}
    return ", ".join([*parts, *(f"{n} {values[n][i]}" for n, i in case.choices)])


def conditions(path: Path) -> str:
    """The guards of a path: `n != 0 and device.vendor == AMD`."""
    return with_names(text_of_all([guard.condition for guard in path.guards]))


def with_names(condition: str) -> str:
    """For people: `device.vendor == AMD and device.arch == gfx942`."""

    # Only of AMD's GPUs is it asked.
    def arch(found: re.Match[str]) -> str:
        name = Arch(HIP, int(found["right"] or found["left"]))
        return f"{found['before'] or ''}{name}{found['behind'] or ''}"

    named = _VENDOR_NUMBER.sub(lambda m: f"{m[1]}{('NVIDIA', 'AMD')[int(m[2])]}", condition)
    return _ARCH_NUMBER.sub(arch, named)


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
            name = param.name
            absent = any(t.param == name and not t.present for c in cases for t in c.tensors)
            texts = (tensor_text(cases, name), "NULL" if absent else "")
            taken = declared.get(name) or " or ".join(filter(None, texts))
            lines.append(f"{name}: {' '.join(taken.split())}")
        elif isinstance(param, ChoiceParam):
            lines.append(f"{param.name}: {_choice(cases, param)}")
    lines += [f"{name}: {declared[name]}" for name in op.outputs if name in declared]
    lines += _bounds(op, cases)
    lines += _conditions(cases)
    return "\n".join(dict.fromkeys(lines)) or "any call"


def tensor_text(cases: Sequence[Case], name: str) -> str:
    """`fp16 or fp32, [m, n], compact`: what the cases take, each thing once."""
    tensors = [t for case in cases for t in case.tensors if t.param == name and t.present]
    dtypes = dict.fromkeys(t.dtype for t in tensors)
    shapes = dict.fromkeys(
        f"[{', '.join(map(str, t.shape))}], {'compact' if t.strides is None else 'any strides'}"
        for t in tensors
    )
    return f"{' or '.join(dtypes)}, {' or '.join(shapes)}" if tensors else ""


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
