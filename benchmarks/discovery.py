"""`find_kernels` on installed packages: what it finds, and the time it takes.

    python benchmarks/discovery.py liger_kernel torchao [--list]

Every function and method of a package is read once, cold. A function that leads to a kernel is a
host function.

Times are CPU time of the thread that reads, with the garbage collector frozen and off: packages
leave millions of objects, and a collection would count as one unlucky function's time. Torch's own
finder reads a package's host functions right after opforge, and tells how quick the machine is
meanwhile: virtual cores change their speed by a factor of two within minutes. So the limits are for
a core on which torch's finder takes 4.0 ms in the median, and scale with it; the command exits with
1 if the host functions of all packages together exceed one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import io
import pkgutil
import statistics
import sys
import time
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch._library.triton import get_inner_triton_kernels  # what it is compared with
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver  # packages ask it for the GPU on import

import opforge

# In milliseconds, where torch's finder takes TORCHS_FINDER in the median.
MEDIAN_LIMIT = 0.5
P99_LIMIT = 20.0
TORCHS_FINDER = 4.0


class StandInUtils:
    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }


class StandInDriver:
    """Answers as the driver of an H100 would, so that packages import without a GPU."""

    utils = StandInUtils()

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return (9, 0)

    def get_benchmarker(self) -> Any:
        return lambda *args, **kwargs: [0.0]

    def get_empty_cache_for_benchmark(self) -> None:
        return None


def stand_in_for_cuda() -> None:
    """Let packages that ask torch for a GPU during their import find an H100."""
    properties = types.SimpleNamespace(
        name="NVIDIA H100",
        major=9,
        minor=0,
        total_memory=80 << 30,
        multi_processor_count=132,
        warp_size=32,
        shared_memory_per_block_optin=232448,
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda *args: properties.name
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    torch.cuda.get_device_properties = lambda *args: properties


@dataclass
class Reading:
    name: str
    fn: Any
    found: opforge.Discovery
    seconds: float
    torch_seconds: float = 0.0


@dataclass
class Package:
    name: str
    readings: list[Reading] = field(default_factory=list)
    failed_imports: dict[str, str] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> list[Reading]:
        return [r for r in self.readings if r.found.kernels]


def modules_of(package: Package) -> Iterator[types.ModuleType]:
    names = [package.name]
    while names:
        name = names.pop(0)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                module = importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a package does on import
            package.failed_imports[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        yield module
        path = getattr(module, "__path__", None)
        names += [f"{name}.{m.name}" for m in pkgutil.iter_modules(path)] if path else []


def functions_of(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """A module's own functions and the methods of its classes, as they are stored."""
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType) and is_from(value, module):
            yield f"{module.__name__}.{name}", value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, stored in list(vars(value).items()):
                fn = stored.__func__ if isinstance(stored, (staticmethod, classmethod)) else stored
                if isinstance(fn, types.FunctionType) and is_from(fn, module):
                    yield f"{module.__name__}.{name}.{inner}", fn


def is_from(fn: types.FunctionType, module: types.ModuleType) -> bool:
    inner = inspect.unwrap(fn)
    code = inner.__code__ if isinstance(inner, types.FunctionType) else fn.__code__
    return code.co_filename == getattr(module, "__file__", None)


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Collect now, and not again until the end; what is left is not looked at later either."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def read(package: Package) -> None:
    functions = {id(f): (n, f) for m in modules_of(package) for n, f in functions_of(m)}
    with collector_off():
        for name, fn in functions.values():
            start = time.thread_time()
            try:
                found = opforge.find_kernels(fn)
            except Exception as error:  # noqa: BLE001  # to be counted
                package.raised[name] = repr(error)
                continue
            package.readings.append(Reading(name, fn, found, time.thread_time() - start))
        for reading in package.hosts:
            start = time.thread_time()
            get_inner_triton_kernels(reading.fn)
            reading.torch_seconds = time.thread_time() - start


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def summary(packages: list[Package]) -> Table:
    table = Table("package", "functions", "hosts", "kernels launched", "mentioned", "not followed")
    for column in ("raised", "median", "p99", "slowest"):
        table.add_column(column)
    for package in packages:
        refs = [ref for r in package.hosts for ref in r.found]
        launched = {id(ref.kernel) for ref in refs if ref.is_certain}
        lost = {(u.location, u.name) for r in package.hosts for u in r.found.unresolved}
        times = [r.seconds * 1e3 for r in package.hosts] or [0.0]
        slowest = max(package.hosts, key=lambda r: r.seconds, default=None)
        table.add_row(
            package.name,
            str(len(package.readings)),
            str(len(package.hosts)),
            str(len(launched)),
            str(len({id(ref.kernel) for ref in refs} - launched)),
            str(len(lost)),
            str(len(package.raised)),
            f"{statistics.median(times):.2f} ms",
            f"{percentile(times, 0.99):.1f} ms",
            "" if slowest is None else f"{slowest.name}, {max(times):.1f} ms",
        )
    return table


def verdict(times: list[float], torch_times: list[float]) -> tuple[str, bool]:
    """The times of all host functions, in milliseconds, against the limits."""
    torchs = statistics.median(torch_times)
    slowness = torchs / TORCHS_FINDER
    median = statistics.median(times) / slowness
    p99 = percentile(times, 0.99) / slowness
    kept = median <= MEDIAN_LIMIT and p99 <= P99_LIMIT
    text = (
        f"{len(times)} host functions: median {median:.2f} ms (limit {MEDIAN_LIMIT}), p99 "
        f"{p99:.1f} ms (limit {P99_LIMIT}) where torch's finder takes {TORCHS_FINDER} ms (here "
        f"{torchs:.2f}): {'kept' if kept else 'exceeded'}"
    )
    return text, kept


def show(reading: Reading) -> None:
    print(f"{reading.name}  {reading.seconds * 1e3:.2f} ms")
    for kernel in reading.found:
        print(f"    {kernel.name}, {kernel.grade}: {kernel.found_via}")
    for lost in reading.found.unresolved:
        print(f"    ? {lost.name} ({lost.location}): {lost.why}")
    for op in reading.found.nested_ops:
        print(f"    op {op} ({op.location})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--list", action="store_true", help="print each host function")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    driver.set_active(StandInDriver())
    stand_in_for_cuda()
    packages = [Package(name) for name in options.packages]
    for package in packages:
        read(package)
        for name, why in package.failed_imports.items():
            print(f"not imported: {name}: {why}", file=sys.stderr)
        for name, why in package.raised.items():
            print(f"raised: {name}: {why}", file=sys.stderr)
        for reading in package.hosts if options.list else ():
            show(reading)
    hosts = [r for package in packages for r in package.hosts]
    Console(width=200).print(summary(packages))
    if not hosts:
        return
    text, kept = verdict([r.seconds * 1e3 for r in hosts], [r.torch_seconds * 1e3 for r in hosts])
    print(text)
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
