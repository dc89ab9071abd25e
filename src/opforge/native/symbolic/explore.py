"""Finds every path through a body: one trace per outcome of its branches on sizes.

A trace runs on concrete values, and each branch on a size becomes a guard. For every guard the
search looks for values that violate it but satisfy those before it, and traces again, until no
outcome is left:

    n = 67:   n != 0, n <= 4096     ->  launches block
    n = 0:    n == 0                ->  launches nothing
    n = 4097: n != 0, 4096 < n      ->  launches loop
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..ir.cases import Guard
from ..ir.expr import Expr, Number, Term, negated
from .algebra import Algebra
from .solve import VarRange, cases_of, multiples_of, ranges_of, solve

Result = TypeVar("Result")
# Guards, and the result of the trace under them.
Found = tuple[tuple[Guard, ...], Result]
Prefix = tuple[Term, ...]

MOST = 512


class TooManyPaths(Exception):
    """The body has more paths than a library can have."""


@dataclass
class _Question(Generic[Result]):
    """A branch point: the outcomes seen so far, and what followed each."""

    answers: dict[Term, _Question[Result]] = field(default_factory=dict)
    guards: dict[Term, Guard] = field(default_factory=dict)
    result: Result | None = None


def explore(
    trace: Callable[[Mapping[str, Number]], Found[Result]],
    start: Mapping[str, Number],
    var_ranges: Mapping[str, VarRange],
    unsolved: Result,
    given: Sequence[Term] = (),
) -> list[Found[Result]]:
    """All paths; `given` are conditions that always hold.

    `unsolved` is the result of an outcome that may be possible, but for which no values were found.
    """
    root: _Question[Result] = _Question()
    waiting: list[tuple[Prefix, Mapping[str, Number]]] = []
    count = 0

    def walk(values: Mapping[str, Number]) -> None:
        nonlocal count
        count += 1
        if count > MOST:
            raise TooManyPaths
        guards, result = trace(values)
        node: _Question[Result] = root
        prefix: Prefix = ()
        for guard in guards:
            condition = guard.condition
            if condition not in node.answers:
                node.answers[condition] = _Question()
                node.guards[condition] = guard
                waiting.append((prefix, values))
            node, prefix = node.answers[condition], (*prefix, condition)
        node.result = result

    walk(start)
    missed: list[Prefix] = []
    while waiting:
        prefix, values = waiting.pop(0)
        rest = _other_outcome(root, prefix)
        if _contradicts(prefix, rest, var_ranges):
            continue
        found = solve([*given, *prefix, *rest], values, var_ranges)
        if found is not None:
            walk(found)
        else:
            missed.append(prefix)
    for prefix in missed:
        # Other values may have led there since.
        rest = _other_outcome(root, prefix)
        if not _contradicts(prefix, rest, var_ranges) and cases_of(
            [*given, *prefix, *rest], var_ranges
        ):
            node = _at(root, prefix)
            condition = rest[0] if len(rest) == 1 else Expr("and", tuple(rest))
            location = next(iter(node.guards.values())).location
            node.answers[condition] = _Question(result=unsolved)
            node.guards[condition] = Guard(condition, location)
    return _merged(root)


def _at(root: _Question[Result], prefix: Prefix) -> _Question[Result]:
    node = root
    for condition in prefix:
        node = node.answers[condition]
    return node


def _other_outcome(root: _Question[Result], prefix: Prefix) -> list[Term]:
    """That none of the outcomes seen so far comes about."""
    return [negated(condition) for condition in _at(root, prefix).answers]


def deciding(
    conditions: Sequence[Term], others: Sequence[Sequence[Term]], var_ranges: Mapping[str, VarRange]
) -> list[Term]:
    """Those of a path's conditions without which it would not differ from other paths."""
    kept = list(conditions)
    for condition in conditions:
        rest = tuple(c for c in kept if c is not condition)
        if all(_contradicts(rest, other, var_ranges) for other in others):
            kept = list(rest)
    return kept


def implies(
    conditions: Sequence[Term], others: Sequence[Term], var_ranges: Mapping[str, VarRange]
) -> bool:
    """Whether others are known to hold where some conditions do."""
    return all(_contradicts(tuple(conditions), [negated(o)], var_ranges) for o in others)


def _contradicts(prefix: Prefix, rest: Sequence[Term], var_ranges: Mapping[str, VarRange]) -> bool:
    """Whether the ranges alone rule out all values."""
    if any(negated(c) in prefix or negated(c) in rest for c in rest):
        return True
    algebra = Algebra(ranges_of(var_ranges), multiples_of(var_ranges))
    # The prefix twice: later conditions may decide earlier ones.
    for condition in (*prefix, *rest, *prefix):
        if algebra.decide(condition) == 0 or algebra.impossible:
            return True
        algebra.narrow(condition)
    return False


def _merged(node: _Question[Result]) -> list[Found[Result]]:
    """The paths below a branch point; one whose two outcomes lead to the same is dropped."""
    if not node.answers:
        return [((), node.result)] if node.result is not None else []
    below = {c: _merged(n) for c, n in node.answers.items()}
    if len(below) == 2:
        (one, first), (other, second) = below.items()
        if other == negated(one) and _alike(first, second):
            return first
    return [
        ((node.guards[c], *guards), result)
        for c, found in below.items()
        for guards, result in found
    ]


def _alike(first: list[Found[Result]], second: list[Found[Result]]) -> bool:
    def bare(found: list[Found[Result]]) -> list[tuple[list[Term], Result]]:
        return [([g.condition for g in guards], result) for guards, result in found]

    return bare(first) == bare(second)
