"""Every path through a body is found, and equivalent paths are merged."""

import math

from opforge.native.ir.expr import Expr, Var
from opforge.native.symbolic.solve import (
    VarRange,
    deciding,
    explore,
    implies,
    ranges_of,
)
from opforge.native.symbolic.symint import Symbols

SIZE = VarRange(0, math.inf)


def paths(body, **domains):
    """{condition: result} of a function of symbolic sizes."""
    ranges = ranges_of(domains)

    def trace(values):
        symbols = Symbols(values, ranges)
        result = body(*(symbols.integer(Var(name)) for name in domains))
        return tuple(symbols.guards), result

    start = {name: 67 if 67 in d else int(d.low) for name, d in domains.items()}
    found = explore(trace, start, domains, "unsolved")
    return {" and ".join(str(g.condition) for g in guards): result for guards, result in found}


def test_both_sides_of_a_branch():
    def body(n):
        if n == 0:
            return "nothing"
        return "block" if n <= 4096 else "loop"

    assert paths(body, n=SIZE) == {
        "n != 0 and n <= 4096": "block",
        "n == 0": "nothing",
        "n != 0 and 4096 < n": "loop",
    }


def test_a_question_whose_answers_make_no_difference_is_dropped():
    def body(m, n):
        return ("one", "one")[bool(n > 5)] if m > 5 else "two"

    assert paths(body, m=SIZE, n=SIZE) == {"5 < m": "one", "m <= 5": "two"}


def test_an_outcome_that_cannot_come_about_is_dropped():
    def body(a, b, c):
        return "ordered" if a < b < c and a < c else "other"

    assert set(paths(body, a=SIZE, b=SIZE, c=SIZE)) == {
        "a < b and b < c and a < c", "a < b and c <= b", "b <= a"
    }  # fmt: skip


M, N = Var("m"), Var("n")
SIZES = {"m": SIZE, "n": SIZE}


def test_conditions_that_tell_a_path_from_others_are_kept():
    path = [Expr("!=", (M, N)), Expr("<", (100, M))]
    others = [[Expr("==", (M, N)), Expr("<=", (M, 100))], [Expr("==", (M, 1))]]
    assert deciding(path, others, SIZES) == [Expr("<", (100, M))]
    assert deciding(path, [], SIZES) == []
    assert deciding(path, [[Expr("<", (N, 3))]], SIZES) == path


def test_a_narrower_condition_implies_a_wider_one():
    one, few = [Expr("==", (M, 1))], [Expr("<", (M, 20))]
    assert implies(one, few, SIZES)
    assert not implies(few, one, SIZES)
    assert implies(one, [], SIZES)
