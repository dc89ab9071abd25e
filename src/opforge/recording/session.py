"""`opforge.record()`: records what this process launches, or would launch on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .. import _compat
from ..errors import NeedsGpu, warn
from . import watch
from .model import Missed, RecordedKernel, Recording, refuse_unwritable
from .recorder import Recorder


class Session:
    """What has been recorded so far, as `recording`."""

    def __init__(self) -> None:
        self._kernels: dict[object, RecordedKernel] = {}
        self._missed: list[Missed] = []
        self.recorder = Recorder(self)

    def kernel(self, found: RecordedKernel) -> None:
        variants = tuple(variant.key for variant in found.variants)
        self._kernels[found.identity, variants, repr(found.choices)] = found

    counts = kernel

    def missed(self, found: Missed) -> None:
        self._missed.append(found)

    @property
    def recording(self) -> Recording:
        self.recorder.finish()
        whole = Recording(
            missed=tuple(self._missed), triton=(_compat.compiling.version(),), processes=1
        )
        for kernel in self._kernels.values():
            whole = whole.joined(Recording((kernel,)))
        return whole

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
    watch.start(session.recorder)
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
        watch.stop(session.recorder)
        unsaved = session.recording.save_unless_empty(path) if path is not None else ""
        if unsaved:
            warn(f"nothing was recorded, so {unsaved}")
