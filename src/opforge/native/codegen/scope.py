"""The variables of an operator, and where a call's values hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import BadProgram
from ..ir.cases import Allocate, Case, Fill, Launch, Path, Pointer
from ..ir.device_attributes import is_attribute
from ..ir.dtypes import DTYPES
from ..ir.expr import Term, Var, variables
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .names import distinct

_PART = re.compile(r"(.+)\.(shape|stride)\[(\d+)\]")


@dataclass(frozen=True)
class Place:
    """Where a tensor holds a variable: `views[tensor].shape[dim]`, or its strides."""

    tensor: int
    dim: int
    is_stride: bool = False

    @property
    def c(self) -> str:
        return f"views[{self.tensor}].{'strides' if self.is_stride else 'shape'}[{self.dim}]"


def type_key(dtype: str, rank: int) -> str:
    """By which the runtime tells tensors apart."""
    known = DTYPES[dtype]
    return f"OF_KEY({known.code}, {known.bits}, {rank})"


class OpScope:
    """What the generators of one operator's file look up names in."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.inputs = [p for p in op.params if isinstance(p, TensorParam)]
        self.choices = [p for p in op.params if isinstance(p, ChoiceParam)]
        self.scalars = {p.name: p for p in op.params if isinstance(p, ScalarParam)}
        self.input_index = {p.name: i for i, p in enumerate(self.inputs)}
        self.tensors = [*self.input_index, *op.outputs]
        everything = [
            *self.input_index,
            *op.outputs,
            *self.scalars,
            *(c.name for c in self.choices),
        ]
        repeated = sorted({n for n in everything if everything.count(n) > 1})
        if repeated:
            raise self.error(f"parameters or outputs share the name {repeated[0]!r}")
        self.places = [self._places(case) for case in op.cases]
        used = [name for i in range(len(op.cases)) for name in self.variables(i)]
        names = list(dict.fromkeys([*self.scalars, *used]))
        self.fields = distinct(names)
        self.attributes = [n for n in names if is_attribute(n) and n not in self.scalars]

    def error(self, what: str) -> BadProgram:
        return BadProgram(what, op=self.op.torch_name or self.op.name, location=self.op.location)

    def is_float(self, name: str) -> bool:
        scalar = self.scalars.get(name)
        return scalar is not None and scalar.dtype in {"fp16", "bf16", "fp32", "fp64"}

    def variables(self, number: int) -> list[str]:
        """Every variable that a case binds or computes with, sizes first."""
        case = self.op.cases[number]
        used = [v.name for term in case_terms(case) for v in variables(term)]
        used += [bound.var for bound in case.bounds]
        return list(dict.fromkeys([*self.places[number], *used]))

    def _places(self, case: Case) -> dict[str, Place]:
        """Where each variable of a tensor is first seen."""
        places: dict[str, Place] = {}
        for tensor in case.tensors:
            index = self.input_index[tensor.param]
            for dim, size in enumerate(tensor.shape):
                if isinstance(size, Var):
                    places.setdefault(size.name, Place(index, dim))
            for dim, stride in enumerate(tensor.strides or ()):
                if isinstance(stride, Var):
                    places.setdefault(stride.name, Place(index, dim, is_stride=True))
        used = [v.name for term in case_terms(case) for v in variables(term)]
        for name in [*used, *(bound.var for bound in case.bounds)]:
            if name not in places and name not in self.scalars:
                place = self._named_place(name, case)
                if place is not None:
                    places[name] = place
        return places

    def _named_place(self, name: str, case: Case) -> Place | None:
        """Of `x.shape[0]`; None for an attribute of the device."""
        if is_attribute(name):
            return None
        matched = _PART.fullmatch(name)
        if matched is None or matched[1] not in self.input_index:
            raise self.error(f"no argument gives the variable {name!r} a value")
        dim = int(matched[3])
        shape = next((t.shape for t in case.tensors if t.param == matched[1] and t.present), ())
        if dim >= len(shape):
            raise self.error(f"{name!r}: a case has only {len(shape)} dimensions")
        return Place(self.input_index[matched[1]], dim, is_stride=matched[2] == "stride")

    def unsigned(self) -> list[str]:
        """64-bit unsigned scalars that are computed with, and so must fit into 63 bits."""
        wide = {n for n, p in self.scalars.items() if DTYPES[p.dtype].name == "u64"}
        computed = {
            v.name
            for case in self.op.cases
            for term in case_terms(case, direct=False)
            for v in variables(term)
        }
        computed |= {bound.var for case in self.op.cases for bound in case.bounds}
        return sorted(wide & computed)

    def is_unsigned(self, term: Term) -> bool:
        """Whether a kernel's argument is a 64-bit unsigned scalar, handed on."""
        if not isinstance(term, Var) or term.name not in self.scalars:
            return False
        return self.scalars[term.name].dtype == "u64"


def case_terms(case: Case, *, direct: bool = True) -> Iterator[Term]:
    """Every term of a case; without `direct`, not those that hand a variable to a kernel."""
    for path in case.paths:
        yield from (guard.condition for guard in path.guards)
        for output in path.outputs:
            if output is not None:
                yield from output.shape
                yield from output.strides
        yield from _step_terms(path, direct=direct)


def _step_terms(path: Path, *, direct: bool) -> Iterator[Term]:
    for step in path.steps:
        if isinstance(step, Allocate):
            yield step.bytes
        elif isinstance(step, Fill):
            yield from (step.offset, step.count)
        else:
            yield from _launch_terms(step, direct=direct)


def _launch_terms(launch: Launch, *, direct: bool) -> Iterator[Term]:
    yield from launch.grid
    for argument in launch.arguments:
        if isinstance(argument, Pointer):
            yield argument.offset
        elif direct or not isinstance(argument.value, Var):
            yield argument.value
