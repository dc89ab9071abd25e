"""A schema that the user wrote, as torch parses it, checked against the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import _compat
from ...errors import BadDeclaration, first_line
from ...model import MISSING

_NUMBERED = ("ScalarType", "Layout", "MemoryFormat")


@dataclass(frozen=True)
class GivenSchema:
    """`arguments`: (name, printed type, has default, keyword-only, mutated) each."""

    arguments: tuple[tuple[str, str, bool, bool, bool], ...]
    defaults: dict[str, Any]
    returns: tuple[str, ...]
    has_views: bool


def read_schema(fn: Callable[..., Any], schema: str) -> GivenSchema:
    """Parse `(Tensor x, float eps=1e-5) -> Tensor`."""
    if not schema.lstrip().startswith("("):
        raise BadDeclaration(
            f"schema={schema!r} must start with its arguments",
            fix='the form is "(Tensor x, float eps=1e-5) -> Tensor", without the name',
        )
    try:
        parsed = _compat.parse_schema(f"op{schema}")
    except RuntimeError as error:
        raise BadDeclaration(
            "torch cannot parse schema=",
            found=f"{schema}: {first_line(error)}",
            fix='the form is "(Tensor x, float eps=1e-5) -> Tensor"',
        ) from error
    arguments = tuple(_compat.parsed_arguments(parsed))
    returns = _compat.parsed_returns(parsed)
    return GivenSchema(
        arguments,
        _given_defaults(fn, arguments, _compat.parsed_defaults(parsed)),
        tuple(kind for kind, _ in returns),
        any(alias for _, alias in returns),
    )


def _given_defaults(
    fn: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], written: dict[str, Any]
) -> dict[str, Any]:
    """The defaults of a given schema, which must equal the function's own.

    A call that leaves an argument out gets the schema's default. torch parses a dtype, a layout
    or a memory format to a number, and a device by its name to a device, so for these kernels use
    the function's default.
    """
    defaults = dict(written)
    parameters = inspect.signature(fn).parameters.values()
    # What belongs together has the same place; a schema of another length is refused later.
    for (name, printed, *_), parameter in zip(arguments, parameters, strict=False):
        own = MISSING if parameter.default is parameter.empty else parameter.default
        schemas = written.get(name, MISSING)
        base = printed.removeprefix("Optional[").removesuffix("]")
        numbered, named = base in _NUMBERED, base == "Device" and isinstance(own, str)
        same = own is MISSING or _as_parsed(own, numbered=numbered, named=named) == schemas
        if not same or (numbered and own is MISSING and schemas not in (MISSING, None)):
            raise BadDeclaration(
                "schema= and the function disagree on a default",
                parameter=name,
                found=f"schema: {schemas!r}; function: {own!r}",
                fix="make them agree",
            )
        if (numbered and own is not MISSING) or named:
            defaults[name] = own
    return defaults


def _as_parsed(default: Any, *, numbered: bool, named: bool) -> Any:
    """A default as torch parses it from a schema: `torch.float32` -> 6, "cpu" -> a device."""
    if not (numbered or named) or default is None:
        return default
    kinds = {"dtype": "ScalarType", "layout": "Layout", "str": "Device"}
    kind = kinds.get(type(default).__name__, "MemoryFormat")
    word = f'"{default}"' if named else str(default).removeprefix("torch.")
    return _compat.parsed_defaults(_compat.parse_schema(f"op({kind} d={word}) -> ()"))["d"]
