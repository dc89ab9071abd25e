"""Annotations -> parameter tree.

(q: Tensor, cfg: AttnCfg, mode: Literal['a', 'b'] = 'a') -> Tensor
[Leaf q: Tensor] [Record cfg: Leaf cfg.scale, Leaf cfg.causal] [Leaf mode: str, Codec('a', 'b')]
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch

from ... import _compat
from ...errors import (
    BadSignature,
)
from ...model import (
    MISSING,
    Codec,
    Field,
    Leaf,
    Node,
    Parameter,
    Record,
    Signature,
    fits_int64,
)
from .annotations import (
    Scope,
    is_union,
    resolve_class_hints,
    resolve_hints,
    spell,
    split_optional,
    strip,
)

_BASES: dict[Any, str] = {
    torch.Tensor: "Tensor",
    torch.nn.Parameter: "Tensor",
    int: "SymInt",
    torch.SymInt: "SymInt",
    float: "float",
    torch.SymFloat: "float",
    bool: "bool",
    str: "str",
    torch.types.Number: "Scalar",
    torch.dtype: "ScalarType",
    torch.device: "Device",
    torch.layout: "Layout",
    torch.memory_format: "MemoryFormat",
}
# torch's own enumerations, which a schema carries singly but not in lists.
_SINGLE = {"ScalarType", "Layout", "MemoryFormat"}
_RETURN_BASES = {"Tensor", "SymInt", "float", "bool", "Scalar"}
_LISTS = (list, collections.abc.Sequence)
_KINDS: dict[Any, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional-or-keyword",
    inspect.Parameter.KEYWORD_ONLY: "keyword-only",
}


def read_signature(fn: Callable[..., Any], scope: Scope) -> Signature:
    """The parameters and the return value of a function, as a tree of leaves and records."""
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind not in _KINDS:
            star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise BadSignature(
                f"an operator's schema cannot express {star}{parameter.name}",
                parameter=parameter.name,
                fix="name each parameter; for several tensors use list[torch.Tensor]",
            )
    hints = resolve_hints(fn, signature, scope)
    reader = _Reader(scope)
    parameters = tuple(
        Parameter(
            name,
            _KINDS[parameter.kind],
            reader.node(name, hints[name]),
            MISSING if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in signature.parameters.items()
    )
    return Signature(parameters, _read_return(hints["return"], scope))


def parameter_kinds(fn: Callable[..., Any]) -> dict[str, str]:
    """Parameter name -> kind, for a function whose types a schema gives."""
    parameters = inspect.signature(fn).parameters
    return {name: _KINDS.get(p.kind, "variadic") for name, p in parameters.items()}


class _Reader:
    """Turns annotations into nodes; tracks the classes it is inside, to refuse recursion."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.inside: list[type[Any]] = []

    def node(self, path: str, annotation: Any) -> Node:
        annotation, optional = _unwrap(annotation)
        node = self._leaf(path, annotation) or self._record(path, annotation)
        if node is None:
            raise _unsupported(path, annotation)
        return dataclasses.replace(node, optional=True) if optional else node

    def _leaf(self, path: str, annotation: Any) -> Leaf | None:
        if _hashable(annotation) and annotation in _BASES:
            return Leaf(path, _BASES[annotation])
        if typing.get_origin(annotation) is typing.Literal:
            return _literal(path, annotation)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return _enum(path, annotation)
        if (element := _element(annotation)) is not None:
            return self._list(path, annotation, *element)
        if not isinstance(annotation, type) or _is_record(annotation):
            return None
        known = _compat.schema_type_of(annotation)
        return Leaf(path, known) if known is not None else None

    def _list(self, path: str, annotation: Any, container: str, inner: Any) -> Leaf:
        inner, element_optional = _unwrap(inner)
        leaf = self._leaf(path, inner)
        if leaf is None or leaf.container:
            raise BadSignature(
                f"{spell(annotation)} has elements that a schema's list cannot hold",
                parameter=path,
                found=f"elements of type {spell(inner)}",
                fix="pass one list per field, or a tuple of fixed length such as "
                f"tuple[{spell(inner)}, {spell(inner)}]",
            )
        if leaf.base in _SINGLE:
            raise BadSignature(
                f"{spell(annotation)}: torch would turn the elements of the list into ints",
                parameter=path,
                found=f"elements of type {spell(inner)}",
                fix=f"use a tuple of fixed length, tuple[{spell(inner)}, {spell(inner)}], or their "
                "names, list[str]",
            )
        return dataclasses.replace(
            leaf,
            container=container,
            element_optional=element_optional or leaf.optional,
            optional=False,
        )

    def _record(self, path: str, annotation: Any) -> Record | None:
        if typing.get_origin(annotation) is tuple and annotation is not typing.Tuple:  # noqa: UP006
            parts = [a for a in typing.get_args(annotation) if a != ()]
            items = [Field(str(i), self.node(f"{path}.{i}", a)) for i, a in enumerate(parts)]
            return Record(path, "tuple", tuple, tuple(items))
        if not isinstance(annotation, type):
            return None
        if dataclasses.is_dataclass(annotation):
            return Record(path, "dataclass", annotation, self._dataclass(path, annotation))
        if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
            given = getattr(annotation, "_field_defaults", {})
            defaults = {name: given.get(name, MISSING) for name in annotation._fields}
            return Record(path, "namedtuple", annotation, self._fields(path, annotation, defaults))
        return None

    def _dataclass(self, path: str, cls: type[Any]) -> tuple[Field, ...]:
        if not cls.__dataclass_params__.frozen:
            raise BadSignature(
                f"{cls.__qualname__} is a mutable dataclass, so its fields could change behind "
                "the compiler's back",
                parameter=path,
                found=f"@dataclass class {cls.__qualname__}",
                fix=f"add frozen=True: @dataclass(frozen=True) class {cls.__qualname__}",
            )
        defaults = {f.name: _field_default(f) for f in dataclasses.fields(cls)}
        return self._fields(path, cls, defaults)

    def _fields(self, path: str, cls: type[Any], defaults: dict[str, Any]) -> tuple[Field, ...]:
        if cls in self.inside:
            raise BadSignature(
                f"{cls.__qualname__} contains itself, so it has no fixed set of leaves",
                parameter=path,
                fix="pass the nested values as parameters or fields of another class",
            )
        hints = resolve_class_hints(cls, self.scope, path)
        missing = [name for name in defaults if name not in hints]
        if missing:
            raise BadSignature(
                f"{cls.__qualname__} has fields without a type: {', '.join(missing)}",
                parameter=path,
                found="collections.namedtuple",
                fix=f"class {cls.__qualname__}(typing.NamedTuple) with annotated fields",
            )
        self.inside.append(cls)
        nodes = {name: self.node(f"{path}.{name}", hints[name]) for name in defaults}
        self.inside.pop()
        return tuple(Field(n, node, _as_device(node, defaults[n])) for n, node in nodes.items())


def _read_return(annotation: Any, scope: Scope) -> Node | None:
    if annotation is None or annotation is type(None):
        return None
    node = _Reader(scope).node("return", annotation)
    _check_return(node, annotation)
    return node


def _check_return(node: Node, annotation: Any) -> None:
    if isinstance(node, Record):
        if node.optional:
            raise _bad_return(annotation, "an optional record")
        for item in node.fields:
            _check_return(item.node, annotation)
        return
    if node.codec or node.base not in _RETURN_BASES:
        raise _bad_return(annotation, f"{node.path.removeprefix('return.')}: {node.base}")
    if not node.is_tensor and (node.container or node.optional):
        raise _bad_return(annotation, f"{node.schema_type()}")


def _bad_return(annotation: Any, found: str) -> BadSignature:
    return BadSignature(
        f"an operator cannot return {spell(annotation)}",
        found=found,
        fix="return Tensor, Optional[Tensor], list[Tensor], int, float or bool, a tuple, "
        "NamedTuple or frozen dataclass of those, or None",
    )


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """Strip aliases and `None`; refuse other unions. `Number` is torch's own union."""
    annotation = strip(annotation)
    inner, optional = split_optional(annotation)
    inner = strip(inner)
    if is_union(inner):
        nested, also = split_optional(inner)
        if also:
            return _unwrap(nested)[0], True
    return inner, optional


def _element(annotation: Any) -> tuple[str, Any] | None:
    """(container, element type) of `list[X]`, `Sequence[X]` and `tuple[X, ...]`."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _LISTS and len(args) == 1:
        return "list", args[0]
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return "tuple", args[0]
    return None


def _literal(path: str, annotation: Any) -> Leaf:
    values = typing.get_args(annotation)
    given = tuple(v for v in values if v is not None)
    kinds = {type(v) for v in given}
    base = (
        {str: "str", int: "int", bool: "bool"}.get(next(iter(kinds))) if len(kinds) == 1 else None
    )
    if base is None:
        found = ", ".join(f"{v!r} ({type(v).__name__})" for v in values)
        raise BadSignature(
            "a Literal must hold only str, only int or only bool values (and None)",
            parameter=path,
            found=found,
            fix="use one kind, e.g. Literal['a', 'b'], or an Enum",
        )
    return Leaf(path, base, optional=len(given) < len(values), codec=Codec(given))


def _enum(path: str, cls: type[enum.Enum]) -> Leaf:
    if issubclass(cls, enum.Flag):
        raise BadSignature(
            f"{cls.__qualname__} is a Flag, whose combinations are not members",
            parameter=path,
            fix="use one bool per flag, or an Enum with a member per combination",
        )
    members = tuple(cls)
    if not members:
        raise BadSignature(
            f"{cls.__qualname__} is an Enum without members",
            parameter=path,
            fix="give it members, or use str or int",
        )
    values = [m.value for m in members]
    if all(isinstance(v, str) for v in values):
        return Leaf(path, "str", codec=Codec(members, cls))
    if all(isinstance(v, int) and not isinstance(v, bool) and fits_int64(v) for v in values):
        return Leaf(path, "int", codec=Codec(members, cls))
    return Leaf(path, "str", codec=Codec(members, cls, by="name"))


def _as_device(node: Node, default: Any) -> Any:
    """The default of a record's field may be a device's name."""
    device = isinstance(node, Leaf) and node.base == "Device" and not node.container
    return torch.device(default) if device and isinstance(default, str) else default


def _field_default(item: dataclasses.Field[Any]) -> Any:
    """The default that a field's leaf may have in the schema.

    A factory makes a new value per instance, so it gives none, unless it makes an empty list or
    tuple.
    """
    if item.default is not dataclasses.MISSING:
        return item.default
    if item.default_factory in (list, tuple):
        return item.default_factory()
    return MISSING


def _unsupported(path: str, annotation: Any) -> Exception:
    if is_union(annotation):
        return BadSignature(
            f"{spell(annotation)}: a schema argument has one type",
            parameter=path,
            found=" or ".join(spell(a) for a in typing.get_args(annotation)),
            fix="use one type (X, or X | None); for int or float use torch.types.Number",
        )
    origin = typing.get_origin(annotation) or annotation
    found = None
    if isinstance(origin, type) and issubclass(origin, (dict, collections.abc.Mapping)):
        found = "a dict-typed value, whose keys a schema cannot name"
        fix = "use a frozen dataclass with a field per key"
    elif isinstance(origin, type) and issubclass(origin, (set, frozenset, collections.abc.Set)):
        fix = "use a list, or a Literal or Enum per element"
    elif origin in (list, tuple, *_LISTS) or annotation in (typing.List, typing.Tuple):  # noqa: UP006
        fix = "give the element type: list[int], tuple[int, float], tuple[int, ...]"
    else:
        fix = (
            "use Tensor, int, float, bool, str, torch.types.Number, torch.dtype, torch.device, "
            "a list or tuple of those, a Literal, an Enum, a NamedTuple or a frozen dataclass"
        )
    return BadSignature(
        f"an operator's schema cannot express {spell(annotation)}",
        parameter=path,
        found=found,
        fix=fix,
    )


def _is_record(cls: type[Any]) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, tuple)


def _hashable(annotation: Any) -> bool:
    return isinstance(annotation, collections.abc.Hashable)
