"""`native.implementations`: several ops behind one operator of a library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import BadDeclaration, BadSignature, NotFound, OpforgeError
from ...model import FlatArgument, Lowered
from ...notebook import counted
from ...registry import Entry, registry
from .declaration import (
    Alternatives,
    alternatives_of,
    caller,
    declarations_of,
    is_reloaded,
    keep_alternatives,
    located,
)
from .expand import Declared, merge

_FIX = (
    "give the functions the same parameters, in the same order and of the same kinds, "
    "as many outputs, and the same mutates_args"
)


def implementations(op: Any, /, *ops: Any) -> None:
    """Name the ops that implement an operator, in the order in which a call tries them.

        native.implementations(add, add_flat, add)

    Each has its own `native.declare`; all have the same signature. The operator itself stands
    in the order it should be tried; leave it out if it has no native.declare.
    """
    place = caller()
    with located(op, place) as entry:
        parts = tuple(registry.get(each) for each in ops)
        listed = Alternatives(parts, **place)
        with registry.lock:
            _check_list(entry, listed)
            _refuse_left_out(entry, listed)
            _check_signatures(entry, parts)
            if all(declarations_of(part) for part in parts):
                join(entry, parts)
            keep_alternatives(entry, listed)


def operator_of(entry: Entry) -> Entry | None:
    """The operator that this op helps implement; None if it is an operator itself."""
    for other in registry:
        listed = alternatives_of(other)
        if other.name != entry.name and listed is not None and entry.name in listed.names:
            return other
    return None


def operators(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that are operators themselves rather than implementations of another."""
    above = {entry: operator_of(entry) for entry in entries}
    names = {entry.name for entry in above}
    return [entry for entry, other in above.items() if other is None or other.name not in names]


def implementing(entry: Entry) -> tuple[Entry, ...]:
    """The ops that implement an operator, in order; the operator alone if none were listed."""
    listed = alternatives_of(entry)
    if listed is None:
        return (entry,)
    _refuse_left_out(entry, listed)
    # Their current definitions: a module may have been reloaded.
    return tuple(registry.get(e.handle if e.overload is None else e.name) for e in listed.entries)


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


def join(operator: Entry, parts: Sequence[Entry]) -> Declared:
    """The parameters of the one C function; refuses declarations that disagree on them."""
    _check_signatures(operator, parts)
    try:
        return merge(parts[0].flat(), [d for part in parts for d in declarations_of(part)])
    except OpforgeError as error:
        raise error.locate(operator.name, operator.location) from error.__cause__


def source_hash(entry: Entry) -> str:
    """The hash of the registered source, the same at build time and at load time."""
    hashes = [part_hash(part) for part in implementing(entry)]
    return hashes[0] if len(hashes) == 1 else _together(hashes)


def part_hash(part: Entry) -> str:
    """The hash of one op alone."""
    return _fingerprint(part.fn, part.describe().kernels)


def _fingerprint(fn: Any, kernels: Any) -> str:
    # Imported here: it brings torch, which a build that finds nothing to do works without.
    from ...registration.dependence import op_fingerprint  # noqa: PLC0415

    return op_fingerprint(fn, kernels)


def backward_hash(entry: Entry) -> str:
    """The hash of an op's declared backward, and of what saves for it."""
    definition, kernels = entry.registration.definition, entry.describe().backward_kernels
    functions = (definition.backward, definition.setup_context)
    return _together([_fingerprint(fn, kernels) for fn in functions if fn is not None])


def _together(hashes: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _refuse_left_out(entry: Entry, listed: Alternatives) -> None:
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


def _check_list(entry: Entry, listed: Alternatives) -> None:
    names = listed.names
    if not names or len({*names}) < len(names):
        raise BadDeclaration(
            "an op is listed twice" if names else "no implementation is listed",
            found=", ".join(names) or None,
            fix="native.implementations(add, fast_add, add): the operator, then its "
            "implementations in the order in which they are tried, each once",
        )
    old = alternatives_of(entry)
    if old is not None and old.names != names and not is_reloaded(old, listed):
        raise BadDeclaration(
            "a different list of its implementations exists already",
            found=f"{', '.join(old.names)} at {old.location}",
            fix="list them all in one native.implementations call",
        )
    for part in (entry, *listed.entries):
        above = operator_of(part)
        if above is not None and above.name != entry.name:
            raise BadDeclaration(
                f"{part.name} implements {above.name} already",
                found=_listed_at(above),
                fix=f"an op implements one operator: list all of them for {above.name}, or write "
                "a second op that calls the same function",
            )
        if alternatives_of(part) is not None and part.name != entry.name:
            raise BadDeclaration(
                f"{part.name} is an operator with implementations of its own",
                found=_listed_at(part),
                fix="list those instead, and remove its native.implementations",
            )


def _listed_at(entry: Entry) -> str | None:
    listed = alternatives_of(entry)
    return None if listed is None else f"native.implementations at {listed.location}"


def _check_signatures(operator: Entry, parts: Sequence[Entry]) -> None:
    """Names, order, what is a tensor, what is written to, and the number of outputs."""
    wanted = operator.flat()
    for part in parts:
        flat = part.flat()
        for one, other in zip(wanted.arguments, flat.arguments, strict=False):
            difference = _difference(one, other)
            if difference:
                raise _different(operator, part, difference, one.path)
        count, others = len(wanted.arguments), len(flat.arguments)
        if count != others:
            longer, name = (wanted, part.name) if count > others else (flat, operator.name)
            extra = longer.arguments[min(count, others)].path
            raise _different(operator, part, f"{name} has no such parameter", extra)
        if len(wanted.returns) != len(flat.returns):
            both = f"{operator.name} has {_outputs(wanted)}, and {part.name} {_outputs(flat)}"
            raise _different(operator, part, both)


def _difference(one: FlatArgument, other: FlatArgument) -> str:
    if one.name != other.name:
        return f"the parameter is called {other.path!r} there"
    if one.is_tensor != other.is_tensor or one.is_tensor_list != other.is_tensor_list:
        return f"the parameter is {one.type} here and {other.type} there"
    if one.mutated != other.mutated:
        here, there = ("changed", "only read") if one.mutated else ("only read", "changed")
        return f"the parameter is {here} here and {there} there"
    return ""


def _outputs(lowered: Lowered) -> str:
    return counted(len(lowered.returns), "output")


def _different(
    operator: Entry, part: Entry, what: str, parameter: str | None = None
) -> BadSignature:
    return BadSignature(
        f"{part.name} ({part.location}) cannot implement this operator: {what}",
        parameter=parameter,
        fix=_FIX,
        op=operator.name,
        location=operator.location,
    )
