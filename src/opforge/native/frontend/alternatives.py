"""Which op implements which operator, as `native.implementations` was told."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import BadImplementations, Undeclared
from ...registry import Entry, registry
from .store import Alternatives, alternatives_of, declarations_of


def operator_of(entry: Entry) -> Entry | None:
    """The operator that the op implements beside others; None where it is an operator itself."""
    for other in registry:
        listed = alternatives_of(other)
        if other.name != entry.name and listed is not None and entry.name in listed.names:
            return other
    return None


def operators(entries: Iterable[Entry]) -> list[Entry]:
    """Those that are operators: what implements another of them is not one of its own."""
    every = list(entries)
    names = {entry.name for entry in every}
    found = []
    for entry in every:
        operator = operator_of(entry)
        if operator is None or operator.name not in names:
            found.append(entry)
    return found


def implementing(entry: Entry) -> tuple[Entry, ...]:
    """The ops that implement an operator, in order: itself alone where nothing was listed."""
    listed = alternatives_of(entry)
    if listed is None:
        return (entry,)
    found = tuple(_current(entry, each, listed) for each in listed.entries)
    refuse_left_out(entry, listed)
    return found


def refuse_left_out(entry: Entry, listed: Alternatives) -> None:
    """An operator that says what it covers is one of its implementations."""
    own = declarations_of(entry)
    if own and entry.name not in listed.names:
        raise BadImplementations(
            "it has a declaration of its own, and is none of its implementations",
            found=f"native.declare at {own[0].location}; "
            f"{', '.join(listed.names)} at {listed.location}",
            fix=f"list it where it is to be tried: native.implementations({entry.own_name}, "
            f"..., {entry.own_name}), or take its native.declare away",
            op=entry.name,
            location=entry.location,
        )


def refuse_undeclared(entry: Entry, parts: Iterable[Entry]) -> None:
    """Every implementation says what it covers."""
    for part in parts:
        if not declarations_of(part):
            raise Undeclared(
                f"it is to implement {entry.name} ({entry.location}), and nothing is declared "
                "of it",
                fix=f"native.declare({part.own_name}, x=native.tensor(...), ...), or take it "
                "out of native.implementations",
                op=part.name,
                location=part.location,
            )


def _current(operator: Entry, entry: Entry, listed: Alternatives) -> Entry:
    """As it is defined now: the module that has it may have been loaded again."""
    found = registry.find(entry.handle if entry.overload is None else entry.name)
    if found is None:
        raise BadImplementations(
            f"{entry.name} ({entry.location}), which implements it, is no op any more",
            found=f"native.implementations at {listed.location}",
            fix="call native.implementations again, with the ops that there are",
            op=operator.name,
            location=operator.location,
        )
    return found
