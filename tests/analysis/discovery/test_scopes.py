"""What a function's text binds."""

import opforge
from support.launch_patterns import double_kernel, triple_kernel


def binds_in_a_comprehension(xs):
    _ = [(kernel := double_kernel) for x in xs]
    kernel[(1,)](xs)


def binds_in_a_nested_comprehension(xs):
    _ = [[y for y in x if (kernel := triple_kernel)] for x in xs]
    kernel[(1,)](xs)


def test_a_walrus_in_a_comprehension_binds_in_the_function_around_it():
    assert [k.name for k in opforge.find_kernels(binds_in_a_comprehension)] == ["double_kernel"]
    found = opforge.find_kernels(binds_in_a_nested_comprehension)
    assert [k.name for k in found] == ["triple_kernel"]
