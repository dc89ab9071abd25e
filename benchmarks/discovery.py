"""`find_kernels` on installed packages: kernels found, calls lost, and the time taken.

    python benchmarks/discovery.py liger_kernel torchao --list

Every function and method of a package is read once, cold: the first reading parses. A function
counts as a host function if it reaches a kernel, or if its text has a launch. A rough oracle that
only knows `name[grid](...)` and calls of plain names shows where to look for mistakes.

Times are CPU time of the thread that reads, with the garbage collector frozen and off: packages
leave millions of objects, and a collection would count as one unlucky function's time. The host
functions of all packages together must stay below both limits on one small core, on which torch's
own finder takes 4.0 ms in the median; the command exits with 1 if they do not. Torch's finder reads
each host function right after opforge, and tells how quick this machine is meanwhile: virtual cores
change their speed by a factor of two within minutes. The figures for the core of the limits are
printed, too; they decide nothing. --times 5 shows the least of five first readings, by forks of the
process, which the limits are not about.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import io
import multiprocessing
import os
import pkgutil
import statistics
import sys
import textwrap
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch._library.triton import get_inner_triton_kernels  # noqa: TID251  # what it is compared with
from triton.backends.compiler import GPUTarget
from triton.runtime import (  # noqa: TID251  # the oracle asks Triton, not opforge
    Autotuner,
    Heuristics,
    JITFunction,
)
from triton.runtime.driver import driver  # noqa: TID251  # packages ask it for the GPU on import

import opforge

# In milliseconds of CPU time, over all host functions of all packages. They were set on a core on
# which torch's finder takes TORCHS_FINDER.
MEDIAN_LIMIT = 2.5
P99_LIMIT = 40.0
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
    found: opforge.Discovery
    seconds: float
    torch_seconds: float = 0.0
    direct: dict[int, Any] = field(default_factory=dict)
    reached: dict[int, Any] = field(default_factory=dict)

    @property
    def is_host(self) -> bool:
        return bool(self.found.kernels or self.direct)

    @property
    def missed(self) -> list[str]:
        have = {id(k.kernel) for k in self.found}
        return sorted(name_of(k) for i, k in self.reached.items() if i not in have)

    @property
    def unasked(self) -> list[str]:
        return sorted(k.name for k in self.found if id(k.kernel) not in self.reached)


@dataclass
class Package:
    name: str
    readings: list[Reading] = field(default_factory=list)
    failed_imports: dict[str, str] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> list[Reading]:
        return [r for r in self.readings if r.is_host]


def name_of(kernel: Any) -> str:
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return str(kernel.__name__)


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


def launches(fn: Any, depth: int = 5, seen: set[int] | None = None) -> dict[int, Any]:  # noqa: C901
    """The oracle: global kernels launched by name, here or in functions called by name."""
    seen = set() if seen is None else seen
    fn = inspect.unwrap(fn)
    if id(fn) in seen or not isinstance(fn, types.FunctionType) or depth < 0:
        return {}
    seen.add(id(fn))
    found: dict[int, Any] = {}
    for node in ast.walk(tree_of(fn)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Subscript):
            value = named(fn, node.func.value)
            while value is not None and not is_kernel(value):
                value = vars(value).get("fn") if hasattr(value, "__dict__") else None
            if value is not None:
                found[id(value)] = value
            continue
        value = named(fn, node.func)
        if isinstance(value, types.MethodType) and value.__name__ == "apply":
            cls = value.__self__
            for part in ("forward", "backward"):
                found |= launches(getattr(cls, part), depth - 1, seen)
        elif isinstance(value, types.FunctionType):
            package = value.__module__.partition(".")[0]
            if package not in {"torch", "triton", "numpy"} | sys.stdlib_module_names:
                found |= launches(value, depth - 1, seen)
    return found


def is_kernel(value: Any) -> bool:
    return isinstance(value, (JITFunction, Autotuner, Heuristics))


def tree_of(fn: types.FunctionType) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, SyntaxError, TypeError):
        return ast.Module([], [])


def named(fn: types.FunctionType, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        local = node.id in fn.__code__.co_varnames
        return None if local else fn.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = named(fn, node.value)
        if isinstance(owner, (types.ModuleType, type)):
            return getattr(owner, node.attr, None)
    return None


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


def read(package: Package, times: int) -> None:
    """Read each function for the first time, in this process and in forks of it before."""
    by_id: dict[int, tuple[str, Any]] = {}
    for module in modules_of(package):
        for name, fn in functions_of(module):
            by_id.setdefault(id(fn), (name, fn))
    fns = dict(by_id.values())
    earlier = [in_fork(lambda: [r.seconds for r in readings(fns)]) for _ in range(times - 1)]
    package.readings = readings(fns, package.raised)
    for number, reading in enumerate(package.readings):
        # The least: what others do on the machine only ever adds.
        reading.seconds = min([reading.seconds, *(seconds[number] for seconds in earlier)])
        reading.direct = launches(fns[reading.name], 0)
        reading.reached = launches(fns[reading.name])
    with collector_off():
        for reading in package.hosts:
            # Those that only their text tells.
            reading.torch_seconds = reading.torch_seconds or torchs_seconds(fns[reading.name])


def torchs_seconds(fn: Any) -> float:
    start = time.thread_time()
    get_inner_triton_kernels(fn)
    return time.thread_time() - start


def readings(fns: dict[str, Any], raised: dict[str, str] | None = None) -> list[Reading]:
    found = []
    with collector_off():
        for name, fn in fns.items():
            start = time.thread_time()
            try:
                kernels = opforge.find_kernels(fn)
            except Exception as error:  # noqa: BLE001  # to be counted
                if raised is not None:
                    raised[name] = repr(error)
                continue
            reading = Reading(name, kernels, time.thread_time() - start)
            if kernels.kernels:
                reading.torch_seconds = torchs_seconds(fn)
            found.append(reading)
    return found


def in_fork(measure: Callable[[], list[float]]) -> list[float]:
    """What a function gives in a copy of this process, which has not read anything either."""
    receive, send = multiprocessing.Pipe(duplex=False)
    if os.fork() == 0:
        send.send(measure())
        os._exit(0)
    send.close()
    found: list[float] = receive.recv()
    os.wait()
    return found


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def summary(packages: list[Package]) -> Table:
    table = Table(
        "package", "functions", "hosts", "kernels", "unresolved", "raised", "oracle agrees"
    )
    for column in ("median", "p99", "max", "slowest", "p99 of all"):
        table.add_column(column)
    for package in packages:
        hosts = package.hosts
        times = [r.seconds * 1e3 for r in hosts] or [0.0]
        slowest = max(hosts, key=lambda r: r.seconds, default=None)
        agreed = [r for r in hosts if not r.missed and not r.unasked]
        kernels = {id(k.kernel) for r in hosts for k in r.found}
        lost = {(u.location, u.name) for r in hosts for u in r.found.unresolved}
        everything = [r.seconds * 1e3 for r in package.readings] or [0.0]
        table.add_row(
            package.name,
            str(len(package.readings)),
            str(len(hosts)),
            str(len(kernels)),
            str(len(lost)),
            str(len(package.raised)),
            f"{len(agreed)} ({len(agreed) / max(1, len(hosts)):.1%})",
            f"{statistics.median(times):.2f} ms",
            f"{percentile(times, 0.99):.1f} ms",
            f"{max(times):.1f} ms",
            slowest.name if slowest else "",
            f"{percentile(everything, 0.99):.1f} ms",
        )
    return table


def verdict(times: list[float], torch_times: list[float]) -> tuple[str, bool]:
    """The times of all host functions, in milliseconds, against the limits."""
    median, p99 = statistics.median(times), percentile(times, 0.99)
    torchs = statistics.median(torch_times)
    slowness = torchs / TORCHS_FINDER
    kept = median <= MEDIAN_LIMIT and p99 <= P99_LIMIT
    text = (
        f"{len(times)} host functions: median {median:.2f} ms (limit {MEDIAN_LIMIT}), "
        f"p99 {p99:.1f} ms (limit {P99_LIMIT}), where torch's finder takes {torchs:.2f} ms "
        f"({median / slowness:.2f} and {p99 / slowness:.1f} ms where it takes {TORCHS_FINDER}): "
        f"{'kept' if kept else 'exceeded'}"
    )
    return text, kept


def show(reading: Reading) -> None:
    print(f"{reading.name}  {reading.seconds * 1e3:.2f} ms")
    for kernel in reading.found:
        print(f"    {kernel.name}: {kernel.found_via}")
    for lost in reading.found.unresolved:
        print(f"    ? {lost.name} ({lost.location}): {lost.why}")
    for op in reading.found.nested_ops:
        print(f"    op {op} ({op.location})")
    if reading.missed:
        print(f"    only the oracle has {', '.join(reading.missed)}")
    if reading.unasked:
        print(f"    the oracle does not have {', '.join(reading.unasked)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+")
    parser.add_argument(
        "--list", action="store_true", help="print the result for each host function"
    )
    parser.add_argument(
        "--differ", action="store_true", help="print only functions where the oracle disagrees"
    )
    parser.add_argument("--times", type=int, default=1, help="the least time of how many counts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    driver.set_active(StandInDriver())
    stand_in_for_cuda()
    packages = [Package(name) for name in options.packages]
    for package in packages:
        read(package, options.times)
        for name, why in package.failed_imports.items():
            print(f"not imported: {name}: {why}", file=sys.stderr)
        for name, why in package.raised.items():
            print(f"raised: {name}: {why}", file=sys.stderr)
        for reading in package.hosts:
            differs = bool(reading.missed or reading.unasked or reading.found.unresolved)
            if options.list or (options.differ and differs):
                show(reading)
    Console(width=220).print(summary(packages))
    hosts = [r for package in packages for r in package.hosts]
    if not hosts:
        sys.exit("no host functions were read")
    text, kept = verdict([r.seconds * 1e3 for r in hosts], [r.torch_seconds * 1e3 for r in hosts])
    print(text)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    print(f"triton {triton.__version__}, torch {torch.__version__}", file=sys.stderr)
    main()
