"""Declared sizes: `"rows 64 hidden"`, `"... hidden"`, `"*s"`, and their bounds."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import BadDeclaration, OpforgeError
from ..ir.abi import MAX_RANK
from ..ir.cases import Bound
from ..ir.expr import Term, Var
from ..ir.wording import one_of

# As it is written: 64, "hidden", "..." for any number of sizes of the tensor's own, or "*s" for any
# number that are the same wherever the name stands.
Part = int | str


@contextlib.contextmanager
def about(parameter: str) -> Iterator[None]:
    """Errors name the parameter that they are about."""
    try:
        yield
    except OpforgeError as error:
        error.parameter = error.parameter or parameter
        error.locate(None, None)
        raise


def parse(text: Any) -> tuple[Part, ...]:
    """`"... hidden 4"` -> ("...", "hidden", 4); an empty string is a tensor of rank 0."""
    if not isinstance(text, str):
        raise BadDeclaration(
            "dims is a string with one word per dimension",
            found=repr(text),
            fix='native.tensor("rows hidden", dtype=...)',
        )
    parts = tuple(_part(word, text) for word in text.split())
    loose = list(filter(is_loose, parts))
    if len(loose) > 1:
        raise BadDeclaration(
            f"{loose[0]} and {loose[1]} in one tensor: where one ends is ambiguous",
            found=repr(text),
            fix="keep one of them, and name the other dimensions one by one",
        )
    return parts


def _part(word: str, text: str) -> Part:
    if re.fullmatch("[0-9]+", word):
        return int(word)
    if re.fullmatch(r"\.\.\.|\*?[A-Za-z_][A-Za-z_0-9]*", word):
        return word
    fix = 'names, whole numbers, "..." or "*name", with spaces between: "rows hidden"'
    if "," in text:
        spaced = " ".join(text.replace(",", " ").split())
        fix = f'separate dimensions with spaces, not commas: "{spaced}"'
    elif word.startswith("...") or word.endswith("..."):
        fix = f'put spaces around "...": "{" ".join(text.replace("...", " ... ").split())}"'
    raise BadDeclaration(f"{word!r} is not a dimension", found=f"dims {text!r}", fix=fix)


def is_loose(part: Part) -> bool:
    """Whether a part leaves the number of dimensions open."""
    return isinstance(part, str) and part[0] in ".*"


def name_of(part: Part) -> str:
    """`"hidden"` -> hidden, `"*s"` -> s; empty for `64` and `"..."`."""
    return part.lstrip("*.") if isinstance(part, str) else ""


def shared_name(parts: Iterable[Part]) -> str:
    """The name of the `*s` among them, or empty."""
    return next((name_of(part) for part in parts if is_loose(part)), "")


def read_ranks(parts: Sequence[Part], ranks: Any) -> tuple[int, ...]:
    """The ranks that a tensor may have; empty for a `*s` whose length another parameter sets."""
    text = " ".join(map(str, parts))
    if not any(map(is_loose, parts)):
        if ranks is not None:
            raise BadDeclaration(
                f'ranks are for "...": "{text}" has {len(parts)} dimensions already',
                found=f"ranks={ranks!r}",
                fix='remove ranks, or write "..." for the dimensions that vary',
            )
        if len(parts) > MAX_RANK:
            raise _too_high(len(parts))
        return (len(parts),)
    if ranks is None:
        if shared_name(parts):
            return ()
        raise BadDeclaration(
            '"..." without ranks: how many dimensions may there be?',
            found=f"dims {text!r}",
            fix=f'native.tensor("{text}", ..., ranks=(1, 2, 3))',
        )
    listed = (ranks,) if isinstance(ranks, int) else ranks
    whole = isinstance(listed, (list, tuple, range, set, frozenset)) and listed
    if not whole or not all(isinstance(r, int) and not isinstance(r, bool) for r in listed):
        raise BadDeclaration(
            "ranks are whole numbers", found=f"ranks={ranks!r}", fix="ranks=(1, 2, 3)"
        )
    for rank in listed:
        if rank < len(parts) - 1:
            raise BadDeclaration(
                f'rank {rank} is too low: "{text}" names {len(parts) - 1} dimensions beside '
                f"{next(filter(is_loose, parts))}",
                found=f"ranks={ranks!r}",
                fix="ranks count all dimensions of the tensor",
            )
        if rank > MAX_RANK:
            raise _too_high(rank)
    return tuple(dict.fromkeys(sorted(listed) if isinstance(listed, (set, frozenset)) else listed))


def _too_high(rank: int) -> BadDeclaration:
    return BadDeclaration(
        f"rank {rank} is above {MAX_RANK}, the highest that opforge builds",
        fix="fold dimensions together before the call",
    )


def shared_lengths(
    tensors: Iterable[tuple[str, Sequence[Part], tuple[int, ...]]],
) -> dict[str, tuple[int, ...]]:
    """How many dimensions each `*s` may stand for, from (parameter, parts, ranks) triples."""
    known: dict[str, tuple[tuple[int, ...], str]] = {}
    listed = [(p, parts, ranks) for p, parts, ranks in tensors if shared_name(parts)]
    for parameter, parts, ranks in listed:
        if not ranks:
            continue
        name, lengths = shared_name(parts), tuple(r - len(parts) + 1 for r in ranks)
        before, where = known.setdefault(name, (lengths, parameter))
        if set(before) != set(lengths):
            raise BadDeclaration(
                f"*{name} stands for {one_of(map(str, lengths))} dimensions here and for "
                f"{one_of(map(str, before))} in {where!r}",
                parameter=parameter,
                fix=f"give ranks to only one of them, or ranks that agree; ranks count all "
                f"dimensions of a tensor, *{name} and the others",
            )
    for parameter, parts, _ in listed:
        name = shared_name(parts)
        with about(parameter):
            if name not in known:
                raise BadDeclaration(
                    f"no parameter with *{name} has ranks: how many dimensions may there be?",
                    fix=f'native.tensor("{" ".join(map(str, parts))}", ..., ranks=(1, 2, 3))',
                )
            highest = max(known[name][0]) + len(parts) - 1
            if highest > MAX_RANK:
                raise _too_high(highest)
    return {name: lengths for name, (lengths, _) in known.items()}


def shape(
    parts: Sequence[Part], parameter: str, length: int, fixed: Mapping[str, int]
) -> tuple[Term, ...]:
    """The sizes of a tensor whose `...` or `*s`, if any, stands for `length` dimensions.

    `"... hidden"` of x at rank 3 -> x.shape[0], x.shape[1], hidden
    """
    terms: list[Term] = []
    for part in parts:
        name = name_of(part)
        if not isinstance(part, str):
            terms.append(part)
        elif not is_loose(part):
            terms.append(fixed.get(name, Var(name)))
        elif name:
            terms += [fixed.get(name, Var(f"{name}[{i}]")) for i in range(length)]
        else:
            terms += [Var(f"{parameter}.shape[{len(terms) + i}]") for i in range(length)]
    return tuple(terms)


def read_bounds(
    dims: Any, sizes: Iterable[str], scalars: Iterable[str]
) -> tuple[dict[str, int], dict[str, Bound]]:
    """`dims={...}` -> the sizes that it fixes, and the bounds of other sizes and scalars."""
    if not isinstance(dims, Mapping):
        fix = 'dims={"hidden": (1, 8192)}'
        raise BadDeclaration("dims= maps size names to bounds", found=repr(dims), fix=fix)
    fixed: dict[str, int] = {}
    bounds: dict[str, Bound] = {}
    known, numbers = list(sizes), list(scalars)
    for name, given in dims.items():
        if name not in known and name not in numbers:
            raise _unused(str(name), [*known, *numbers])
        bound = _bound(name, given, negative=name in numbers)
        if isinstance(bound, Bound):
            bounds[name] = bound
        elif name in numbers:
            bounds[name] = Bound(name, bound, bound, (bound,))
        else:
            fixed[name] = bound
    return fixed, bounds


def _bound(name: str, given: Any, *, negative: bool) -> Bound | int:
    listed = isinstance(given, (tuple, list, set, frozenset, range))
    ends = list(given) if listed else [given]
    # An open upper end is None.
    is_range = isinstance(given, tuple)
    whole = ends[:-1] if is_range and ends and ends[-1] is None else ends
    if not whole or not all(isinstance(v, int) and not isinstance(v, bool) for v in whole):
        raise _bad_bound(name, given, "it is not a bound")
    if not all(-(2**63) <= v < 2**63 for v in whole):
        raise _bad_bound(name, given, "sizes and integers have 64 bits; None means no upper end")
    if not negative and min(whole) < 0:
        raise _bad_bound(name, given, "a size is not negative")
    if not listed:
        return int(given)
    if not is_range:
        values = sorted(set(ends))
        return Bound(name, values[0], values[-1], tuple(values))
    if len(ends) != 2:
        raise _bad_bound(name, given, f"a range has two ends, not {len(ends)}")
    low, high = ends
    if high is not None and low > high:
        raise _bad_bound(name, given, f"the range is empty: {low} is above {high}")
    return Bound(name, low, high)


def _bad_bound(name: str, given: Any, what: str) -> BadDeclaration:
    return BadDeclaration(
        f"dims={{{name!r}: {given!r}}}: {what}",
        fix=f"dims={{{name!r}: (1, 8192)}} for a range, [64, 128] for only these sizes, "
        "64 for a single size",
    )


def did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""


def _unused(name: str, known: Sequence[str]) -> BadDeclaration:
    hint = did_you_mean(name, known)
    there = f"the names are {', '.join(known)}" if known else "no parameter names a size"
    return BadDeclaration(
        f"dims= bounds {name!r}, but no parameter's dims have that name",
        fix=f'{hint}{there}; "..." has no names, so write "... {name}" to bound a size of it',
    )
