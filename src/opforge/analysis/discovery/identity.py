"""A cache keyed by identity: comparing or hashing the key may run code or confuse two files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def cached_by_identity(compute: F) -> F:
    """Compute once per process and first argument, which is kept, so that no other takes its id."""
    kept: dict[int, tuple[Any, Any]] = {}

    def cached(key: Any, *rest: Any) -> Any:
        known = kept.get(id(key))
        if known is None:
            known = kept[id(key)] = (key, compute(key, *rest))
        return known[1]

    return cast("F", cached)
