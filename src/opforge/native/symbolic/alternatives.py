"""Splits conditions into cases without `or`, and leaves out those that contradict themselves.

    (a < b or a == b and m < n) and b <= a    ->    b <= a and a == b and m < n

Where the search for values finds none, these show that there are none, or where to search again.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.expr import COMPARISONS, Expr, Term, Var, is_float, make, negated, parts
from .algebra import Algebra, Range, is_op
from .sums import core, sum_of

# So many splits are made; what is left then is one case as it stands.
_MOST = 256


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
