"""The cost of compiling a native library's kernels, by number of jobs and with a cache.

    python benchmarks/native_build.py --variants 128

Compares one job with two (workers started and warm beforehand), then a first build with a second
one that finds everything in the cache. Needs no GPU. Two jobs need two free cores: as the wall
clock alone means nothing on a busy machine, the build's CPU time and the cores that other
processes used are printed next to it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
import triton.language as tl
from rich.console import Console
from rich.table import Table

from opforge._compat import compiling, kernel_hash
from opforge.native.ir.kernel_request import Request
from opforge.native.kernels import workers
from opforge.native.kernels.compile import compile_all
from opforge.native.kernels.image_cache import Cache


@triton.jit
def activation(x_ptr, y_ptr, n, alpha, KIND: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201  # a kernel
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    if KIND == 0:
        y = x * tl.sigmoid(alpha * x)
    elif KIND == 1:
        y = 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))
    elif KIND == 2:
        y = tl.where(x > 0, x, alpha * (tl.exp(x) - 1))
    else:
        y = tl.maximum(x, alpha * x)
    tl.store(y_ptr + at, y, mask=at < n)


def variants(count: int) -> list[Request]:
    """Different constants, types, alignments and options."""
    every = itertools.product(
        ("fp16", "bf16", "fp32"),
        ("fp16", "bf16", "fp32"),
        (128, 256, 512, 1024),
        range(4),
        (4, 8),
        ((0, 1, 2), ()),
    )
    return [_request(*given) for given in itertools.islice(every, count)]


def _request(
    x: str, y: str, block: int, kind: int, warps: int, divisible: tuple[int, ...]
) -> Request:
    types = {"x_ptr": f"*{x}", "y_ptr": f"*{y}", "n": "i32", "alpha": "fp32"}
    constants = {"KIND": kind, "BLOCK": block}
    return Request(
        fn=activation,
        name="activation",
        location=f"{__file__}:{activation.fn.__code__.co_firstlineno}",
        qualified_name="native_build:activation",
        source=kernel_hash.digest(activation),
        signature=tuple((n, types.get(n, "constexpr")) for n in activation.arg_names),
        constants=tuple(constants.items()),
        divisible=divisible,
        options=(("num_warps", warps),),
    )


@dataclass
class Run:
    """One build: wall time, CPU time of this process and its workers, and cores used by others."""

    what: str
    wall: float
    cpu: float
    # How many of the machine's cores other processes kept busy meanwhile.
    others: float


def measure(what: str, build: Callable[[], object], pool_pids: list[int]) -> Run:
    before = (time.perf_counter(), _cpu(pool_pids), _busy())
    build()
    wall = time.perf_counter() - before[0]
    cpu = _cpu(pool_pids) - before[1]
    others = max((_busy() - before[2] - cpu) / wall, 0.0)
    return Run(what, wall, cpu, others)


def _cpu(pids: list[int]) -> float:
    """CPU seconds of this process and the workers, including the assemblers they ran."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in [os.getpid(), *pids]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # utime, stime, and the same for children that have exited.
        total += sum(int(n) for n in fields[11:15])
    return total / tick


def _busy() -> float:
    """CPU seconds that all processes on this machine have used."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, soft, *_ = (int(n) for n in fields)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def warm(pool: ProcessPoolExecutor, jobs: int) -> list[int]:
    """Start every worker, let each compile something, and return their process ids."""
    request = variants(1)[0]
    signature, constants = dict(request.signature), dict(request.constants)
    options = compiling.launch_options(request.fn, {})
    job = compiling.lower(request.fn, 80, signature, constants, options=options)
    pids: set[int] = set()
    while len(pids) < jobs:
        made = [pool.submit(compiling.run, job) for _ in range(jobs * 2)]
        # Submitted between the compilations, so that no single worker takes all of them.
        pids |= {pool.submit(os.getpid).result() for _ in made}
        for future in made:
            future.result()
    return sorted(pids)


def runs(requests: list[Request], arch: int, repeat: int) -> Iterator[Run]:
    wanted = [(request, (arch,)) for request in requests]
    pools = {jobs: workers.start_pool(jobs) for jobs in (1, 2)}
    try:
        pids = {jobs: warm(pool, jobs) for jobs, pool in pools.items()}
        # In turns, so that other load on the machine affects both.
        for _ in range(repeat):
            for jobs, pool in pools.items():
                yield measure(
                    f"{jobs} job{'s' * (jobs > 1)}, no cache",
                    lambda pool=pool, jobs=jobs: compile_all(
                        wanted, executor=pool, jobs=jobs, cache=None
                    ),
                    pids[jobs],
                )
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache(folder)
            for what in ("first build", "second build"):
                yield measure(
                    what,
                    lambda: compile_all(wanted, executor=pools[2], jobs=2, cache=cache),
                    pids[2],
                )
    finally:
        for pool in pools.values():
            pool.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", type=int, default=128)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = list(runs(variants(given.variants), given.arch, given.repeat))
    best = {what: min(r.wall for r in found if r.what == what) for what in {r.what for r in found}}
    ratios = {
        "one job / two jobs": (best["1 job, no cache"] / best["2 jobs, no cache"], ">= 1.5"),
        "second build / first": (best["second build"] / best["first build"], "<= 0.05"),
    }
    if given.json:
        content = {
            "runs": [asdict(r) for r in found],
            "ratios": {k: v for k, (v, _) in ratios.items()},
        }
        print(json.dumps(content, indent=2))
        return 0
    table = Table("", "wall", "CPU", "cores used by others", "per variant")
    for run in found:
        each = f"{run.wall / given.variants * 1e3:.1f} ms"
        table.add_row(run.what, f"{run.wall:.2f} s", f"{run.cpu:.2f} s", f"{run.others:.2f}", each)
    console = Console()
    console.print(f"{given.variants} variants for sm_{given.arch}, {os.cpu_count()} cores")
    console.print(table)
    for name, (ratio, limit) in ratios.items():
        console.print(f"{name}: {ratio:.3f} ({limit})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
