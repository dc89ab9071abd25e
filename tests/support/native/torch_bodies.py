"""Runs the program of a traced body on CPU memory, with Triton's interpreter for its kernels.

What the C runtime does with a path is done here in Python: choose it by its guards, allocate, fill
and launch. So one process can try hundreds of bodies without compiling anything.
"""

import ctypes
import functools
import math
import textwrap

import torch

from opforge import native
from opforge._compat import kernels
from opforge.native.ir.cases import Allocate, Fill, Launch, Pointer
from opforge.native.ir.dtypes import ALIASES, DTYPES
from opforge.native.ir.expr import Var, evaluate
from opforge.native.ir.interface import ScalarParam
from opforge.native.tracing.launches import first_config
from opforge.native.tracing.traced_gpu import values as device_values
from support.archs import GFX942, SM_90
from support.native.interpreted_kernels import from_text, launch
from support.native.torch_table import body_of_one, body_of_two
from support.native.traced_oracle import Body, dtype_name, paths_for


@functools.cache
def interpreted(fn):
    file = fn.fn.__code__.co_filename
    _, text = kernels.written_source(fn) or (file, textwrap.dedent(fn.src))
    return from_text(fn.fn.__name__, file, text)


class Program:
    """A body, and its program for every case of its declaration."""

    def __init__(self, fn, mutates=(), archs=(SM_90, GFX942), choose=first_config, **specs):
        self.body = Body(fn, specs, mutates=mutates, archs=archs, choose=choose)

    def __call__(self, *inputs):
        """What the library would return; inputs that it changes are changed."""
        body = self.body
        names = [p.name for p in body.declared.params]
        given = dict(zip(names, inputs, strict=True))
        built, values = self.matching(given)
        (path,) = paths_for(built, values)
        assert not path.refused, path.refused
        # What is computed here holds on the other vendor's GPUs, too.
        for arch in body.archs:
            assert paths_for(built, values | device_values(arch)) == [path]
        buffers = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
        device = next(iter(buffers.values())).device
        outputs = []
        for name, output in zip(body.declared.outputs, path.outputs, strict=True):
            shape, strides = (
                [evaluate(t, values) for t in ts] for ts in (output.shape, output.strides)
            )
            dtype = getattr(torch, DTYPES[output.dtype].torch)
            made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            buffers[name] = made
            outputs.append(made)
        for step in path.steps:
            if isinstance(step, Allocate):
                size = max(evaluate(step.bytes, values), 1)
                buffers[step.buffer] = torch.full((size,), 0xA5, dtype=torch.uint8, device=device)
            elif isinstance(step, Fill):
                self._fill(step, buffers, values)
            else:
                self._launch(built, step, buffers, values)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def matching(self, given):
        for number, case in enumerate(self.body.declared.cases):
            values = dict(device_values(self.body.archs[0]))
            if all(_fits(tensor, given[tensor.param], values) for tensor in case.tensors):
                for param in self.body.declared.params:
                    if isinstance(param, ScalarParam):
                        values[param.name] = given[param.name]
                return self.body.built[number], values
        raise AssertionError("no case takes these inputs")

    def _fill(self, step, buffers, values):
        offset, count = evaluate(step.offset, values), evaluate(step.count, values)
        owner = buffers[step.buffer]
        if owner.is_cuda:
            pattern = torch.tensor(
                list(step.pattern.to_bytes(step.width, "little")), dtype=torch.uint8
            )
            flat = owner.view(torch.uint8).flatten()
            flat[offset : offset + count * step.width] = pattern.cuda().repeat(count)
            return
        address = owner.data_ptr() + offset
        ctypes.memmove(
            address, step.pattern.to_bytes(step.width, "little") * count, count * step.width
        )

    def _launch(self, built, step: Launch, buffers, values):
        request = built.requests[step.variants[-1].kernel][0]
        passed = dict(request.constants)
        for argument in step.arguments:
            if isinstance(argument, Pointer):
                owner = buffers[argument.buffer]
                address = owner.data_ptr() + evaluate(argument.offset, values)
                passed[argument.name] = element(address, DTYPES[argument.dtype].torch, owner)
            else:
                passed[argument.name] = evaluate(argument.value, values)
        grid = tuple(int(evaluate(g, values)) for g in step.grid)
        if math.prod(grid):
            if any(b.is_cuda for b in buffers.values()):
                request.fn[grid](**passed, **dict(request.options))
            else:
                launch(interpreted(request.fn), grid, passed)


def agree(function, *tensors, layout="contiguous"):
    """A library computes what torch does, of the same type, shape and strides.

    Sizes that are equal are declared as one, those of 0 and 1, too.
    """
    body = (body_of_one if len(tensors) == 1 else body_of_two)(function)
    specs = {
        name: native.tensor(
            " ".join(f"d{size}" for size in tensor.shape), dtype=dtype_name(tensor), layout=layout
        )
        for name, tensor in zip("xy", tensors, strict=False)
    }
    found, wanted = Program(body, **specs)(*tensors), body(*tensors)
    torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=wanted.numel() > 1)


def _fits(tensor, real, values):
    """Whether a case takes a tensor; notes its sizes and strides."""
    dtype = ALIASES[str(real.dtype).removeprefix("torch.")]
    if dtype != tensor.dtype or real.dim() != len(tensor.shape):
        return False
    for term, stride in zip(tensor.strides or (), real.stride(), strict=False):
        if isinstance(term, Var):
            values[term.name] = stride
    return all(
        (values.setdefault(term.name, size) if isinstance(term, Var) else term) == size
        for term, size in zip(tensor.shape, real.shape, strict=True)
    )


def element(address, dtype, owner):
    """One element at an address: the interpreter reads and writes around it by address alone."""
    wanted = getattr(torch, dtype)
    if owner.numel() == 0:
        return torch.empty(1, dtype=wanted, device=owner.device)
    if owner.is_cuda:
        return _Pointer(address, wanted)
    element = (ctypes.c_char * 16).from_address(address)
    return torch.frombuffer(element, dtype=torch.uint8, count=wanted.itemsize).view(wanted)


class _Pointer:
    """What a launch looks at in a tensor."""

    def __init__(self, address, dtype):
        self.address, self.dtype = address, dtype

    def data_ptr(self):
        return self.address
