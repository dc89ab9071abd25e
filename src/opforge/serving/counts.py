"""What each process of a served program was served, written down when it ends.

`opforge serve --counts FILE` gives a folder to the processes and adds up what they leave there. A
process that is killed leaves nothing.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from multiprocessing import util
from pathlib import Path

from .report import Served, from_content
from .serve import served

_PATTERN = "served-*.json"
# Before the process waits for those that it has started.
_EARLY = 10
_NOTHING = Served({}, {}, {})


def keep(folder: Path) -> None:
    """Have this process, and those that it forks, leave their counts in a folder."""
    kept = _Kept(folder)
    kept.at_end()
    os.register_at_fork(after_in_child=kept.begin_anew)
    # Workers of multiprocessing forget what was to be done at the end, and then run this.
    util.register_after_fork(kept, _Kept.at_end)
    # Held by nothing else.
    _all.append(kept)


_all: list[_Kept] = []


class _Kept:
    """The counts of this process; a forked one begins with those of its parent."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, _NOTHING
        self._is_written = False

    def begin_anew(self) -> None:
        self._before, self._is_written = served(), False
        self.at_end()

    def at_end(self) -> None:
        # Not atexit alone: workers of multiprocessing end without it, but not without these.
        util.Finalize(None, self.write, exitpriority=_EARLY)

    def write(self) -> None:
        found = _difference(served(), self._before)
        if self._is_written or not (found.launches or found.handed_over):
            return
        self._is_written = True
        # Processes in containers may share a folder and a number.
        name = f"served-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            # In one piece: the command may read it at any time.
            whole = self._folder / f"{name}.part"
            whole.write_text(found.to_json(), encoding="utf-8")
            whole.replace(self._folder / f"{name}.json")
        except OSError as error:
            # A program must not fail because it is counted.
            os.write(2, f"opforge: what was served is not written: {error}\n".encode())


def _difference(now: Served, before: Served) -> Served:
    def less(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
        return dict(Counter(one) - Counter(other))

    handed = Counter(now.handed_over) - Counter(before.handed_over)
    return Served(
        less(now.launches, before.launches), less(now.general, before.general), dict(handed)
    )


def joined(folder: Path) -> Served:
    """What all processes have left in a folder."""
    launches: Counter[str] = Counter()
    general: Counter[str] = Counter()
    handed: Counter[tuple[str, str]] = Counter()
    for file in sorted(folder.glob(_PATTERN)):
        one = from_content(json.loads(file.read_text(encoding="utf-8")), str(file))
        launches.update(one.launches)
        general.update(one.general)
        handed.update(one.handed_over)
    return Served(dict(launches), dict(general), dict(handed))
