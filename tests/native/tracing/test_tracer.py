"""The traced program does what the host function does, for sizes of every kind."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opforge.native.ir.expr import Var, constants
from opforge.native.tracing.traced_gpu import values as device_values
from support.native.traced_bodies import TABLE
from support.native.traced_oracle import compare, paths_for, run_eagerly

LARGEST = 2**34
_USUAL = (0, 1, 2, 3, 5, 7, 15, 16, 17, 48, 64, 96, 127, 128, 129, 1000, 1024, 4096, 70000)


def numbers(domain, guards):
    """Values of one variable: usual ones, those around the guards' constants, and any."""
    if domain.values:
        return st.sampled_from(domain.values)
    if domain.is_float:
        return st.sampled_from([0.0, 0.25, 0.5, 0.75, -1.0, math.inf, math.nan])
    near = {int(c) + d for c in guards if abs(c) < LARGEST for d in (-1, 0, 1)}
    likely = [v for v in sorted({*_USUAL, *near, 2**31, 2**33}) if v in domain]
    low, high = max(domain.low, -LARGEST), min(domain.high, LARGEST)
    any_ = st.integers(int(low), int(min(high, max(low, 300)))) | st.integers(int(low), int(high))
    return (st.sampled_from(likely) | any_) if likely else any_


@st.composite
def sizes(draw, body, index):
    built = body.built[index]
    asked = [c for p in built.case.paths for g in p.guards for c in constants(g.condition)]
    found = {
        n: draw(numbers(d, asked)) for n, d in body.domains(index).items() if ".stride[" not in n
    }
    for tensor in built.case.tensors:
        if tensor.strides is None or not tensor.present:
            continue
        shape = [found[s.name] if isinstance(s, Var) else s for s in tensor.shape]
        step = draw(st.sampled_from([1, 1, 1, 2, 16]))
        order = draw(st.sampled_from([list(range(len(shape)))] * 2 + [*_orders(len(shape))]))
        for d in reversed(order):
            found[tensor.strides[d].name] = step
            step *= max(shape[d], 1) + draw(st.sampled_from([0, 0, 0, 1, 8]))
        if draw(st.integers(0, 9)) == 0:
            found[tensor.strides[draw(st.integers(0, len(shape) - 1))].name] = 0
    arch = draw(st.sampled_from(body.archs))
    device = device_values(arch)
    device["device.multi_processor_count"] = draw(st.sampled_from([1, 82, 132]))
    device["device.shared_memory_per_block_optin"] = draw(st.sampled_from([101376, 232448]))
    return found | device


def _orders(rank):
    yield list(reversed(range(rank)))
    if rank > 2:
        yield [1, 0, *range(2, rank)]


def addressable(body, index, values):
    """Whether every tensor of these sizes has a valid number of bytes."""
    spans = [math.prod(max(int(v), 1) for n, v in values.items() if n in sizes_of(body, index))]
    for tensor in body.declared.cases[index].tensors:
        for size, stride in zip(tensor.shape, tensor.strides or (), strict=False):
            spans.append(values.get(str(size), 1) * values[stride.name])
    return max(spans) < 2**50


def sizes_of(body, index):
    tensors = body.declared.cases[index].tensors
    return {s.name for t in tensors for s in t.shape if isinstance(s, Var)}


def agree(body, index, values):
    """One path takes these sizes, and does what the function does; or both refuse."""
    built = body.built[index]
    taken = paths_for(built, values)
    did = run_eagerly(body, index, values)
    assert len(taken) <= 1, "two paths take the same sizes"
    if not taken:
        assert did.error, "no path takes these sizes"
    elif taken[0].refused:
        assert did.error, taken[0].refused
    else:
        compare(built, taken[0], did, values)


@pytest.mark.parametrize("name", TABLE)
def test_a_program_does_what_its_function_does(name):
    body = TABLE[name]

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def check(data):
        index = data.draw(st.integers(0, len(body.built) - 1))
        values = data.draw(sizes(body, index))
        if not addressable(body, index, values):
            return
        agree(body, index, values)

    check()
