"""The program of a traced body for given sizes, as plain data that another process can run.

Triton's interpreter runs kernels only in a process that began with TRITON_INTERPRET=1, where
nothing can be traced.
"""

import ctypes
import functools
import importlib
import importlib.util
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opforge._compat import kernels
from opforge.native.ir.cases import Allocate, Fill, Launch, Pointer
from opforge.native.ir.dtypes import DTYPES
from opforge.native.ir.expr import evaluate
from support.native.interpreted_kernels import from_text, launch
from support.native.torch_bodies import element
from support.native.traced_oracle import paths_for
from support.standin.interpreter import number


@dataclass(frozen=True)
class Kernel:
    """A kernel of a package by its file, or one that opforge wrote by its text."""

    module: str
    name: str
    file: str
    text: str = ""


@dataclass(frozen=True)
class Place:
    buffer: str
    offset: int
    dtype: str


@dataclass(frozen=True)
class Number:
    value: Any
    type: str


@dataclass(frozen=True)
class Made:
    buffer: str
    size: int


@dataclass(frozen=True)
class Set:
    buffer: str
    offset: int
    data: bytes
    count: int


@dataclass(frozen=True)
class Launched:
    kernel: Kernel
    grid: tuple[int, ...]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    inputs: tuple[str, ...]
    # By name: sizes, strides and dtype.
    outputs: dict[str, tuple[list[int], list[int], str]]
    steps: list[Made | Set | Launched]


def recipe(program, *inputs):
    """What the library of a `Program` does with inputs."""
    given = dict(zip([p.name for p in program.body.declared.params], inputs, strict=True))
    built, values = program.matching(given)
    (path,) = paths_for(built, values)
    assert not path.refused, path.refused
    outputs = {
        name: (
            [evaluate(t, values) for t in output.shape],
            [evaluate(t, values) for t in output.strides],
            DTYPES[output.dtype].torch,
        )
        for name, output in zip(program.body.declared.outputs, path.outputs, strict=True)
    }
    return Recipe(tuple(given), outputs, [_plain(built, step, values) for step in path.steps])


def _plain(built, step, values):
    if isinstance(step, Allocate):
        return Made(step.buffer, max(evaluate(step.bytes, values), 1))
    if isinstance(step, Fill):
        data = step.pattern.to_bytes(step.width, "little")
        return Set(step.buffer, evaluate(step.offset, values), data, evaluate(step.count, values))
    assert isinstance(step, Launch)
    request = built.requests[step.variants[-1].kernel][0]
    arguments, types = dict(request.constants), dict(request.signature)
    for argument in step.arguments:
        if isinstance(argument, Pointer):
            offset = evaluate(argument.offset, values)
            given = Place(argument.buffer, offset, DTYPES[argument.dtype].torch)
        else:
            given = Number(evaluate(argument.value, values), types[argument.name])
        arguments[argument.name] = given
    fn = request.fn
    file, text = kernels.written_source(fn) or (fn.fn.__code__.co_filename, _inner_text(fn))
    kernel = Kernel(fn.fn.__module__, fn.fn.__name__, file, text)
    grid = tuple(int(evaluate(g, values)) for g in step.grid)
    return Launched(kernel, grid, arguments)


def _inner_text(kernel):
    """The text of a kernel that a function defines, which no module has by its name."""
    return textwrap.dedent(kernel.src) if "<locals>" in kernel.fn.__qualname__ else ""


def run(done, inputs):
    """The outputs of a recipe; inputs that it changes are changed."""
    buffers = dict(zip(done.inputs, inputs, strict=True))
    outputs = []
    for name, (sizes, strides, dtype) in done.outputs.items():
        made = torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype))
        buffers[name] = made
        outputs.append(made)
    for step in done.steps:
        if isinstance(step, Made):
            # Not zeros, which would hide what a kernel leaves unset.
            buffers[step.buffer] = torch.full((step.size,), 0xA5, dtype=torch.uint8)
        elif isinstance(step, Set):
            _fill(step, buffers[step.buffer])
        elif math.prod(step.grid):
            _launch(step, buffers)
    return outputs


def _fill(step, owner):
    data = torch.frombuffer(bytearray(step.data * step.count), dtype=torch.uint8)
    if len(data):
        ctypes.memmove(owner.data_ptr() + step.offset, data.data_ptr(), len(data))


def _launch(step, buffers):
    arguments = {}
    for name, value in step.arguments.items():
        arguments[name] = value
        if isinstance(value, Place):
            owner = buffers[value.buffer]
            arguments[name] = element(owner.data_ptr() + value.offset, value.dtype, owner)
        elif isinstance(value, Number):
            arguments[name] = number(value.value, value.type)
    kernel = function(step.kernel)
    if step.kernel.text:
        launch(kernel, step.grid, arguments)
    else:
        kernel[step.grid](**arguments)


@functools.cache
def function(kernel):
    if kernel.text:
        return from_text(kernel.name, kernel.file, kernel.text)
    found = getattr(_module(kernel), kernel.name)
    # Below autotune and heuristics, whose decisions are in the constants.
    while hasattr(found.fn, "arg_names"):
        found = found.fn
    return found


def _module(kernel):
    if importlib.util.find_spec(kernel.module.partition(".")[0]) is not None:
        return importlib.import_module(kernel.module)
    # Written by a package while it ran, some under one name.
    return _from_file(kernel.file)


@functools.cache
def _from_file(file):
    spec = importlib.util.spec_from_file_location(f"written_{Path(file).stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
