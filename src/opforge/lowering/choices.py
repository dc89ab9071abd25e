"""Literal and Enum values on their way through the schema.

Mode.FAST -> "fast" (encode, before the dispatcher) -> Mode.FAST (the table, in the kernel)

Where both reach the body as they were given, a member has a mark in the schema:

Mode.FAST -> "Mode.FAST" -> Mode.FAST
"fast"    -> "fast"      -> "fast"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadOption
from ..model import Codec, plain


class ChoiceValues(dict[Any, Any]):
    """What the schema carries -> what the body sees; other values are refused with an error."""

    def __init__(self, codec: Codec, path: str, op: str, location: str) -> None:
        super().__init__((codec.encode(value), value) for value in codec.values)
        if codec.by == "given":
            self.update((plain(member.value), plain(member.value)) for member in codec.values)
        self.codec = codec
        self.refuse = _refusal(codec, path, op, location)
        self.encode = _encoder(codec, self.refuse)

    def __missing__(self, raw: Any) -> Any:
        # `_missing_` may make an Enum accept more values than its members'.
        if self.codec.cls is not None and self.codec.by != "name":
            try:
                member = self.codec.cls(raw)
            except ValueError:
                raise self.refuse(raw) from None
            return raw if self.codec.by == "given" else member
        raise self.refuse(raw)


def _encoder(codec: Codec, refuse: Callable[[Any], BadOption]) -> Callable[[Any], Any]:
    # A plain function, because torch.compile traces through it.
    cls, by_name = codec.cls, codec.by == "name"
    mark = codec.mark if codec.by == "given" else None

    def encode(raw: Any) -> Any:
        if mark is not None and isinstance(raw, str) and raw.startswith(mark):
            raise refuse(raw)
        if not by_name:
            return raw
        assert cls is not None
        try:
            return cls(raw).name
        except ValueError:
            raise refuse(raw) from None

    return encode


def _refusal(codec: Codec, path: str, op: str, location: str) -> Callable[[Any], BadOption]:
    def refuse(raw: Any) -> BadOption:
        kind = "Literal" if codec.cls is None else codec.cls.__qualname__
        return BadOption(
            f"{raw!r} is not a value of {kind}",
            parameter=path,
            fix=f"pass one of {', '.join(repr(v) for v in codec.values)}",
            op=op,
            location=location,
        )

    return refuse
