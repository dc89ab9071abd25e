"""What stays in memory: of names that come and go, and of calls."""

import json

import pytest

from opforge.native.artifacts.toolchain import compile_library
from support.fuzzing import SECONDS
from support.native import hand_made
from support.processes import run_python
from support.standin.library import write

MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path

# As Python does; a preloaded one collects less often, and its pages come and go in larger lots.
gc.set_threshold(700, 10, 10)

def resident():
    gc.collect()
    # Freed memory goes back to the system, as far as it can.
    ctypes.CDLL(None).malloc_trim(0)
    # Without files, of which more is mapped as code is first used.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024

def growth(act, numbers, before):
    for number in range(before):
        act(number)
    start = resident()
    for number in range(before, before + numbers):
        act(number)
    return (resident() - start) / numbers
"""

NAMES = """
import dataclasses
import opforge, torch

X = torch.ones(2)

@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0

def ours(number):
    def scale(x: torch.Tensor, cfg: Config) -> torch.Tensor:
        return x * cfg.scale
    def backward(ctx, grad):
        return grad, None
    op = opforge.op(f"fuzz_ours::n{number}", mode="custom_op", backward=backward)(scale)
    op(X, Config())
    opforge.unregister(op)

def torchs(number):
    name = f"n{number}"
    library = torch.library.Library("fuzz_torchs", "FRAGMENT")
    library.define(f"{name}(Tensor x, float scale) -> Tensor")
    library.impl(name, lambda x, scale: x * scale, "CompositeExplicitAutograd")
    fake = lambda x, scale: torch.empty_like(x)
    torch.library.register_fake(f"fuzz_torchs::{name}", fake, lib=library)
    getattr(torch.ops.fuzz_torchs, name).default(X, 2.0)
    library._destroy()

print(json.dumps([growth(ours, COUNT, 200), growth(torchs, COUNT, 200)]))
"""

CALLS = """
import opforge, torch
from opforge import native
from support.standin.driver import load_standin

standin = load_standin()
standin.reset()
# Launches reach the driver, and are not listed.
standin._library.standin_on_launch(None)
opened = native.open(FOLDER, host_memory=True)
loaded = opforge.load(FOLDER, host_memory=True)
x, y, wrong = torch.ones(64), torch.ones(64), torch.ones(2, 2, 2)

def call(number):
    opened.add(x, x, out=y)
    opened.add(x, x)
    torch.ops.demo.add(x, x)
    if number % 100 == 0:
        standin.forget_calls()
        for refused in (opened.add, torch.ops.demo.add):
            try:
                refused(wrong, wrong)
            except opforge.errors.OpforgeError:
                continue
            raise AssertionError("it was not refused")

print(json.dumps(growth(call, COUNT, 1000)))
"""


@pytest.fixture
def measured(tmp_path):
    def run(code, **values):
        given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        # Of a fake that is not in a file, torch looks for the module in all modules, for 8 s.
        program = tmp_path / "measured.py"
        program.write_text(MEASURE + given + code)
        return json.loads(run_python(str(program)))

    return run


def test_names_that_come_and_go_leave_no_more_than_torchs_own(measured):
    ours, torchs = measured(NAMES, COUNT=10_000 if SECONDS else 300)
    # Both keep what torch has of a name, of a backward, too: 4 kB and 3 kB. It was 18 kB.
    # A few hundred names are too few to tell a kilobyte from what the process does besides.
    assert ours < torchs + (500 if SECONDS else 4000)


@pytest.fixture
def folder(tmp_path):
    library = hand_made.library(hand_made.add())
    write(library, tmp_path)
    compile_library(tmp_path, library.name, flags=("-O0",))
    return str(tmp_path)


def test_calls_leave_nothing(folder, measured):
    # Three calls each.
    count = 350_000 if SECONDS else 5000
    # The allocator's pages come and go: some 70 kB, however many calls there are.
    assert measured(CALLS, COUNT=count, FOLDER=folder) * count < 2**19
