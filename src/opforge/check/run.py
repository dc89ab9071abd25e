"""Runs the rows of a check, each isolated, and assembles the report."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat, environment
from ..aoti_package.verify import refuse_while_verifying
from ..arch_names import parse_arch
from ..comparison import Tolerance
from ..errors import BadOption, WrongArgument, first_line
from ..registry import Entry, registry
from .report import FAIL, SKIPPED, CheckReport, Row, cut, failed, reason_of, skipped
from .rows import autograd, devices, eager, export, graph
from .subject import (
    GPU_FIX,
    OpCall,
    Settings,
    Subject,
    cuda_devices,
    describe,
    interpreting,
)

Judge = Callable[[Subject], Row]
# Called with None when a row begins, and with the row when it has ended.
Progress = Callable[[str, Row | None], None]


@dataclass(frozen=True)
class Check:
    """A row to be filled.

    `unless` says why the row does not concern this op; `judge` runs the op; `without_gpu` does
    what can be done on fakes.
    """

    name: str
    judge: Judge
    without_gpu: Judge | None = None
    unless: Callable[[Subject], Row | None] = lambda _subject: None
    needs_run: bool = True


CHECKS = (
    Check("eager", eager.eager),
    Check("opcheck", eager.opcheck, unless=eager.no_schema),
    Check("fake", eager.fake, eager.fake_by_trace),
    Check("mutation", eager.mutation, eager.mutation_by_trace),
    Check("determinism", eager.determinism),
    Check("strided inputs", eager.strided, unless=eager.no_strides),
    Check("autograd", autograd.autograd, unless=autograd.no_backward),
    Check("vmap", eager.vmap, unless=eager.no_vmap),
    Check("compile", graph.compile_static, graph.compile_static_on_fakes),
    Check("compile dynamic", graph.compile_dynamic, graph.compile_dynamic_on_fakes),
    Check("kernels visible", graph.kernels_visible, needs_run=False),
    Check("export", export.export, export.export),
    Check("export strict", export.export_strict, export.export_strict),
    Check("save and load", export.save_and_load, export.save_and_load),
    Check("package", export.package),
    Check("native", devices.native, unless=devices.undeclared, needs_run=False),
    Check("cuda graph", devices.cuda_graph, unless=devices.no_gpu),
    Check("dtensor", devices.dtensor, unless=devices.no_sharding),
    Check("numerics", eager.numerics, unless=eager.no_reference),
)
ROW_NAMES = tuple(c.name for c in CHECKS)


def check(
    op: Any,
    /,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    tolerance: Tolerance = None,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
    require: str | Iterable[str] = (),
    arch: str | None = None,
    **kwargs: Any,
) -> CheckReport:
    """Check an op on these inputs in every runtime and report what fails.

        report = opforge.check(silu, torch.randn(8, 128), reference=torch.nn.functional.silu)
        assert report.ok, report

    Args:
        op: The operator.
        args: The op's arguments. Tensors are copied first and never changed.
        reference: A function with the op's parameters; outputs and gradients are compared with
            its own.
        tolerance: The allowed relative error, or (relative, absolute); by default it follows from
            the dtypes.
        only: Names of the rows to run; by default all.
        skip: Names of rows to leave out.
        require: Names of rows that must run; one that would be skipped fails.
        arch: The GPU that graphs are traced for without one, and libraries built: sm_90, gfx942; by
            default this machine's, or sm_90.
        kwargs: The op's keyword arguments. If some are named like an option above, use
            `opforge.check.check_call`.
    """
    options = {"reference": reference, "tolerance": tolerance, "only": only, "arch": arch}
    options |= {"skip": skip or None, "require": require or None}
    entry = registry.get(op)
    for name in entry.signature.parameters:
        if options.get(name) is not None:
            raise WrongArgument(
                f"{name!r} is both an option of opforge.check and a parameter of the op",
                parameter=name,
                fix="from opforge.check import check_call; check_call(op, args, kwargs, ...) keeps "
                "them apart",
                op=entry.name,
                location=entry.location,
            )
    settings = Settings(reference=reference, tolerance=tolerance, arch=arch)
    return check_call(op, args, kwargs, settings=settings, only=only, skip=skip, require=require)


def check_call(
    op: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Settings | None = None,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
    require: str | Iterable[str] = (),
    progress: Progress | None = None,
) -> CheckReport:
    """`check` with the op's arguments in a tuple and a dict.

    check_call(op, (x,), {"skip": 3}, settings=Settings(tolerance=1e-3))
    """
    refuse_while_verifying("opforge.check")
    entry = registry.get(op)
    settings = settings or Settings()
    _refuse_wrong(settings)
    call = _bind(entry, tuple(args), dict(kwargs or {}))
    subject = Subject(entry, call, settings)
    tell = progress or (lambda _name, _row: None)
    rows = []
    for asked in select(only, skip, require):
        tell(asked.name, None)
        row = _row(asked, subject)
        if row.status == SKIPPED and asked.name in _names(require):
            reason = f"required, but it did not run: {row.reason}"
            row = dataclasses.replace(row, status=FAIL, reason=reason)
        rows.append(row)
        tell(asked.name, row)
    inputs = tuple(describe(p, t) for p, t in call.tensors())
    return CheckReport(entry.name, entry.location, inputs, _machine(subject), tuple(rows))


def select(
    only: str | Iterable[str] | None, skip: str | Iterable[str], require: str | Iterable[str] = ()
) -> tuple[Check, ...]:
    """The rows to run, in their order."""
    wanted = set(ROW_NAMES if only is None else _names(only))
    unwanted, required = set(_names(skip)), set(_names(require))
    for name in sorted(wanted | unwanted | required):
        if name not in ROW_NAMES:
            raise BadOption(f"there is no row {name!r}", fix=f"one of {', '.join(ROW_NAMES)}")
    left_out = sorted(required - (wanted - unwanted))
    if left_out:
        raise BadOption(
            f"require names {', '.join(left_out)}, which only or skip leaves out",
            fix="take it out of one of them",
        )
    return tuple(c for c in CHECKS if c.name in wanted - unwanted)


def _names(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _refuse_wrong(settings: Settings) -> None:
    pair = settings.tolerance
    numbers = pair if isinstance(pair, tuple) else (pair or 0.0, 0.0)
    if len(numbers) != 2 or not all(isinstance(n, (int, float)) and n >= 0 for n in numbers):
        raise BadOption(
            f"tolerance must be a non-negative number or a pair of them, got {pair!r}",
            fix="1e-3, or (relative, absolute): (1e-3, 1e-5)",
        )
    if settings.arch is not None:
        parse_arch(settings.arch)


def _bind(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall:
    signature = entry.signature
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise WrongArgument(
            f"the op cannot be called with these arguments: {error}",
            found=f"{entry.fn.__name__}{signature}",
            fix="after the op, pass the arguments that you would call it with",
            op=entry.name,
            location=entry.location,
        ) from None
    if list(signature.parameters) != list(inspect.signature(entry.fn).parameters):
        # A reference may have the function's names, where the schema has others.
        args, kwargs = bound.args, dict(bound.kwargs)
    call = OpCall(args, kwargs, tuple(list(signature.parameters)[: len(args)]))
    for path, tensor in call.tensors():
        if not _compat.checking.has_contents(tensor):
            raise WrongArgument(
                "a check needs tensors with contents",
                parameter=path,
                found=f"a {type(tensor).__name__} on {tensor.device}",
                fix="pass real tensors; without a GPU, CPU tensors will do",
                op=entry.name,
                location=entry.location,
            )
    return call


def _row(check: Check, subject: Subject) -> Row:
    started = time.perf_counter()
    with _isolated() as heard:
        try:
            row = check.unless(subject) or _judge(check, subject)
        except Exception as error:  # noqa: BLE001  # a row that raises is a row that fails
            row = failed(*reason_of(error))
    notes = tuple(dict.fromkeys((*row.notes, *_notes_of(heard))))
    seconds = time.perf_counter() - started
    return dataclasses.replace(row, name=check.name, seconds=seconds, notes=notes)


def _judge(check: Check, subject: Subject) -> Row:
    if not check.needs_run or subject.eager.error is None:
        return check.judge(subject)
    if subject.needs_gpu and check.without_gpu is not None:
        return check.without_gpu(subject)
    if subject.needs_gpu:
        return skipped("needs a GPU: the op launches Triton kernels", GPU_FIX)
    if check.judge is eager.eager:
        return check.judge(subject)
    return skipped("the op does not run on these inputs (row eager)")


@contextlib.contextmanager
def _isolated() -> Iterator[list[warnings.WarningMessage]]:
    """Restores random states, collects warnings, and silences torch's logs if nobody asks for them.

    The row has the reason. torch would print errors into the table, and pytest 9.2, which puts
    its handlers on torch's loggers, would show hundreds of lines below it.
    """
    python = random.getstate()
    loggers = [] if environment.TORCH_LOGS.get() else list(logging.root.manager.loggerDict.items())
    handlers = {
        logger: logger.handlers
        for name, logger in loggers
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("torch.")
    }
    for logger in handlers:
        if logger.handlers:
            # Not none at all: Python then prints warnings itself.
            logger.handlers = [logging.NullHandler()]
    try:
        with (
            torch.random.fork_rng(devices=cuda_devices()),
            warnings.catch_warnings(record=True) as heard,
        ):
            warnings.simplefilter("always")
            yield heard
    finally:
        random.setstate(python)
        for logger, own in handlers.items():
            logger.handlers = own


_UPSTREAM = (DeprecationWarning, FutureWarning, PendingDeprecationWarning, ResourceWarning)


def _notes_of(heard: list[warnings.WarningMessage]) -> list[str]:
    """What the op or torch warned of, without torch's own deprecations."""
    said = [w.message for w in heard if not issubclass(w.category, _UPSTREAM)]
    # For an error in a backward AOTAutograd also prints the forward's place; the row has the error.
    return [cut(first_line(m)) for m in said if not str(m).startswith("Error detected in")]


def _machine(subject: Subject) -> str:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    how = ""
    if subject.launches and interpreting():
        how = ", kernels in Triton's interpreter"
    elif subject.needs_gpu:
        how = ", graphs traced with fake CUDA tensors"
    return f"{where}, torch {torch.__version__}{how}"
