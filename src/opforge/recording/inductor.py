"""Watches kernels of compiled graphs, which Inductor launches past Triton's JIT."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from .. import _compat
from .._compat import patches
from .choice import RecordedChoice
from .constants import CannotRecord, encode_named
from .inductor_names import COMPILING, HEURISTICS, LOCATION, MODULE
from .model import Missed, RecordedKernel, RecordedVariant
from .seen import Report, Seen

_OWN = ("opforge.", "torch.", "triton.")
# By autotuner: the file may be gone when the kernel is launched, and templates do not name theirs.
_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class CompiledGraphs:
    """Counts launches of compiled graphs, and tells a `Report` what is new."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.forget()

    def launched(self, tuner: Any, args: tuple[Any, ...]) -> None:
        seen = self._seen.get(id(tuner))
        if seen is None:
            seen = self._first(tuner)
        seen.launches = n = next(seen.count)
        # At 1, 2, 4, 8, ... launches, which costs nothing in the long run.
        if n & (n - 1) == 0 and seen.recorded is not None:
            seen.add(_sizes(tuner, args))
            self._report.counts(seen.counted())

    def _first(self, tuner: Any) -> Seen:
        with self._lock:
            if id(tuner) not in self._seen:
                seen = Seen(tuner)
                try:
                    seen.recorded = _kernel(tuner)
                except (_compat.compiled.NotPlain, CannotRecord) as error:
                    self._miss(_compat.inductor_kernels.name_of(tuner), str(error))
                except (AttributeError, KeyError, TypeError) as error:
                    # A program that is recorded must not fail where another torch differs.
                    reason = f"this torch's Inductor is not known: {type(error).__name__}: {error}"
                    self._miss(_compat.inductor_kernels.name_of(tuner), reason)
                self._seen[id(tuner)] = seen
            return self._seen[id(tuner)]

    def _miss(self, name: str, reason: str) -> None:
        if (name, reason) not in self._missed:
            self._missed.add((name, reason))
            self._report.missed(Missed(name, LOCATION, reason, _caller()))

    def finish(self) -> None:
        """Report the counts of everything."""
        # Several autotuners may have the same variant: each graph makes its own.
        whole: dict[Any, RecordedKernel] = {}
        for seen in [*self._seen.values()]:
            if seen.recorded is not None:
                found = seen.counted()
                key = (found.identity, found.variants[0].key, repr(found.choices))
                whole[key] = whole[key].joined(found) if key in whole else found
        for found in whole.values():
            self._report.counts(found)

    def forget(self) -> None:
        """Start anew, as a forked process does."""
        self._seen: dict[int, Seen] = {}
        self._missed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()


def _kernel(tuner: Any) -> RecordedKernel:
    kernels = _compat.inductor_kernels
    config = kernels.chosen(tuner)
    if config is None:
        raise CannotRecord("Inductor launched it without choosing a configuration")
    obstacle = kernels.obstacle(tuner)
    if obstacle:
        raise CannotRecord(obstacle)
    try:
        printed = kernels.printed(_text(tuner))
    except kernels.NotPrinted as error:
        raise CannotRecord(str(error)) from None
    try:
        source = kernels.source_of(printed, tuner.fn)
    except _compat.kernel_hash.NoText as error:
        raise CannotRecord(str(error)) from None
    found, options = kernels.specialization(tuner, config)
    variant = RecordedVariant(
        types=tuple(found.types.items()),
        constants=encode_named(found.constants),
        options=encode_named(dict(sorted(options.items()))),
        arch=str(found.arch),
        ones=found.ones,
        divisible=found.divisible,
        first=_caller(),
    )
    choice = RecordedChoice(
        encode_named(kernels.size_hints(tuner)),
        (),
        encode_named(kernels.as_dict(config)),
        variant.arch,
    )
    return RecordedKernel(
        MODULE,
        printed.name,
        source,
        LOCATION,
        (variant,),
        (choice,),
        printed.text,
        _compat.settings.current(),
    )


def _text(tuner: Any) -> str:
    kept = _texts.get(tuner)
    if kept is not None:
        return kept
    file = _compat.inductor_kernels.file_of(tuner)
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        raise CannotRecord(
            "its text is not in Inductor's cache; record with another TORCHINDUCTOR_CACHE_DIR"
        ) from None


def _sizes(tuner: Any, args: tuple[Any, ...]) -> dict[str, int]:
    own = set(tuner.fn.arg_names)
    named = zip(_compat.inductor_kernels.argument_names(tuner), args, strict=False)
    return {name: value for name, value in named if type(value) is int and name in own}


def _caller() -> str:
    """`file:line` of the code that calls the compiled function, past torch and its own code."""
    frame: FrameType | None = inspect.currentframe()
    # By module: Inductor's code is in its cache, under a name below torch.
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OWN):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


# Who is told of launches; read at each of them.
_watching: tuple[CompiledGraphs, ...] = ()


def watch(graphs: CompiledGraphs) -> None:
    """Tell `graphs` of each launch, while the replacements stand."""
    global _watching  # noqa: PLW0603
    _watching = (*_watching, graphs)


def unwatch(graphs: CompiledGraphs) -> None:
    global _watching  # noqa: PLW0603
    _watching = tuple(one for one in _watching if one is not graphs)


def replacements() -> Iterator[patches.Replacement]:
    """What watches launches, as far as the modules are imported."""
    if HEURISTICS in sys.modules:
        yield patches.INDUCTOR_LAUNCHES.by("run", _watched_run)
    if COMPILING in sys.modules:
        yield patches.INDUCTOR_TEXTS.by("triton", _keeping_text)


def _watched_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, stream: Any, **kwargs: Any) -> Any:
        # Mostly there is nothing else.
        if kwargs:
            result = original(self, *args, stream=stream, **kwargs)
            if kwargs.get("benchmark_run"):
                return result
        else:
            result = original(self, *args, stream=stream)
        for graphs in _watching:
            graphs.launched(self, args)
        return result

    return run


def _keeping_text(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def triton(self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        def keep(tuner: Any) -> None:
            _texts[tuner] = source_code

        made = original(self, kernel_name, source_code, *args, **kwargs)
        return _compat.inductor_kernels.when_made(made, keep)

    return triton
