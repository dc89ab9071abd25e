"""`opforge.record()`: watches what is launched, how often, and what autotuners choose.

A launch that was seen before costs a dictionary lookup and a count. What is new is described and
reported at once, so that a process that is killed leaves all but its last counts. Kernels of
compiled graphs are launched by Inductor, past Triton's JIT.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from .. import _compat
from .._compat import patches
from ..after_triton import after_import
from ..errors import NeedsGpu, warn
from ..native.ir.kernels import Choice
from .constants import (
    COMPILING,
    LOCATION,
    MODULE,
    CannotRecord,
    encode_named,
    name_of,
)
from .model import (
    MOST_SIZES,
    Missed,
    RecordedKernel,
    RecordedVariant,
    Recording,
    describe,
    refuse_unwritable,
)

# Where findings go, each a recording of one kernel or one miss.
Report = Callable[[Recording], None]

_FIRST = (
    "its autotuner has no GPU to measure on, so only its first configuration was recorded; "
    "record on a GPU to get the one that it chooses"
)
_EARLIER = (
    "it was compiled before the recording began, or is launched past Triton's JIT, so the options "
    "of its launch are not known; begin earlier, or use `opforge record`"
)
_OWN = frozenset({"opforge", "torch", "triton"})
# Where `opforge record` has a `sitecustomize`.
_BOOTSTRAP = str(Path(__file__).parents[1] / "bootstrap")
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"


class Session:
    """What has been recorded so far, as `recording`."""

    def __init__(self) -> None:
        self._parts: dict[object, Recording] = {}
        self._add(Recording(triton=(_compat.compiling.version(),)))
        self.recorder = Recorder(self._add)

    def _add(self, part: Recording) -> None:
        self._parts[part.subject] = part

    @property
    def recording(self) -> Recording:
        self.recorder.finish()
        # A copy: other threads may launch meanwhile.
        return Recording.of_process([*self._parts.values()])

    def __repr__(self) -> str:
        return f"<recording: {self.recording}>"


@contextlib.contextmanager
def record(path: str | Path | None = None) -> Iterator[Session]:
    """Record the launches of this process, into a file for `opforge build`.

        with opforge.record("launches.json"):
            model(x)

    Under `opforge.target("sm_90")`, launches of fake CUDA tensors are recorded without being made,
    so that a library's launches can be recorded on a machine without a GPU.
    """
    import triton  # noqa: F401  # what is recorded; where it is missing, Python says so

    if path is not None:
        refuse_unwritable(path)
    session = Session()
    start(session.recorder)
    try:
        yield session
    except Exception as error:
        if not _compat.fakes.is_fake_refusal(error):
            raise
        raise NeedsGpu(
            "the recorded code reads the contents of a fake tensor, which has none",
            found=_compat.fakes.host_read(error),
            fix="record on a GPU, or pass the value as an argument",
        ) from error
    finally:
        stop(session.recorder)
        unsaved = session.recording.save_unless_empty(path) if path is not None else ""
        if unsaved:
            warn(f"nothing was recorded, so {unsaved}")


@dataclass
class _Seen:
    """Launches of one of Triton's objects. `kept` keeps its id from being used again."""

    kept: Any
    recorded: RecordedKernel | None = None
    # `next` counts without losing launches of other threads.
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    launches: int = 0
    sizes: list[Mapping[str, int]] = field(default_factory=list)

    def counted(self) -> Recording:
        """The kernel, with the counts so far."""
        assert self.recorded is not None
        (variant,) = self.recorded.variants
        counted = replace(variant, launches=self.launches, sizes=tuple(self.sizes))
        return Recording((replace(self.recorded, variants=(counted,)),))


class Recorder:
    """Counts launches, and tells a `Report` what is new."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.forget()

    def forget(self) -> None:
        """Start anew, as a forked process does: its parent reports what was before."""
        # By the id of what Triton or Inductor launches; of what is only described, by what it is.
        self._seen: dict[Any, _Seen] = {}
        self._chosen: dict[tuple[int, Any], Any] = {}
        self._missed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def launched(self, compiled: Any) -> None:
        """Count a launch of what Triton has compiled; called where it is launched."""
        seen = self._seen.get(id(compiled))
        if seen is None:
            launch = _compat.compiled.launch_under_way()
            if launch is not None:
                fn, _, kwargs = launch
                seen = self._first(
                    id(compiled), (fn, compiled), fn, lambda: _launched(fn, compiled, kwargs)
                )
            # Inductor asks once, and its launches are recorded where it makes them.
            elif _compat.compiled.is_asked_by_inductor():
                return
            else:
                # A wrapper has kept what a launch returned.
                self._miss(_compat.compiled.jitted(compiled), _EARLIER)
                seen = self._seen[id(compiled)] = _Seen(compiled)
        seen.launches = n = next(seen.count)
        # At 1, 2, 4, 8, ... launches, which costs nothing in the long run.
        if n & (n - 1) == 0:
            launch = _compat.compiled.launch_under_way()
            self._tell(seen, {} if launch is None else _sizes(*launch))

    def launched_in_graph(self, tuner: Any, args: tuple[Any, ...]) -> None:
        """Count a launch that Inductor makes."""
        seen = self._seen.get(id(tuner))
        if seen is None:
            seen = self._first(id(tuner), tuner, tuner, lambda: _launched_in_graph(tuner))
        seen.launches = n = next(seen.count)
        if n & (n - 1) == 0:
            names = _compat.inductor_kernels.argument_names(tuner)
            self._tell(seen, _sizes(tuner.fn, (), dict(zip(names, args, strict=False))))

    def described(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record a launch that is not made, because its GPU is not there."""
        if kwargs.get("warmup"):
            return
        pointers = tuple(map(_compat.fakes.stand_in_pointer, args))
        named = {name: _compat.fakes.stand_in_pointer(value) for name, value in kwargs.items()}
        try:
            asked = _compat.compiled.of_launch(fn, pointers, named)
        except _compat.compiled.NotPlain as error:
            self._miss(fn, str(error))
            return
        key = (id(fn), repr(asked), repr(sorted(_options(fn, kwargs).items())))
        seen = self._seen.get(key) or self._first(key, fn, fn, lambda: _launched(fn, asked, kwargs))
        seen.launches = next(seen.count)
        self._tell(seen, _sizes(fn, args, kwargs))

    def unmeasured(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """An autotuner takes its first configuration, because its GPU is not there."""
        self._miss(_compat.kernels.innermost(tuner), _FIRST)
        self.chosen(tuner, key, config)

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Report what an autotuner has chosen for a key."""
        if self._chosen.get((id(tuner), key)) is config:
            return
        self._chosen[id(tuner), key] = config
        fn = _compat.kernels.innermost(tuner)
        try:
            kernel = _kernel(fn, choices=(_choice(tuner, key, config),))
        except (_compat.compiled.NotPlain, _compat.kernel_hash.NoText, CannotRecord) as error:
            self._miss(fn, f"the choice of its autotuner: {error}")
            return
        self._report(Recording((kernel,)))

    def _first(self, key: Any, kept: Any, fn: Any, describe: Callable[[], RecordedKernel]) -> _Seen:
        with self._lock:
            if key not in self._seen:
                seen = _Seen(kept)
                try:
                    seen.recorded = describe()
                except (
                    _compat.compiled.NotPlain,
                    _compat.kernel_hash.NoText,
                    _compat.inductor_kernels.NotPrinted,
                    CannotRecord,
                ) as error:
                    self._miss(fn, str(error))
                self._seen[key] = seen
            return self._seen[key]

    def _tell(self, seen: _Seen, sizes: Mapping[str, int]) -> None:
        if sizes and sizes not in seen.sizes and len(seen.sizes) < MOST_SIZES:
            seen.sizes.append(sizes)
        # A process may be killed before it can say more.
        if seen.recorded is not None:
            self._report(seen.counted())

    def _miss(self, fn: Any, reason: str) -> None:
        """Report a launch that cannot be recorded, once for each reason."""
        if _compat.compiled.is_jitted(fn):
            name, location = _compat.compiled.function_of(fn).__qualname__, _location(fn)
        else:
            name, location = _compat.inductor_kernels.name_of(fn), LOCATION
        if (name, reason) not in self._missed:
            self._missed.add((name, reason))
            self._report(Recording(missed=(Missed(name, location, reason, _caller()),)))

    def finish(self) -> None:
        """Report the counts of everything."""
        # Several objects may have the same variant: each graph makes its own, and each device.
        whole: dict[object, Recording] = {}
        for seen in [*self._seen.values()]:
            if seen.recorded is not None:
                key = seen.recorded.key
                whole[key] = whole.get(key, Recording()).joined(seen.counted())
        for part in whole.values():
            self._report(part)


def _kernel(fn: Any, **more: Any) -> RecordedKernel:
    function = _compat.compiled.function_of(fn)
    module, _, name = name_of(function).rpartition(":")
    return RecordedKernel(
        module,
        name,
        _compat.kernel_hash.digest(fn),
        _location(fn),
        settings=_compat.settings.current(),
        path=_import_path(),
        inside=describe(fn),
        module_text=_compat.inductor_kernels.module_text(function),
        **more,
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


def _launched(fn: Any, compiled: Any, kwargs: Mapping[str, Any]) -> RecordedKernel:
    """`compiled` is what Triton has compiled, or would have."""
    if not isinstance(compiled, _compat.compiled.Specialization):
        compiled = _compat.compiled.of_kernel(fn, compiled)
    return _kernel(fn, variants=(_variant(compiled, _options(fn, kwargs)),))


def _variant(
    compiled: _compat.compiled.Specialization, options: Mapping[str, Any]
) -> RecordedVariant:
    return RecordedVariant(
        types=tuple(compiled.types.items()),
        constants=encode_named(compiled.constants),
        options=encode_named(dict(sorted(options.items()))),
        arch=str(compiled.arch),
        ones=compiled.ones,
        divisible=compiled.divisible,
        first=_caller(),
    )


def _options(fn: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a launch that Triton takes for options: num_warps, maxnreg, ..."""
    own = {"grid", "warmup", *fn.arg_names} - _compat.served.options_of_parameters(fn)
    return {name: value for name, value in kwargs.items() if name not in own}


def _sizes(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    named = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
    free = {param.name for param in fn.params if not param.is_constexpr}
    return {n: value for n, value in named.items() if type(value) is int and n in free}


def _choice(tuner: Any, key: tuple[Any, ...], config: Any) -> Choice:
    values, dtypes = _compat.autotuning.split_key(key)
    names = [name for name in tuner.keys if name in tuner.arg_names][: len(values)]
    return Choice(
        encode_named(dict(zip(names, values, strict=False))),
        dtypes,
        encode_named({n: v for n, v in config.all_kwargs().items() if v is not None}),
        str(_compat.compiled.current_arch()),
    )


def _caller() -> str:
    """`file:line` of the code that launches, past Triton, torch and opforge."""
    frame: FrameType | None = inspect.currentframe()
    # By module: Inductor's code is in its cache, under a name below torch.
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


# Of compiled graphs, by autotuner: the file may be gone when the kernel is launched, and templates
# do not name theirs.
_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _launched_in_graph(tuner: Any) -> RecordedKernel:
    kernels = _compat.inductor_kernels
    try:
        config = kernels.chosen(tuner)
        if config is None:
            raise CannotRecord("Inductor launched it without choosing a configuration")
        obstacle = kernels.obstacle(tuner)
        if obstacle:
            raise CannotRecord(obstacle)
        printed = kernels.printed(_text(tuner))
        variant = _variant(*kernels.specialization(tuner, config))
        hints = encode_named(kernels.size_hints(tuner))
        choice = Choice(hints, (), encode_named(kernels.as_dict(config)), variant.arch)
        source = kernels.source_of(printed, tuner.fn)
    except (AttributeError, KeyError, TypeError) as error:
        # A program that is recorded must not fail where another torch differs.
        raise CannotRecord(
            f"this torch's Inductor is not known: {type(error).__name__}: {error}"
        ) from error
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
    try:
        return Path(_compat.inductor_kernels.file_of(tuner)).read_text(encoding="utf-8")
    except OSError:
        raise CannotRecord(
            "its text is not in Inductor's cache; record with another TORCHINDUCTOR_CACHE_DIR"
        ) from None


class _State(threading.local):
    # While an autotuner measures, its launches are not the program's.
    measuring = False


_state = _State()
# Read at every launch.
_recorders: tuple[Recorder, ...] = ()


def start(recorder: Recorder) -> None:
    """Let a recorder see every launch; Triton must be imported."""
    global _recorders  # noqa: PLW0603
    _recorders = (*_recorders, recorder)
    _compat.autotuning.ask_first(_CHOSEN, patches.AUTOTUNER_CHOICES)
    _compat.described.listen(recorder)
    _WATCH.__enter__()
    _await_inductor()


@functools.cache
def _await_inductor() -> None:
    """Also watch what a program imports later."""
    for module in (_HEURISTICS, COMPILING):
        after_import(module, _refresh)


def _refresh() -> None:
    if _recorders:
        _WATCH.refresh()


def stop(recorder: Recorder) -> None:
    global _recorders  # noqa: PLW0603
    _recorders = tuple(r for r in _recorders if r is not recorder)
    _WATCH.__exit__()
    _compat.described.listen_no_more(recorder)
    if not _recorders:
        _compat.autotuning.ask_no_more(patches.AUTOTUNER_CHOICES)


class _Chosen(_compat.autotuning.Adviser):
    """Hears what autotuners choose."""

    def chosen(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        for recorder in _recorders:
            recorder.chosen(tuner, key, config)


_CHOSEN = _Chosen()


def _watched() -> Iterator[patches.Replacement]:
    """What watches launches, as far as the modules are imported."""
    yield patches.LAUNCHES.by("run", _counted)
    yield patches.AUTOTUNER_CHOICES.by("_bench", _unwatched)
    if _HEURISTICS in sys.modules:
        yield patches.INDUCTOR_LAUNCHES.by("run", _counted_in_graph)
    if COMPILING in sys.modules:
        yield patches.INDUCTOR_TEXTS.by("triton", _keeping_text)


_WATCH = patches.PatchScope(_watched)


def _counted(original: property) -> property:
    """Triton reads `compiled.run` at every launch: a wrapper around launches would cost more."""
    find = original.fget
    assert find is not None

    def run(self: Any) -> Any:
        found = find(self)
        if not _state.measuring:
            for recorder in _recorders:
                recorder.launched(self)
        return found

    return property(run)


def _unwatched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _state.measuring
        _state.measuring = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _state.measuring = before

    return bench


def _counted_in_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, stream: Any, **kwargs: Any) -> Any:
        result = original(self, *args, stream=stream, **kwargs)
        if not kwargs.get("benchmark_run"):
            for recorder in _recorders:
                recorder.launched_in_graph(self, args)
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
