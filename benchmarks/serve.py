"""What serving saves a program that launches Triton kernels, and what recording costs it.

    python benchmarks/serve.py     # needs a GPU and a C compiler

Every row is a ratio within one run. Launches run interleaved in one process, served and by Triton,
and the fastest round of each counts; each first launch is made in a fresh process that has imported
torch and Triton and has a CUDA context, and the JIT's with an empty cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from ratios import Row, child, measure

import opforge
from opforge.serving.build import build

FIRST_LAUNCHES = 3
LIMITS = {"4 arguments": 0.4, "19 arguments": 0.4}

HEAD = """
import opforge, serve_kernels
x, y, out = (torch.randn(4096, device="cuda") for _ in range(3))
calls = serve_kernels.calls(x, y, out)
for call in calls.values():
    call()

def rounds(best, kind, count):
    for _ in range(count):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            spent = (time.perf_counter() - start) / 200 * 1e6
            best[name][kind] = min(best[name].get(kind, spent), spent)

best = {{name: {{}} for name in calls}}
"""

HOST = (
    HEAD
    + """
from opforge.serving.serve import stop
for _ in range(15):
    rounds(best, "triton", 3)
    opforge.serve({folder!r} + "/kernels", strict=True)
    rounds(best, "served", 3)
    stop()
print(json.dumps(best))
"""
)

RECORDING = (
    HEAD
    + """
for _ in range(15):
    rounds(best, "triton", 3)
    with opforge.record():
        rounds(best, "recorded", 3)
print(json.dumps(best))
"""
)

FIRST = """
import triton, serve_kernels
x, out = torch.randn(4096, device="cuda"), torch.empty(4096, device="cuda")
x + x; torch.cuda.synchronize()
start = time.perf_counter()
{serve}
serve_kernels.four[(4,)](x, x, out, 4096, BLOCK=1024)
torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - start))
"""
SERVE = "import opforge; opforge.serve({folder!r} + '/kernels', strict=True)"


def host_time(folder: Path) -> list[Row]:
    return [
        Row(
            f"host time of a launch, served / Triton: {name}",
            us["served"] / us["triton"],
            LIMITS.get(name),
            f"{us['served']:.2f} / {us['triton']:.2f} us",
        )
        for name, us in child(HOST, folder).items()
    ]


def recording(folder: Path) -> list[Row]:
    return [
        Row(
            f"microseconds that recording adds to a launch: {name}",
            us["recorded"] - us["triton"],
            2,
            f"{us['recorded']:.2f} - {us['triton']:.2f} us",
        )
        for name, us in child(RECORDING, folder).items()
    ]


def first_launch(folder: Path) -> list[Row]:
    """The first round does not count: Python compiles modules at their first import."""
    served = FIRST.replace("{serve}", SERVE)
    child(served, folder)
    ours = min(child(served, folder) for _ in range(FIRST_LAUNCHES))
    theirs = []
    for _ in range(FIRST_LAUNCHES):
        with tempfile.TemporaryDirectory() as cache:
            theirs.append(child(FIRST.replace("{serve}", ""), folder, TRITON_CACHE_DIR=cache))
    jit = min(theirs)
    detail = f"{ours * 1e3:.1f} / {jit * 1e3:.0f} ms, with import and opforge.serve"
    return [Row("first launch, served / JIT", ours / jit, 0.02, detail)]


# Each takes a folder that has `kernels` in it.
MEASUREMENTS: list[Callable[[Path], list[Row]]] = [host_time, first_launch, recording]


def record_and_build(folder: Path) -> None:
    import serve_kernels  # noqa: PLC0415  # needs Triton

    x, y, out = (torch.randn(4096, device="cuda") for _ in range(3))
    with opforge.record() as session:
        for call in serve_kernels.calls(x, y, out).values():
            call()
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    build(session.recording, folder / "kernels", archs=arch)


if __name__ == "__main__":
    measure(__doc__, record_and_build, MEASUREMENTS)
