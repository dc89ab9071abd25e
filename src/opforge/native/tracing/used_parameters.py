"""Leaves out of a C function what no path of it uses.

A tensor stays if a kernel has it, if a path needs a size or stride that no other tensor has, or if
it tells apart two cases that do different things. An output that is always None goes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ...records import changed
from ..ir.cases import Case, Fill, Guard, Launch, Pointer, TensorCase
from ..ir.expr import Expr, Term, Var
from ..ir.interface import ChoiceParam, Param, ScalarParam


class UsedParameters:
    """What the cases of a C function use of its parameters and outputs."""

    def __init__(
        self, params: Sequence[Param], outputs: Sequence[str], cases: Sequence[Case]
    ) -> None:
        self._names = {id(case): _names(case.paths) for case in cases}
        self._tensors = {b for case in cases for b in _buffers(case)}
        while (wanted := next(self._wanted(cases), None)) is not None:
            self._tensors.add(wanted)
        used = {name for case in cases for name in self._needed(case)}
        self._scalars = {p.name for p in params if isinstance(p, ScalarParam)} & used
        made = [path.outputs for case in cases for path in case.paths if not path.refused]
        self._outputs = [any(o[i] is not None for o in made) for i in range(len(outputs))]
        self.cases = [self._case(case) for case in cases]
        kept = self._tensors | self._scalars
        for choice in [param.name for param in params if isinstance(param, ChoiceParam)]:
            fewer = [_without(case, choice) for case in self.cases]
            if len({(case.tensors, case.choices) for case in fewer}) == len(set(fewer)):
                # All of its values do the same.
                self.cases = fewer
            else:
                kept.add(choice)
        self.params = tuple(param for param in params if param.name in kept)
        self.outputs = tuple(itertools.compress(outputs, self._outputs))

    def _kept(self, case: Case) -> list[TensorCase]:
        return [tensor for tensor in case.tensors if tensor.param in self._tensors]

    def _needed(self, case: Case) -> set[str]:
        """The variables that a call must give: of paths, and of sizes that are computed."""
        return self._names[id(case)] | _names(tuple(self._kept(case)))

    def _wanted(self, cases: Sequence[Case]) -> Iterator[str]:
        for case in cases:
            missing = self._needed(case) - self._places(case).keys()
            for tensor in case.tensors:
                if missing & {name for name, _ in _gives(tensor)}:
                    yield tensor.param
        yield from self._telling_apart(cases)

    def _telling_apart(self, cases: Sequence[Case]) -> Iterator[str]:
        seen: dict[Any, Case] = {}
        for case in cases:
            alike = (tuple(map(_kind, self._kept(case))), case.choices)
            other = seen.setdefault(alike, case)
            # What they do, whatever their variables are called.
            mine, theirs = [_renamed(c.paths, self._places(c)) for c in (case, other)]
            if mine != theirs:
                for tensor, others in zip(case.tensors, other.tensors, strict=True):
                    if tensor.param not in self._tensors and _kind(tensor) != _kind(others):
                        yield tensor.param

    def _places(self, case: Case) -> dict[str, str]:
        """By variable, the first tensor that has it: `x.shape[0]`."""
        found: dict[str, str] = {}
        for tensor in self._kept(case):
            for name, place in _gives(tensor):
                found.setdefault(name, place)
        return found

    def _case(self, case: Case) -> Case:
        kept = self._kept(case)
        guards = [guard for tensor in kept for guard in _conditions(tensor)]
        paths = tuple(
            dataclasses.replace(
                path,
                guards=(*guards, *path.guards),
                # A refused path has no outputs.
                outputs=tuple(itertools.compress(path.outputs, self._outputs)),
            )
            for path in case.paths
        )
        places = self._places(case)
        # A variable that has the name of a tensor gets that of one that is still there.
        gone = {tensor.param for tensor in case.tensors} - self._tensors
        new = {n: place for n, place in places.items() if n.rpartition(".")[0] in gone}
        bounds = [b for b in case.bounds if b.var in places or b.var in self._scalars]
        made = Case(
            tuple(dataclasses.replace(t, shape=_plain(t)) for t in kept),
            case.choices,
            tuple(dataclasses.replace(b, var=new.get(b.var, b.var)) for b in bounds),
            paths,
        )
        renamed: Case = _renamed(made, new)
        return renamed


def _without(case: Case, choice: str) -> Case:
    return dataclasses.replace(case, choices=tuple(c for c in case.choices if c[0] != choice))


def _buffers(case: Case) -> Iterator[str]:
    """The memory that a case reads or writes, by name."""
    for path in case.paths:
        for step in path.steps:
            if isinstance(step, Fill):
                yield step.buffer
            elif isinstance(step, Launch):
                yield from (a.buffer for a in step.arguments if isinstance(a, Pointer))


def _names(value: Any) -> set[str]:
    """The variables in a record."""
    found: dict[str, Var] = {}
    changed(value, Var, lambda var: found.setdefault(var.name, var))
    return set(found)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return changed(value, Var, lambda v: Var(names.get(v.name, v.name), v.is_float))


def _gives(tensor: TensorCase) -> Iterator[tuple[str, str]]:
    """The variables that a tensor gives a value to, each with its place."""
    for what, terms in (("shape", tensor.shape), ("stride", tensor.strides or ())):
        for dim, term in enumerate(terms):
            if isinstance(term, Var):
                yield term.name, f"{tensor.param}.{what}[{dim}]"


def _kind(tensor: TensorCase) -> tuple[Any, ...]:
    fixed = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return tensor.param, tensor.present, tensor.dtype, fixed, tensor.strides is None


def _plain(tensor: TensorCase) -> tuple[Term, ...]:
    """Sizes as a call has them: a variable for one that is computed from others."""
    return tuple(
        Var(f"{tensor.param}.shape[{dim}]") if isinstance(size, Expr) else size
        for dim, size in enumerate(tensor.shape)
    )


def _conditions(tensor: TensorCase) -> list[Guard]:
    """That computed sizes are what they should be."""
    pairs = zip(_plain(tensor), tensor.shape, strict=True)
    return [Guard(Expr("==", pair)) for pair in pairs if isinstance(pair[1], Expr)]
