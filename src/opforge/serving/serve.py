"""`opforge.serve`: launches of Triton kernels come from a folder instead of the JIT."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _compat
from .._compat import patches
from ..after_triton import after_import
from ..errors import NotServable, warn
from ..native.artifacts.hashes import VerifiedFiles
from ..recording.constants import COMPILING
from .served_folder import Gap, ServedFolder

if TYPE_CHECKING:
    from .inductor import CompiledGraphs
    from .report import Served

# On a jitted function: what serves it, or None.
_MARK = "_opforge_served"
_UNKNOWN = object()


class _Current:
    server: ServedFolder | None = None
    graphs: CompiledGraphs | None = None


_current = _Current()


def serve(
    folder: str | os.PathLike[str],
    *,
    strict: bool = False,
    preload: bool = False,
    tune_missing: bool = False,
    verify: bool = False,
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
) -> None:
    """Serve launches of Triton kernels from a folder of `opforge build launches.json`.

        opforge.serve("kernels", strict=True)

    A launch that the folder does not cover is Triton's, with one warning; with `strict` it raises
    `NotServed`. `preload` loads every kernel onto the current device now, as CUDA graphs need it;
    `tune_missing` lets autotuners measure instead of taking what was recorded.

    With `verify`, each file must have the hash that `share/served/SHA256SUMS` lists when it is
    first used, which takes about 1 ms per MB. With `trusted_keys`, public keys of minisign or files
    with them, one of them must have signed those hashes (`opforge sign`), too.
    """
    import triton  # noqa: F401  # what is served; where it is missing, Python says so

    root = Path(folder).absolute()
    verified = None
    if verify or trusted_keys is not None:
        verified = VerifiedFiles(root, "served", trusted_keys)
    server = ServedFolder(root, strict=strict, tune_missing=tune_missing, verified=verified)
    if _compat.settings.is_interpreted():
        what = "nothing is served under TRITON_INTERPRET=1: kernels run in Triton's interpreter"
        if strict:
            raise NotServable(what, fix="unset TRITON_INTERPRET, or serve without strict")
        warn(what)
    if _current.server is not None:
        stop()
    _current.server = server
    _INSTALLED.__enter__()
    _await_inductor()
    _compat.autotuning.ask_first(server, patches.SERVED_CHOICES)
    if preload:
        server.configure()
        server.preload()


def stop() -> None:
    """Let Triton launch everything again."""
    if _current.server is not None:
        _current.server = _current.graphs = None
        _INSTALLED.__exit__()
        _compat.autotuning.ask_no_more(patches.SERVED_CHOICES)
        for fn in _marked:
            vars(fn).pop(_MARK, None)
        _marked.clear()


def served() -> Served:
    """What has been served since `opforge.serve`, and what Triton launched instead."""
    from .report import Served

    server = _current.server
    if server is None:
        return Served({}, {}, {})
    counts = {name: kernel.counts() for name, kernel in server.served.items()}
    return Served(
        {name: count["served"] for name, count in counts.items()},
        {name: count["general"] for name, count in counts.items()},
        dict(server.handed_over),
    )


_marked: list[Any] = []


def _found(kernel: Any) -> Any:
    """What serves a kernel; asked at its first launch."""
    server = _current.server
    made = None
    if server is not None and _compat.compiled.is_jitted(kernel):
        server.configure()
        made = server.kernel_of(kernel)
    vars(kernel)[_MARK] = made
    _marked.append(kernel)
    return made


def _bound(original: Callable[..., Any]) -> Any:
    assert _current.server is not None
    extension = _current.server.extension
    return extension.subscript(_compat.served.subscripted(), _MARK, _found, original)


_WARMUP = Gap(
    "warmup() asks for Triton's compiled kernel", "launch the kernel, or leave its warmup() out"
)


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found = self.__dict__.get(_MARK, _UNKNOWN)
        if found is _UNKNOWN:
            found = _found(self)
        if found is None or _compat.described.is_heard():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup and _current.server is not None:
            return _current.server.hand_over(self, grid, args, kwargs, _WARMUP, warmup=True)
        return found.bind(grid)(*args, **kwargs)

    return run


def _replacements() -> Iterator[patches.Replacement]:
    yield patches.SERVED_LAUNCHES.by("__getitem__", _bound)
    yield patches.SERVED_RUNS.by("run", _run)
    if COMPILING in sys.modules:
        from .inductor import asking

        yield patches.SERVED_TEXTS.by("triton", functools.partial(asking, _compiled))
    yield patches.SERVED_DRIVER.by("CudaUtils", _compat.served.late_utils)


def _compiled(name: str, text: str) -> Any:
    """What serves a kernel of a compiled graph, or None."""
    if _current.graphs is None and _current.server is not None:
        from .inductor import CompiledGraphs

        _current.graphs = CompiledGraphs(_current.server)
    return None if _current.graphs is None else _current.graphs.kernel(name, text)


@functools.cache
def _await_inductor() -> None:
    """Also serve what a program imports later."""
    after_import(COMPILING, _refresh)


def _refresh() -> None:
    if _current.server is not None:
        _INSTALLED.refresh()


_INSTALLED = patches.PatchScope(_replacements)


def _say_at_exit() -> None:
    handed = {} if _current.server is None else _current.server.handed_over
    if any(handed.values()):
        names = ", ".join(sorted({name for (name, _), count in handed.items() if count}))
        total = sum(handed.values())
        what = "1 launch was" if total == 1 else f"{total} launches were"
        os.write(2, f"opforge: {what} not served and went to Triton: {names}\n".encode())


atexit.register(_say_at_exit)
