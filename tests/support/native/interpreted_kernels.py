"""Kernels that opforge wrote for torch calls, as Triton's interpreter runs them."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import linecache
import os
from unittest import mock

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from opforge.native.device import torch_math
from support.quickened_interpreter import quicken_interpreter


@functools.cache
def _math():
    """The functions that generated kernels call, as interpreted ones."""
    quicken_interpreter()
    with _interpreting():
        spec = importlib.util.spec_from_file_location(
            "opforge.native.device._interpreted", torch_math.__file__
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        own = importlib.import_module("support.native.interpreted_math")
    for name, value in vars(own).items():
        if name in vars(module):
            setattr(module, name, value)
    for name, value in list(vars(module).items()):
        if isinstance(value, InterpretedFunction):
            setattr(module, name, _plain(value))
    return {n: v for n, v in vars(module).items() if not n.startswith("_")}


def _plain(function):
    """A function that kernels call, without the interpreter's preparations at every call.

    The kernel around it has made them. Reductions look for `fn`.
    """
    made = function.rewrite()
    made.fn = made
    return made


@contextlib.contextmanager
def _interpreting():
    # By its variable, because a knob that was assigned once does not follow it any more.
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        yield


@functools.cache
def from_text(name, file, text):
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {**_math(), "__name__": "opforge"}
    exec(compile(text, file, "exec"), scope)
    with _interpreting():
        return triton.jit(scope[name])


def launch(kernel, grid, arguments):
    """Run a kernel that opforge wrote.

    Python takes a block's elements together one by one, so blocks of reductions are small here.
    """
    if "ROWS" in arguments:
        loops = "for start in" in inspect.getsource(kernel.fn)
        count = arguments.get("r", 1)
        count = int(count.handle.data[0]) if isinstance(count, tl.tensor) else count
        arguments["BLOCK"] = 4 if loops else triton.next_power_of_2(max(count, 1))
    with np.errstate(all="ignore"):
        kernel[grid](**arguments)
