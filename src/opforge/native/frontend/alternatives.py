"""Which ops implement which operator, from the `native.implementations` calls."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import BadDeclaration, NotFound
from ...registry import Entry, registry
from .store import Alternatives, alternatives_of, declarations_of


def operator_of(entry: Entry) -> Entry | None:
    """The operator that this op helps implement; None if it is an operator itself."""
    for other in registry:
        listed = alternatives_of(other)
        if other.name != entry.name and listed is not None and entry.name in listed.names:
            return other
    return None


def operators(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that are operators themselves rather than implementations of another."""
    every = list(entries)
    names = {entry.name for entry in every}
    found = []
    for entry in every:
        operator = operator_of(entry)
        if operator is None or operator.name not in names:
            found.append(entry)
    return found


def implementing(entry: Entry) -> tuple[Entry, ...]:
    """The ops that implement an operator, in order; the operator alone if none were listed."""
    listed = alternatives_of(entry)
    if listed is None:
        return (entry,)
    found = tuple(_current(entry, each, listed) for each in listed.entries)
    refuse_left_out(entry, listed)
    return found


def refuse_left_out(entry: Entry, listed: Alternatives) -> None:
    """An operator with declarations of its own must be in its own list."""
    own = declarations_of(entry)
    if own and entry.name not in listed.names:
        raise BadDeclaration(
            "it has a native.declare of its own but is not in its list of implementations",
            found=f"native.declare at {own[0].location}; "
            f"{', '.join(listed.names)} at {listed.location}",
            fix=f"add it to the list, in order: native.implementations({entry.own_name}, "
            f"..., {entry.own_name}), or remove its native.declare",
            op=entry.name,
            location=entry.location,
        )


def refuse_undeclared(entry: Entry, parts: Iterable[Entry]) -> None:
    """Every implementation needs a declaration."""
    for part in parts:
        if not declarations_of(part):
            raise NotFound(
                f"it should implement {entry.name} ({entry.location}) but has no native.declare",
                fix=f"native.declare({part.own_name}, x=native.tensor(...), ...), or remove "
                "it from native.implementations",
                op=part.name,
                location=part.location,
            )


def _current(operator: Entry, entry: Entry, listed: Alternatives) -> Entry:
    """The current definition; its module may have been reloaded."""
    found = registry.find(entry.handle if entry.overload is None else entry.name)
    if found is None:
        raise BadDeclaration(
            f"{entry.name} ({entry.location}), which implements it, is not an op any more",
            found=f"native.implementations at {listed.location}",
            fix="call native.implementations again with ops that still exist",
            op=operator.name,
            location=operator.location,
        )
    return found
