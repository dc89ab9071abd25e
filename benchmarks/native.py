"""The cost of a native call: against a bare launch, against the JIT's first call, on the GPU.

    python benchmarks/native.py     # needs a GPU and a C compiler

Every row is a ratio within one run. The bare launch is `cuLaunchKernel` of the same cubin in a C
loop; each first call is made in a fresh process that already has a CUDA context; GPU times are
those of calls captured in a CUDA graph, so that the host plays no part.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from opforge import native

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples" / "native"), str(ROOT / "tests")]

CALLS, ROUNDS = 20_000, 9
HOST_LIMIT, FIRST_LIMIT, GPU_LIMIT = 1.15, 0.01, 1.02

LOOPS = r"""
#include "ops.h"
#include <stdint.h>
#include <time.h>
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void *, void **, void **);
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
double native_us(const OpforgeTensor *x, OpforgeTensor *out, void *stream, int times)
{
    double start = now();
    for (int i = 0; i < times; i++)
        if (ops_silu(x, out, stream) != OPFORGE_OK) return -1;
    return (now() - start) / times;
}
double bare_us(void *launch, void *function, uint64_t x, uint64_t out, int32_t n, unsigned grid,
               unsigned threads, unsigned shared, void *stream, int times)
{
    double start = now();
    for (int i = 0; i < times; i++) {
        uint64_t a = x, b = out;
        int32_t count = n;
        void *scratch = 0, *profile = 0;
        void *arguments[] = {&a, &b, &count, &scratch, &profile};
        if (((Launch)launch)(function, grid, 1, 1, threads, 1, 1, shared, stream, arguments, 0))
            return -1;
    }
    return (now() - start) / times;
}
"""

FIRST_NATIVE = """
import ctypes, sys, time, torch
sys.path[:0] = {paths!r}
from support.standin.library import NativeLibrary
x = torch.randn(4096, device="cuda"); out = torch.empty_like(x); torch.cuda.synchronize()
start = time.perf_counter()
library = NativeLibrary(__import__("pathlib").Path({folder!r}), "ops")
library.call("silu", x, out, stream=torch.cuda.current_stream().cuda_stream)
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""
FIRST_JIT = """
import sys, time, torch
sys.path[:0] = {paths!r}
import ops
x = torch.randn(4096, device="cuda"); out = torch.empty_like(x); torch.cuda.synchronize()
start = time.perf_counter()
ops.silu_kernel[(4,)](x, out, 4096, BLOCK=1024)
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def build(folder: Path) -> Any:
    import ops  # noqa: PLC0415  # the example, found through sys.path above

    arch = "".join(map(str, torch.cuda.get_device_capability()))
    every = [ops.silu, ops.add, ops.rms_norm, ops.softmax, ops.gemm]
    return native.build(every, folder, archs=[f"sm_{arch}"]).library


def host_us(folder: Path, library: Any) -> dict[str, float]:
    from support.standin.library import NativeLibrary, OpforgeTensor  # noqa: PLC0415  # as above

    source, shim = folder / "loops.c", folder / "loops.so"
    source.write_text(LOOPS)
    libs = folder / "lib"
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{folder}/include", str(source), "-o", str(shim)]
    subprocess.run([*command, f"-L{libs}", "-lops", f"-Wl,-rpath,{libs}"], check=True)
    loops = ctypes.CDLL(str(shim))
    loops.native_us.restype = loops.bare_us.restype = ctypes.c_double
    NativeLibrary(folder, "ops").load(0)
    x = torch.randn(4096, device="cuda", dtype=torch.float16)
    out = torch.empty_like(x)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    function, image, block = _bare_function(library)
    launch = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)
    bare = (
        launch, function, ctypes.c_uint64(x.data_ptr()), ctypes.c_uint64(out.data_ptr()),
        ctypes.c_int32(4096), ctypes.c_uint(4096 // block), ctypes.c_uint(32 * image.num_warps),
        ctypes.c_uint(image.shared), stream,
    )  # fmt: skip
    given = ctypes.byref(OpforgeTensor.of(x)), ctypes.byref(OpforgeTensor.of(out)), stream
    best = {"native": float("inf"), "bare": float("inf")}
    for _ in range(ROUNDS):
        for name, call, arguments in (
            ("bare", loops.bare_us, bare),
            ("native", loops.native_us, given),
        ):
            torch.cuda.synchronize()
            # Fewer launches than the queue holds, so that the host never waits for the GPU.
            best[name] = min(best[name], *(call(*arguments, 500) for _ in range(CALLS // 500)))
    return best


def _bare_function(library: Any) -> tuple[ctypes.c_void_p, Any, int]:
    """The kernel that the library chooses for 4096 aligned elements, loaded by hand."""
    silu = next(op for op in library.ops if op.name == "silu")
    case = next(
        c for c in silu.cases if c.tensors[0].dtype == "fp16" and len(c.tensors[0].shape) == 1
    )
    launch = next(s for p in case.paths for s in p.steps if hasattr(s, "variants"))
    kernel = next(k for k in library.kernels if k.key == launch.variants[0].kernel)
    (image,) = kernel.images
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), image.cubin) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, image.function.encode()) == 0
    return function, image, int(dict(launch.constants)["BLOCK"])


def first_seconds(folder: Path, rounds: int = 3) -> dict[str, float]:
    """The fastest of a few, because files may be cold in the first."""
    paths = [str(ROOT / "src"), *sys.path[:2]]
    found: dict[str, list[float]] = {"native": [], "jit": []}
    for _ in range(rounds):
        for name, script in (("native", FIRST_NATIVE), ("jit", FIRST_JIT)):
            with tempfile.TemporaryDirectory() as cache:
                env = {**os.environ, "TRITON_CACHE_DIR": cache}
                text = script.format(paths=paths, folder=str(folder))
                done = subprocess.run(
                    [sys.executable, "-c", text],
                    env=env,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found[name].append(float(done.stdout))
    return {name: min(times) for name, times in found.items()}


def gpu_us(folder: Path) -> dict[str, tuple[float, float]]:
    """For each op, the (native, JIT) times of the same kernel on the same tensors."""
    import ops  # noqa: PLC0415  # as above

    from support.standin.library import NativeLibrary  # noqa: PLC0415  # as above

    library = NativeLibrary(folder, "ops")
    library.load(0)
    half = {"device": "cuda", "dtype": torch.float16}
    x, y = torch.randn(4096, 4096, **half), torch.randn(4096, 4096, **half)
    given: dict[str, tuple[Any, ...]] = {
        "silu": (x,),
        "add": (x, y),
        "rms_norm": (x, y[0].contiguous(), 1e-6),
        "softmax": (x,),
        "gemm": (x, y, 1.0),
    }
    found = {}
    for name, inputs in given.items():
        (out,) = library.run(name, *inputs, stream=torch.cuda.current_stream().cuda_stream)

        def call(name: str = name, inputs: Any = inputs, out: Any = out) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            library.call(name, *inputs, out, stream=stream)

        jit = getattr(ops, name)
        jit(*inputs)
        replays = _captured(call), _captured(lambda: jit(*inputs))  # noqa: B023  # run at once
        best = [float("inf"), float("inf")]
        for _ in range(ROUNDS):
            for index, replay in enumerate(replays):
                best[index] = min(best[index], replay())
        found[name] = (best[0], best[1])
    return found


def _captured(call: Callable[[], Any], times: int = 20) -> Callable[[], float]:
    """Microseconds of GPU time per call, from a replay of many."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / times

    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start = time.perf_counter()
        library = build(folder)
        built = time.perf_counter() - start
        host, first, gpu = host_us(folder, library), first_seconds(folder), gpu_us(folder)
    rows = [
        ("host time, native / bare launch", host["native"] / host["bare"], HOST_LIMIT,
         f"{host['native']:.2f} / {host['bare']:.2f} us"),
        ("first call, native / JIT", first["native"] / first["jit"], FIRST_LIMIT,
         f"{first['native'] * 1e3:.2f} / {first['jit'] * 1e3:.0f} ms"),
        *((f"GPU time of {name}, native / JIT", ours / theirs, GPU_LIMIT,
           f"{ours:.1f} / {theirs:.1f} us") for name, (ours, theirs) in gpu.items()),
    ]  # fmt: skip
    if asked.json:
        print(json.dumps({name: ratio for name, ratio, _, _ in rows}, indent=2))
        return
    table = Table("", "ratio", "limit", "")
    for name, ratio, limit, text in rows:
        style = "green" if ratio <= limit else "red"
        table.add_row(name, f"[{style}]{ratio:.3f}[/]", f"{limit:g}", text)
    Console().print(table)
    median = statistics.median(len(k.images[0].cubin) for k in library.kernels)
    print(
        f"{len(library.kernels)} kernel variants in {built:.0f} s, median cubin {median:.0f} bytes"
    )


if __name__ == "__main__":
    main()
