"""What a loaded library saves: host time per call, the first call, many shapes, tuning.

    python benchmarks/zero_jit.py     # needs a GPU and a C++ compiler

Every row is a ratio within one run. Variants run interleaved in one process, and the fastest round
of each counts; each first call is made in a fresh process that has imported torch and has a CUDA
context, and the JIT's with an empty cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from ratios import Row, child, measure

from opforge import native

FIRST_CALLS = 3


HOST = """
import gpu_kernel, opforge, triton
opforge.load({folder!r})
loaded = torch.ops.zero_jit.add.default

@torch.library.triton_op("zero_jit_bench::add", mutates_args=())
def theirs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out, n = torch.empty_like(x), x.numel()
    kernel = torch.library.wrap_triton(gpu_kernel.add)
    kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out

x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
calls = {{"loaded": lambda: loaded(x, y), "triton_op": lambda: theirs(x, y),
          "torch.add": lambda: torch.add(x, y)}}
best = dict.fromkeys(calls, float("inf"))
for name, call in calls.items():
    torch.testing.assert_close(call(), x + y)
for _ in range(60):
    for name, call in calls.items():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        best[name] = min(best[name], (time.perf_counter() - start) / 200 * 1e6)
print(json.dumps(best))
"""

FIRST_NATIVE = """
x = torch.randn(4096, device="cuda"); x + x; torch.cuda.synchronize()
start = time.perf_counter()
import opforge
imported = time.perf_counter()
opforge.load({folder!r})
torch.ops.zero_jit.add(x, x)
torch.cuda.synchronize()
end = time.perf_counter()
assert "triton" not in sys.modules
print(json.dumps(end - start))
"""

FIRST_JIT = """
x = torch.randn(4096, device="cuda"); x + x; torch.cuda.synchronize()
start = time.perf_counter()
import gpu_kernel
out = torch.empty_like(x)
gpu_kernel.add[(4,)](x, x, out, 4096, BLOCK=1024)
torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - start))
"""

SHAPES = """
import zero_jit_ops, triton, opforge
compiled = []
triton.knobs.runtime.jit_post_compile_hook = lambda *a, **k: compiled.append(1)
opforge.load({folder!r}, strict=True)
add = torch.ops.zero_jit.add.default
given = [torch.randn(1 + 7 * i, device="cuda") for i in range(500)]
given += [torch.randn(1 + i, 3 + i % 61, device="cuda") for i in range(500)]
add(given[0], given[0]); torch.cuda.synchronize()
times = []
for x in given:
    start = time.perf_counter()
    add(x, x)
    times.append((time.perf_counter() - start) * 1e6)
torch.cuda.synchronize()
times.sort()
print(json.dumps({{"median": times[500], "p99": times[990], "compiled": len(compiled)}}))
"""


def host_time(folder: Path) -> list[Row]:
    us = child(HOST, folder)
    ours = us["loaded"]
    return [
        Row("host time, loaded / triton_op", ours / us["triton_op"], 0.35,
            f"{ours:.2f} / {us['triton_op']:.2f} us"),
        Row("host time, loaded / torch.add (target 1.25)", ours / us["torch.add"], None,
            f"{ours:.2f} / {us['torch.add']:.2f} us"),
    ]  # fmt: skip


def first_call(folder: Path) -> list[Row]:
    """The first round does not count: Python compiles modules at their first import."""
    child(FIRST_NATIVE, folder)
    ours = min(child(FIRST_NATIVE, folder) for _ in range(FIRST_CALLS))
    theirs = []
    for _ in range(FIRST_CALLS):
        with tempfile.TemporaryDirectory() as cache:
            theirs.append(child(FIRST_JIT, folder, TRITON_CACHE_DIR=cache))
    jit = min(theirs)
    detail = f"{ours * 1e3:.1f} / {jit * 1e3:.0f} ms, with import and load"
    return [Row("first call, loaded / JIT", ours / jit, 1 / 50, detail)]


def many_shapes(folder: Path) -> list[Row]:
    found = child(SHAPES, folder)
    detail = f"{found['p99']:.2f} / {found['median']:.2f} us over 1000 shapes"
    return [
        Row("host time, p99 / median", found["p99"] / found["median"], 3, detail),
        Row("kernels compiled", float(found["compiled"]), 0, "for 1000 shapes"),
    ]


GEMM = """
import itertools, tuned_gemm
from opforge import native
from opforge.measuring.measure import tune
from triton.testing import do_bench

arch = "sm_{{}}{{}}".format(*torch.cuda.get_device_capability())
table, folder = {folder!r} + "/tuning.json", {folder!r} + "/gemm"
tune([tuned_gemm.gemm], table, sizes=tuned_gemm.SIZES)
native.build([tuned_gemm.gemm], folder, archs=[arch], tuning=table)
library = native.open(folder)
found = {{}}
for m, n, k in itertools.product(*tuned_gemm.SIZES.values()):
    a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
    out = torch.empty(m, n, device="cuda", dtype=torch.half)
    tuned_gemm.gemm_kernel.cache.clear()
    # The JIT tunes itself here, before anything is timed.
    jit = lambda: tuned_gemm.gemm(a, b)
    ours = lambda: library.gemm(a, b, out=out)
    torch.testing.assert_close(jit(), a @ b, rtol=1e-2, atol=1e-1)
    ours(); torch.testing.assert_close(out, a @ b, rtol=1e-2, atol=1e-1)
    times = {{"jit": [], "ours": []}}
    for _ in range(9):
        times["ours"].append(do_bench(ours, return_mode="median") * 1e3)
        times["jit"].append(do_bench(jit, return_mode="median") * 1e3)
    found[m] = [min(times["ours"]), min(times["jit"]), str(tuned_gemm.gemm_kernel.best_config)]
print(json.dumps(found))
"""


def tuned_gemm(folder: Path) -> list[Row]:
    """GPU time of a library with a tuning table, against the config that the JIT chooses."""
    rows = []
    for m, (ours, jit, chosen) in child(GEMM, folder).items():
        detail = f"{ours:.1f} / {jit:.1f} us; the JIT chose {chosen}"
        rows.append(Row(f"GPU time, tuned gemm of {m} rows / JIT", ours / jit, 1.02, detail))
    return rows


# Each takes the built library's folder.
MEASUREMENTS: list[Callable[[Path], list[Row]]] = [host_time, first_call, many_shapes, tuned_gemm]


def build(folder: Path) -> None:
    import zero_jit_ops  # noqa: PLC0415  # needs Triton

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    native.build([zero_jit_ops.add], folder, archs=[arch], torch=True)


if __name__ == "__main__":
    measure(__doc__, build, MEASUREMENTS)
