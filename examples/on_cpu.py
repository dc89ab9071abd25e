"""Runs a program that calls a built library on a machine without a GPU.

    TRITON_INTERPRET=1 python examples/on_cpu.py dist ./main arguments...
    TRITON_INTERPRET=1 python examples/on_cpu.py dist serve.py arguments...

The test suite's stand-in for the CUDA driver presents one sm_80 GPU, and Triton's interpreter runs
the launches. It imports the kernels from the modules that the library was built from: start it
where Python finds them. A Python program passes CPU tensors (`host_memory=True`).
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import opforge

# The stand-in belongs to a checkout, which an editable install leads to.
TESTS = Path(opforge.__file__).parents[2] / "tests"
sys.path[:0] = [os.curdir, str(TESTS)]

from support.standin.driver import StandIn, load_standin  # noqa: E402
from support.standin.interpreter import Interpreter  # noqa: E402
from support.standin.remote import serving  # noqa: E402


def use_standin(folder: str) -> StandIn:
    """Give this process a CUDA driver that interprets the kernels of the library in `folder`."""
    standin = load_standin()
    standin.reset()
    standin.execute = interpreter(folder)
    return standin


def interpreter(folder: str) -> Interpreter:
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("Triton interprets kernels only in processes that start with TRITON_INTERPRET=1")
    manifests = list(Path(folder).glob("share/*/manifest.json"))
    if len(manifests) != 1:
        sys.exit(f"{folder} does not hold a library; build one: opforge build ops.py -o {folder}")
    return Interpreter(json.loads(manifests[0].read_text()))


def run_script(folder: str, script: str, *arguments: str) -> int:
    standin = use_standin(folder)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    return report(standin.errors)


def run_program(folder: str, program: str, *arguments: str) -> int:
    with serving(interpreter(folder)) as server:
        environment = os.environ | server.environment
        done = subprocess.run([program, *arguments], env=environment, check=False)
    return report(server.errors) or done.returncode


def report(errors: list[BaseException]) -> int:
    """What kernels raised in the interpreter, which the library sees as failed launches."""
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1 if errors else 0


def main(folder: str, program: str, *arguments: str) -> int:
    run = run_script if program.endswith(".py") else run_program
    return run(folder, program, *arguments)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
