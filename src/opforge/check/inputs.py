"""From `--input` texts to the arguments of an op: records are built, defaults filled in."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from ..analysis.signature import read_signature, user_scope
from ..cli_targets import users_own
from ..errors import BadOption
from ..model import MISSING, Codec, Field, Leaf, Node, Parameter, Record, Signature
from ..registry import Entry
from .compare import shown
from .language import InputValue, parse_input, pointed


def arguments_from(
    entry: Entry, texts: Sequence[str], *, device: str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The op's arguments as `--input x=randn(8) --input cfg.eps=1e-6` describe them."""
    signature = _signature(entry)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, InputValue] = {}
    for text in texts:
        one = parse_input(text, device=device, generator=generator)
        if one.path in given:
            raise BadOption(pointed(f"{one.path!r} is given twice", text, 0))
        given[one.path] = one
    nodes = {n.path: n for p in signature.parameters for n in _nodes(p.node)}
    _refuse_unknown(nodes, given)
    fitted = {path: _fitted(nodes[path], one) for path, one in given.items()}
    missing = [p for parameter in signature.parameters for p in _missing(parameter, given)]
    if missing:
        lines = [line for p in signature.parameters for line in _lines(p.node, p.default)]
        listed = "\n".join(f"    {line}" for line in lines)
        raise BadOption(
            f"no input for {', '.join(repr(m) for m in missing)}",
            found=f"the parameters are\n{listed}",
            fix=f"--input {_example(nodes[missing[0]])}",
            op=entry.name,
            location=entry.location,
        )
    built = [(p, _build(p.node, p.default, fitted)) for p in signature.parameters]
    args = tuple(value for p, value in built if not p.keyword_only)
    return args, {p.name: value for p, value in built if p.keyword_only}


def _signature(entry: Entry) -> Signature:
    """Also of a function in mode none, which was never lowered."""
    if entry.lowered is not None:
        return entry.lowered.signature
    fn = inspect.unwrap(entry.fn)
    return read_signature(fn, user_scope(fn))


def _lines(node: Node, default: Any) -> list[str]:
    """`cfg.eps: float = 1e-06`, one line per leaf."""
    given = "" if default is MISSING else f" = {default!r}"
    if isinstance(node, Leaf):
        return [f"{node.path}: {_spelled(node)}{given}"]
    first = []
    if node.optional or default is not MISSING:
        first = [f"{node.path}: {node.cls.__name__}{' or None' if node.optional else ''}{given}"]
    return first + [line for f in node.fields for line in _lines(f.node, f.default)]


def _spelled(leaf: Leaf) -> str:
    """A leaf's type for people: `list[Tensor]`, `one of 'a', 'b'`."""
    word = _BASES[leaf.base].word if leaf.base in _BASES else leaf.base
    if leaf.codec is not None:
        word = f"one of {_choices(leaf.codec)}"
    if leaf.container:
        word = f"{leaf.container}[{word}{' or None' if leaf.element_optional else ''}]"
    return f"{word} or None" if leaf.optional else word


def _raw(codec: Codec, member: Any) -> Any:
    return member if codec.cls is None else member.value


def _choices(codec: Codec) -> str:
    return ", ".join(repr(_raw(codec, member)) for member in codec.values)


def _refuse_unknown(known: Collection[str], given: Mapping[str, InputValue]) -> None:
    for path in given:
        if path in known:
            continue
        close = difflib.get_close_matches(path, known)
        raise BadOption(
            f"the op has no {path!r}",
            found=f"it takes {', '.join(known) or 'nothing'}",
            fix=f"did you mean {' or '.join(close)}?" if close else "choose one of these",
        )
    for path, one in given.items():
        if _touched(path, given):
            what = f"{path!r} is given both whole and by its fields"
            raise BadOption(pointed(what, one.text, 0))


def _touched(path: str, given: Iterable[str]) -> bool:
    """Whether a part of a record is given."""
    return any(other.startswith(f"{path}.") for other in given)


def _nodes(node: Node) -> list[Node]:
    if isinstance(node, Leaf):
        return [node]
    return [node, *(n for f in node.fields for n in _nodes(f.node))]


def _missing(item: Parameter | Field, given: Mapping[str, InputValue]) -> list[str]:
    node = item.node
    if node.path in given or (item.default is not MISSING and not _touched(node.path, given)):
        return []
    if isinstance(node, Leaf):
        return [node.path]
    return [path for f in node.fields for path in _missing(f, given)]


def _build(node: Node, default: Any, given: Mapping[str, Any]) -> Any:
    if node.path in given:
        return given[node.path]
    if isinstance(node, Leaf) or (default is not MISSING and not _touched(node.path, given)):
        return default
    parts = {f.name: _build(f.node, f.default, given) for f in node.fields}
    if node.kind == "tuple":
        return tuple(parts.values())
    # A field that is still missing has a default_factory, which the class itself knows.
    known = {name: part for name, part in parts.items() if part is not MISSING}
    with users_own(f"{node.cls.__name__}(...), for {node.path},"):
        return node.cls(**known)


def _fitted(node: Node, given: InputValue) -> Any:
    value = given.value
    if isinstance(node, Record):
        if value is None and node.optional:
            return None
        if node.kind == "tuple" and isinstance(value, (list, tuple)):
            return tuple(value)
        fields = ", ".join(part.path for part in _nodes(node)[1:])
        _misfit(given, f"{node.path} is a {node.cls.__name__}", f"give its fields: {fields}")
    if value is None:
        if not node.optional:
            _misfit(given, f"{node.path} cannot be None", f"it takes {_spelled(node)}")
        return None
    if not node.container:
        return _element(node, value, given)
    if not isinstance(value, (list, tuple)):
        _misfit(given, f"{node.path} is a list", f"{node.path}=[...]")
    return [None if v is None else _element(node, v, given) for v in value]


def _element(leaf: Leaf, value: Any, given: InputValue) -> Any:
    if leaf.codec is not None:
        return _choice(leaf.path, leaf.codec, value, given)
    if leaf.base == "Device" and isinstance(value, str):
        return _device(leaf, value, given)
    if leaf.base not in _BASES:
        return value
    kinds = _BASES[leaf.base].kinds
    # To Python a bool is an int.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        _misfit(given, f"{leaf.path} is {_spelled(leaf)}, not {shown(value)}", _example(leaf))
    return _float(leaf, value, given) if leaf.base == "float" else value


def _device(leaf: Leaf, value: str, given: InputValue) -> torch.device:
    try:
        return torch.device(value)
    except (RuntimeError, TypeError):
        _misfit(given, f"{leaf.path} cannot be {value!r}", "cpu, cuda, or 'cuda:1'")


def _float(leaf: Leaf, value: float, given: InputValue) -> float:
    try:
        return float(value)
    except OverflowError:
        _misfit(given, f"{leaf.path} is a number that no float can hold", _example(leaf))


def _choice(path: str, codec: Codec, value: Any, given: InputValue) -> Any:
    """A member by its value, or by its name."""
    for member in codec.values:
        own = _raw(codec, member)
        if type(own) is type(value) and own == value:
            return member
    if codec.cls is not None and isinstance(value, str) and value in codec.cls.__members__:
        return codec.cls[value]
    return _misfit(given, f"{path} cannot be {value!r}", f"one of {_choices(codec)}")


def _example(node: Node) -> str:
    assert isinstance(node, Leaf)
    value = _BASES[node.base].example if node.base in _BASES else "..."
    if node.codec is not None:
        value = repr(_raw(node.codec, node.codec.values[0]))
    return f"{node.path}={f'[{value}]' if node.container else value}"


class _Base(NamedTuple):
    """One of the schema's types: its name for people, the types of values, and an example."""

    word: str
    kinds: tuple[type[Any], ...]
    example: str


_BASES = {
    "Tensor": _Base("Tensor", (torch.Tensor,), "'randn(8, 128)'"),
    "SymInt": _Base("int", (int,), "8"),
    "int": _Base("int", (int,), "8"),
    "float": _Base("float", (int, float), "0.5"),
    "bool": _Base("bool", (bool,), "True"),
    "str": _Base("str", (str,), "\"'text'\""),
    "Scalar": _Base("number", (bool, int, float), "0.5"),
    "ScalarType": _Base("dtype", (torch.dtype,), "f32"),
    "Device": _Base("device", (torch.device,), "cpu"),
}


def _misfit(given: InputValue, what: str, fix: str) -> NoReturn:
    raise BadOption(pointed(what, given.text, given.text.index("=") + 1), fix=fix)
