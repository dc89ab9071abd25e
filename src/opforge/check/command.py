"""What `opforge check` does around the checks: finds ops, makes their arguments, runs them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..comparison import Tolerance
from ..errors import BadOption, OpforgeError, WrongArgument
from ..native.targets import Place, is_tree, load, locate, users_own
from ..progress import ProgressBar, watching
from ..registry import Entry, registry
from .inputs import arguments_from
from .report import CheckReport, Problem, Row, Summary
from .run import Progress, check_call, select
from .subject import Settings, interpreting

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class CheckArguments:
    """The command's arguments that say what to check and how."""

    targets: tuple[str, ...]
    texts: tuple[str, ...] = ()
    function: str | None = None
    reference: str | None = None
    tolerance: Tolerance = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    arch: str | None = None


def check_targets(given: CheckArguments, *, quiet: bool = False) -> Summary:
    """Check the operators of all targets; what fails to load or to begin does not stop others."""
    by_id: dict[int, tuple[Any, list[Place]]] = {}
    problems = []
    for target in given.targets:
        loaded = load(target)
        problems += [Problem(str(p.path), p.message) for p in loaded.problems]
        for op, place in loaded.places:
            by_id.setdefault(id(op), (op, []))[1].append(place)
    placed = list(by_id.values())
    single = len(placed) == 1 and not any(map(is_tree, given.targets))
    if not single:
        _refuse_for_several(given, placed)
    rows = select(given.only or None, given.skip, given.require)
    reports: list[CheckReport] = []
    bar = watching("checking", quiet=quiet)
    bar.start(len(placed) * len(rows))
    try:
        for number, (op, places) in enumerate(placed, 1):
            entry = registry.get(op)
            if single:
                reports.append(_check_one(op, given, places, _telling(bar, entry.name)))
                continue
            title = f"[{number}/{len(placed)}] {entry.name}"
            own = [t for t in given.texts if _parameter_of(t) in entry.signature.parameters]
            arguments = replace(given, texts=tuple(own))
            try:
                report = _check_one(op, arguments, places, _telling(bar, title))
            except OpforgeError as error:
                problems.append(Problem(entry.name, str(error)))
                bar.say(f"{title}: not checked")
                continue
            reports.append(report)
            bar.say(f"{title}: {report.outcome}; {report.counts()}")
    finally:
        bar.stop("")
    return Summary(tuple(reports), tuple(problems), single)


def _refuse_for_several(given: CheckArguments, placed: list[tuple[Any, list[Place]]]) -> None:
    for option, value in (("--inputs", given.function), ("--reference", given.reference)):
        if value is not None:
            raise BadOption(
                f"{option} is for one operator, and there are {len(placed)}",
                fix="name one, or write a function next to each: def OP_inputs(), OP_reference()",
            )
    known = {name for op, _ in placed for name in registry.get(op).signature.parameters}
    for text in given.texts:
        if _parameter_of(text) not in known:
            raise BadOption(
                f"no operator has {_parameter_of(text)!r}",
                found=f"they take {', '.join(sorted(known)) or 'nothing'}",
                fix="choose one of these",
            )


def _check_one(
    op: Any, given: CheckArguments, places: Sequence[Place], progress: Progress
) -> CheckReport:
    """Check one op with the inputs that the command line or a function in its file gives."""
    args, kwargs = arguments_of(op, given.texts, given.function, places)
    if given.reference is not None:
        reference: Callable[..., Any] | None = _function(given.reference)
    else:
        reference = _beside(registry.get(op), "reference", places)
    settings = Settings(reference=reference, tolerance=given.tolerance, arch=given.arch)
    return check_call(
        op,
        args,
        kwargs,
        settings=settings,
        only=given.only or None,
        skip=given.skip,
        require=given.require,
        progress=progress,
    )


def _telling(bar: ProgressBar, title: str) -> Progress:
    """What a check of one op is to call, so that a bar or a log shows its rows."""

    def hear(name: str, row: Row | None) -> None:
        if row is None:
            bar.advance(f"{title}: {name}")
        else:
            bar.detail(f"{title}: {name}: {row.status}, {row.seconds:.1f} s")

    return hear


def arguments_of(
    op: Any, texts: Sequence[str], function: str | None, places: Sequence[Place] = ()
) -> Arguments:
    """From `--input` texts, from the function that `--inputs` names, or from the op's own."""
    if function is not None:
        if texts:
            raise BadOption("--input and --inputs were both given", fix="use one of them")
        return _returned(_function(function), function)
    entry = registry.get(op)
    # Inputs without a device are made where the op's kernels can run.
    on_gpu = entry.describe().kernels and torch.cuda.is_available() and not interpreting()
    device = "cuda" if on_gpu else "cpu"
    own = _beside(entry, "inputs", places)
    if own is not None and not texts:
        with torch.device(device):
            return _returned(own, f"{inspect.getsourcefile(own)}:{own.__name__}")
    return arguments_from(entry, texts, device=device, places=places)


def _function(target: str) -> Callable[..., Any]:
    """The function that `module:fn` or `path/to/file.py:fn` names."""
    value = locate(target)
    if not callable(value):
        raise BadOption(
            f"{target} is not a function",
            found=f"a {type(value).__name__}",
            fix="name a function of that module or file",
        )
    return value  # type: ignore[no-any-return]


def _returned(function: Callable[..., Any], target: str) -> Arguments:
    """The inputs that a function returns; `target` is its name for a person."""
    with users_own(f"{target}()"):
        inputs = function()
    pair = inputs if isinstance(inputs, tuple) and len(inputs) == 2 else (None, None)
    if isinstance(pair[0], (tuple, list)) and isinstance(pair[1], dict):
        return tuple(pair[0]), pair[1]
    names = ", ".join(type(v).__name__ for v in inputs) if isinstance(inputs, tuple) else ""
    raise WrongArgument(
        f"{target} must return (args, kwargs)",
        found=f"({names})" if names else f"a {type(inputs).__name__}",
        fix="return (x, cfg), {'eps': 1e-6}; with no keywords: return (x, cfg), {}",
    )


def _beside(entry: Entry, kind: str, places: Sequence[Place] = ()) -> Callable[..., Any] | None:
    """`silu_inputs` or `silu_reference`, in the modules that were loaded, else in the body's own.

    With scale_op = opforge.op(vscale, name="mylib::scale"), of vendor's vscale, these are looked
    for in the module of scale_op: scale_op_inputs, scale_inputs, vscale_inputs.
    """
    fn = inspect.unwrap(entry.fn)
    modules = [(vars(place.module), place.name) for place in places]
    for names, variable in [*modules, (getattr(fn, "__globals__", {}), fn.__name__)]:
        for name in (variable, entry.own_name.replace(".", "_"), fn.__name__):
            function = names.get(f"{name}_{kind}")
            if inspect.isfunction(function):
                return function
    return None


def _parameter_of(text: str) -> str:
    """`cfg` of `cfg.weight=ones(3)`."""
    return text.partition("=")[0].partition(".")[0].strip()
