"""Compares a call's flat arguments with what a library was built for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import Uncovered
from ..native.ir.dtypes import DTYPES
from ..native.ir.interface import ChoiceParam, Flat, Op, SchemaArgument
from ..native.ir.wording import one_of

DTYPE_OF = {getattr(torch, d.torch): d for d in DTYPES.values()}


class CallBinding:
    """Arguments by name; for a choice or a fixed argument, the index of its value."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._defaults = {a.name: unflat(a.default[0]) for a in op.arguments if a.default}
        self._names = [a.name for a in op.arguments]
        choices = {p.name for p in op.params if isinstance(p, ChoiceParam)}
        self._told = [a for a in op.arguments if a.fixed or a.name in choices]

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `Uncovered` for a value that the library was not built for."""
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        for argument in self._told:
            value = given[argument.name]
            place = _place(argument, value)
            if place is None:
                shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                built = one_of([repr(unflat(v)) for v in argument.values])
                what = f"{self._op.torch_name}: {argument.name} is {shown}"
                raise uncovered(f"{what}, but the library was built for {built}")
            given[argument.name] = place
        return given


def uncovered(what: str, status: str = "UNCOVERED") -> Uncovered:
    error = Uncovered(what)
    error.status = status
    return error


def _place(argument: SchemaArgument, value: Any) -> int | None:
    """Which of an argument's values this is; to Python 1, 1.0 and True are equal."""
    for index, known in enumerate(map(unflat, argument.values)):
        if known is None or value is None or isinstance(value, torch.Tensor):
            same = known is None and value is None
        elif isinstance(known, bool) or isinstance(value, bool):
            same = known is value
        else:
            same = bool(known == value) or (known != known and value != value)  # noqa: PLR0124 - nan
        if same:
            return index
    return None


def unflat(value: Flat) -> Any:
    """`("dtype", "float16")` -> torch.float16, `("list", 1, 2)` -> [1, 2]."""
    if not isinstance(value, tuple):
        return value
    kind, *rest = value
    if kind == "list":
        return [unflat(item) for item in rest]
    return torch.device(str(rest[0])) if kind == "device" else getattr(torch, str(rest[0]))
