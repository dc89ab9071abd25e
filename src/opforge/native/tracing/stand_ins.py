"""Results for calls that a library cannot make, so that a trace goes on and finds the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._compat import tracing
from ..._compat.tracing import Traced

# A size that only data tells: like no other size of a trace, and no special one.
_SIZE = 61
# Numbers that only data tells. A line that asks again gets the next, so that loops end. The last is
# above most limits that bodies compare with, and low enough to count to.
NUMBERS = (2, 0, -3, 4099)
# A list of more elements is cut off; a body that asks more often is in a loop without end.
_LONGEST, _MOST = 4096, 250

_ATEN = torch.ops.aten

# The instruction of the body that asks.
Question = tuple[Any, int]


class NoStandIn(Exception):
    """Nothing can stand in for a result."""


@dataclass(frozen=True)
class Way:
    """One of the ways that data may take a body: first answers to questions, others are yes.

    Numbers begin with that at `number` of `NUMBERS`; sizes that only data tells are `size`.
    """

    answers: Mapping[Question, bool] = field(default_factory=dict)
    number: int = 0
    size: int = _SIZE


class StandIns:
    """What the refused calls of one trace return.

    A question gets another answer every time, so that `while x.any():` ends.
    """

    def __init__(
        self, value: Callable[[Any], Any], instruction: Callable[[], Question], way: Way
    ) -> None:
        self._value, self._instruction, self._way = value, instruction, way
        self._asked: Counter[Question] = Counter()
        self._numbers: dict[Question, int] = {}
        # The questions of this trace that data decides, with their first answers.
        self.decided: dict[Question, bool] = {}
        # Whether the trace goes on with sizes that only data tells.
        self.has_sizes = False

    @property
    def has_numbers(self) -> bool:
        """Whether the trace goes on with numbers that only data tells."""
        return bool(self._numbers)

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator, with fakes for tensors."""
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001  # what `.item()` calls
            return self._number(args[0].dtype)
        if tracing.returned_types(func) == ["bool"]:
            return self._number(torch.bool)
        try:
            return tracing.on_fakes(func, args, kwargs, self._value)
        except tracing.UNKNOWN:
            self.has_sizes = True
            size = self._way.size
            return tracing.on_fakes_of_unknown_size(func, args, kwargs, self._value, size=size)

    def listed(self, x: Traced) -> Any:
        """What `x.tolist()` returns."""
        found = self._number(x.dtype)
        for size in reversed(x.sizes):
            found = [found] * min(self._value(size), _LONGEST)
        return found

    def array(self, x: Traced) -> Any:
        """What `x.numpy()` returns."""
        import numpy as np  # noqa: PLC0415  # torch does without it

        dtype = str(x.dtype).removeprefix("torch.")
        one = np.full((), self._number(x.dtype), dtype=dtype)
        return np.broadcast_to(one, [self._value(size) for size in x.sizes])

    def _number(self, dtype: torch.dtype) -> Any:
        where = self._instruction()
        self._asked[where] += 1
        times = self._asked[where]
        if times > _MOST:
            raise NoStandIn("the body asks for data again and again")
        if dtype is torch.bool:
            first = self.decided.setdefault(where, self._way.answers.get(where, True))
            return first == (times % 2 == 1)
        # Each line has another number, so that they compare.
        place = self._numbers.setdefault(where, len(self._numbers))
        number = NUMBERS[(self._way.number + times - 1) % len(NUMBERS)]
        number += place * (number > 0) - place * (number < 0)
        if dtype.is_complex:
            return complex(number)
        return float(number) if dtype.is_floating_point else number
