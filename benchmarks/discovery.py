"""`find_kernels` on installed packages: what it finds, and the time it takes.

    python benchmarks/discovery.py liger_kernel torchao

Every function and method of a package is read once, cold. One that leads to a kernel is a host
function, and a row has the times of these.

Times are CPU time of the thread that reads, with the garbage collector frozen and off: packages
leave millions of objects, and a collection would count as one unlucky function's time. Torch's own
finder reads the host functions, too, and tells how quick the machine is meanwhile: virtual cores
change their speed by a factor of two within minutes. The last row has the times for a core on which
torch's finder takes 4.0 ms in the median; the command exits with 1 if they exceed the limits.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import io
import os
import statistics
import sys
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
COLUMNS = (
    "package", "functions", "hosts", "launched", "mentioned", "unread", "median", "p99", "torch's",
    "slowest", "modules not imported",
)  # fmt: skip
H100 = types.SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=132,
    warp_size=32,
    shared_memory_per_block_optin=232448,
)


class StandInDriver:
    """Answers as the driver of an H100 would, so that packages import without a GPU."""

    utils = types.SimpleNamespace(
        get_device_properties=lambda _: {
            "max_shared_mem": H100.shared_memory_per_block_optin,
            "max_num_regs": 65536,
            "multiprocessor_count": H100.multi_processor_count,
            "warpSize": H100.warp_size,
            "sm_clock_rate": 1,
            "mem_clock_rate": 1,
            "mem_bus_width": 1,
        }
    )

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
    """Let packages that ask for a GPU during their import find an H100."""
    driver.set_active(StandInDriver())
    os.environ.setdefault("GEMS_VENDOR", "nvidia")  # flag_gems would ask nvidia-smi
    vars(torch._C)["_cuda_getCurrentRawStream"] = lambda device: 0  # noqa: SLF001
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *args: None
    torch.cuda.get_device_name = lambda *args: H100.name
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    torch.cuda.get_device_properties = lambda *args: H100
    for name in ("empty", "ones", "tensor", "zeros"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


def on_cpu(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        is_on_gpu = str(kwargs.get("device")).startswith("cuda")
        return make(*args, **{**kwargs, "device": "cpu"} if is_on_gpu else kwargs)

    return made


class Reading(NamedTuple):
    name: str
    found: opforge.Discovery
    seconds: float
    torch_seconds: float


class Package(NamedTuple):
    name: str
    functions: int
    hosts: list[Reading]
    failed_imports: int

    def row(self) -> list[str]:
        refs = [ref for r in self.hosts for ref in r.found]
        launched = {id(ref.kernel) for ref in refs if ref.is_certain}
        lost = {(u.location, u.name) for r in self.hosts for u in r.found.unresolved}
        slowest = max(self.hosts, key=lambda r: r.seconds, default=None)
        counts = (
            self.functions,
            len(self.hosts),
            len(launched),
            len({id(ref.kernel) for ref in refs} - launched),
            len(lost),
        )
        return [
            self.name,
            *map(str, counts),
            *(f"{number:.2f} ms" for number in times(self.hosts)),
            "" if slowest is None else f"{slowest.name}, {slowest.seconds * 1e3:.1f} ms",
            str(self.failed_imports),
        ]


def times(hosts: list[Reading]) -> tuple[float, float, float]:
    """The median and the 99th percentile in milliseconds, and the median of torch's finder."""
    ours = sorted(r.seconds * 1e3 for r in hosts) or [0.0]
    torchs = [r.torch_seconds * 1e3 for r in hosts] or [0.0]
    return statistics.median(ours), ours[int(len(ours) * 0.99)], statistics.median(torchs)


def modules_of(name: str) -> tuple[list[types.ModuleType], int]:
    """The modules of a package, and how many cannot be imported here."""
    package = importlib.import_module(name)
    modules, failed = [package], 0
    # By file: a folder may have no __init__.py.
    for folder in map(Path, getattr(package, "__path__", ())):
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    inner = ".".join([name, *parts]).removesuffix(".__init__")
                    modules.append(importlib.import_module(inner))
            except (Exception, SystemExit):  # noqa: BLE001  # whatever a package does on import
                failed += 1
    return modules, failed


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


def timed(read: Any, fn: Any) -> tuple[Any, float]:
    start = time.thread_time()
    return read(fn), time.thread_time() - start


def read(name: str) -> Package:
    modules, failed = modules_of(name)
    functions = {id(fn): (name, fn) for module in modules for name, fn in functions_of(module)}
    hosts = []
    with collector_off():
        for each, fn in functions.values():
            found, seconds = timed(opforge.find_kernels, fn)
            if found.kernels:
                hosts.append(Reading(each, found, seconds, timed(get_inner_triton_kernels, fn)[1]))
    return Package(name, len(functions), hosts, failed)


def scaled(hosts: list[Reading]) -> tuple[float, float, bool]:
    """The median and the 99th percentile for the core of the limits, and whether these are kept."""
    median, p99, torchs = times(hosts)
    slowness = torchs / TORCHS_FINDER or 1.0
    median, p99 = median / slowness, p99 / slowness
    return median, p99, median <= MEDIAN_LIMIT and p99 <= P99_LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+")
    warnings.simplefilter("ignore")
    stand_in_for_cuda()
    packages = [read(name) for name in parser.parse_args().packages]
    hosts = [reading for package in packages for reading in package.hosts]
    total = Package("all, scaled", sum(p.functions for p in packages), hosts, 0)
    median, p99, is_kept = scaled(hosts)
    last = [*total.row()[:6], f"{median:.2f} ms", f"{p99:.2f} ms", f"{TORCHS_FINDER:.2f} ms"]
    table = Table(*COLUMNS)
    for row in (*(package.row() for package in packages), last):
        table.add_row(*row)
    Console(width=200).print(table)
    sys.exit(not is_kept)


if __name__ == "__main__":
    main()
