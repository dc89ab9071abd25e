"""Records as JSON, and changed throughout.

A table of keys and the types of the fields say how a record is written and read back:

BOUND = Codecs({Bound: "var low high values"}).of(Bound)
BOUND.write(Bound("n", 1, 8))  ->  {"var": "n", "low": 1, "high": 8, "values": []}
BOUND.read({"var": 3, ...})    ->  BadField: var is 3, expected str

Whatever opforge reads from disk goes through here: another program may have damaged it.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin


class BadField(ValueError):
    """What was read does not fit the field at `place`: `paths[0].guards[1].location`."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place or 'it'} {what}")
        self.what, self.place = what, place

    def below(self, place: str) -> BadField:
        dot = "." if self.place and not self.place.startswith("[") else ""
        return BadField(self.what, f"{place}{dot}{self.place}")


class JsonCodec(NamedTuple):
    """How a value becomes JSON, and the value again."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Codecs:
    """The codecs of the records in a table, and of their fields.

    The table has a record's keys in the order in which they are written:

        "name written group?"           `group` is left out where the field has its default
        "launch=kernel_name grid"       the field `kernel_name` has the key `launch`
        "param dtype | param present"   two forms: the first whose missing fields have defaults

    A key that is not a field is a constant of the class, for people and other programs. The keys
    of what is read tell the form, and the record of a union. `special` has codecs of other types.
    """

    def __init__(
        self,
        keys: Mapping[type, str],
        special: Mapping[Any, JsonCodec] | None = None,
    ) -> None:
        self._keys = keys
        self._made: dict[Any, JsonCodec] = dict(special or {})

    def of(self, kind: Any) -> JsonCodec:
        """The codec of a record, or of the type of a field."""
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Any) -> JsonCodec:
        args = get_args(kind)
        if get_origin(kind) is tuple:
            if get_origin(args[0]) is tuple:
                return _pairs(tuple, self.of(get_args(args[0])[1]))
            return _each(self.of(args[0]))
        if get_origin(kind) is Mapping:
            return _pairs(dict, self.of(args[1]))
        if NoneType in args:
            return _maybe(self.of(args[0]))
        if kind in self._keys or isinstance(kind, UnionType):
            return _one_of([form for one in args or (kind,) for form in self._forms(one)])
        return JsonCodec(lambda value: value, lambda content: _checked(content, kind))

    def _forms(self, kind: type) -> list[_Form]:
        written = self._keys[kind].split("|")
        forms = [_Form(kind, words.split(), self.of) for words in written]
        told = {name for form in forms for name in form.attributes.values()}
        for form in forms:
            form.missing = told.difference(form.attributes.values())
        return forms


def as_text(parse: Callable[[str], Any], what: str) -> JsonCodec:
    """The codec of what is written as `str` has it; `parse` raises `ValueError`."""

    def read(content: Any) -> Any:
        try:
            return parse(_checked(content, str))
        except ValueError:
            raise BadField(f"is {shown(content)}, expected {what}") from None

    return JsonCodec(str, read)


def _fields(kind: Any) -> dict[str, tuple[str, Any]]:
    """The type, as text, and the default of each field of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(kind):
        return {f.name: (str(f.type), f.default) for f in dataclasses.fields(kind)}
    types, defaults = kind.__annotations__, kind._field_defaults
    return {
        name: (types[name].__forward_arg__, defaults.get(name, dataclasses.MISSING))
        for name in kind._fields
    }


class _Form:
    """One way in which a record is written."""

    def __init__(
        self,
        kind: type,
        words: list[str],
        codec_of: Callable[[Any], JsonCodec],
    ) -> None:
        self.kind = kind
        # Fields that another form of the record has.
        self.missing: set[str] = set()
        fields = _fields(kind)
        named = [word.rstrip("?").partition("=") for word in words]
        self.attributes = {key: name or key for key, _, name in named}
        self.defaults = {name: default for name, (_, default) in fields.items()}
        marked = zip(self.attributes, words, strict=True)
        self.optional = {key for key, word in marked if word.endswith("?")}
        module = vars(sys.modules[kind.__module__])
        self.codecs = {
            key: codec_of(eval(fields[name][0], module))  # noqa: S307 - the record's own
            for key, name in self.attributes.items()
            if name in fields
        }
        self.needed = [key for key in self.codecs if key not in self.optional]

    def takes(self, value: Any) -> bool:
        return isinstance(value, self.kind) and all(
            getattr(value, name) == self.defaults[name] for name in self.missing
        )

    def reads(self, content: Any) -> bool:
        return isinstance(content, dict) and all(key in content for key in self.needed)

    def write(self, value: Any) -> dict[str, Any]:
        written = {}
        for key, name in self.attributes.items():
            held = getattr(value, name)
            if key not in self.optional or held != self.defaults[name]:
                written[key] = self.codecs[key].write(held) if key in self.codecs else held
        return written

    def read(self, content: dict[str, Any]) -> Any:
        found = {}
        for key, codec in self.codecs.items():
            if key in content:
                found[self.attributes[key]] = read_at(key, codec, content[key])
        return self.kind(**found)


def _one_of(forms: list[_Form]) -> JsonCodec:
    def write(value: Any) -> Any:
        return next(form for form in forms if form.takes(value)).write(value)

    def read(content: Any) -> Any:
        for form in forms:
            if form.reads(content):
                return form.read(content)
        if len(forms) == 1 and isinstance(content, dict):
            raise BadField("is missing", next(k for k in forms[0].needed if k not in content))
        expected = " or ".join(", ".join(form.needed) for form in forms)
        raise BadField(f"is {shown(content)}, expected an object with {expected}")

    return JsonCodec(write, read)


def _each(codec: JsonCodec) -> JsonCodec:
    """A tuple, as a list."""

    def read(content: Any) -> Any:
        listed = enumerate(_checked(content, list))
        return tuple(read_at(f"[{i}]", codec, item) for i, item in listed)

    return JsonCodec(lambda values: [codec.write(value) for value in values], read)


def _pairs(make: type, codec: JsonCodec) -> JsonCodec:
    """`(("BLOCK", "128"),)` or a mapping, as an object."""

    def read(content: Any) -> Any:
        listed = _checked(content, dict).items()
        return make((key, read_at(key, codec, value)) for key, value in listed)

    return JsonCodec(dict, read)


def _maybe(codec: JsonCodec) -> JsonCodec:
    """A value or None."""
    return JsonCodec(
        lambda value: None if value is None else codec.write(value),
        lambda content: None if content is None else codec.read(content),
    )


def read_at(place: str, codec: JsonCodec, content: Any) -> Any:
    """What stands at a place, such as the key of an object."""
    try:
        return codec.read(content)
    except BadField as error:
        raise error.below(place) from None


_NEEDED: Any = object()


def field(content: Any, key: str, kind: Any, default: Any = _NEEDED) -> Any:
    """What an object has at a key, without a record for it: those take a while to define."""
    if key not in _checked(content, dict):
        if default is _NEEDED:
            raise BadField("is missing", key)
        return default
    try:
        return _checked(content[key], kind)
    except BadField as error:
        raise error.below(key) from None


def each(content: Any, key: str, read: Callable[[Any], Any], default: Any = _NEEDED) -> Any:
    """The items of the list that an object has at a key, each as `read` returns it."""
    listed = field(content, key, list, default)
    codec = JsonCodec(shown, read)
    return tuple(read_at(f"{key}[{i}]", codec, item) for i, item in enumerate(listed))


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxdict = _short.maxlist = 16
# Of several levels, each of which is short.
_LONGEST = 400


def shown(content: Any) -> str:
    """For a message: what was read may be of any size and depth."""
    text = _short.repr(content)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _checked(content: Any, kind: Any) -> Any:
    if kind is Any:
        return content
    if kind is float and type(content) is int:
        try:
            return float(content)
        except OverflowError:
            raise BadField("is a number that no float can hold") from None
    # A bool is an int in Python, but not in JSON.
    if not isinstance(content, kind) or (isinstance(content, bool) and kind is not bool):
        raise BadField(f"is {shown(content)}, expected {getattr(kind, '__name__', kind)}")
    return content


def changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The same records, with `change` applied to everything of a kind in them."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        return tuple(changed(item, kind, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        new = {name: changed(one, kind, change) for name, one in held.items()}
        different = {name: one for name, one in new.items() if one is not held[name]}
        return dataclasses.replace(value, **different) if different else value
    return value
