"""What `opforge.served()` returns."""

from __future__ import annotations

from dataclasses import dataclass

from ..recording.model import counted


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
        lines = [f"{counted(sum(self.launches.values()), 'launch', 'es')} served"]
        lines += [
            f"  {name}: {count}"
            + (f", {self.general[name]} by the general variant" if self.general.get(name) else "")
            for name, count in sorted(self.launches.items())
        ]
        for (name, reason), count in sorted(self.handed_over.items()):
            lines.append(f"  {name}: {count} by Triton, because {reason}")
        return "\n".join(lines)
