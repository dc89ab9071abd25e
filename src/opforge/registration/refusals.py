"""Errors that generated code raises at a call; each maker returns a function for one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import WrongArgument, WrongReturn
from ..model import Lowered


def make_as_list(name: str, location: str) -> Callable[[str, Any], list[Any]]:
    def as_list(path: str, value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            return list(value)
        raise WrongReturn(
            f"the body returned {type(value).__name__} for {path}, but its annotation says a list",
            fix="return a list of tensors",
            op=name,
            location=location,
        )

    return as_list


def make_no_tensor(name: str, location: str, lowered: Lowered) -> Callable[..., WrongArgument]:
    def no_tensor(*values: Any) -> WrongArgument:
        missing = [
            a.path
            for a, value in zip(lowered.tensors, values, strict=True)
            if value is None and not a.type.endswith("?")
        ]
        return WrongArgument(
            "expected a Tensor, got None",
            parameter=missing[0] if missing else None,
            fix="pass a tensor, or annotate Optional[Tensor]",
            op=name,
            location=location,
        )

    return no_tensor


def make_wrong_type(name: str, location: str) -> Callable[[str, Any, type[Any]], None]:
    def wrong_type(path: str, value: Any, wanted: type[Any]) -> None:
        found = type(value).__qualname__
        if path.startswith("return"):
            raise WrongReturn(
                f"the body returned a {found}, but its annotation says {wanted.__qualname__}",
                fix=f"return {wanted.__qualname__}(...)",
                op=name,
                location=location,
            )
        lossy = isinstance(value, wanted)
        what = f"expected {wanted.__qualname__}, got {found}"
        raise WrongArgument(
            f"{what}, a subclass whose own fields the schema does not carry" if lossy else what,
            parameter=path,
            fix=f"annotate the parameter with {found}"
            if lossy
            else f"pass {wanted.__qualname__}(...)",
            op=name,
            location=location,
        )

    return wrong_type


def make_wrong_length(name: str, location: str) -> Callable[[str, Any, int], None]:
    def wrong_length(path: str, value: Any, count: int) -> None:
        sized = isinstance(value, (tuple, list))
        found = f"a {type(value).__name__} of {len(value)}" if sized else type(value).__qualname__
        if path.startswith("return"):
            raise WrongReturn(
                f"the body returned {found}, but its annotation says a tuple of {count}",
                fix=f"return {count} values",
                op=name,
                location=location,
            )
        raise WrongArgument(
            f"expected a tuple of {count}, got {found}",
            parameter=path,
            fix=f"pass {count} values",
            op=name,
            location=location,
        )

    return wrong_length
