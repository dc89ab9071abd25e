"""Terms: what they evaluate to, how they read, and that JSON keeps them."""

import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.native.ir import expr
from opforge.native.ir.expr import Expr, Var, evaluate, from_json, make, negated, text, to_json

M, N, K = Var("m"), Var("n"), Var("k")
ALPHA = Var("alpha", is_float=True)
VALUES = {"m": 7, "n": -3, "k": 64, "alpha": 0.5}
FUNCTIONS = {
    "min": min, "max": max, "abs": abs, "float": float, "int": math.trunc, "floor": math.floor,
    "ceil": math.ceil, "round": round, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "log2": math.log2, "where": lambda c, a, b: a if c else b,
}  # fmt: skip


def as_python(term, values):
    """What Python computes from a term's text; conditions are 0 or 1 there, too."""
    result = eval(text(term), {**FUNCTIONS, **values})
    return int(result) if isinstance(result, bool) else result


@pytest.mark.parametrize(
    ("term", "value", "reads"),
    [
        (Expr("//", (Expr("+", (Expr("*", (M, N)), 127)), 128)), 0, "(m * n + 127) // 128"),
        (Expr("+", (M, N, K)), 68, "m + n + k"),
        (Expr("*", (M, N, 2)), -42, "m * n * 2"),
        (Expr("neg", (Expr("+", (M, 1)),)), -8, "-(m + 1)"),
        (Expr("//", (N, 2)), -2, "n // 2"),
        (Expr("%", (N, 2)), 1, "n % 2"),
        (Expr("/", (M, 2)), 3.5, "m / 2"),
        (Expr("//", (K, Expr("//", (M, 2)))), 21, "k // (m // 2)"),
        (Expr("//", (Expr("//", (K, M)), 2)), 4, "k // m // 2"),
        (Expr("**", (2, M)), 128, "2 ** m"),
        (Expr("min", (M, N, K)), -3, "min(m, n, k)"),
        (Expr("max", (M, Expr("+", (N, 1)))), 7, "max(m, n + 1)"),
        (Expr("abs", (N,)), 3, "abs(n)"),
        (Expr("==", (M, 7)), 1, "m == 7"),
        (Expr("!=", (M, 7)), 0, "m != 7"),
        (Expr("<", (N, M)), 1, "n < m"),
        (Expr("<=", (M, N)), 0, "m <= n"),
        (Expr("and", (M, N, Expr("<", (N, 0)))), 1, "m and n and n < 0"),
        (Expr("or", (0, Expr("and", (M, 0)))), 0, "0 or m and 0"),
        (Expr("not", (M,)), 0, "not m"),
        (Expr("&", (K, Expr("+", (K, -1)))), 0, "k & k - 1"),
        (Expr("|", (M, 8)), 15, "m | 8"),
        (Expr("^", (M, 1)), 6, "m ^ 1"),
        (Expr("<<", (1, M)), 128, "1 << m"),
        (Expr(">>", (K, 2)), 16, "k >> 2"),
        (Expr("float", (M,)), 7.0, "float(m)"),
        (Expr("int", (Expr("/", (N, 2)),)), -1, "int(n / 2)"),
        (Expr("floor", (Expr("/", (N, 2)),)), -2, "floor(n / 2)"),
        (Expr("ceil", (Expr("/", (N, 2)),)), -1, "ceil(n / 2)"),
        (Expr("round", (Expr("/", (M, 2)),)), 4, "round(m / 2)"),
        (Expr("sqrt", (K,)), 8.0, "sqrt(k)"),
        (Expr("exp", (0.0,)), 1.0, "exp(0.0)"),
        (Expr("log", (1,)), 0.0, "log(1)"),
        (Expr("log2", (K,)), 6.0, "log2(k)"),
        (Expr("where", (Expr("<", (M, 0)), M, N)), -3, "where(m < 0, m, n)"),
        (M, 7, "m"),
        (12, 12, "12"),
        (ALPHA, 0.5, "alpha"),
    ],
)  # fmt: skip
def test_an_operation_means_what_python_means_by_it(term, value, reads):
    assert evaluate(term, VALUES) == value
    assert type(evaluate(term, VALUES)) is type(value)
    assert text(term) == str(term) == reads
    assert as_python(term, VALUES) == value or "and" in reads or "or" in reads


def test_every_operation_is_tested():
    tested = {
        mark.args[1][i][0].op
        for mark in test_an_operation_means_what_python_means_by_it.pytestmark
        for i in range(len(mark.args[1]))
        if isinstance(mark.args[1][i][0], Expr)
    }
    assert tested == set(expr.OPERATIONS)


@pytest.mark.parametrize(
    ("term", "reads"),
    [
        # A chain a < b < c means something else in Python.
        (Expr("==", (Expr("<", (M, N)), K)), "(m < n) == k"),
        # ** binds from the right, and tighter than the sign of a number.
        (Expr("**", (Expr("**", (M, N)), K)), "(m ** n) ** k"),
        (Expr("**", (M, Expr("**", (N, K)))), "m ** (n ** k)"),
        (Expr("**", (-2, M)), "(-2) ** m"),
        (Expr("**", (Expr("neg", (M,)), 2)), "(-m) ** 2"),
        (Expr("neg", (Expr("**", (M, 2)),)), "-m ** 2"),
        (Expr("**", (2, Expr("neg", (M,)))), "2 ** (-m)"),
    ],
)
def test_parentheses_stand_where_python_needs_them(term, reads):
    assert text(term) == reads


@pytest.mark.parametrize(
    ("term", "reads"),
    [
        (Expr("+", (N, Expr("*", (-1, Expr("//", (N, 2)))))), "n - n // 2"),
        (Expr("+", (Expr("*", (-1, N)), M, -3)), "m - n - 3"),
        (Expr("+", (M, Expr("*", (-2, N, K)))), "m - 2 * n * k"),
        (Expr("+", (M, Expr("*", (-1, Expr("+", (N, 1)))))), "m - (n + 1)"),
        (Expr("+", (M, Expr("neg", (Expr("+", (N, -1)),)))), "m - (n - 1)"),
        (Expr("//", (Expr("+", (M, -1)), K)), "(m - 1) // k"),
        (Expr("+", (Expr("*", (-1, M)), -1)), "-m - 1"),
        (Expr("*", (-1, Expr("//", (M, 2)))), "-(m // 2)"),
        (Expr("*", (-2, M)), "-2 * m"),
        # In the order in which they are rounded.
        (Expr("+", (-0.5, ALPHA, -2.5)), "-0.5 + alpha - 2.5"),
        (Expr("*", (-1, ALPHA)), "-1 * alpha"),
    ],
)
def test_what_a_sum_subtracts_has_a_minus(term, reads):
    assert text(term) == reads
    assert as_python(term, VALUES) == evaluate(term, VALUES)


@pytest.mark.parametrize(
    ("term", "reads"),
    [
        (Expr("<", (M, N)), "n <= m"),
        (Expr("<=", (M, N)), "n < m"),
        (Expr("==", (M, N)), "m != n"),
        (Expr("!=", (M, N)), "m == n"),
        (Expr("not", (Expr("and", (M, N)),)), "m and n"),
        (Expr("and", (M, N)), "not (m and n)"),
        (M, "not m"),
        # nan is neither below 1 nor at least 1.
        (Expr("<", (ALPHA, 1.0)), "not alpha < 1.0"),
    ],
)
def test_a_condition_is_negated_as_one_would_write_it(term, reads):
    assert text(negated(term)) == reads


@pytest.mark.parametrize(
    ("term", "written"),
    [
        (M, "m"),
        (ALPHA, ["var", "alpha", "float"]),
        (3, 3),
        (0.5, 0.5),
        (math.inf, ["const", "inf"]),
        (-math.inf, ["const", "-inf"]),
        (Expr("*", (M, 2)), ["*", "m", 2]),
        (Expr("neg", (ALPHA,)), ["neg", ["var", "alpha", "float"]]),
    ],
)
def test_json_is_readable_and_keeps_a_term(term, written):
    assert to_json(term) == written
    assert from_json(json.loads(json.dumps(to_json(term)))) == term


sizes = st.integers(-(2**40), 2**40)
leaves = st.sampled_from([M, N, K]) | st.integers(-100, 2**40)


def _grown(inner):
    pairs = st.tuples(inner, inner)
    positive = st.integers(1, 1024)
    return st.one_of(
        st.builds(Expr, st.sampled_from(["+", "*", "min", "max", "and", "or"]),
                  st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Expr, st.sampled_from(["==", "!=", "<", "<=", "&", "|", "^"]), pairs),
        st.builds(Expr, st.sampled_from(["//", "%"]), st.tuples(inner, positive)),
        st.builds(Expr, st.sampled_from(["<<", ">>"]), st.tuples(inner, st.integers(0, 8))),
        st.builds(Expr, st.just("**"), st.tuples(inner, st.integers(0, 3))),
        st.builds(Expr, st.sampled_from(["neg", "not", "abs"]), st.tuples(inner)),
        st.builds(Expr, st.just("where"), st.tuples(inner, inner, inner)),
    )  # fmt: skip


terms = st.recursive(leaves, _grown, max_leaves=12)
bindings = st.fixed_dictionaries({"m": sizes, "n": sizes, "k": sizes})


def as_truth(term):
    """`and` and `or` give 0 or 1 here, and an operand in Python."""
    if not isinstance(term, Expr):
        return term
    args = tuple(as_truth(a) for a in term.args)
    if term.op in {"and", "or"}:
        return Expr("!=", (Expr(term.op, args), 0))
    return Expr(term.op, args)


@settings(deadline=None)
@given(terms, bindings)
def test_the_text_of_a_term_means_the_same_in_python(term, values):
    assert as_python(as_truth(term), values) == evaluate(term, values)


@settings(deadline=None)
@given(terms, bindings)
def test_a_negated_term_holds_where_the_term_does_not(term, values):
    assert bool(evaluate(negated(term), values)) is not bool(evaluate(term, values))


@settings(deadline=None)
@given(terms)
def test_json_keeps_every_term(term):
    again = from_json(json.loads(json.dumps(to_json(term))))
    assert again == term
    assert hash(again) == hash(term)


@settings(deadline=None)
@given(terms, bindings)
def test_make_computes_what_evaluate_does(term, values):
    def bound(term):
        if isinstance(term, Var):
            return values[term.name]
        return make(term.op, *map(bound, term.args)) if isinstance(term, Expr) else term

    assert bound(term) == evaluate(term, values)


def test_another_process_hashes_a_term_anew():
    term = Expr("+", (Expr("*", (M, N)), 127))
    hash(term)
    expr.is_float(term)
    pickled = pickle.dumps(term)
    assert b"_hash" not in pickled
    again = pickle.loads(pickled)
    assert again == term
    assert hash(again) == hash(term)
