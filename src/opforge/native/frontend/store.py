"""What `native.declare` and `native.implementations` were told, while the op is registered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType

from ...registry import Entry, Event, registry
from .declaration import Declaration


@dataclass(frozen=True)
class Alternatives:
    """One `implementations` call: the ops in the order in which they are tried."""

    entries: tuple[Entry, ...]
    location: str = field(default="", compare=False)
    file: str = field(default="", compare=False)
    running: CodeType | None = field(default=None, compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)


_declarations: dict[Entry, tuple[Declaration, ...]] = {}
_alternatives: dict[Entry, Alternatives] = {}


def declarations_of(entry: Entry) -> tuple[Declaration, ...]:
    return _declarations.get(entry, ())


def keep_declarations(entry: Entry, declarations: Iterable[Declaration]) -> None:
    """Replace what was declared of an op."""
    _declarations[entry] = tuple(declarations)


def alternatives_of(entry: Entry) -> Alternatives | None:
    return _alternatives.get(entry)


def keep_alternatives(entry: Entry, alternatives: Alternatives) -> None:
    _alternatives[entry] = alternatives


def _drop(event: Event, entry: Entry) -> None:
    if event == "removed":
        _declarations.pop(entry, None)
        _alternatives.pop(entry, None)


registry.watchers.append(_drop)
