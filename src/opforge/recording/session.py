"""`opforge.record()`: records what this process launches, or would launch on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .. import _compat
from ..errors import NeedsGpu, warn
from .model import Recording, refuse_unwritable
from .recorder import Recorder, start, stop


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
        return Recording.of_process(self._parts.values())

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
