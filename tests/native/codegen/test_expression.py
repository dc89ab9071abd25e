"""Terms computed in C give what they give in Python."""

import ctypes
import random
import subprocess

import pytest

from opforge.native.codegen.expression import Writer, double, integer
from opforge.native.codegen.text import runtime
from opforge.native.ir.expr import Expr, Var, evaluate, is_float

INTEGERS = ("a", "b", "c")
FLOATS = ("x", "y")
FIELDS = {name: name for name in (*INTEGERS, *FLOATS)}
INT64 = range(-(2**63), 2**63)
ANY = ("+", "*", "min", "max")


def random_integer(source, depth):  # noqa: C901 - a branch per kind of term
    """A term over integers, floats and conditions that is an integer itself."""
    if depth == 0 or source.random() < 0.15:
        constants = [0, 1, 2, 7, 16, 127, -1, -3, 2**31, 2**40]
        return source.choice([*map(Var, INTEGERS), *map(Var, INTEGERS), source.choice(constants)])
    inner = lambda: random_integer(source, depth - 1)  # noqa: E731 - short, and used at once
    kind = source.choice(
        [*ANY, "//", "%", "neg", "abs", "where", "compare", "and", "or", "not", "bits", "shift",
         "**", "round"]
    )  # fmt: skip
    if kind in ANY:
        return Expr(kind, tuple(inner() for _ in range(source.randint(2, 3))))
    if kind in {"neg", "abs", "not"}:
        return Expr(kind, (inner(),))
    if kind == "where":
        return Expr("where", (random_integer(source, depth - 1), inner(), inner()))
    if kind == "compare":
        sides = (inner(), inner())
        if source.random() < 0.3:
            sides = (random_float(source, depth - 1), inner())
        return Expr(source.choice(["==", "!=", "<", "<="]), sides)
    if kind == "bits":
        return Expr(source.choice("&|^"), (inner(), inner()))
    if kind == "shift":
        return Expr(source.choice(["<<", ">>"]), (inner(), source.choice([0, 1, 5, 40])))
    if kind == "**":
        return Expr("**", (inner(), source.choice([0, 1, 2, 3])))
    if kind == "round":
        rounding = source.choice(["int", "floor", "ceil", "round"])
        return Expr(rounding, (random_float(source, depth - 1),))
    return Expr(kind, (inner(), inner()))


def random_float(source, depth):
    if depth <= 0 or source.random() < 0.3:
        return source.choice([*(Var(f, is_float=True) for f in FLOATS), 0.5, -2.0, 3.25])
    inner = random_float(source, depth - 1)
    kind = source.choice(["+", "*", "/", "neg", "abs", "float", "//", "%", "min", "where"])
    if kind in {"neg", "abs"}:
        return Expr(kind, (inner,))
    if kind == "float":
        return Expr("float", (random_integer(source, depth - 1),))
    if kind == "where":
        return Expr("where", (random_integer(source, depth - 1), inner, 1.5))
    return Expr(kind, (inner, random_float(source, depth - 1)))


def compiled(tmp_path, terms):
    write = Writer(FIELDS)
    members = "".join(f"    int64_t {n};\n" for n in INTEGERS)
    members += "".join(f"    double {n};\n" for n in FLOATS)
    functions = [
        f"{'double' if is_float(term) else 'int64_t'} f{i}(const Values *v, int *overflow)\n"
        f"{{ (void)v; (void)overflow; return {write(term)}; }}\n"
        for i, term in enumerate(terms)
    ]
    (tmp_path / "arithmetic.h").write_text(runtime()["arithmetic.h"])
    source = tmp_path / "terms.c"
    source.write_text(
        f'#include "arithmetic.h"\ntypedef struct {{\n{members}}} Values;\n' + "".join(functions)
    )
    library = tmp_path / "terms.so"
    # An overflow that is undefined in C ends the process.
    flags = [
        "-std=c99",
        "-shared",
        "-fPIC",
        "-w",
        "-fsanitize=undefined",
        "-fsanitize-undefined-trap-on-error",
    ]
    subprocess.run(["cc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


class Values(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in INTEGERS] + [(n, ctypes.c_double) for n in FLOATS]


def run(library, index, term, values):
    function = getattr(library, f"f{index}")
    function.restype = ctypes.c_double if is_float(term) else ctypes.c_int64
    overflow = ctypes.c_int(0)
    result = function(ctypes.byref(Values(**values)), ctypes.byref(overflow))
    return result, bool(overflow.value)


def fits(term, values):
    """Whether every integer on the way fits into 64 bits, and nothing is divided by zero."""
    if not isinstance(term, Expr):
        return True
    if not all(fits(arg, values) for arg in term.args):
        return False
    try:
        result = evaluate(term, values)
    except (ZeroDivisionError, OverflowError, ValueError):
        return False
    if isinstance(result, float):
        return True
    partial = result
    if term.op in {"+", "*"} and not is_float(term):
        for count in range(2, len(term.args)):
            partial = evaluate(Expr(term.op, term.args[:count]), values)
            if partial not in INT64:
                return False
    return result in INT64


def test_random_terms_agree_with_python(tmp_path):
    source = random.Random(20)
    terms = [random_integer(source, 4) for _ in range(300)]
    terms += [random_float(source, 4) for _ in range(60)]
    library = compiled(tmp_path, terms)
    agreed = 0
    for index, term in enumerate(terms):
        for _ in range(12):
            wide = source.choice([3, 100, 2**20, 2**40])
            values = {n: source.randint(-wide, wide) for n in INTEGERS}
            values |= {n: source.uniform(-50, 50) for n in FLOATS}
            if not fits(term, values):
                run(library, index, term, values)
                continue
            expected = evaluate(term, values)
            result, overflow = run(library, index, term, values)
            assert not overflow, (str(term), values)
            assert result == pytest.approx(expected, rel=1e-12, nan_ok=True), (str(term), values)
            agreed += 1
    assert agreed > 2000


A, B = Var("a"), Var("b")


@pytest.mark.parametrize(
    ("term", "a", "b"),
    [
        (Expr("+", (A, B)), 2**62, 2**62),
        (Expr("*", (A, B)), 2**40, 2**30),
        (Expr("neg", (A,)), -(2**63), 0),
        (Expr("abs", (A,)), -(2**63), 0),
        (Expr("//", (A, B)), 1, 0),
        (Expr("//", (A, B)), -(2**63), -1),
        (Expr("%", (A, B)), 1, 0),
        (Expr("**", (A, B)), 2, 63),
        (Expr("**", (A, B)), 2, -1),
        (Expr("<<", (A, B)), 1, 63),
        (Expr("<<", (A, B)), 1, -1),
        (Expr(">>", (A, B)), 1, -1),
        (Expr("int", (Expr("*", (Expr("float", (A,)), 4.0)),)), 2**62, 0),
    ],
)
def test_overflow_of_64_bits_is_noticed(tmp_path, term, a, b):
    library = compiled(tmp_path, [term])
    assert run(library, 0, term, {"a": a, "b": b, "c": 0, "x": 0.0, "y": 0.0})[1]


@pytest.mark.parametrize("a", [-(2**63), -5, -1, 0, 1, 5, 2**63 - 1])
def test_edges_of_division_and_shifts(tmp_path, a):
    terms = [Expr(op, (A, n)) for op in ("//", "%") for n in (-3, -1, 1, 3, 2**62)]
    terms += [Expr(">>", (A, n)) for n in (0, 1, 62, 63, 200)]
    terms += [Expr("**", (A, n)) for n in (0, 1)]
    library = compiled(tmp_path, terms)
    for index, term in enumerate(terms):
        values = {"a": a, "b": 0, "c": 0, "x": 0.0, "y": 0.0}
        expected = evaluate(term, values)
        result, overflow = run(library, index, term, values)
        assert overflow == (expected not in INT64)
        assert overflow or result == expected


def test_constants_are_written_as_c_reads_them():
    assert integer(5) == "5"
    assert integer(2**40) == "INT64_C(1099511627776)"
    assert integer(-(2**63)) == "INT64_MIN"
    assert (double(0.1), double(float("inf")), double(-0.0)) == ("0.1", "HUGE_VAL", "(-0.0)")
    with pytest.raises(OverflowError):
        integer(2**63)
