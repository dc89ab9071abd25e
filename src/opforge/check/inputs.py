"""From `--input` texts to the arguments of an op: records are built, defaults filled in."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..analysis.signature.annotations import user_scope
from ..analysis.signature.parameter_tree import read_signature
from ..errors import BadInput, MissingInput, UnknownInput
from ..model import MISSING, Field, Leaf, Node, Parameter, Record, Signature, leaves_of
from ..registry import Entry
from .language import InputValue, parse_input


def arguments_from(
    entry: Entry, texts: Sequence[str], *, device: str = "cpu"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The op's arguments as `--input x=randn(8) --input cfg.eps=1e-6` describe them."""
    signature = signature_of(entry)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, InputValue] = {}
    for text in texts:
        one = parse_input(text, device=device, generator=generator)
        if one.path in given:
            raise BadInput(f"{one.path!r} is given twice", text=text, column=0)
        given[one.path] = one
    _refuse_unknown(signature, given)
    nodes = {n.path: n for p in signature.parameters for n in _nodes(p.node)}
    fitted = {path: _fitted(nodes[path], one) for path, one in given.items()}
    missing = [p for parameter in signature.parameters for p in _missing(parameter, given)]
    if missing:
        listed = "\n".join(f"    {line}" for line in describe_parameters(signature))
        raise MissingInput(
            f"no input for {', '.join(repr(m) for m in missing)}",
            found=f"the parameters are\n{listed}",
            fix=f"--input {_example(signature, missing[0])}",
            op=entry.name,
            location=entry.location,
        )
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in signature.parameters:
        value = _build(parameter.node, parameter.default, fitted)
        if parameter.keyword_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def signature_of(entry: Entry) -> Signature:
    """Also of a function in mode none, which was never lowered."""
    if entry.lowered is not None:
        return entry.lowered.signature
    fn = inspect.unwrap(entry.fn)
    return read_signature(fn, user_scope(fn))


def describe_parameters(signature: Signature) -> list[str]:
    """`cfg.eps: float = 1e-06`, one line per leaf."""
    return [line for p in signature.parameters for line in _lines(p.node, p.default)]


def _lines(node: Node, default: Any) -> list[str]:
    shown = "" if default is MISSING else f" = {default!r}"
    if isinstance(node, Leaf):
        return [f"{node.path}: {spelled(node)}{shown}"]
    first = []
    if node.optional or default is not MISSING:
        first = [f"{node.path}: {node.cls.__name__}{' or None' if node.optional else ''}{shown}"]
    return first + [line for f in node.fields for line in _lines(f.node, f.default)]


_WORDS = {"SymInt": "int", "ScalarType": "dtype", "Scalar": "number", "Device": "device"}


def spelled(leaf: Leaf) -> str:
    """A leaf's type for people: `list[Tensor]`, `one of 'a', 'b'`."""
    word = _WORDS.get(leaf.base, leaf.base)
    if leaf.codec is not None:
        word = f"one of {', '.join(repr(c) for c in _choices(leaf))}"
    if leaf.container:
        word = f"{leaf.container}[{word}{' or None' if leaf.element_optional else ''}]"
    return f"{word} or None" if leaf.optional else word


def _choices(leaf: Leaf) -> list[Any]:
    assert leaf.codec is not None
    return [v if leaf.codec.cls is None else v.value for v in leaf.codec.values]


def _refuse_unknown(signature: Signature, given: Mapping[str, InputValue]) -> None:
    known = [node.path for p in signature.parameters for node in _nodes(p.node)]
    for path in given:
        if path in known:
            continue
        close = difflib.get_close_matches(path, known)
        hint = f"did you mean {' or '.join(close)}?" if close else "choose one of these"
        raise UnknownInput(
            f"the op has no {path!r}",
            found=f"it takes {', '.join(known) or 'nothing'}",
            fix=hint,
        )
    whole = [p for p in given if any(other.startswith(f"{p}.") for other in given)]
    if whole:
        one = given[whole[0]]
        raise BadInput(
            f"{one.path!r} is given both whole and by its fields", text=one.text, column=0
        )


def _nodes(node: Node) -> list[Node]:
    if isinstance(node, Leaf):
        return [node]
    return [node, *(n for f in node.fields for n in _nodes(f.node))]


def _missing(item: Parameter | Field, given: Mapping[str, InputValue]) -> list[str]:
    node = item.node
    if isinstance(node, Leaf):
        return [] if node.path in given or item.default is not MISSING else [node.path]
    if node.path in given:
        return []
    touched = any(path.startswith(f"{node.path}.") for path in given)
    if not touched and item.default is not MISSING:
        return []
    return [path for f in node.fields for path in _missing(f, given)]


def _build(node: Node, default: Any, given: Mapping[str, Any]) -> Any:
    if node.path in given:
        return given[node.path]
    if isinstance(node, Leaf):
        return default
    touched = any(path.startswith(f"{node.path}.") for path in given)
    if not touched and default is not MISSING:
        return default
    parts = {f.name: _build(f.node, f.default, given) for f in node.fields}
    if node.kind == "tuple":
        return tuple(parts.values())
    # A field that is still missing has a default_factory, which the class itself knows.
    return node.cls(**{name: part for name, part in parts.items() if part is not MISSING})


def _fitted(node: Node, given: InputValue) -> Any:
    value = given.value
    if isinstance(node, Record):
        if value is None and node.optional:
            return None
        if node.kind == "tuple" and isinstance(value, (list, tuple)):
            return tuple(value)
        _misfit(given, f"{node.path} is a {node.cls.__name__}", f"give its fields: {_fields(node)}")
    if value is None:
        if not node.optional:
            _misfit(given, f"{node.path} cannot be None", f"it takes {spelled(node)}")
        return None
    if not node.container:
        return _element(node, value, given)
    if not isinstance(value, (list, tuple)):
        _misfit(given, f"{node.path} is a list", f"{node.path}=[...]")
    return [None if v is None else _element(node, v, given) for v in value]


def _fields(record: Record) -> str:
    return ", ".join(n.path for f in record.fields for n in _nodes(f.node))


def _element(leaf: Leaf, value: Any, given: InputValue) -> Any:
    if leaf.codec is not None:
        return _choice(leaf, value, given)
    if leaf.base == "Device" and isinstance(value, str):
        return torch.device(value)
    kinds = _KINDS.get(leaf.base)
    if kinds is None:
        return value
    fits = isinstance(value, kinds) and (leaf.base == "bool" or not isinstance(value, bool))
    if leaf.base == "Scalar":
        fits = isinstance(value, kinds)
    if not fits:
        shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
        _misfit(given, f"{leaf.path} is {spelled(leaf)}, not {shown}", _example_of(leaf))
    return float(value) if leaf.base == "float" else value


_KINDS: dict[str, tuple[type[Any], ...]] = {
    "Tensor": (torch.Tensor,),
    "SymInt": (int,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "Scalar": (bool, int, float),
    "ScalarType": (torch.dtype,),
    "Device": (torch.device,),
}


def _choice(leaf: Leaf, value: Any, given: InputValue) -> Any:
    """A member by its value, or by its name."""
    codec = leaf.codec
    assert codec is not None
    for member in codec.values:
        own = member if codec.cls is None else member.value
        if type(own) is type(value) and own == value:
            return member
    if codec.cls is not None and isinstance(value, str) and value in codec.cls.__members__:
        return codec.cls[value]
    choices = ", ".join(repr(c) for c in _choices(leaf))
    return _misfit(given, f"{leaf.path} cannot be {value!r}", f"one of {choices}")


def _example(signature: Signature, path: str) -> str:
    leaves = [leaf for p in signature.parameters for leaf in leaves_of(p.node)]
    return _example_of(next(leaf for leaf in leaves if leaf.path == path))


def _example_of(leaf: Leaf) -> str:
    value = repr(_choices(leaf)[0]) if leaf.codec is not None else _EXAMPLES.get(leaf.base, "...")
    return f"{leaf.path}={f'[{value}]' if leaf.container else value}"


_EXAMPLES = {
    "Tensor": "'randn(8, 128)'",
    "SymInt": "8",
    "int": "8",
    "float": "0.5",
    "bool": "True",
    "str": "\"'text'\"",
    "Scalar": "0.5",
    "ScalarType": "f32",
    "Device": "cpu",
}


def _misfit(given: InputValue, what: str, fix: str) -> NoReturn:
    raise BadInput(what, text=given.text, column=given.text.index("=") + 1, fix=fix)
