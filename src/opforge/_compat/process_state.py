"""What host code gets from its process while it is traced: variables, flags of torch, clocks.

A library cannot read it, so it keeps what there was. Only host code's own reads are told; torch and
Triton read a lot that decides nothing. What the memory of a GPU holds is not answered at all.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import patches
from .described import NeedsRealGpu
from .kernels import instance_dict
from .reach import is_foreign_file

# What is read, where, and what becomes of it.
Note = Callable[[str, str, str], None]


@contextlib.contextmanager
def noted(note: Note) -> Iterator[None]:
    """Call `note` with each read of host code on this thread."""
    token = _note.set(note)
    try:
        with READS:
            yield
    finally:
        _note.reset(token)


_note: contextvars.ContextVar[Note | None] = contextvars.ContextVar(
    "opforge_process_state", default=None
)


def _replacements() -> Iterator[patches.Replacement]:
    yield patches.ENVIRONMENT.by("__getitem__", _variable)
    for name in patches.TORCH_FLAGS.names:
        yield patches.TORCH_FLAGS.by(name, _flag(f"torch.{name}()"))
    yield patches.BACKEND_FLAGS.by("__get__", _backend_flag)
    yield patches.MATMUL_FLAGS.by("__getattr__", _matmul_flag)
    for name in patches.GPU_MEMORY.names:
        yield patches.GPU_MEMORY.by(name, _refused(name))


READS = patches.PatchScope(_replacements, finds_the_same=True)


def _tell(what: str, value: Any) -> None:
    """Note a read by the host code that called the function which calls this."""
    note = _note.get()
    where = host_line(sys._getframe(2)) if note is not None else ""
    if note is not None and where:
        note(what, where, f"the library keeps what it was in this build: {value}")


def host_line(frame: types.FrameType) -> str:
    """`file:line` of the host code that calls, be it through the standard library; or empty."""
    now: types.FrameType | None = frame
    while now is not None and _package(now) in sys.stdlib_module_names:
        now = now.f_back
    if now is None or is_foreign_file(file := now.f_code.co_filename):
        return ""
    # An installed package may have nothing to do with torch: pytest.
    is_installed = "/site-packages/" in file or "/dist-packages/" in file
    is_ours = not is_installed or _uses_torch(_package(now), len(sys.modules))
    return f"{file}:{now.f_lineno}" if is_ours else ""


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@functools.lru_cache(maxsize=64)
def _uses_torch(package: str, _loaded: int) -> bool:
    modules = [m for n, m in [*sys.modules.items()] if n.partition(".")[0] == package]
    return any(name in instance_dict(m) for m in modules for name in ("torch", "triton"))


def _variable(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(environ: Any, name: Any) -> Any:
        try:
            value = original(environ, name)
        except KeyError:
            _tell(f"the variable {name}", "not set")
            raise
        _tell(f"the variable {name}", repr(value))
        return value

    return read


def _flag(what: str) -> patches.Make:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            _tell(what, value)
            return value

        return read

    return make


def _backend_flag(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(flag: Any, module: Any, kind: Any) -> Any:
        value = original(flag, module, kind)
        name = next((n for n, one in vars(kind).items() if one is flag), "a flag")
        _tell(f"{getattr(module, '__name__', 'torch.backends')}.{name}", value)
        return value

    return read


def _matmul_flag(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(flags: Any, name: str) -> Any:
        value = original(flags, name)
        _tell(f"torch.backends.cuda.matmul.{name}", value)
        return value

    return read


def _refused(name: str) -> patches.Make:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if _note.get() is None:
                return original(*args, **kwargs)
            raise NeedsRealGpu(
                f"torch.cuda.{name} tells what a GPU's memory holds, which is known only when "
                "the library runs"
            )

        return ask

    return make


@contextlib.contextmanager
def clock_shifted(seconds: int) -> Iterator[None]:
    """Let this thread's clocks be ahead by so many seconds."""
    token = _ahead.set(seconds)
    try:
        with _CLOCKS:
            yield
    finally:
        _ahead.reset(token)


_ahead: contextvars.ContextVar[int] = contextvars.ContextVar("opforge_clock", default=0)


def _shifted(original: Callable[[], Any]) -> Callable[[], Any]:
    unit = 10**9 if original.__name__.endswith("_ns") else 1

    def clock() -> Any:
        return original() + _ahead.get() * unit

    return clock


_CLOCKS = patches.PatchScope(
    lambda: [patches.CLOCK.by(name, _shifted) for name in patches.CLOCK.names]
)


def random_state() -> Any:
    """Compares equal if nobody has drawn from the common generators in between."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=False)["state"] if numpy is not None else None
    return random.getstate(), state and (state["pos"], state["key"].tobytes())


@contextlib.contextmanager
def chance_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` with what host code on this thread asks for: "the clock at file:line".

    Cython's functions cannot be seen, among them numpy's generators.
    """
    before = sys.getprofile()

    def profile(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            asked = _asked(function)
            where = host_line(frame) if asked else ""
            if where:
                note(f"{asked} at {where}")

    sys.setprofile(profile)
    try:
        yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:
            # Until Python 3.11 this is cProfile's profiler itself, which is not a function.
            before.enable()


def _asked(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) or function is os.urandom:
        return "a random number"
    if owner is time:
        return "the clock"
    return "id()" if function is builtins.id else ""
