"""Every path through a body is found, and equivalent paths are merged."""

import math

import pytest

from opforge.native.ir.expr import Expr, Var, evaluate
from opforge.native.symbolic.solve import (
    TooManyPaths,
    VarRange,
    deciding,
    explore,
    implies,
    ranges_of,
    solve,
)
from opforge.native.symbolic.symint import Symbols, term_of

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


def test_an_outcome_that_no_values_are_found_for_is_not_dropped():
    def body(n):
        return "rare" if n * 2654435761 % 2**32 == 12345 else "common"

    assert paths(body, n=SIZE) == {
        "2654435761 * n % 4294967296 != 12345": "common",
        "2654435761 * n % 4294967296 == 12345": "unsolved",
    }


def test_an_outcome_that_cannot_come_about_is_dropped():
    def body(a, b, c):
        return "ordered" if a < b < c and a < c else "other"

    assert set(paths(body, a=SIZE, b=SIZE, c=SIZE)) == {
        "a < b and b < c and a < c", "a < b and c <= b", "b <= a"
    }  # fmt: skip


def test_equal_sizes_and_remainders_are_found():
    def body(m, n):
        return (bool(m == n), bool(m % 16 == 0))

    found = paths(body, m=SIZE, n=SIZE)
    assert sorted(found.values()) == [(False, False), (False, True), (True, False), (True, True)]


def test_all_buckets_of_a_range():
    def body(n):
        return n.node.symbols.next_power_of_2(term_of(n))

    found = paths(body, n=VarRange(1, 1000))
    assert sorted(found.values()) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_declared_values_are_all_found():
    def body(n):
        return int(n.node.symbols.specialize(term_of(n)))

    assert sorted(paths(body, n=VarRange(1, 3)).values()) == [1, 2, 3]


def test_a_loop_over_a_bounded_size_is_unrolled():
    def body(n):
        return sum(1 for _ in range(n))

    assert sorted(paths(body, n=VarRange(0, 4)).values()) == [0, 1, 2, 3, 4]


def test_too_many_paths_end_the_search():
    def body(*sizes):
        return tuple(bool(s > 5) for s in sizes)

    with pytest.raises(TooManyPaths):
        paths(body, **{f"s{i}": SIZE for i in range(10)})


m, n = Var("m"), Var("n")


@pytest.mark.parametrize(
    "condition",
    [
        Expr("==", (Expr("//", (n, 64)), 3)),
        Expr("==", (Expr("%", (n, 16)), 5)),
        Expr("==", (Expr("*", (m, n)), 0)),
        Expr("==", (m, Expr("*", (2, n)))),
        Expr("and", (Expr("<", (m, n)), Expr("<", (n, 3)))),
        Expr("==", (Expr("+", (m, n)), 100)),
        Expr("<", (2**31, Expr("*", (m, n)))),
    ],
    ids=str,
)
def test_values_are_found_for_a_condition(condition):
    found = solve([condition], {"m": 67, "n": 71}, {"m": SIZE, "n": SIZE})
    assert found is not None
    assert evaluate(condition, found)


def test_impossible_conditions_have_no_values():
    impossible = [Expr("<", (n, 5)), Expr("<", (10, n))]
    assert solve(impossible, {"n": 67}, {"n": SIZE}) is None


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
