"""What `opforge.served()` returns, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadOption
from ..notebook import counted
from ..records import BadField, Between, Codecs

FORMAT = 1


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
        written = _Written(
            dict(sorted(self.launches.items())),
            dict(sorted(self.general.items())),
            tuple(_HandedOver(name, reason, count) for (name, reason), count in handed),
        )
        return json.dumps({"served_format": FORMAT, **_CODEC.write(written)}, indent=1) + "\n"


@dataclass(frozen=True)
class _HandedOver:
    kernel: str
    reason: str
    launches: int


@dataclass(frozen=True)
class _Written:
    """As it stands in JSON, whose keys are texts."""

    launches: Mapping[str, int]
    general: Mapping[str, int]
    handed_over: tuple[_HandedOver, ...]


_COUNT = Between(0, 2**63 - 1)
_CODEC = Codecs(
    {_Written: "launches general handed_over", _HandedOver: "kernel reason launches"},
    limits={_Written: {"launches": _COUNT, "general": _COUNT}, _HandedOver: {"launches": _COUNT}},
).of(_Written)
_AGAIN = "write it again, with `opforge.served().to_json()` at the end of the program"


def from_content(content: Any, where: str) -> Served:
    """What `to_json` wrote; errors call it `where`."""
    found = content.get("served_format")
    if found != FORMAT:
        said = f"{where} has format {found!r}, but this opforge reads {FORMAT}"
        raise BadOption(said, fix=_AGAIN)
    try:
        read: _Written = _CODEC.read(content)
    except BadField as error:
        raise BadOption(f"{where} cannot be read", found=str(error), fix=_AGAIN) from None
    handed = {(one.kernel, one.reason): one.launches for one in read.handed_over}
    return Served(dict(read.launches), dict(read.general), handed)
