"""Records or serves in a program whose environment asks for it, from its start on."""

from __future__ import annotations

from pathlib import Path

from .after_triton import after_triton
from .environment import RECORD, SERVE, SERVE_COUNTS, SERVE_STRICT, SERVE_TUNE_MISSING


class _State:
    is_started = False


_state = _State()


def start() -> None:
    """Begin, once: a program may be told in two ways."""
    if _state.is_started:
        return
    _state.is_started = True
    if folder := RECORD.get():
        after_triton(lambda: _record(Path(folder)))
    if served := SERVE.get():
        strict, tune_missing = SERVE_STRICT.is_on(), SERVE_TUNE_MISSING.is_on()
        counts = SERVE_COUNTS.get()
        after_triton(lambda: _serve(served, counts, strict=strict, tune_missing=tune_missing))


def _record(folder: Path) -> None:
    from .recording.journal import start

    start(folder)


def _serve(folder: str, counts: str, *, strict: bool, tune_missing: bool) -> None:
    from .serving.serve import serve, served

    serve(folder, strict=strict, tune_missing=tune_missing)
    if counts:
        from .serving.report import keep

        keep(Path(counts), served)
