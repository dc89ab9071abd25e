"""Runs launches through Triton's interpreter, on the memory that the native code passed.

The process has to be started with TRITON_INTERPRET=1: kernels and what they call are then
interpreted functions from the start.
"""

import ctypes
import hashlib
import importlib
import threading
from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from opforge.native.dtypes import DTYPES

from .driver import Launched

_INTEGERS = {
    "i1": ctypes.c_int8, "u1": ctypes.c_uint8,
    **{f"i{b}": getattr(ctypes, f"c_int{b}") for b in (8, 16, 32, 64)},
    **{f"u{b}": getattr(ctypes, f"c_uint{b}") for b in (8, 16, 32, 64)},
    "fp32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Interpreter:
    """Executes launches of a library: `standin.execute = Interpreter(library.manifest)`.

    Kernels are imported by the name the manifest has, unless `kernels` gives them by key or name.
    """

    def __init__(self, manifest: dict, kernels: Mapping[str, object] | None = None) -> None:
        self._given = kernels or {}
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
        values = iter([_read(launched, i, t) for i, t in enumerate(kernel["types"])])
        constants = {n: _constant(v) for n, v in kernel["constants"].items()}
        arguments = {
            n: constants[n] if n in constants else next(values) for n in function.arg_names
        }
        grid = (launched.grid[0] // launched.cluster, *launched.grid[1:])
        with self._lock:
            function[grid](**arguments)

    def _function(self, kernel: dict):
        for name in (kernel["key"], kernel["name"]):
            if name in self._given:
                return self._given[name]
        module, _, name = kernel["qualified_name"].replace(":", ".").rpartition(".")
        found = importlib.import_module(module)
        function = getattr(found, name)
        # Under autotune and heuristics, whose decisions are in the constants already.
        while not hasattr(function, "arg_names") or hasattr(function, "configs"):
            function = function.fn
        return function


def _read(launched: Launched, index: int, type_: str) -> object:
    if type_.startswith("*"):
        address = launched.read(index, ctypes.c_uint64)
        return _Memory(address, DTYPES[type_.removeprefix("*").removeprefix("k")].torch)
    if type_ in _HALVES:
        bits = torch.tensor([launched.read(index, ctypes.c_int16)], dtype=torch.int16)
        return bits.view(_HALVES[type_]).item()
    return launched.read(index, _INTEGERS[type_])


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
