"""Records or serves in a program whose environment asks for it, from its start on."""

from __future__ import annotations

from .environment import RECORD, SERVE, SERVE_COUNTS, SERVE_STRICT, SERVE_TUNE_MISSING


class _State:
    is_started = False


_state = _State()


def start() -> None:
    """Begin, once: a program may be told in two ways."""
    if _state.is_started:
        return
    _state.is_started = True
    if RECORD.get():
        from .recording.start import start as start_recording

        start_recording(RECORD.get())
    if SERVE.get():
        from .serving.start import start as start_serving

        start_serving(
            SERVE.get(),
            strict=SERVE_STRICT.is_on(),
            tune_missing=SERVE_TUNE_MISSING.is_on(),
            counts=SERVE_COUNTS.get(),
        )
