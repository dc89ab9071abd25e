"""Finds every path through a body: one trace per outcome of its branches on sizes.

A trace runs on concrete values, and each branch on a size becomes a guard. For every guard the
search looks for values that violate it but satisfy those before it, and traces again, until no
outcome is left:

    n = 67:   n != 0, n <= 4096     ->  launches block
    n = 0:    n == 0                ->  launches nothing
    n = 4097: n != 0, 4096 < n      ->  launches loop
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..ir.cases import Guard
from ..ir.expr import (
    COMPARISONS,
    Expr,
    Number,
    Term,
    Var,
    constants,
    is_float,
    make,
    negated,
    parts,
    variables,
)
from .algebra import Algebra, Range, core, is_op, sum_of

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


# Values of a trace's variables that satisfy given conditions. The search moves one variable at a
# time, then two, then three, to where a condition flips and to numbers that are likely to matter;
# at last one, with those that conditions make equal to a term of it. Where that finds nothing, the
# cases of the conditions are searched one by one.

Values = Mapping[str, Number]

# The limits of one search: evaluations of conditions, variables moved, and those moved at once.
_TRIES = 20000
_NAMES = 6
_AT_ONCE = 3
_HUGE = 2**40
_COMMON = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 128, 129, 256, 257, 512, 1024)
_POWERS = tuple(n for power in range(11, 34) for n in (2**power, 2**power + 1))
_EXHAUSTIVE = 2000


@dataclass(frozen=True)
class VarRange:
    """The range of a variable; `values` if it has only a few."""

    low: float
    high: float
    values: tuple[Number, ...] = ()
    is_float: bool = False

    def __contains__(self, value: Number) -> bool:
        if self.values:
            return value in self.values
        return self.low <= value <= self.high


def ranges_of(var_ranges: Mapping[str, VarRange]) -> dict[str, Range]:
    """The least and the largest value of each variable."""
    return {
        name: (min(d.values), max(d.values)) if d.values else (d.low, d.high)
        for name, d in var_ranges.items()
    }


def multiples_of(var_ranges: Mapping[str, VarRange]) -> dict[str, int]:
    """A common divisor of the values of each variable that has only a few."""
    return {
        name: math.gcd(*(int(v) for v in d.values)) or 1
        for name, d in var_ranges.items()
        if d.values and not d.is_float
    }


_Check = Callable[[Values], Number]
_Named = tuple[_Check, tuple[str, ...]]
_Facts = tuple[list[Term], list[Number], list[str], int]


class _Spent(Exception):
    """The search has used up its evaluations."""


class _Search:
    """One search; `left` counts down."""

    def __init__(self, conditions: Sequence[Term], var_ranges: Mapping[str, VarRange]) -> None:
        self.var_ranges = var_ranges
        self.conditions = conditions
        self.checks = [(_compiled(c), names_of(c)) for c in conditions]
        self.all = [check for check, _ in self.checks]
        self.facts: dict[str, _Facts] = {}
        self.left = _TRIES

    def holds(self, values: Values, checks: Sequence[_Check] | None = None) -> bool:
        """Whether all conditions hold, or all of these."""
        self.left -= 1
        if self.left < 0:
            raise _Spent
        return _all_true(self.all if checks is None else checks, values)

    def first(self, attempts: Iterable[dict[str, Number] | None]) -> dict[str, Number] | None:
        """What the first attempt has found that has found something."""
        self.left = _TRIES
        with contextlib.suppress(_Spent):
            return next((found for found in attempts if found is not None), None)
        return None

    def move(self, names: Sequence[str], values: Values) -> dict[str, Number] | None:
        """Values of these variables that satisfy all conditions, with the others unchanged."""
        first, *rest = names
        about = [check for check, names in self.checks if first in names]
        if not rest:
            others = [check for check, names in self.checks if first not in names]
            if not self.holds(values, others):
                return None
        for value in self.candidates(first, values, rough=bool(rest)):
            tried = {**values, first: value}
            found = self.move(rest, tried) if rest else tried if self.holds(tried, about) else None
            if found is not None:
                return found
        return None

    def carry(self, name: str, values: Values) -> dict[str, Number] | None:
        """The same, where others follow the variable that is moved.

        n % 8 == 0 and x.stride[1] == n and x.stride[0] == m * n: a new n moves both strides.
        """
        following = [one for one in self.definitions if one[0] != name]
        for value in self.candidates(name, values, rough=False):
            tried = {**values, name: value}
            # Each pass computes those that follow one that is known.
            for _ in following:
                for other, term in following:
                    tried[other] = _number(term, tried, tried[other])
            if all(tried[n] in self.var_ranges[n] for n, _ in following) and self.holds(tried):
                return tried
        return None

    @functools.cached_property
    def definitions(self) -> list[tuple[str, Callable[[Values], Number]]]:
        """The variables that a condition makes equal to a term without them, once each."""
        found: dict[str, Callable[[Values], Number]] = {}
        for part in (part for condition in self.conditions for part in _conjuncts(condition)):
            if isinstance(part, Expr) and part.op == "==":
                for one, other in (part.args, part.args[::-1]):
                    if isinstance(one, Var) and one.name not in names_of(other):
                        found.setdefault(one.name, _compiled(other))
        return list(found.items())

    def candidates(self, name: str, values: Values, *, rough: bool) -> Iterator[Number]:
        var_range = self.var_ranges[name]
        if var_range.values:
            yield from var_range.values
            return
        seen: set[Number] = set()
        for value in self._likely(name, values, rough=rough):
            if not math.isfinite(value):
                continue
            found: Number = float(value) if var_range.is_float else int(value)
            if found not in seen and found in var_range:
                seen.add(found)
                yield found

    def _likely(self, name: str, values: Values, *, rough: bool) -> Iterator[Number]:
        own, var_range = values[name], self.var_ranges[name]
        yield own
        mentioned, numbers, others, step = self._facts(name)
        turns = [t for c in mentioned for t in self._turns(c, name, values)]
        yield from turns
        yield from (n + d for n in numbers for d in (0, 1, -1))
        yield from (own + 1, own - 1, own * 2, own // 2)
        yield from (values[n] for n in others)
        yield from (own * values[n] for n in others)
        yield from _COMMON
        if step > 1:
            starts = [t - t % step for t in (0, *turns, own)]
            yield from (s + d * step for s in starts for d in (0, 1, -1))
        if var_range.is_float:
            yield from (0.5, -1.0, 1.5, *(2.0 * n for n in numbers))
        if rough:
            return
        yield from (a * b for a, b in itertools.combinations(numbers[:6], 2))
        if step > 1:
            # Two periods: the first may begin below what other conditions want.
            yield from (s + d for s in (*starts[-3:], 0) for d in range(min(2 * step, 128)))
        yield from _POWERS

    def _facts(self, name: str) -> _Facts:
        """The conditions on a variable, with their numbers, other variables and period."""
        if name not in self.facts:
            mentioned = [c for c in self.conditions if name in names_of(c)]
            numbers = dict.fromkeys(c for term in mentioned for c in constants(term))
            others = dict.fromkeys(n for c in mentioned for n in names_of(c) if n != name)
            small = [c for c in numbers if abs(c) < _HUGE or self.var_ranges[name].is_float]
            self.facts[name] = mentioned, small, list(others), _period(mentioned)
        return self.facts[name]

    def _turns(self, condition: Term, name: str, values: Values) -> Iterator[Number]:
        """Where a comparison in a condition flips, as a function of one variable."""
        var_range, scratch = self.var_ranges[name], dict(values)
        low, high = int(max(var_range.low, -_HUGE)), int(min(var_range.high, _HUGE))
        points = sorted({p for p in (low, low + 1, 64, 4096, 10**6, high) if low <= p <= high})
        for gap, names in _gaps(condition):
            if name not in names:
                continue

            def side(x: Number, gap: Callable[[Values], Number] = gap) -> int:
                scratch[name] = x
                self.left -= 1
                try:
                    found = gap(scratch)
                except (ZeroDivisionError, OverflowError, ValueError):
                    return 0
                return (found > 0) - (found < 0)

            sides = [(p, side(p)) for p in points]
            for (left, here), (right, there) in itertools.pairwise(sides):
                if here == there:
                    continue
                found = _bisect(side, left, right, here)
                yield from (found, found - 1, found + 1)
                # If the gap is 0 in between, it also leaves 0 somewhere.
                if side(found) == 0 and there != 0:
                    found = _bisect(side, found, right, 0)
                    yield from (found, found - 1)


def solve(
    conditions: Sequence[Term], start: Values, var_ranges: Mapping[str, VarRange]
) -> dict[str, Number] | None:
    """Values near `start` under which all conditions hold, or None."""
    cases = cases_of(conditions, var_ranges)
    found = _solve(conditions, start, var_ranges) if cases else None
    if found is not None:
        return found
    for case in cases:
        fitting = {name: n for name, n in case.near if n in var_ranges[name]}
        for near in (start, {**start, **fitting}):
            found = _solve(case.conditions, near, var_ranges)
            if found is not None:
                return found
    return None


def cases_of(
    conditions: Sequence[Term], var_ranges: Mapping[str, VarRange]
) -> tuple[Alternative, ...]:
    """What conditions come down to; nothing if they contradict each other."""
    named = {name for condition in conditions for name in names_of(condition)}
    known = {name: found for name, found in var_ranges.items() if name in named}
    declared = [
        Expr("or", tuple(Expr("==", (Var(name), value)) for value in found.values))
        for name, found in known.items()
        if len(found.values) > 1 and not found.is_float
    ]
    return alternatives(
        (*conditions, *declared),
        tuple(ranges_of(known).items()),
        tuple(multiples_of(known).items()),
    )


def _solve(
    conditions: Sequence[Term], start: Values, var_ranges: Mapping[str, VarRange]
) -> dict[str, Number] | None:
    # Without what holds already and has other variables: one answer is then for every vendor.
    moved = set(_to_move([(_compiled(c), names_of(c)) for c in conditions], start))
    found = _solved(
        tuple(c for c in conditions if not names_of(c) or names_of(c)[0] in moved),
        tuple((name, number) for name, number in start.items() if name in moved),
        tuple((name, range_) for name, range_ in var_ranges.items() if name in moved),
    )
    return None if found is None else {**start, **found}


# The cases of an op often ask the same for each dtype and each vendor.
@functools.lru_cache(maxsize=4096)
def _solved(
    conditions: tuple[Term, ...],
    starts: tuple[tuple[str, Number], ...],
    ranges: tuple[tuple[str, VarRange], ...],
) -> Values | None:
    start, var_ranges = dict(starts), dict(ranges)
    search = _Search(conditions, var_ranges)
    if search.holds(start):
        return start
    names = _to_move(search.checks, start)
    few = [var_ranges[n].values for n in names]
    if all(few) and math.prod(map(len, few)) <= _EXHAUSTIVE:
        tried = ({**start, **dict(zip(names, p, strict=True))} for p in itertools.product(*few))
        return next((t for t in tried if search.holds(t)), None)
    parts_ = [part for condition in conditions for part in _conjuncts(condition)]
    met = [part for part in parts_ if _all_true([_compiled(part)], start)]
    failing = [part for part in parts_ if part not in met]
    if len(failing) > 1:
        found = _one_by_one(met, failing, start, ranges)
        if found is not None:
            return found
    several = (
        search.move(chosen, start)
        for many in range(1, _AT_ONCE + 1)
        for chosen in itertools.permutations(names[:_NAMES], many)
    )
    return search.first(several) or search.first(search.carry(name, start) for name in names)


def _one_by_one(
    met: list[Term],
    failing: Sequence[Term],
    start: Values,
    ranges: tuple[tuple[str, VarRange], ...],
) -> Values | None:
    """Each condition met in turn, the earlier ones kept: a search rarely meets many at once.

    m % 16 == 0 and n % 16 == 0 and k % 16 == 0 and x.data_ptr() % 16 == 0
    """
    reached = start
    for part in failing:
        met.append(part)
        found = _solved(tuple(met), tuple(reached.items()), ranges)
        if found is None:
            return None
        reached = found
    return reached


def _conjuncts(term: Term) -> Iterator[Term]:
    if isinstance(term, Expr) and term.op == "and":
        for part in term.args:
            yield from _conjuncts(part)
    else:
        yield term


def _to_move(checks: Sequence[_Named], start: Values) -> list[str]:
    """The variables of the failing conditions, and those connected to them."""
    failing = [names for check, names in checks if not _all_true([check], start)]
    found = list(dict.fromkeys(n for names in reversed(failing) for n in names))
    for name in found:
        found += [n for _, names in checks if name in names for n in names if n not in found]
    return list(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)
def names_of(term: Term) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.name for v in variables(term)))


def _number(term: Callable[[Values], Number], values: Values, otherwise: Number) -> Number:
    try:
        return term(values)
    except (ZeroDivisionError, OverflowError, ValueError):
        return otherwise


def _all_true(checks: Iterable[_Check], values: Values) -> bool:
    try:
        for check in checks:
            if not check(values):
                return False
    except (ZeroDivisionError, OverflowError, ValueError):
        return False
    return True


def _bisect(side: Callable[[Number], int], left: int, right: int, here: int) -> int:
    """The first number where the side is not `here`, if it changes once."""
    while right - left > 1:
        middle = (left + right) // 2
        if side(middle) == here:
            left = middle
        else:
            right = middle
    return right


@functools.lru_cache(maxsize=4096)
def _gaps(condition: Term) -> list[tuple[Callable[[Values], Number], tuple[str, ...]]]:
    """For each comparison in a condition, left side minus right side."""
    return [
        (_compiled(Expr("+", (atom.args[0], Expr("neg", (atom.args[1],))))), names_of(atom))
        for atom in parts(condition)
        if isinstance(atom, Expr) and atom.op in COMPARISONS
    ]


def _period(conditions: Iterable[Term]) -> int:
    """The period of the remainders and quotients, if it is small."""
    found = 1
    for part in (part for condition in conditions for part in parts(condition)):
        if isinstance(part, Expr) and part.op in {"//", "%"}:
            divisor = part.args[1]
            if isinstance(divisor, int) and divisor > 0 and found * divisor <= 1 << 16:
                found = math.lcm(found, divisor)
    return found


@functools.lru_cache(maxsize=4096)
def _compiled(term: Term) -> Callable[[Values], Number]:
    """A term as a function, because a search evaluates it thousands of times."""
    function: Callable[[Values], Number] = eval(f"lambda v: {_code(term)}", _NAMES_OF_CODE)  # noqa: S307  # made of terms only
    return function


_INFIX = {"+", "*", "//", "%", "/", "**", "==", "!=", "<", "<=", "and", "or", "&", "|", "^",
          "<<", ">>"}  # fmt: skip
_PREFIX = {"neg": "-", "not": "not "}
_NAMES_OF_CODE = {
    "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "log2": math.log2, "trunc": math.trunc, "inf": math.inf, "nan": math.nan,
}  # fmt: skip


def _code(term: Term) -> str:
    if isinstance(term, Var):
        return f"v[{term.name!r}]"
    if not isinstance(term, Expr):
        return f"({term!r})"
    args = [_code(a) for a in term.args]
    if term.op in _INFIX:
        return f"({f' {term.op} '.join(args)})"
    if term.op in _PREFIX:
        return f"({_PREFIX[term.op]}{args[0]})"
    if term.op == "where":
        return f"({args[1]} if {args[0]} else {args[2]})"
    name = "trunc" if term.op == "int" else term.op
    return f"{name}({', '.join(args)})"


# So many splits are made; what is left then is one case as it stands.
_MOST = 256


# Conditions split into cases without `or`, without those that contradict themselves:
# (a < b or a == b and m < n) and b <= a  ->  b <= a and a == b and m < n
# Where the search for values finds none, these show that there are none, or where to search again.


@dataclass(frozen=True)
class Alternative:
    """A case: conditions that hold together, and values that fit the differences among them."""

    conditions: tuple[Term, ...]
    near: tuple[tuple[str, int], ...] = ()


@functools.lru_cache(maxsize=1024)
def alternatives(
    conditions: tuple[Term, ...],
    ranges: tuple[tuple[str, Range], ...],
    multiples: tuple[tuple[str, int], ...],
) -> tuple[Alternative, ...]:
    """The cases of some conditions; none if no values can satisfy them."""
    splits = 0
    found: list[Alternative] = []
    waiting = [(Algebra(dict(ranges), dict(multiples)), list(conditions), list[Term]())]
    while waiting:
        algebra, left, known = waiting.pop()
        simple = _simplified(algebra, left, known)
        if simple is None or (not simple and _contradict(algebra, known)):
            continue
        near = _near(algebra, known)
        if near is None:
            continue
        if not simple:
            found.append(Alternative(tuple(known), tuple(near.items())))
            continue
        splits += 1
        if splits > _MOST:
            return (Alternative(conditions),)
        # The shortest first, which leaves the fewest.
        first = min(simple, key=lambda term: len(term.args))
        others = [term for term in simple if term is not first]
        waiting += [
            (copy.copy(algebra), [part, *others], list(known)) for part in reversed(first.args)
        ]
    return tuple(found)


def _simplified(algebra: Algebra, left: list[Term], known: list[Term]) -> list[Expr] | None:
    """What is still to split; comparisons move to `known`. None if all of it cannot hold."""
    while True:
        rest: list[Expr] = []
        before = len(known)
        for term in left:
            plain = _plain(algebra, term)
            if plain == 0:
                return None
            for part in plain.args if is_op(plain, "and") else (plain,):
                if is_op(part, "or"):
                    rest.append(part)
                elif part != 1:
                    known.append(part)
                    algebra.narrow(part)
        if algebra.impossible:
            return None
        if len(known) == before:
            return rest
        left = list(rest)


def _contradict(algebra: Algebra, known: Sequence[Term]) -> bool:
    """Whether later comparisons decide earlier ones; backwards, too."""
    for term in (*known, *reversed(known)):
        if algebra.decide(term) == 0 or algebra.impossible:
            return True
        algebra.narrow(term)
        if is_op(term, *COMPARISONS):
            algebra.narrow(make(term.op, *map(algebra.with_known_values, term.args)))
    return False


def _plain(algebra: Algebra, term: Term) -> Term:
    """A condition of comparisons, `and` and `or`, without what is known."""
    if is_op(term, "not") and is_op(term.args[0], "and", "or"):
        op = "or" if term.args[0].op == "and" else "and"
        return _plain(algebra, Expr(op, tuple(negated(part) for part in term.args[0].args)))
    if is_op(term, "and", "or"):
        found: list[Term] = []
        for part in (_plain(algebra, part) for part in term.args):
            found += part.args if is_op(part, term.op) else (part,)
        return algebra.both(*found) if term.op == "and" else algebra.either(*found)
    decided = algebra.decide(term)
    if decided is not None:
        return decided
    choice = next((part for part in parts(term) if is_op(part, "where")), None)
    if choice is None:
        return term
    condition, yes, no = choice.args
    chosen = Expr("and", (condition, _with(term, choice, yes)))
    other = Expr("and", (negated(condition), _with(term, choice, no)))
    return _plain(algebra, Expr("or", (chosen, other)))


def _with(term: Term, part: Term, value: Term) -> Term:
    """A term with a value in place of a part of it."""
    if term == part:
        return value
    if not isinstance(term, Expr):
        return term
    return make(term.op, *(_with(one, part, value) for one in term.args))


# That the first is at most so much larger than the second; 0 stands for itself.
_Difference = tuple[Term, Term, int]


def _near(algebra: Algebra, known: Sequence[Term]) -> dict[str, int] | None:
    """Values whose differences are as some comparisons want them; None if there are none."""
    differences: list[_Difference] = []
    unequal: list[tuple[_Difference, _Difference]] = []
    for term in known:
        if is_op(term, *COMPARISONS) and not any(map(is_float, term.args)):
            less, more = _differences(term)
            if term.op == "!=":
                unequal += zip(less, more, strict=True)
            else:
                differences += [*less, *more]
    terms = {t for x, y, _ in [*differences, *itertools.chain(*unequal)] for t in (x, y)}
    for term in terms:
        low, high = algebra.range(term)
        differences += [(term, 0, int(high))] if math.isfinite(high) else []
        differences += [(0, term, -int(low))] if math.isfinite(low) else []
    for whole, part in itertools.permutations(terms, 2):
        rest = _rest(whole, part)
        low = algebra.range(part)[0]
        if rest and low >= 0:
            least = math.prod(algebra.range(one)[0] for one in rest)
            differences += [(part, whole, -int(low * (least - 1)))] if least >= 1 else []
    values = _apart(differences, unequal)
    if values is None:
        return None
    zero = values.get(0, 0)
    return {t.name: n - zero for t, n in values.items() if isinstance(t, Var)}


def _rest(whole: Term, part: Term) -> tuple[Term, ...]:
    """The other factors of a product that has a term for a factor; nothing if it has not."""
    (product, factor), *others = sum_of(whole).items() or [((), 0)]
    left = list(product)
    for one in part.args if is_op(part, "*") else (part,):
        if one not in left:
            return ()
        left.remove(one)
    return () if factor != 1 or others else tuple(left)


def _apart(
    differences: list[_Difference], unequal: Sequence[tuple[_Difference, _Difference]]
) -> dict[Term, int] | None:
    """A solution under which two that are not equal may still differ, one way or the other."""
    while True:
        both = []
        for pair in unequal:
            ways = [way for way in pair if _solution([*differences, way]) is not None]
            if not ways:
                return None
            if len(ways) == 1:
                differences += ways
            else:
                both.append(pair)
        if len(both) == len(unequal):
            return _solution(differences)
        unequal = both


def _differences(comparison: Expr) -> tuple[list[_Difference], list[_Difference]]:
    """`2 * m < 2 * n + 5` -> `m - n <= 2`; those that it is below, and those that it is above.

    Both hold for `==`, one of them for `!=`.
    """
    a, b = comparison.args
    middle, factor, constant = core(Expr("+", (a, Expr("neg", (b,)))))
    ends = _ends(middle)
    if ends is None:
        return [], []
    x, y = ends
    if comparison.op in {"==", "!="}:
        if constant % factor:
            # Never equal: nothing is known for `!=`, and Algebra knows that `==` cannot be.
            return [], []
        value, gap = -constant // factor, int(comparison.op == "!=")
        return [(x, y, value - gap)], [(y, x, -value - gap)]
    limit = -constant - (comparison.op == "<")
    if factor > 0:
        return [(x, y, limit // factor)], []
    return [], [(y, x, limit // -factor)]


def _ends(middle: Term) -> tuple[Term, Term] | None:
    """`m - n` -> m and n; None for what is not a difference."""
    factors: dict[int, Term] = {}
    for product, factor in sum_of(middle).items():
        if abs(factor) != 1 or factor in factors or not product:
            return None
        factors[factor] = product[0] if len(product) == 1 else Expr("*", product)
    return (factors.get(1, 0), factors.get(-1, 0)) if factors else None


def _solution(differences: Sequence[_Difference]) -> dict[Term, int] | None:
    """Values that satisfy all of them, by Bellman and Ford."""
    values: dict[Term, int] = dict.fromkeys((t for x, y, _ in differences for t in (x, y)), 0)
    for _ in range(len(values) + 1):
        changed = False
        for x, y, most in differences:
            if values[x] > values[y] + most:
                values[x], changed = values[y] + most, True
        if not changed:
            return values
    return None
