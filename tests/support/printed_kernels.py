"""Kernels that use what Inductor does not print: module aliases, other names, variables around."""

import enum

import triton
import triton.language as tl
import triton.language.extra as tle
from triton.language import constexpr, float32
from triton.language import math as tlm
from triton.language.extra import libdevice as device
from triton.language.standard import sigmoid

from support import printed_alias as ext
from support.printed_alias import turned


class Way(enum.IntEnum):
    UP = 1
    DOWN = 2


HALF = tl.constexpr(0.5)
LARGEST = tl.constexpr(float("inf"))
UP = tl.constexpr(Way.UP)
DTYPE = tl.constexpr(tl.float32)
BLOCK_DEFAULT = tl.constexpr(64)


@tl.constexpr
def width_of(block):
    return block


@triton.jit
def scaled(value):
    return value * HALF


halved = scaled


@triton.jit
def grown(value: float32):
    return ext.row(1) + tlm.exp(value)


@triton.jit
def by_module(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = ext.row(0) * BLOCK + tl.arange(0, BLOCK)
    value = tlm.exp(tl.load(x_ptr + offs, mask=offs < n))
    tl.store(out_ptr + offs, device.tanh(value), mask=offs < n)


@triton.jit
def by_attribute_of_a_module(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tle.libdevice.tanh(tl.load(x_ptr + offs, mask=offs < n))
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def by_helper(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, grown(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def by_another_name(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, halved(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def by_function_of_triton(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, sigmoid(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def by_constants(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n, other=LARGEST).to(DTYPE).to(float32)
    if UP == 1:
        value = value * HALF
    tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def by_python_function(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * width_of(BLOCK) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 0.5, mask=offs < n)


@triton.jit
def by_header(x_ptr, out_ptr, n, BLOCK: constexpr = BLOCK_DEFAULT):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 0.5, mask=offs < n)


def made_around(function, factor):
    @triton.jit
    def by_variable_around(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = function(tl.load(x_ptr + offs, mask=offs < n)) * factor
        tl.store(out_ptr + offs, value, mask=offs < n)

    return by_variable_around


by_variable_around = made_around(scaled, tl.constexpr(2.0))
by_tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], ["n"])(
    by_module
)

LACKING = {
    "by_module": by_module,
    "by_attribute_of_a_module": by_attribute_of_a_module,
    "by_helper": by_helper,
    "by_another_name": by_another_name,
    "by_function_of_triton": by_function_of_triton,
    "by_constants": by_constants,
    "by_python_function": by_python_function,
    "by_header": by_header,
    "by_variable_around": by_variable_around,
    "by_tuned": by_tuned,
}


@triton.jit
def plain(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


def made_with(thing):
    @triton.jit
    def with_a_thing(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + offs, mask=offs < n)
        if thing.wanted:
            value = value * 2
        tl.store(out_ptr + offs, value, mask=offs < n)

    return with_a_thing


@triton.jit
def with_two_halves(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, scaled(value) + turned(value), mask=offs < n)


@triton.jit
def by_attribute_of_an_enum(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * UP.value, mask=offs < n)
