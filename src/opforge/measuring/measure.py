"""`opforge tune`: runs ops at many sizes, and measures each autotuned launch that they make.

Sizes are the user's or the declared ones:

--sizes m=1,16,256     the size m            --sizes x.shape[0]=8,64   one of a `...`
--sizes x.shape=8,64   every size of a `...` of x; likewise s of `*s`
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _compat
from ..arch import HOPPER
from ..arch_names import parse_arch
from ..errors import BadOption, BuildFailed, NeedsGpu, OpforgeError
from ..native.device.gemm import FULL_TUNER, HALF_TUNER, gemm_kernel
from ..native.frontend.declaration import declarations_of
from ..native.frontend.expand import Declared, expand
from ..native.ir.cases import Bound, Case, TensorCase
from ..native.ir.dtypes import DTYPES
from ..native.ir.expr import evaluate
from ..native.ir.interface import ScalarParam
from ..native.targets import operators
from ..native.tracing.case_builder import first_walk
from ..native.tracing.launches import first_config
from ..native.tracing.torch_calls.matmul import FUNCTIONS
from ..native.tracing.tracer import nested_body
from ..progress import Log, ProgressBar, watching
from ..registry import Entry, registry
from ..tuning.choose import Choice, config_of, source_of
from ..tuning.table import TunedKernel, TuningRow, TuningTable, load, save

_ATEN = torch.ops.aten
_TUNERS = {torch.float16: HALF_TUNER, torch.bfloat16: HALF_TUNER, torch.float32: FULL_TUNER}
# Whether a body makes products does not depend on it.
_ARCH = HOPPER
Sizes = Mapping[str, Sequence[int]]
_autotuning, _kernels = _compat.autotuning, _compat.kernels
Clock = _autotuning.Clock
# What is measured again, by its ratio to the fastest, and how many times.
_CLOSE, _ROUNDS = 1.1, 3


@dataclass
class Tuned:
    """What a run added to a table: rows measured now, and rows that it already had."""

    table: TuningTable
    measured: int = 0
    known: int = 0
    notes: list[str] = field(default_factory=list)


def tune(
    ops: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    sizes: Sizes | None = None,
    arch: str | None = None,
    again: bool = False,
    clock: Clock | None = None,
    bar: ProgressBar | None = None,
) -> Tuned:
    """Measure all configurations of the ops' autotuned kernels at all sizes, into a table.

        tune([gemm], "tuning.json", sizes={"m": [1, 16, 256], "n": [4096], "k": [4096]})

    Existing rows are kept, so an interrupted run continues where it stopped; with `again` they are
    measured again. `clock(call, quantiles=...)` returns milliseconds, the median first.
    """
    bar = bar or Log(quiet=True)
    entries = [op if isinstance(op, Entry) else registry.get(op) for op in ops]
    device, found_arch = _gpu(arch, entries, clocked=clock is not None)
    table = load(path) if Path(path).exists() else TuningTable()
    done = Tuned(table)
    work = list(_work(entries, sizes or {}, done))
    bar.start(sum(len(one.points) for one in work))
    for note in done.notes:
        bar.say(f"note: {note}")
    name = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    clock = clock or _autotuning.default_clock()
    router = _Router(done, path, found_arch, name, clock, bar, again)
    for one in work:
        for point in one.points:
            bar.advance(f"{one.entry.name} {point}")
            _call(one, point, device, router)
    return done


def run(
    targets: tuple[str, ...],
    output: str,
    *,
    arch: str | None,
    sizes: tuple[str, ...],
    only: tuple[str, ...],
    again: bool,
) -> str:
    """What the command does: measure, and summarize."""
    given = parse(sizes)
    ops = operators(targets, only)
    bar = watching("tuning")
    try:
        done = tune(ops, output, sizes=given, arch=arch, again=again, bar=bar)
    except KeyboardInterrupt:
        # What was measured is in the file already.
        raise SystemExit(
            f"interrupted: {output} has what was measured, and the same command continues there"
            + (" without --again" if again else "")
        ) from None
    finally:
        bar.stop()
    if not len(done.table):
        return f"nothing to tune, so {output} was not written"
    return (
        f"{output}: {done.measured} rows measured, {done.known} already there; "
        f"{len(done.table)} rows for {len(done.table.rows)} kernels in total"
    )


@dataclass(frozen=True)
class _Work:
    """An op, and where it is called."""

    entry: Entry
    declared: Declared
    points: list[Point]
    # Whether its library would launch a kernel for products that it makes with torch.
    multiplies: bool


def _gpu(wanted: str | None, entries: Iterable[Entry], *, clocked: bool) -> tuple[str, str]:
    """The device to run on, and its architecture as tables name it."""
    wanted = None if wanted is None else str(parse_arch(wanted))
    kernels = [k.kernel for e in entries for k in e.describe().kernels]
    if runs_interpreted() or any(map(_kernels.is_interpreted, kernels)):
        # For tests with a clock of their own.
        if wanted is None or not clocked:
            raise NeedsGpu(
                "timings in Triton's interpreter mean nothing, so nothing is measured",
                fix="run without TRITON_INTERPRET=1, on a GPU",
            )
        return "cpu", wanted
    if not torch.cuda.is_available():
        raise NeedsGpu(
            "tuning measures kernels on a GPU, and torch finds none here",
            fix="run opforge tune on a machine with a GPU, and commit the table that it writes",
        )
    found = str(_compat.device.device_arch())
    if wanted not in {None, found}:
        raise NeedsGpu(
            f"the GPU here is {found} ({torch.cuda.get_device_name()}), so nothing can be "
            f"measured for {wanted}",
            fix=f"--arch {found}, or run it on that GPU; one file holds the rows of several GPUs",
        )
    return "cuda", found


def _work(entries: Iterable[Entry], sizes: Sizes, done: Tuned) -> Iterable[_Work]:
    declared_all = []
    for entry in entries:
        if not declarations_of(entry):
            done.notes.append(f"{entry.name} has no native.declare, so its sizes are unknown")
            continue
        declared = expand(entry)
        declared_all.append(declared)
        kernels = [k.kernel for k in entry.describe().kernels]
        tuned = any(_autotuning.has_choice(p) for k in kernels for p in _kernels.chain(k))
        multiplies = calls_product(entry, declared)
        if not tuned and not multiplies:
            done.notes.append(f"{entry.name} has no autotuned kernel")
            continue
        try:
            wanted = list(points(declared, sizes))
        except BadOption as error:
            raise error.locate(entry.name, entry.location) from None
        yield _Work(entry, declared, wanted, multiplies)
    lost = unused(sizes, declared_all)
    if lost:
        raise BadOption(
            f"no operator has a size {', '.join(lost)}", fix="`opforge list` shows the sizes"
        )


def _call(work: _Work, point: Point, device: str, router: _Router) -> None:
    entry = work.entry
    defaults = {a.name: a.default for a in entry.flat().arguments}
    args, kwargs = call_of(work.declared, point, defaults, device)
    products = products_by_kernel(device) if work.multiplies else contextlib.nullcontext()
    try:
        with _compat.launches.routed_to(router), torch.no_grad(), products:
            entry.fn(*args, **kwargs)
    except OpforgeError:
        raise
    except Exception as error:
        dtypes = ", ".join(t.dtype for t in point.case.tensors if t.present)
        raise BuildFailed(
            f"the op fails at {point} ({dtypes})",
            found=f"{type(error).__name__}: {error}",
            fix="remove these sizes from --sizes, or fix the op",
            op=entry.name,
            location=entry.location,
        ) from error


@dataclass
class _Router:
    """Sees a call's launches, and measures autotuned ones before they run."""

    done: Tuned
    path: str | os.PathLike[str]
    arch: str
    device: str
    clock: Clock
    bar: ProgressBar
    again: bool
    _measured: set[tuple[TunedKernel, tuple[Any, ...]]] = field(default_factory=set)
    leaves_wrapped = False

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not _autotuning.has_choice(kernel):
            return run(*args, **kwargs)
        with _compat.launches.routed_to(None):
            config = self._best(kernel, args, kwargs)
            key = _autotuning.triton_key(kernel, args, kwargs)
            _autotuning.choose_config(kernel, key, config)
            return run(*args, **kwargs)

    def compiled(self, kernel: Any) -> None:
        """A compiled kernel has nothing to choose."""

    def written(self, _kernel: Any, names: list[str], *_: Any) -> list[str]:
        return names

    def _best(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
        names = _autotuning.key_names(tuner, given)
        kernel = TunedKernel(
            _kernels.kernel_name(tuner),
            source_of(tuner),
            self.arch,
            _autotuning.dtypes_of(tuner, given),
            names,
        )
        at = tuple(_autotuning.plain(given[n]) for n in names)
        known = self.done.table.find(kernel, at)
        fresh = (kernel, at) in self._measured or not self.again
        places = {config_of(c): c for c in tuner.configs}
        if known is not None and fresh and known.config in places:
            self.done.known += (kernel, at) not in self._measured
            self._measured.add((kernel, at))
            return places[known.config]
        return self._measure(tuner, kernel, at, args, kwargs)

    def _measure(
        self, tuner: Any, kernel: TunedKernel, at: tuple[Any, ...], args: Any, kwargs: Any
    ) -> Any:
        timed = list(_autotuning.measure(tuner, args, kwargs, self.clock))
        config, us = self._decide(tuner, timed, args, kwargs)
        if us == float("inf"):
            raise BuildFailed(
                f"no configuration of {kernel.name} runs on this GPU at "
                f"{dict(zip(kernel.key, at, strict=True))}",
                fix="add a smaller configuration to its @triton.autotune",
            )
        row = TuningRow(at, config_of(config), us, self.device)
        self.done.table.add(kernel, row)
        self.done.measured += 1
        self._measured.add((kernel, at))
        save(self.done.table, self.path)
        self.bar.say(_line(kernel, row, len(timed)))
        return config

    def _decide(
        self, tuner: Any, timed: list[tuple[Any, float]], args: Any, kwargs: Any
    ) -> tuple[Any, float]:
        """The fastest; those that are close to it are measured again, in turns.

        A GPU's clock changes while it is measured, by more than good configurations differ.
        """
        best = min(us for _, us in timed)
        close = [config for config, us in timed if us <= best * _CLOSE and us != float("inf")]
        if len(close) <= 1:
            return min(timed, key=lambda pair: pair[1])
        lowest = [float("inf")] * len(close)
        for _ in range(_ROUNDS):
            again = _autotuning.measure(tuner, args, kwargs, self.clock, close)
            lowest = [min(low, us) for low, (_, us) in zip(lowest, again, strict=True)]
        us, place = min((us, place) for place, us in enumerate(lowest))
        return close[place], us


def _line(kernel: TunedKernel, row: TuningRow, configs: int) -> str:
    """`gemm_kernel float16 m=16, n=4096: 12.1 us with BLOCK_M=16, ..., best of 6`."""
    at = ", ".join(f"{n}={v}" for n, v in zip(kernel.key, row.at, strict=True))
    config = ", ".join(f"{n}={v}" for n, v in row.config)
    dtypes = ", ".join(kernel.dtypes)
    return f"{kernel.name} {at} ({dtypes}): {row.us:.1f} us with {config}, best of {configs}"


def parse(texts: Iterable[str]) -> dict[str, list[int]]:
    """`("m=1,16", "n=4096")` -> `{"m": [1, 16], "n": [4096]}`."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        try:
            numbers = [int(v) for v in values.split(",")]
        except ValueError:
            numbers = []
        if not equals or not name.strip() or not numbers:
            raise BadOption(f"--sizes {text} cannot be read", fix="--sizes m=1,16,256,4096")
        if min(numbers) < 1:
            raise BadOption(
                f"--sizes {text} has a size below 1, where there is nothing to measure",
                fix="--sizes m=1,16,256,4096",
            )
        found.setdefault(name.strip(), []).extend(numbers)
    return found


@dataclass(frozen=True)
class Point:
    """A case, and a value for each of its sizes and integers."""

    case: Case
    values: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def points(declared: Declared, given: Sizes) -> Iterator[Point]:
    """Every combination of sizes, case by case."""
    for case in declared.cases:
        asked = {b.var: b for b in case.bounds}
        for param in declared.params:
            if isinstance(param, ScalarParam) and not param.dtype.startswith(("fp", "bf")):
                asked.setdefault(param.name, Bound(param.name, low=-(2**63)))
        tried = {name: _tried(bound, given) for name, bound in asked.items()}
        missing = [name for name, values in tried.items() if not values]
        if missing:
            raise BadOption(
                f"no sizes to measure were given for {', '.join(missing)}",
                fix=" ".join(f"--sizes {n}=1,16,256,4096" for n in missing),
            )
        for name, bound in asked.items():
            _check(bound, tried[name])
        for values in itertools.product(*tried.values()):
            yield Point(case, dict(zip(tried, values, strict=True)))


def _tried(bound: Bound, given: Sizes) -> list[int]:
    for name in (bound.var, bound.var.partition("[")[0]):
        if name in given:
            return list(dict.fromkeys(given[name]))
    if bound.values:
        return [value for value in bound.values if value > 0]
    return [bound.low] if bound.low == bound.high else []


def _check(bound: Bound, values: Sequence[int]) -> None:
    for value in values:
        inside = value >= bound.low and (bound.high is None or value <= bound.high)
        if not inside or (bound.values and value not in bound.values):
            ends = f"{bound.low} to {'any' if bound.high is None else bound.high}"
            allowed = ", ".join(map(str, bound.values)) or ends
            raise BadOption(
                f"{bound.var} = {value} was not declared",
                found=f"declared: {allowed}",
                fix=f"choose --sizes {bound.var} from what is declared, or declare more",
            )


def unused(given: Sizes, ops: Iterable[Declared]) -> list[str]:
    """Names that no op has; they are probably misspelled."""
    known: set[str] = set()
    for declared in ops:
        for case in declared.cases:
            known |= {b.var for b in case.bounds} | {b.var.partition("[")[0] for b in case.bounds}
        known |= {p.name for p in declared.params if isinstance(p, ScalarParam)}
    return [name for name in given if name not in known]


def call_of(
    declared: Declared, point: Point, defaults: Mapping[str, Any], device: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`fn(*args, **kwargs)` for a point; a float is its default, or 1.

    Tensors are contiguous. Floats are random; integers are 0, because they may be indices.
    """
    leaves: dict[str, Any] = {}
    for tensor in point.case.tensors:
        if tensor.present:
            leaves[tensor.param] = _tensor(tensor, point.values, device)
    for param in declared.params:
        if isinstance(param, ScalarParam):
            default = defaults.get(param.name)
            default = default if isinstance(default, float) else 1.0
            leaves[param.name] = point.values.get(param.name, default)
    return declared.arguments(point.case, leaves)


def _tensor(tensor: TensorCase, values: Mapping[str, int], device: str) -> torch.Tensor:
    shape = [int(evaluate(term, values)) for term in tensor.shape]
    dtype = getattr(torch, DTYPES[tensor.dtype].torch)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(math.prod(shape) % 2**31)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def runs_interpreted() -> bool:
    return bool(_compat.kernels.is_interpreted(gemm_kernel))


def calls_product(entry: Entry, declared: Declared) -> bool:
    """Whether a library of the op would launch the kernel, in one trace of each case."""
    asked: list[Any] = []

    def choose(tuner: Any, arguments: dict[str, Any]) -> Choice:
        asked.append(tuner)
        return first_config(tuner, arguments)

    for case in declared.cases:
        # The build says why a case cannot be traced.
        with contextlib.suppress(OpforgeError):
            first_walk(entry, declared, case, (_ARCH,), choose)
        if any(tuner is own for tuner in asked for own in _TUNERS.values()):
            return True
    return False


def products_by_kernel(device: str) -> AbstractContextManager[None]:
    """Let this thread's `mm` and the like on a device launch the kernel, autotuned."""

    def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        make = _PRODUCTS.get(func)
        if make is not None and _has_kernel(args, device):
            return make(*args, **kwargs)
        body = None if make is not None else nested_body(func)
        if body is None:
            return func(*args, **kwargs)
        # Torch disables a mode while the mode handles a call.
        with products_by_kernel(device):
            return body(*args, **kwargs)

    return _compat.tracing.watching(answer, FUNCTIONS)


def _has_kernel(tensors: tuple[Any, ...], device: str) -> bool:
    *_, a, b = tensors
    return a.dtype in _TUNERS and a.device.type == device and a.numel() > 0 and b.numel() > 0


def _product(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float) -> Tensor:
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, a_columns, a_line = _lines(a)
    b, b_columns, b_line = _lines(b)
    if c is None:
        c, beta = out, 0.0
    c = c.expand(out.shape)
    c = c if c.stride(-1) == 1 else c.contiguous()
    count = out.shape[0] if out.dim() == 3 else 1
    _TUNERS[a.dtype][lambda meta: (count * meta["down"] * meta["across"],)](
        a, b, c, out, float(alpha), float(beta), m, n, k, _stack(a), a_line, _stack(b), b_line,
        _stack(c), c.stride(-2), A_COLUMNS=a_columns, B_COLUMNS=b_columns,
    )  # fmt: skip
    return out


def _lines(x: Tensor) -> tuple[Tensor, bool, int]:
    """x, whether its columns rather than its rows are dense, and the stride of these lines."""
    if x.stride(-1) != 1 and x.stride(-2) != 1:
        x = x.contiguous()
    columns = x.stride(-1) != 1
    return x, columns, x.stride(-1 if columns else -2)


def _stack(x: Tensor) -> int:
    return x.stride(0) if x.dim() == 3 else 0


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b, None, 1.0, 0.0)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _product(a, b, c, alpha, beta)


_PRODUCTS: dict[Any, Callable[..., Tensor]] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.addmm.default: _addmm,
    _ATEN.baddbmm.default: _addmm,
}
