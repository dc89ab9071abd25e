"""The variables of an operator, and where a call's values hold them."""

from __future__ import annotations

import re
from dataclasses import dataclass, is_dataclass
from typing import Any

from ...errors import BadOption
from ..ir.cases import Case, ScalarValue
from ..ir.device_attributes import is_attribute
from ..ir.dtypes import DTYPES
from ..ir.expr import Expr, Term, Var, addressed, variables
from ..ir.interface import ChoiceParam, Op, ScalarParam, TensorParam
from .expression import Writer
from .names import distinct

_PART = re.compile(r"(.+)\.(shape|stride)\[(\d+)\]")


@dataclass(frozen=True)
class Place:
    """Where a tensor holds a variable: `views[tensor].shape[dim]`, its strides or its address."""

    tensor: int
    dim: int | None
    is_stride: bool = False

    @property
    def c(self) -> str:
        if self.dim is None:
            return f"(int64_t)views[{self.tensor}].address"
        return f"views[{self.tensor}].{'strides' if self.is_stride else 'shape'}[{self.dim}]"


def type_key(dtype: str, rank: int) -> str:
    """By which the runtime tells tensors apart."""
    known = DTYPES[dtype]
    return f"OF_KEY({known.code}, {known.bits}, {rank})"


def refused(op: Op, what: str, **more: str) -> BadOption:
    return BadOption(what, **more, op=op.torch_name or op.name, location=op.location)


class OpScope:
    """What the generators of one operator's file look up names in."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.inputs = [p for p in op.params if isinstance(p, TensorParam)]
        self.choices = [p for p in op.params if isinstance(p, ChoiceParam)]
        self.scalars = {p.name: p for p in op.params if isinstance(p, ScalarParam)}
        self.input_index = {p.name: i for i, p in enumerate(self.inputs)}
        self.tensors = [*self.input_index, *op.outputs]
        everything = [*(param.name for param in op.params), *op.outputs]
        repeated = sorted({n for n in everything if everything.count(n) > 1})
        if repeated:
            raise self.error(f"parameters or outputs share the name {repeated[0]!r}")
        self._used = [_used(case) for case in op.cases]
        self.places = [self._places(i) for i in range(len(op.cases))]
        used = [name for i in range(len(op.cases)) for name in self.variables(i)]
        names = list(dict.fromkeys([*self.scalars, *used]))
        self.fields = distinct(names)
        self.write = Writer(self.fields)
        self.attributes = [n for n in names if is_attribute(n) and n not in self.scalars]

    def error(self, what: str) -> BadOption:
        return refused(self.op, what)

    def is_float(self, name: str) -> bool:
        scalar = self.scalars.get(name)
        return scalar is not None and scalar.dtype in {"fp16", "bf16", "fp32", "fp64"}

    def variables(self, number: int) -> list[str]:
        """Every variable that a case binds or computes with, sizes first."""
        return list(dict.fromkeys([*self.places[number], *self._used[number]]))

    def _places(self, number: int) -> dict[str, Place]:
        """Where each variable of a tensor is first seen."""
        case = self.op.cases[number]
        places: dict[str, Place] = {}
        for tensor in case.tensors:
            index = self.input_index[tensor.param]
            for dim, size in enumerate(tensor.shape):
                if isinstance(size, Var):
                    places.setdefault(size.name, Place(index, dim))
            for dim, stride in enumerate(tensor.strides or ()):
                if isinstance(stride, Var):
                    places.setdefault(stride.name, Place(index, dim, is_stride=True))
        for output in case.returns:
            index = self.tensors.index(output.param)
            places |= {
                var.name: Place(index, dim, is_stride=True)
                for dim, stride in enumerate(output.strides or ())
                for var in variables(stride)
            }
        for name in self._used[number]:
            if name not in places and name not in self.scalars:
                place = self._named_place(name, case)
                if place is not None:
                    places[name] = place
        return places

    def _named_place(self, name: str, case: Case) -> Place | None:
        """Of `x.shape[0]`; None for an attribute of the device."""
        if is_attribute(name):
            return None
        if (tensor := addressed(name)) in self.input_index:
            return Place(self.input_index[tensor], None)
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
        wide = {n for n, p in self.scalars.items() if p.dtype == "u64"}
        if not wide:
            return []
        computed = {name for case in self.op.cases for name in _used(case, direct=False)}
        return sorted(wide & computed)

    def is_unsigned(self, term: Term) -> bool:
        """Whether a kernel's argument is a 64-bit unsigned scalar, handed on."""
        if not isinstance(term, Var) or term.name not in self.scalars:
            return False
        return self.scalars[term.name].dtype == "u64"


def _used(case: Case, *, direct: bool = True) -> list[str]:
    """The variables of a case; without `direct`, not those that are only handed to a kernel."""
    found: dict[str, None] = {}
    _find_names(case.paths, found, direct=direct)
    return list(dict.fromkeys([*found, *(bound.var for bound in case.bounds)]))


def _find_names(value: Any, found: dict[str, None], *, direct: bool) -> None:
    """Add the variables of all terms in a record, in the order of its fields."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, Var):
        found[value.name] = None
    elif isinstance(value, Expr):
        _find_names(value.args, found, direct=direct)
    elif isinstance(value, tuple):
        for item in value:
            _find_names(item, found, direct=direct)
    elif is_dataclass(value):
        handed_on = isinstance(value, ScalarValue) and isinstance(value.value, Var)
        if direct or not handed_on:
            for item in vars(value).values():
                _find_names(item, found, direct=direct)


_PLAIN = frozenset({str, int, float, bool, type(None)})
