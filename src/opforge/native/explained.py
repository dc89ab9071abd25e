"""What `opforge.explain` says about a C library: kernels of torch calls, cases left out."""

from __future__ import annotations

import os

from .._compat.host_caches import HostCaches
from ..arch import HOPPER
from ..errors import OpforgeError
from ..registry import Entry
from .frontend.expand import expand
from .frontend.store import declarations_of
from .ir.case_text import describe
from .tracing.autotune_choice import by_table, in_use
from .tracing.case_builder import first_notes
from .tracing.refusals import listed, one_line

# The architecture that is traced for.
_ARCH = HOPPER


def told_of(op: Entry, tuning: str | os.PathLike[str] | None = None) -> list[str]:
    """What a build would note of the first case of a declared op that builds, and why others do
    not.

    One trace of each case is enough to say which torch calls become which kernels, and takes
    milliseconds; a build traces all paths. Without a table of their own, products have the tiles of
    the tables in use.
    """
    choose = in_use() if tuning is None else by_table(tuning)
    if not declarations_of(op):
        return []
    try:
        declared = expand(op)
    except OpforgeError as error:
        return [f"not in a C library{one_line(error, '')}"]
    refused: dict[str, list[str]] = {}
    said: list[str] | None = None
    caches = HostCaches()
    for number, case in enumerate(declared.cases, start=1):
        described = describe(case, declared.params)
        try:
            notes = first_notes(op, declared, case, (_ARCH,), choose, caches=caches)
        except OpforgeError as error:
            refused.setdefault(one_line(error, described), []).append(described)
            continue
        if said is None:
            count = len(declared.cases)
            place = "the first" if number == 1 else f"number {number}"
            more = f", {place} of {count} cases" if count > 1 else ""
            said = [f"for {described}{more}:", *notes] if notes else []
    if said:
        # A build raises unless it has all cases.
        said[0] = f"{'would be ' if refused else ''}in a C library, {said[0]}"
    return [
        *(f"not in a C library for {listed(c)}{why}" for why, c in refused.items()),
        *(said or ()),
    ]
