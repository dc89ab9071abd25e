"""Watches Triton's launches: what is launched, how often, and what autotuners choose.

A launch that was seen before costs a dictionary lookup and a count. What is new is described and
reported at once, so that a process that is killed leaves all but its last counts.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from .. import _compat
from .choice import RecordedChoice
from .constants import CannotRecord, encode_named, name_of
from .inductor import CompiledGraphs
from .inside import describe
from .model import Missed, RecordedKernel, RecordedVariant
from .seen import Report, Seen

Launch = tuple[Any, tuple[Any, ...], Mapping[str, Any]]

_FIRST = (
    "its autotuner has no GPU to measure on, so only its first configuration was recorded; "
    "record on a GPU to get the one that it chooses"
)
_EARLIER = (
    "it was compiled before the recording began, or is launched past Triton's JIT, so the options "
    "of its launch are not known; begin earlier, or use `opforge record`"
)
_OWN = (str(Path(__file__).parents[1]), "<frozen ")
# Where `opforge record` has a `sitecustomize`.
_BOOTSTRAP = str(Path(__file__).parents[1] / "bootstrap")


class Recorder:
    """Counts launches, and tells a `Report` what is new."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.compiled_graphs = CompiledGraphs(report)
        self._seen: dict[Any, Seen] = {}
        self._chosen: dict[tuple[int, Any], Any] = {}
        self._missed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def launched(self, compiled: Any) -> None:
        """Count a launch of what Triton has compiled; called where it is launched."""
        seen = self._seen.get(id(compiled))
        if seen is None:
            launch = _compat.compiled.launch_under_way()
            # Inductor asks once, and its launches are recorded where it makes them.
            if launch is None and _compat.compiled.is_asked_by_inductor():
                return
            seen = self._first(id(compiled), compiled, launch)
        seen.launches = n = next(seen.count)
        # At 1, 2, 4, 8, ... launches, which costs nothing in the long run.
        if n & (n - 1) == 0:
            self._look_again(seen, _compat.compiled.launch_under_way())

    def described(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record a launch that is not made, because its GPU is not there."""
        if kwargs.get("warmup"):
            return
        stood = [_compat.fakes.stand_in_pointer(value) for value in args]
        named = {name: _compat.fakes.stand_in_pointer(value) for name, value in kwargs.items()}
        try:
            found = _compat.compiled.of_launch(fn, tuple(stood), named)
        except _compat.compiled.NotPlain as error:
            self.miss(fn, str(error))
            return
        key = (id(fn), repr(found), repr(sorted(_options(fn, kwargs).items())))
        launch = fn, args, kwargs
        seen = self._seen.get(key)
        if seen is None:
            seen = self._first(key, found, launch)
        seen.launches = next(seen.count)
        self._look_again(seen, launch)

    def unmeasured(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """An autotuner takes its first configuration, because its GPU is not there."""
        self.miss(_compat.kernels.innermost(tuner), _FIRST)
        self.chosen(tuner, key, config)

    def _first(self, key: Any, compiled: Any, launch: Launch | None) -> Seen:
        with self._lock:
            if key in self._seen:
                return self._seen[key]
            seen = self._seen[key] = Seen((launch and launch[0], compiled))
            if launch is None:
                # A wrapper has kept what a launch returned.
                self.miss(_compat.compiled.jitted(compiled), _EARLIER)
                return seen
            fn, _, kwargs = launch
            try:
                seen.recorded = _kernel(fn, variants=(_variant(fn, compiled, kwargs),))
            except (_compat.compiled.NotPlain, _compat.kernel_hash.NoText, CannotRecord) as error:
                self.miss(fn, str(error))
            return seen

    def _look_again(self, seen: Seen, launch: Launch | None) -> None:
        if launch is not None:
            seen.add(_sizes(*launch))
        # A process may be killed before it can say more.
        if seen.recorded is not None:
            self.report.counts(seen.counted())

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Report what an autotuner has chosen for a key."""
        if self._chosen.get((id(tuner), key)) is config:
            return
        self._chosen[id(tuner), key] = config
        fn = _compat.kernels.innermost(tuner)
        try:
            found = _kernel(fn, choices=(_choice(tuner, key, config),))
        except (_compat.compiled.NotPlain, _compat.kernel_hash.NoText, CannotRecord) as error:
            self.miss(fn, f"the choice of its autotuner: {error}")
            return
        self.report.kernel(found)

    def miss(self, fn: Any, reason: str) -> None:
        """Report a launch that cannot be recorded, once for each reason."""
        name = _compat.compiled.function_of(fn).__qualname__
        if (name, reason) not in self._missed:
            self._missed.add((name, reason))
            self.report.missed(Missed(name, _location(fn), reason, _caller()))

    def finish(self) -> None:
        """Report the counts of everything."""
        self.compiled_graphs.finish()
        for seen in [*self._seen.values()]:
            if seen.recorded is not None:
                self.report.counts(seen.counted())

    def forget(self) -> None:
        """Start anew, as a forked process does: its parent reports what was before."""
        self.compiled_graphs.forget()
        self._seen.clear()
        self._chosen.clear()
        self._missed.clear()
        self._lock = threading.Lock()


def _kernel(fn: Any, **found: Any) -> RecordedKernel:
    module, _, name = name_of(_compat.compiled.function_of(fn)).rpartition(":")
    return RecordedKernel(
        module,
        name,
        _compat.kernel_hash.digest(fn),
        _location(fn),
        settings=_compat.settings.current(),
        path=_import_path(),
        inside=describe(fn),
        module_text=_compat.inductor_kernels.module_text(_compat.compiled.function_of(fn)),
        **found,
    )


def _import_path() -> tuple[str, ...]:
    """The folders from which this program imports, without those that every Python has."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = {sysconfig.get_path(name) for name in names} | {_BOOTSTRAP}
    folders = [Path(entry).absolute() for entry in sys.path]
    return tuple(
        str(f) for f in folders if f.is_dir() and own.isdisjoint(map(str, (f, *f.parents)))
    )


def _location(fn: Any) -> str:
    code = _compat.compiled.function_of(fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _variant(fn: Any, compiled: Any, kwargs: Mapping[str, Any]) -> RecordedVariant:
    found = compiled
    if not isinstance(found, _compat.compiled.Specialization):
        found = _compat.compiled.of_kernel(fn, compiled)
    return RecordedVariant(
        types=tuple(found.types.items()),
        constants=encode_named(found.constants),
        options=encode_named(_options(fn, kwargs)),
        arch=str(found.arch),
        ones=found.ones,
        divisible=found.divisible,
        first=_caller(),
    )


def _options(fn: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a launch that Triton takes for options: num_warps, maxnreg, ..."""
    own = {"grid", "warmup", *fn.arg_names} - _compat.served.options_of_parameters(fn)
    return {name: value for name, value in sorted(kwargs.items()) if name not in own}


def _sizes(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    given = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
    constexprs = {param.name for param in fn.params if param.is_constexpr}
    return {
        name: value
        for name, value in given.items()
        if type(value) is int and name in fn.arg_names and name not in constexprs
    }


def _choice(tuner: Any, key: tuple[Any, ...], config: Any) -> RecordedChoice:
    values, dtypes = _compat.autotuning.split_key(key)
    names = [name for name in tuner.keys if name in tuner.arg_names][: len(values)]
    return RecordedChoice(
        encode_named(dict(zip(names, values, strict=False))),
        dtypes,
        encode_named({n: v for n, v in config.all_kwargs().items() if v is not None}),
        str(_compat.compiled.current_arch()),
    )


def _caller() -> str:
    """`file:line` of the code that launches, past Triton and opforge."""
    frame: FrameType | None = inspect.currentframe()
    triton = str(Path(sys.modules["triton"].__file__ or "").parent)
    while frame is not None and frame.f_code.co_filename.startswith((*_OWN, triton)):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
