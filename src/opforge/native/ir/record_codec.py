"""Records as JSON: one table per record both writes it and reads it back.

BOUND = record(Bound, var=PLAIN, low=PLAIN, high=PLAIN, values=LIST)
BOUND.write(Bound("n", 1, 8))  ->  {"var": "n", "low": 1, "high": 8, "values": []}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any


class RecordCodec:
    """How a value becomes JSON, and the value again."""

    def __init__(self, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
        self.write = write
        self.read = read


class Constant(RecordCodec):
    """A key that always has the same value, for people and other programs."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda _: text, _same)


def _same(value: Any) -> Any:
    return value


def each(codec: RecordCodec) -> RecordCodec:
    """A tuple, as a list."""
    return RecordCodec(
        lambda values: [codec.write(value) for value in values],
        lambda content: tuple(codec.read(item) for item in content),
    )


def maybe(codec: RecordCodec) -> RecordCodec:
    """A value or None."""
    return RecordCodec(
        lambda value: None if value is None else codec.write(value),
        lambda content: None if content is None else codec.read(content),
    )


PLAIN = RecordCodec(_same, _same)
LIST = each(PLAIN)
# `(("BLOCK", "128"),)` as an object.
PAIRS = RecordCodec(dict, lambda content: tuple(content.items()))


def record(
    make: Callable[..., Any],
    renamed: Mapping[str, str] | None = None,
    without_false: Collection[str] = (),
    **fields: RecordCodec,
) -> RecordCodec:
    """A record as an object, its keys in the order given here and named as its attributes.

    `renamed` has the attribute for a key of another name. Keys of `without_false` are left out
    where the attribute is false; it then has a default that is.
    """
    attribute = {key: (renamed or {}).get(key, key) for key in fields}

    def write(value: Any) -> dict[str, Any]:
        held = {key: getattr(value, attribute[key], None) for key in fields}
        return {
            key: codec.write(held[key])
            for key, codec in fields.items()
            if held[key] or key not in without_false
        }

    def read(content: dict[str, Any]) -> Any:
        return make(
            **{
                attribute[key]: codec.read(content[key])
                for key, codec in fields.items()
                if not isinstance(codec, Constant) and (key in content or key not in without_false)
            }
        )

    return RecordCodec(write, read)


def one_of(*forms: tuple[str, Callable[[Any], bool], RecordCodec]) -> RecordCodec:
    """One of several forms: each with a key that only it has, and which values are written so."""

    def write(value: Any) -> Any:
        return next(codec.write(value) for _, is_written_so, codec in forms if is_written_so(value))

    def read(content: Any) -> Any:
        return next(codec.read(content) for key, _, codec in forms if key in content)

    return RecordCodec(write, read)


def is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)
