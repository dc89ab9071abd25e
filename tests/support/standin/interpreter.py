"""Runs launches through Triton's interpreter, on the memory that the native code passed.

The process has to be started with TRITON_INTERPRET=1: kernels and what they call are then
interpreted functions from the start.
"""

import ctypes
import hashlib
import importlib
import threading
from collections.abc import Mapping

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from opforge._compat import interpreter as interpreter_mends
from opforge._compat import tma
from opforge._compat.driver import standing_in
from opforge.gpu_target import gpu_of
from opforge.native.ir.dtypes import DTYPES
from support.native.interpreted_kernels import from_text, launch

from .driver import Launched
from .tensor_maps import Map, descriptor

# By Triton's name: a parameter's memory layout. Half precision comes as bits.
_SCALARS = {
    "i1": ctypes.c_bool, "u1": ctypes.c_bool,
    **{f"i{b}": getattr(ctypes, f"c_int{b}") for b in (8, 16, 32, 64)},
    **{f"u{b}": getattr(ctypes, f"c_uint{b}") for b in (8, 16, 32, 64)},
    "fp16": ctypes.c_uint16, "bf16": ctypes.c_uint16,
    "fp32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip


class Interpreter:
    """Executes launches of a library: `standin.execute = Interpreter(library.manifest)`.

    Kernels are imported by their name in the manifest, unless `kernels` gives them by key or name.
    """

    def __init__(self, manifest: dict, kernels: Mapping[str, object] | None = None) -> None:
        self._given = kernels or {}
        self._sources = manifest.get("sources", {})
        self._by_image = {}
        for kernel in manifest["kernels"]:
            for image in kernel["images"]:
                for digest in (image["sha256"], image["ptx_sha256"]):
                    if digest:
                        self._by_image[digest] = kernel
        # The interpreter keeps the current program's indices in globals.
        self._lock = threading.Lock()

    def __call__(self, launched: Launched) -> None:
        kernel = self._by_image[hashlib.sha256(launched.image).hexdigest()]
        function = self._function(kernel)
        values = iter(_Parameters(launched, _image(kernel, launched)).read(kernel["types"]))
        constants = {n: _constant(v) for n, v in kernel["constants"].items()}
        arguments = {
            n: constants[n] if n in constants else next(values) for n in function.arg_names
        }
        grid = (launched.grid[0] // launched.cluster, *launched.grid[1:])
        gpu = gpu_of(_image(kernel, launched)["arch"])
        # Kernels ask `tl.target_info`, too.
        with self._lock, standing_in(gpu):
            if kernel.get("location", "").rpartition(":")[0] in self._sources:
                launch(function, grid, arguments)
            else:
                function[grid](**arguments)

    def parameter_sizes(self, image: bytes) -> list[int]:
        """In bytes, of what a launch of an image passes."""
        types = self._by_image[hashlib.sha256(image).hexdigest()]["types"]
        return [_size(t) for t in types]

    def pointers(self, image: bytes) -> list[tuple[int, str]]:
        """Which of them are addresses, with the kernel and the parameter."""
        kernel = self._by_image[hashlib.sha256(image).hexdigest()]
        passed = [n for n in self._function(kernel).arg_names if n not in kernel["constants"]]
        return [
            (index, f"{kernel['name']}'s {name}")
            for index, (name, type_) in enumerate(zip(passed, kernel["types"], strict=True))
            if type_.startswith("*")
        ]

    def _function(self, kernel: dict):
        for name in (kernel["key"], kernel["name"]):
            if name in self._given:
                return self._given[name]
        module, _, name = kernel["qualified_name"].replace(":", ".").rpartition(".")
        file = kernel.get("location", "").rpartition(":")[0]
        if file in self._sources:
            return from_text(name, file, self._sources[file])
        found = importlib.import_module(module)
        function = getattr(found, name)
        # Below autotune and heuristics, whose decisions are already in the constants.
        while hasattr(function.fn, "arg_names"):
            function = function.fn
        return function


def _image(kernel: dict, launched: Launched) -> dict:
    digest = hashlib.sha256(launched.image).hexdigest()
    return next(i for i in kernel["images"] if digest in {i["sha256"], i["ptx_sha256"]})


class _Parameters:
    """What a launch passes, one after the other."""

    def __init__(self, launched: Launched, image: dict) -> None:
        self.launched, self.image, self.count = launched, image, 0

    def read(self, types: list[str]) -> list[object]:
        return [self._descriptor(t) if tma.rank(t) else self._next(t) for t in types]

    def _next(self, type_: str) -> object:
        self.count += 1
        return _read(self.launched, self.count - 1, type_)

    def _numbers(self, count: int, ctype: type) -> list[int]:
        self.count += count
        return [self.launched.read(self.count - count + i, ctype) for i in range(count)]

    def _descriptor(self, type_: str) -> object:
        element, _, block = type_.removeprefix("tensordesc<").partition("[")
        dtype = getattr(torch, DTYPES[element].torch)
        sizes = [int(n) for n in block.partition("]")[0].split(",")]
        rank = len(sizes)
        if self.image.get("maps"):
            (found,) = self._numbers(1, Map)
            made = found.described(dtype, sizes)
        else:
            (address,) = self._numbers(1, ctypes.c_uint64)
            shape, strides = (self._numbers(rank, ctypes.c_int64) for _ in range(2))
            is_nan, *_ = self._numbers(self.image.get("descriptor_flags", 2), ctypes.c_bool)
            made = descriptor(address, dtype, shape, strides, sizes, is_nan=is_nan)
        assert self._numbers(rank, ctypes.c_int32) == made.shape
        assert self._numbers(rank, ctypes.c_int64) == made.strides
        return made


def _read(launched: Launched, index: int, type_: str) -> object:
    if type_.startswith("*"):
        address = launched.read(index, ctypes.c_uint64)
        element = type_.removeprefix("*").removeprefix("k")
        # The JIT's name for a tensor of bools.
        return _Memory(address, DTYPES["i1" if element == "u1" else element].torch)
    return number(launched.read(index, _SCALARS[type_]), type_)


def number(value: object, type_: str) -> tl.tensor:
    """In the type that the library passed; from a bare number, the interpreter guesses one."""
    dtype = tl.str_to_ty(type_, None)
    array = np.array([value], dtype=np.dtype(_SCALARS[type_]))
    # The interpreter keeps fp16 as numbers, but bfloat16, which numpy lacks, as bits.
    array = array.view(np.float16) if type_ == "fp16" else array
    return tl.tensor(TensorHandle(array, dtype), dtype)


interpreter_mends.mend()


def _size(type_: str) -> int:
    return 8 if type_.startswith("*") else ctypes.sizeof(_SCALARS[type_])


def _constant(written: str) -> object:
    names = {"tl": tl, "triton": triton, "torch": torch}
    return eval(written, names)


def _Memory(address: int, dtype: str) -> torch.Tensor:  # noqa: N802 - stands for a type
    """One element at an address; the interpreter reads and writes around it by address alone."""
    if address == 0:
        return torch.empty(0, dtype=getattr(torch, dtype))
    element = (ctypes.c_char * 16).from_address(address)
    wanted = getattr(torch, dtype)
    return torch.frombuffer(element, dtype=torch.uint8, count=wanted.itemsize).view(wanted)
