"""What `opforge check` does around the checks: finds ops, makes their arguments, runs them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import torch

from ..cli_targets import (
    Place,
    arguments_from_function,
    arguments_made_by,
    resolve_function,
    resolve_places,
)
from ..errors import BadOption, OpforgeError
from ..native.commands.operator_tree import is_tree, load_files
from ..progress import ProgressBar, watched_terminal
from ..registry import Entry, registry
from .beside import beside, name_beside
from .compare import Tolerance
from .inputs import arguments_from
from .report import CheckReport, Row
from .run import Progress, check_call, select
from .subject import Settings, interpreting
from .summary import Problem, Summary

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

    @property
    def rows(self) -> list[str]:
        """The names of the rows to run."""
        return [one.name for one in select(self.only or None, self.skip, self.require)]


@dataclass(frozen=True)
class Found:
    """The operators that the targets name, and what could not be loaded."""

    ops: list[Any]
    problems: list[Problem]
    # Whether a table of its rows is what the user wants to see.
    single: bool
    # By the id of the op: the modules that hold it.
    places: Mapping[int, list[Place]] = field(default_factory=dict)

    def places_of(self, op: Any) -> list[Place]:
        return self.places.get(id(op), [])


def rows_named(texts: Sequence[str]) -> tuple[str, ...]:
    """`("compile,numerics", "eager")` as three names."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def find(given: CheckArguments) -> Found:
    """The operators of all targets; in a tree a file that fails does not stop the others."""
    placed: list[tuple[Any, Place]] = []
    problems = []
    for target in given.targets:
        if is_tree(target):
            loaded = load_files(target)
            placed += loaded.places
            problems += [Problem(str(one.folder), one.message) for one in loaded.problems]
        else:
            placed += resolve_places(target)
    ops = list({id(op): op for op, _ in placed}.values())
    places: dict[int, list[Place]] = {}
    for op, place in placed:
        places.setdefault(id(op), []).append(place)
    single = len(ops) == 1 and not any(is_tree(target) for target in given.targets)
    found = Found(ops, problems, single, places)
    if not single:
        _refuse_for_several(given, found)
    return found


def _refuse_for_several(given: CheckArguments, found: Found) -> None:
    ops = found.ops
    for option, value, kind in (
        ("--inputs", given.function, "inputs"),
        ("--reference", given.reference, "reference"),
    ):
        if value is not None:
            raise BadOption(
                f"{option} is for one operator, and there are {len(ops)}",
                fix=f"name one, or write a function next to each: def {_own_name(found, kind)}()",
            )
    taken = {name for op in ops for name in _parameters(registry.get(op))}
    for text in given.texts:
        if _parameter_of(text) not in taken:
            raise BadOption(
                f"no operator has {_parameter_of(text)!r}",
                found=f"they take {', '.join(sorted(taken)) or 'nothing'}",
                fix="choose one of these",
            )


def _own_name(found: Found, kind: str) -> str:
    if not found.ops:
        return f"op_{kind}"
    op = found.ops[0]
    return name_beside(registry.get(op), kind, found.places_of(op))


def check_one(
    op: Any,
    given: CheckArguments,
    progress: Progress | None = None,
    places: Sequence[Place] = (),
) -> CheckReport:
    """Check one op with the inputs that the command line or a function in its file gives."""
    args, kwargs = arguments_of(op, given.texts, given.function, places)
    reference = _reference(op, given.reference, places)
    return check_call(
        op,
        args,
        kwargs,
        settings=Settings(reference=reference, tolerance=given.tolerance, arch=given.arch),
        only=given.only or None,
        skip=given.skip,
        require=given.require,
        progress=progress,
    )


def check_all(found: Found, given: CheckArguments, *, quiet: bool = False) -> Summary:
    """Check every op; one that cannot be checked does not stop the others."""
    reports: list[CheckReport] = []
    problems = list(found.problems)
    watcher = watching(len(found.ops) * len(given.rows), quiet=quiet)
    try:
        for number, op in enumerate(found.ops, 1):
            entry, places = registry.get(op), found.places_of(op)
            where = f"[{number}/{len(found.ops)}] {entry.name}"
            own = [t for t in given.texts if _parameter_of(t) in _parameters(entry)]
            arguments = CheckArguments(**{**vars(given), "texts": tuple(own)})
            try:
                report = check_one(op, arguments, watcher.hearing(where), places)
            except OpforgeError as error:
                problems.append(Problem(entry.name, str(error), _how(entry, places)))
                watcher.say(f"{where}: not checked")
                continue
            reports.append(report)
            watcher.say(f"{where}: {report.outcome}; {report.counts()}")
    finally:
        watcher.stop()
    return Summary(tuple(reports), tuple(problems))


def _how(entry: Entry, places: Sequence[Place]) -> str:
    if beside(entry, "inputs", places) is not None:
        # The error is about these.
        return ""
    name = name_beside(entry, "inputs", places)
    return f"give its inputs with --input, or write def {name}() next to it"


class Watcher:
    """Hears nothing and says nothing."""

    def hearing(self, _where: str) -> Progress:
        """What a check of one op is to call."""
        return lambda _name, _row: None

    def say(self, text: str) -> None:
        """A line for a person who waits."""

    def stop(self) -> None:
        """Nothing more will happen."""


class LineWatcher(Watcher):
    """A line per row and per op, for logs."""

    def hearing(self, where: str) -> Progress:
        def hear(name: str, row: Row | None) -> None:
            if row is not None:
                self.say(f"{where}: {name}: {row.status}, {row.seconds:.1f} s")

        return hear

    def say(self, text: str) -> None:
        click.echo(text, err=True)


class BarWatcher(Watcher):
    """A bar over the rows of all ops, with a line per op above it."""

    def __init__(self, bar: ProgressBar, total: int) -> None:
        self._bar = bar
        bar.start(total)

    def hearing(self, where: str) -> Progress:
        def hear(name: str, row: Row | None) -> None:
            if row is None:
                self._bar.advance(f"{where}: {name}")

        return hear

    def say(self, text: str) -> None:
        self._bar.say(text)

    def stop(self) -> None:
        self._bar.stop("")


def watching(total: int, *, quiet: bool = False) -> Watcher:
    """A bar where a person watches, else lines."""
    console = watched_terminal()
    if quiet:
        return Watcher()
    if console is None:
        return LineWatcher()
    return BarWatcher(ProgressBar("checking", console), total)


def arguments_of(
    op: Any, texts: Sequence[str], function: str | None, places: Sequence[Place] = ()
) -> Arguments:
    """From `--input` texts, from the function that `--inputs` names, or from the op's own."""
    if function is not None:
        if texts:
            raise BadOption("--input and --inputs were both given", fix="use one of them")
        return arguments_from_function(function)
    entry = registry.get(op)
    # Inputs without a device are made where the op's kernels can run.
    on_gpu = entry.describe().kernels and torch.cuda.is_available() and not interpreting()
    device = "cuda" if on_gpu else "cpu"
    own = beside(entry, "inputs", places)
    if own is not None and not texts:
        with torch.device(device):
            return arguments_made_by(own, f"{inspect.getsourcefile(own)}:{own.__name__}")
    return arguments_from(entry, texts, device=device)


def _reference(op: Any, named: str | None, places: Sequence[Place]) -> Callable[..., Any] | None:
    if named is not None:
        return resolve_function(named)
    return beside(registry.get(op), "reference", places)


def _parameters(entry: Entry) -> list[str]:
    return list(entry.signature.parameters)


def _parameter_of(text: str) -> str:
    """`cfg` of `cfg.weight=ones(3)`."""
    return text.partition("=")[0].partition(".")[0].strip()
