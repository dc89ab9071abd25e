"""Errors about the cases of an operator, and about several operators, put together into one.

mylib::ranked (ops.py:8): 3 of its 4 cases cannot be built
  found: x fp16 1-d; x fp32 1-d:
      aten.sort at ops.py:10
    x fp64 2-d: n must be a constant, ...
      used at ops.py:12
  fix: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import OpforgeError, UnsupportedBody
from ...notebook import counted
from ...registry import Entry
from ..ir.case_text import describe
from ..ir.cases import Case
from ..ir.interface import Param

Built = TypeVar("Built")


def all_of(
    entry: Entry, params: Sequence[Param], cases: Sequence[Case], build: Callable[[Case], Built]
) -> list[Built]:
    """Every case, built; if some cannot be, an error that names them all."""
    built: list[Built] = []
    refused: list[tuple[str, OpforgeError]] = []
    for case in cases:
        try:
            built.append(build(case))
        except OpforgeError as error:  # noqa: PERF203  # a case takes milliseconds
            refused.append((describe(case, params), error))
    if refused:
        raise _of_cases(entry, refused, len(cases))
    return built


def of_several(errors: Sequence[OpforgeError], what: str) -> OpforgeError:
    """The only error, or one for those of several operators."""
    if len(errors) == 1:
        return errors[0]
    blocks = [[f"{e.op} ({e.location}): {e.what}", *_lines(e.found)] for e in errors]
    return _together(what, blocks, errors)


def one_line(error: OpforgeError, described: str) -> str:
    """What an error about a case found, to follow the case: `: aten.sort at ops.py:10`."""
    found = "; ".join(line.strip() for line in _lines(error.found))
    known = f"{_UNBUILT} for {described}"
    is_known = error.what.startswith(known)
    what = error.what.removeprefix(known) if is_known else f": {error.what}"
    return f"{what}: {found}" if found else what


def listed(cases: Sequence[str], most: int = 4) -> str:
    """`x fp16 1-d; x fp32 1-d`, and of many a few."""
    named = "; ".join(cases[:most])
    more = len(cases) - most
    return f"{named} (and {counted(more, 'similar case')})" if more > 0 else named


_UNBUILT = "it cannot be built"


def _of_cases(
    entry: Entry, refused: Sequence[tuple[str, OpforgeError]], count: int
) -> OpforgeError:
    groups: dict[tuple[str, ...], list[tuple[str, OpforgeError]]] = {}
    for described, error in refused:
        key = (error.what.replace(f" for {described}", ""), error.found or "", error.fix or "")
        groups.setdefault(key, []).append((described, error))
    firsts = [group[0] for group in groups.values()]
    named = [listed([described for described, _ in group]) for group in groups.values()]
    if len(groups) == 1:
        (described, error), (cases,) = firsts[0], named
        if f" for {described}" in error.what:
            error.what = error.what.replace(f" for {described}", f" for {cases}")
        elif count > 1:
            error.what += f" ({cases})"
        return error.locate(None, None)
    blocks = []
    for (described, error), cases in zip(firsts, named, strict=True):
        what = error.what.replace(f" for {described}", "").removeprefix(_UNBUILT).strip()
        blocks.append([f"{cases}: {what}".strip(), *_lines(error.found)])
    what = f"{len(refused)} of its {count} cases cannot be built"
    errors = [error for _, error in firsts]
    return _together(what, blocks, errors).locate(entry.name, entry.location)


def _together(
    what: str, blocks: Sequence[Sequence[str]], errors: Sequence[OpforgeError]
) -> OpforgeError:
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else UnsupportedBody
    return kind(
        what,
        found="\n    ".join("\n      ".join(block) for block in blocks),
        fix="\n    ".join(dict.fromkeys(fix for error in errors for fix in _lines(error.fix))),
    )


def _lines(text: str | None) -> list[str]:
    """The lines of a text, without the indentation of an error's."""
    return [line.removeprefix("    ") for line in (text or "").splitlines()]
