"""Runs a program that calls a built library on a machine without a GPU.

    TRITON_INTERPRET=1 python examples/on_cpu.py dist ./main arguments...
    TRITON_INTERPRET=1 python examples/on_cpu.py dist serve.py arguments...
    TRITON_INTERPRET=1 python examples/on_cpu.py --arch gfx942 dist serve.py arguments...

The test suite's stand-in for the CUDA driver, or for AMD's, presents one GPU: that of --arch, or
the first that the library was built for. Triton's interpreter runs the launches. It imports the
kernels from the modules that the library was built from: start it where Python finds them. A Python
program passes CPU tensors (`host_memory=True`); any other allocates with the driver.
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import opforge
from opforge.arch_names import parse_arch
from opforge.errors import OpforgeError

# The stand-in belongs to a checkout: the one that this file is in, or that -e has installed.
CHECKOUTS = (Path(__file__).resolve().parents[1], Path(opforge.__file__).parents[2])
TESTS = [str(folder / "tests") for folder in CHECKOUTS if (folder / "tests" / "support").is_dir()]
if not TESTS:
    sys.exit("the stand-in is among opforge's tests: run examples/on_cpu.py in a checkout")
sys.path[:0] = [os.curdir, *TESTS[:1]]

from support.standin.driver import AMD, NVIDIA, StandIn, Vendor, load_standin  # noqa: E402
from support.standin.interpreter import Interpreter  # noqa: E402
from support.standin.remote import serving  # noqa: E402


def use_standin(folder: str, arch: str | None = None) -> StandIn:
    """Give this process a driver that interprets the kernels of the library in `folder`."""
    manifest = read_manifest(folder)
    arch = arch or first_arch(manifest)
    standin = load_standin(vendor_of(arch))
    number = 0 if arch.startswith("gfx") else int(arch.removeprefix("sm_"))
    standin.reset(capability=divmod(number, 10), arch=arch)
    standin.execute = Interpreter(manifest)
    return standin


def read_manifest(folder: str) -> dict:
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("Triton interprets kernels only in processes that start with TRITON_INTERPRET=1")
    manifests = list(Path(folder).glob("share/*/manifest.json"))
    if len(manifests) != 1:
        sys.exit(f"{folder} does not hold a library; build one: opforge build ops.py -o {folder}")
    return json.loads(manifests[0].read_text())


def first_arch(manifest: dict) -> str:
    """As `--arch` has it: an image for sm_90a is made for sm_90."""
    arch = next(iter(manifest["archs"]), "sm_80")
    return arch if arch.startswith("gfx") else arch.rstrip("af")


def vendor_of(arch: str) -> Vendor:
    return AMD if arch.startswith("gfx") else NVIDIA


def run_script(folder: str, arch: str | None, script: str, *arguments: str) -> int:
    standin = use_standin(folder, arch)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        # The reason, if the script ends because a launch failed.
        status = report(standin.errors)
    return status


def run_program(folder: str, arch: str | None, program: str, *arguments: str) -> int:
    manifest = read_manifest(folder)
    arch = arch or first_arch(manifest)
    with serving(Interpreter(manifest), vendor_of(arch)) as server:
        environment = os.environ | server.environment | {"STANDIN_ARCH": arch}
        done = subprocess.run([program, *arguments], env=environment, check=False)
    if done.returncode < 0:
        print(f"{program} was ended by signal {-done.returncode}", file=sys.stderr)
    return report(server.errors) or done.returncode


def report(errors: list[BaseException]) -> int:
    """What kernels raised in the interpreter, which the library sees as failed launches."""
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1 if errors else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", help="the GPU: sm_90, gfx942")
    parser.add_argument("folder", help="of a library that `opforge build` has written")
    parser.add_argument("program", help="a Python script, or any other program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.arch is not None:
        try:
            # Stand-ins know AMD's GPUs with what they have switched on, too.
            parsed = parse_arch(given.arch)
        except OpforgeError as error:
            parser.error(str(error))
        given.arch = given.arch if parsed.is_amd else str(parsed)
    run = run_script if given.program.endswith(".py") else run_program
    return run(given.folder, given.arch, given.program, *given.arguments)


if __name__ == "__main__":
    sys.exit(main())
