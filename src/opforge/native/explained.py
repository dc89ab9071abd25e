"""What `opforge.explain` says about a C library: kernels of torch calls, cases left out."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OpforgeError
from ..registry import Entry
from .frontend.expand import expand
from .frontend.store import declarations_of
from .ir.case_text import describe
from .tracing.case_builder import first_notes

# The architecture that is traced for.
_ARCH = 90


def told_of(op: Entry) -> list[str]:
    """What a build would note of the first case of a declared op that builds, and why cases before
    it do not.

    One trace is enough to say which torch calls become which kernels, and takes milliseconds; a
    build traces all paths of all cases.
    """
    if not declarations_of(op):
        return []
    try:
        declared = expand(op)
    except OpforgeError as error:
        return [f"not in a C library: {_reason(error)}"]
    refused: dict[str, list[str]] = {}
    said: list[str] = []
    for number, case in enumerate(declared.cases, start=1):
        described = describe(case, declared.params)
        try:
            notes = first_notes(op, declared, case, (_ARCH,))
        except OpforgeError as error:
            refused.setdefault(_reason(error, described), []).append(described)
            continue
        count = len(declared.cases)
        place = "the first" if number == 1 else f"number {number}"
        more = f", {place} of {count} cases" if count > 1 else ""
        said = [f"in a C library, for {described}{more}:", *notes] if notes else []
        break
    return [*(f"not in a C library for {_alike(c)}: {why}" for why, c in refused.items()), *said]


def _reason(error: OpforgeError, described: str = "") -> str:
    """An error in one line."""
    found = "; ".join(line.strip() for line in (error.found or "").splitlines())
    reason = f"{error.what}: {found}" if found else error.what
    return reason.removeprefix(f"it cannot be built for {described}: ")


def _alike(cases: Sequence[str]) -> str:
    more = f", nor in {len(cases) - 1} similar cases" if len(cases) > 1 else ""
    return f"{cases[0]}{more}"
