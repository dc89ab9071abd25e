"""Calls of built libraries with CPU tensors, on the stand-in or on a GPU."""

import hashlib
import importlib
import os
from pathlib import Path

import pytest
import torch

from support.standin.driver import AMD, NVIDIA
from support.standin.interpreter import Interpreter
from support.standin.library import NativeLibrary, OpforgeTensor, numbers

BUILT = Path(os.environ.get("OPFORGE_TEST_BUILT", "/nonexistent"))
# "cuda" on a GPU; "cpu" for the stand-in.
DEVICE = os.environ.get("OPFORGE_TEST_DEVICE", "cpu")
# Whose stand-in.
VENDOR = AMD if os.environ.get("OPFORGE_TEST_VENDOR") == "amd" else NVIDIA


def place(tensor):
    """On the device, with the same strides and offset."""
    if DEVICE == "cpu":
        return tensor
    storage = tensor.untyped_storage().cuda()
    moved = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
    return moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class Caller:
    """Calls with CPU tensors, wherever the library runs; remembers which kernels it launched."""

    def __init__(self, name, standin):
        self.library = NativeLibrary(BUILT / name, name)
        self.standin = standin
        self._kernels = {
            image["sha256"]: kernel
            for kernel in self.library.manifest["kernels"]
            for image in kernel["images"]
        }

    def begin(self):
        if self.standin is not None:
            self.standin.reset()
            self.standin.execute = Interpreter(self.library.manifest)

    def end(self):
        if self.standin is not None:
            assert not self.standin.errors, self.standin.errors[0]
            self.library.unload()
            assert self.standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}

    def __call__(self, op, *inputs):
        """The outputs on the CPU; None for an absent one."""
        stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else None
        given = [place(i) if isinstance(i, torch.Tensor) else i for i in inputs]
        outputs = self._run(op, given, stream)
        # A kernel's write to an input shows in the given tensor.
        for tensor, moved in zip(inputs, given, strict=True):
            if isinstance(tensor, torch.Tensor) and moved is not tensor:
                tensor.untyped_storage().copy_(moved.untyped_storage())
        return [o if o is None else o.cpu() for o in outputs]

    def _run(self, op, given, stream):
        """Also compares what the call allocates with what it was to allocate."""
        if self.standin is None:
            return self.library.run(op, *given, stream=stream)
        before = self.standin.allocated
        outputs = self.library.run(op, *given, stream=stream)
        told = self.library.workspace(op, *given, *outputs)
        assert told == self.standin.allocated - before
        assert told == self.library.workspace(op, *given, *(None for _ in outputs))
        return outputs

    def one(self, op, *inputs):
        (output,) = self(op, *inputs)
        return output

    @property
    def launches(self):
        return [] if self.standin is None else self.standin.launches

    @property
    def launched(self):
        """The manifest's entries of the kernels that were launched since the test began."""
        if self.standin is None:
            pytest.skip("a real driver does not tell what it launched")
        images = [launched.image for launched in self.standin.launches]
        return [self._kernels[hashlib.sha256(image).hexdigest()] for image in images]

    def saw(self, part, expected):
        """A part of each kernel that was launched, where that is known."""
        if self.standin is not None:
            assert [part(kernel) for kernel in self.launched] == expected

    def only_record(self):
        """Launch nothing from now on, for sizes without memory behind them."""
        if self.standin is None:
            pytest.skip("a real driver would launch it")
        self.standin.execute = None


def described(shape, strides=None, dtype=torch.float16, address=1 << 20):
    """A tensor that exists only in its description."""
    made = OpforgeTensor.of(torch.empty(1, dtype=dtype))
    made.data, made.ndim, made.shape = address, len(shape), numbers(shape)
    made.strides = None if strides is None else numbers(strides)
    return made


def moved_by(tensor, elements):
    """The same numbers, `shift` elements past an aligned address."""
    room = torch.empty(tensor.numel() + elements, dtype=tensor.dtype)
    placed = room[elements:].view(tensor.shape)
    return placed.copy_(tensor)


# Of examples/native, against the functions that stand beside them.
TOLERANCES = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
}


def check(ops, name, *inputs):
    """An example, by its name."""
    found = ops.one(name, *inputs)
    expected = getattr(importlib.import_module("ops"), f"{name}_reference")(*inputs)
    torch.testing.assert_close(found, expected, **TOLERANCES[expected.dtype])
