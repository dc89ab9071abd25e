"""What a recording counts, and whom it tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .model import MOST_SIZES, Missed, RecordedKernel


class Report(Protocol):
    """Where findings go."""

    def kernel(self, found: RecordedKernel) -> None: ...

    def missed(self, found: Missed) -> None: ...

    def counts(self, kernel: RecordedKernel) -> None: ...


@dataclass
class Seen:
    """Launches of one of Triton's objects. `kept` keeps its id from being used again."""

    kept: Any
    recorded: RecordedKernel | None = None
    # `next` counts without losing launches of other threads.
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    launches: int = 0
    sizes: list[Mapping[str, int]] = field(default_factory=list)

    def add(self, sizes: Mapping[str, int]) -> None:
        if sizes not in self.sizes and len(self.sizes) < MOST_SIZES:
            self.sizes.append(sizes)

    def counted(self) -> RecordedKernel:
        """The kernel, with the counts so far."""
        assert self.recorded is not None
        (variant,) = self.recorded.variants
        counted = replace(variant, launches=self.launches, sizes=tuple(self.sizes))
        return replace(self.recorded, variants=(counted,))
