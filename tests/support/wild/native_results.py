"""Native programs of functions of public packages, interpreted, against eager torch.

    python native_results.py plan FILE PACKAGE    # trace; TRITON_INTERPRET must not be set
    python native_results.py run FILE             # with TRITON_INTERPRET=1

The second writes FILE.json: what differs, how many results were compared, and what was left out.
"""

import ast
import importlib
import inspect
import json
import os
import pickle
import sys
import textwrap
from pathlib import Path

from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from opforge._compat import compiling, driver
from opforge.gpu_target import DEFAULT
from support.archs import sm
from support.native import interpreted_math
from support.native.recipes import Launched, function, recipe, run
from support.native.torch_bodies import Program
from support.wild.native_functions import (
    EAGER,
    NOT_INTERPRETED,
    TRIES,
    differs,
    expected,
    inputs,
    loaded,
)


def plan(file, package):
    """Write the recipes of a package's functions."""
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    coverage, found = loaded(), []
    for number, forward in enumerate(coverage.TABLE):
        if forward.module.partition(".")[0] != package or forward.call not in EAGER:
            continue
        with driver.standing_in(DEFAULT):
            module = importlib.import_module(forward.module)
        program = Program(
            coverage.made(forward, module), forward.mutates, sm(80, 90), **forward.specs
        )
        for size in range(TRIES):
            given = inputs(forward, size)
            found.append((number, size, recipe(program, *given.values())))
    Path(file).write_bytes(pickle.dumps(found))


class Interpreted(interpreter.InterpretedFunction, JITFunction):
    """An interpreted function that FlagGems' wrappers take for a jitted one."""

    __name__ = ""
    # Jitted functions follow what they call for it, which is interpreted, too.
    cache_key = "interpreted"

    def __init__(self, fn, **options):
        JITFunction.__init__(self, fn)
        super().__init__(fn, **options)


def provide_libdevice():
    """What kernels of packages take from it, for Triton's interpreter."""
    for module in (libdevice, cuda_libdevice):
        for name, value in vars(interpreted_math).items():
            if hasattr(module, name) and hasattr(value, "fn"):
                setattr(module, name, value)


def is_beyond_the_interpreter(step):
    """Whether a kernel has `a and b` of blocks, of which the interpreter takes one alone: a mask
    that it misreads writes anywhere.
    """
    if not isinstance(step, Launched) or step.kernel.text:
        return False
    source = textwrap.dedent(inspect.getsource(function(step.kernel).fn))
    given = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]
    return any(isinstance(node, ast.BoolOp) for value in given for node in ast.walk(value))


def is_left_out(forward, steps):
    left = forward.call in NOT_INTERPRETED
    return left or any(map(is_beyond_the_interpreter, steps.steps))


def results(file):
    """What differs, one line each; the number of results; and the functions that were left out."""
    provide_libdevice()
    interpreter.InterpretedFunction = Interpreted
    said, count, skipped, table = [], 0, set(), loaded().TABLE
    for number, size, steps in pickle.loads(Path(file).read_bytes()):
        forward = table[number]
        given = inputs(forward, size)
        name = f"{forward.name} {forward.call}, size {size}"
        try:
            # Packages look for a GPU when they are imported.
            with driver.standing_in(DEFAULT):
                if is_left_out(forward, steps):
                    skipped.add(name.rpartition(",")[0])
                    continue
                found = run(steps, [t.clone() for t in given.values()])
        except Exception as error:  # noqa: BLE001  # whatever it is, the others go on
            said.append(f"{name}: {compiling.error_text(error)}")
            continue
        for place, (one, wanted) in enumerate(zip(found, expected(forward, given), strict=True)):
            count += 1
            if why := differs(one, wanted):
                said.append(f"{name}, output {place}: {why}")
    return {"differing": said, "count": count, "left_out": sorted(skipped)}


if __name__ == "__main__":
    _, command, file, *about = sys.argv
    if command == "plan":
        plan(file, *about)
    else:
        Path(f"{file}.json").write_text(json.dumps(results(file)), "utf-8")
