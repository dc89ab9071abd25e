"""Symbolic sizes: arithmetic with them, and questions about them."""

import math

import pytest
import torch
import triton

from opforge.native.ir.expr import Var
from opforge.native.symbolic.symint import Symbols


def symbols(**values):
    ranges = {"n": (1, 8192), "few": (0, 10)}
    return Symbols(values, {name: ranges.get(name, (0, math.inf)) for name in values})


def asked(found):
    return [str(g.condition) for g in found.guards]


def test_arithmetic_is_kept_and_asks_nothing():
    found = symbols(m=67, n=71)
    m, n = found.integer(Var("m")), found.integer(Var("n"))
    assert str(triton.cdiv(m * n, 128)) == "(m * n + 127) // 128"
    assert str((m + 3) % 16) == "(m + 3) % 16"
    assert str(torch.sym_max(m, n)) == "max(m, n)"
    assert str(m / n) == "m / n"
    assert str(n**-0.5) == "float(n) ** (-0.5)"
    assert str(5 - m) == "5 - m"
    assert str((m << 2) | 1) == "m << 2 | 1"
    assert str(abs(-m)) == "abs(-m)"
    assert asked(found) == []


def test_a_divisor_cancels_because_it_cannot_be_0():
    found = symbols(m=67, t=71)
    m, t = found.integer(Var("m")), found.integer(Var("t"))
    assert str(m * t // t) == "m"
    assert m * t % t == 0
    assert asked(found) == ["t != 0"]


@pytest.mark.parametrize(
    ("divide", "said"),
    [
        (lambda m, t: m // t, "integer division by zero"),
        (lambda m, t: m % t, "integer modulo by zero"),
    ],
)
def test_a_divisor_of_0_raises_as_in_python(divide, said):
    found = symbols(m=67, t=0)
    with pytest.raises(ZeroDivisionError, match=said):
        divide(found.integer(Var("m")), found.integer(Var("t")))
    assert asked(found) == ["t == 0"]


def test_floats_are_computed_with():
    found = Symbols({"eps": 0.5, "m": 4}, {"m": (0, math.inf)})
    eps, m = found.real(Var("eps", is_float=True)), found.integer(Var("m"))
    assert str(1.0 / (eps * 2 + m)) == "1.0 / (eps * 2.0 + float(m))"
    assert eps > 0
    assert asked(found) == ["0.0 < eps"]


def test_a_constant_of_declared_values_is_specialized():
    found = Symbols({"d": 4096}, {"d": (64, 4096)}, counts={"d": 2})
    assert int(found.integer(Var("d"))) == 4096
    assert asked(found) == ["d == 4096"]


def test_a_power_of_two_is_compared_by_its_argument():
    found = symbols(m=5000)
    power = found.next_power_of_2(Var("m"))
    assert min(power, 1024) == 1024
    assert power > 1000
    assert power >= 600
    assert not power <= 512
    assert asked(found) == ["1024 < m"]
    small = symbols(m=100)
    assert int(min(1000, small.next_power_of_2(Var("m")))) == 128
    assert asked(small) == ["m <= 512", "64 < m and m <= 128"]
