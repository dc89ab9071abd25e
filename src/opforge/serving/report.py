"""What a program was served: `opforge.served()`, its JSON, and the counts of all its processes.

`opforge serve --counts FILE` gives a folder to the processes and adds up what they leave there when
they end. A process that is killed leaves nothing.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from ..errors import BadOption
from ..notebook import counted
from ..records import BadField, each, field

FORMAT = 1
_AGAIN = "write it again, with `opforge.served().to_json()` at the end of the program"


@dataclass(frozen=True)
class Served:
    """What became of launches so far.

    `general` are those of `launches` that no recorded variant fitted: recording such sizes would
    give faster kernels. `handed_over` has what Triton launched, by kernel and reason.
    """

    launches: dict[str, int]
    general: dict[str, int]
    handed_over: dict[tuple[str, str], int]

    def __str__(self) -> str:
        lines = [f"{counted(sum(self.launches.values()), 'launch')} served"]
        lines += [
            f"  {name}: {count}"
            + (f", {self.general[name]} by the general variant" if self.general.get(name) else "")
            for name, count in sorted(self.launches.items())
        ]
        for (name, reason), count in sorted(self.handed_over.items()):
            lines.append(f"  {name}: {count} by Triton, because {reason}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """For `opforge report`, which adds up what several processes have written."""
        handed = sorted(self.handed_over.items())
        content = {
            "served_format": FORMAT,
            "launches": dict(sorted(self.launches.items())),
            "general": dict(sorted(self.general.items())),
            "handed_over": [
                {"kernel": name, "reason": reason, "launches": count}
                for (name, reason), count in handed
            ],
        }
        return json.dumps(content, indent=1) + "\n"


def from_content(content: Any, where: str) -> Served:
    """What `to_json` wrote; errors call it `where`."""
    found = content.get("served_format")
    if found != FORMAT:
        said = f"{where} has format {found!r}, but this opforge reads {FORMAT}"
        raise BadOption(said, fix=_AGAIN)
    try:
        return Served(
            _counts(content, "launches"),
            _counts(content, "general"),
            dict(each(content, "handed_over", _handed_over)),
        )
    except BadField as error:
        raise BadOption(f"{where} cannot be read", found=str(error), fix=_AGAIN) from None


def _counts(content: Any, key: str) -> dict[str, int]:
    counts = field(content, key, dict)
    return {name: field(counts, name, int) for name in counts}


def _handed_over(content: Any) -> tuple[tuple[str, str], int]:
    count = field(content, "launches", int)
    return (field(content, "kernel", str), field(content, "reason", str)), count


# Before the process waits for those that it has started.
_EARLY = 10
_NOTHING = Served({}, {}, {})


def keep(folder: Path, served: Callable[[], Served]) -> None:
    """Have this process, and those that it forks, leave their counts in a folder."""
    kept = _Kept(folder, served)
    # Workers of multiprocessing forget what was to be done at the end, and then run this.
    util.register_after_fork(kept, _Kept.at_end)
    os.register_at_fork(after_in_child=kept.begin)


class _Kept:
    """The counts of this process; a forked one begins with those of its parent."""

    def __init__(self, folder: Path, served: Callable[[], Served]) -> None:
        self._folder, self._served = folder, served
        self.begin()

    def begin(self) -> None:
        self._before = self._served()
        # Processes in containers may share a folder and a number.
        self._name = f"served-{os.getpid()}-{secrets.token_hex(4)}"
        self.at_end()

    def at_end(self) -> None:
        # Not atexit alone: workers of multiprocessing end without it, but not without these.
        util.Finalize(None, self._write, exitpriority=_EARLY)

    def _write(self) -> None:
        found = _combined(operator.sub, self._served(), self._before)
        if not (found.launches or found.handed_over):
            return
        try:
            # In one piece: the command may read it at any time.
            whole = self._folder / f"{self._name}.part"
            whole.write_text(found.to_json(), encoding="utf-8")
            whole.replace(self._folder / f"{self._name}.json")
        except OSError as error:
            # A program must not fail because it is counted.
            os.write(2, f"opforge: what was served is not written: {error}\n".encode())


def _combined(how: Callable[[Any, Any], Any], one: Served, other: Served) -> Served:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Served(*(dict(how(Counter(counts), Counter(more))) for counts, more in pairs))


def joined(folder: Path) -> Served:
    """What all processes have left in a folder."""
    files = sorted(folder.glob("served-*.json"))
    each_process = [from_content(json.loads(file.read_bytes()), str(file)) for file in files]
    return functools.reduce(functools.partial(_combined, operator.add), each_process, _NOTHING)
