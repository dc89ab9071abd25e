"""Results for calls that a library cannot make, so that a trace goes on and finds the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ..._compat import tracing
from ..._compat.tracing import Traced

# A size or a number that only data tells: like no other size of a trace, and no special one.
_SIZE, _NUMBER = 61, 2
# A list of more elements is cut off; a body that asks more often is in a loop without end.
_LONGEST, _MOST = 4096, 100

_ATEN = torch.ops.aten


class NoStandIn(Exception):
    """Nothing can stand in for a result."""


class StandIns:
    """What the refused calls of one trace return.

    `first` answers a question that data decides when a line first asks it; after that the line gets
    the other answer, so that `while x.any():` ends.
    """

    def __init__(
        self, value: Callable[[Any], Any], locate: Callable[[], str], *, first: bool
    ) -> None:
        self._value, self._locate, self._first = value, locate, first
        self._asked: Counter[str] = Counter()
        # Whether data decides which way this trace went.
        self.decided = False

    def result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator, with fakes for tensors."""
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001  # what `.item()` calls
            return self._number(args[0].dtype)
        if tracing.returned_types(func) == ["bool"]:
            return self._number(torch.bool)
        try:
            return tracing.on_fakes(func, args, kwargs, self._value)
        except tracing.UNKNOWN:
            return tracing.on_fakes_of_unknown_size(func, args, kwargs, self._value, size=_SIZE)

    def listed(self, x: Traced) -> Any:
        """What `x.tolist()` returns."""
        found = self._number(x.dtype)
        for size in reversed(x.sizes):
            found = [found] * min(self._value(size), _LONGEST)
        return found

    def _number(self, dtype: torch.dtype) -> Any:
        where = self._locate()
        self._asked[where] += 1
        if self._asked[where] > _MOST:
            raise NoStandIn(f"{where} asks for data again and again")
        if dtype is torch.bool:
            self.decided = True
            return self._first == (self._asked[where] == 1)
        if dtype.is_complex:
            return complex(_NUMBER)
        return float(_NUMBER) if dtype.is_floating_point else _NUMBER
