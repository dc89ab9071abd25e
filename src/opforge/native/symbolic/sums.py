"""Terms as sums of products, the form in which equal sizes look equal.

Nothing here depends on what is known of the variables. The paths of an op, and its cases, compute
with the same few terms again and again, so what was found of a term is kept.
"""

from __future__ import annotations

import math
from functools import lru_cache

from ..ir.expr import Expr, Term, text

# {(m, n): 1, (): 127} is m * n + 127. Those of terms are shared: no one may change them.
Sum = dict[tuple[Term, ...], int]

_KEPT = 65536


@lru_cache(maxsize=_KEPT)
def key(term: Term) -> str:
    """Terms are in the order of their texts."""
    return text(term)


@lru_cache(maxsize=_KEPT)
def sum_of(term: Term) -> Sum:
    if isinstance(term, Expr):
        if term.op == "+":
            return _added([sum_of(a) for a in term.args])
        if term.op == "*":
            return _product_of([sum_of(a) for a in term.args])
        if term.op == "neg":
            return {p: -f for p, f in sum_of(term.args[0]).items()}
    if isinstance(term, int):
        return {(): int(term)} if term else {}
    return {(term,): 1}


@lru_cache(maxsize=_KEPT)
def added(a: Term, b: Term) -> Term:
    """The sum of two terms that are not floats."""
    return term_of(_added([sum_of(a), sum_of(b)]))


@lru_cache(maxsize=_KEPT)
def multiplied(a: Term, b: Term) -> tuple[Term, Sum]:
    """The product of two terms that are not floats, also as a sum."""
    total = _product_of([sum_of(a), sum_of(b)])
    return term_of(total), total


def _added(sums: list[Sum]) -> Sum:
    total: Sum = {}
    for one in sums:
        for product, factor in one.items():
            total[product] = total.get(product, 0) + factor
    return total


def _product_of(sums: list[Sum]) -> Sum:
    total: Sum = {(): 1}
    for one in sums:
        found: Sum = {}
        for left, a in total.items():
            for right, b in one.items():
                product = tuple(sorted((*left, *right), key=key))
                found[product] = found.get(product, 0) + a * b
        total = found
    return total


def _order(product: tuple[Term, ...]) -> tuple[int, list[str]]:
    return -len(product), [key(term) for term in product]


def term_of(total: Sum) -> Term:
    parts: list[Term] = []
    for product in sorted(total, key=_order):
        factor = total[product]
        if not factor:
            continue
        factors: list[Term] = [*([factor] if factor != 1 or not product else []), *product]
        parts.append(factors[0] if len(factors) == 1 else Expr("*", tuple(factors)))
    if not parts:
        return 0
    return parts[0] if len(parts) == 1 else Expr("+", tuple(parts))


def without(term: Term, factors: tuple[Term, ...]) -> Term:
    """A term divided by factors that all of its products have."""
    found: Sum = {}
    for product, factor in sum_of(term).items():
        left = list(product)
        for one in factors:
            left.remove(one)
        found[tuple(left)] = factor
    return term_of(found)


@lru_cache(maxsize=_KEPT)
def core(term: Term) -> tuple[Term, int, int]:
    """`-8 * m + 8 * n + 3` -> (`m - n`, -8, 3): a sum without its constant and common factor."""
    total = {p: f for p, f in sum_of(term).items() if f}
    constant = total.pop((), 0)
    if not total:
        return 0, 0, constant
    factor = math.gcd(*total.values()) * (1 if total[min(total, key=_order)] > 0 else -1)
    return term_of({p: f // factor for p, f in total.items()}), factor, constant
