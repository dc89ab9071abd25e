"""Values for the variables of a trace under which given conditions hold.

A search over numbers that are likely to matter: those in the conditions and their neighbours,
powers of two, and each other's values. What it does not find stays untraced, and calls of that
kind are refused at run time: never wrong, at worst not covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .algebra import Range
from .expr import Number, Term, constants, evaluate, variables

_TRIES = 4000
_HUGE = 2**31 + 1
_COMMON = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 128, 129, 256, 257, 512, 1024)


@dataclass(frozen=True)
class Domain:
    """What a variable may be; `values` where it is one of a few."""

    low: float
    high: float
    values: tuple[Number, ...] = ()
    is_float: bool = False

    def __contains__(self, value: Number) -> bool:
        if self.values:
            return value in self.values
        return self.low <= value <= self.high


def ranges_of(domains: Mapping[str, Domain]) -> dict[str, Range]:
    """The least and the largest value of each variable."""
    return {
        name: (min(d.values), max(d.values)) if d.values else (d.low, d.high)
        for name, d in domains.items()
    }


def holds(conditions: Sequence[Term], values: Mapping[str, Number]) -> bool:
    return all(_true(c, values) for c in conditions)


def _true(condition: Term, values: Mapping[str, Number]) -> bool:
    try:
        return bool(evaluate(condition, values))
    except (ZeroDivisionError, OverflowError, ValueError):
        return False


def solve(
    conditions: Sequence[Term], start: Mapping[str, Number], domains: Mapping[str, Domain]
) -> dict[str, Number] | None:
    """Values near `start` under which all conditions hold, or None."""
    values = dict(start)
    if holds(conditions, values):
        return values
    failing = [c for c in conditions if not _true(c, values)]
    names = list(dict.fromkeys(v.name for c in reversed(failing) for v in variables(c)))
    others = list(dict.fromkeys(v.name for c in conditions for v in variables(c)))
    names += [n for n in others if n not in names]
    choices = {n: list(_candidates(n, conditions, values, domains[n])) for n in names}
    tries = 0
    for many in (1, 2, 3):
        for chosen in itertools.combinations(names[:6], many):
            for picked in itertools.product(*(choices[n] for n in chosen)):
                tried = {**values, **dict(zip(chosen, picked, strict=True))}
                if holds(conditions, tried):
                    return tried
                tries += 1
                if tries > _TRIES * many:
                    break
    return None


def _candidates(
    name: str, conditions: Sequence[Term], values: Mapping[str, Number], domain: Domain
) -> Iterator[Number]:
    if domain.values:
        yield from domain.values
        return
    seen: set[Number] = set()
    for value in _likely(name, conditions, values, domain):
        found: Number = float(value) if domain.is_float else int(value)
        if found not in seen and found in domain:
            seen.add(found)
            yield found


def _likely(
    name: str, conditions: Sequence[Term], values: Mapping[str, Number], domain: Domain
) -> Iterator[Number]:
    own = values[name]
    for end in (domain.low, domain.high):
        if abs(end) != float("inf"):
            yield end
    mentioned = [c for c in conditions if any(v.name == name for v in variables(c))]
    for condition in mentioned:
        numbers = [c for c in constants(condition) if abs(c) < _HUGE]
        for number in numbers:
            yield from (number, number + 1, number - 1, number * 2, number // 2)
        for a, b in itertools.combinations(numbers, 2):
            yield from (a * b, a + b, abs(a - b))
    yield from (own + 1, own - 1, own * 2, own // 2)
    for condition in mentioned:
        for v in variables(condition):
            yield values[v.name]
            yield own * values[v.name]
    yield from _COMMON
    for power in range(11, 34):
        yield from (2**power, 2**power + 1)
    if domain.is_float:
        yield from (0.5, -1.0, 1.5)
