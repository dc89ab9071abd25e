"""Whether a rule can be called as the op will call it, asked when the rule is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadOption


def check_call(
    option: str, fn: Any, positional: Sequence[str], keyword: Sequence[str] = ()
) -> list[str]:
    """The names of a callback's parameters; BadOption if it does not accept these arguments."""
    form = f"{option}({', '.join([*positional, *(f'{name}={name}' for name in keyword)])})"
    if not callable(fn):
        raise BadOption(f"{option}={fn!r} is not callable", fix=f"give a function {form}")
    try:
        signature = inspect.signature(fn)
    except ValueError:
        # A builtin has no signature; its first call will tell.
        return []
    try:
        signature.bind(*positional, **dict.fromkeys(keyword))
    except TypeError as error:
        raise BadOption(
            f"{option} cannot be called as {form}: {error}", found=f"{option}{signature}"
        ) from None
    return list(signature.parameters)


def names_of(fn: Callable[..., Any], *, required: bool = False) -> tuple[list[str], list[str]]:
    """The op's arguments by position and by keyword; `required`: those without a default."""
    found = [
        p for p in inspect.signature(fn).parameters.values() if not required or p.default is p.empty
    ]
    positional = [p.name for p in found if p.kind is not p.KEYWORD_ONLY]
    return positional, [p.name for p in found if p.kind is p.KEYWORD_ONLY]
