"""Runs programs of users with opforge in their Python processes, without an edit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from . import environment
from .errors import BadOption

# Its sitecustomize runs when a Python starts.
_BOOTSTRAP = Path(__file__).with_name("bootstrap")


def run_program(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a program whose Python processes start with opforge; its exit status."""
    path = os.pathsep.join(filter(None, (str(_BOOTSTRAP), environment.PYTHONPATH.get())))
    given = {**os.environ, **variables, environment.PYTHONPATH.name: path}
    try:
        program = subprocess.Popen(command, env=given)  # noqa: S603  # what the user asks for
    except OSError as error:
        raise BadOption(f"{command[0]} cannot be run: {error.strerror}") from None
    with _forwarding(program):
        status = program.wait()
    # As a shell tells that a signal ended a program.
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _forwarding(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals to the program, which decides; the recording is written afterwards."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            program.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    # A terminal sends Control-C to both.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
