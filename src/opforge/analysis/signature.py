"""Annotations -> parameter tree, and a schema that the user wrote, checked against the function.

(q: Tensor, cfg: AttnCfg, mode: Literal['a', 'b'] = 'a') -> Tensor
[Leaf q: Tensor] [Record cfg: Leaf cfg.scale, Leaf cfg.causal] [Leaf mode: str, Codec('a', 'b')]
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import (
    BadDeclaration,
    BadSignature,
    first_line,
)
from ..model import (
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
        if isinstance(annotation, collections.abc.Hashable) and annotation in _BASES:
            return Leaf(path, _BASES[annotation])
        if typing.get_origin(annotation) is typing.Literal:
            return _literal(path, annotation)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return _enum(path, annotation)
        if (element := _element(annotation)) is not None:
            return self._list(path, annotation, *element)
        if not isinstance(annotation, type):
            return None
        if dataclasses.is_dataclass(annotation) or issubclass(annotation, tuple):
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


Scope = Mapping[str, Any]

# What evaluating a bad annotation raises: an unknown name, `int +`, `torch.Tensr`, `Tensor[int]`.
_NOT_AN_ANNOTATION = (NameError, SyntaxError, AttributeError, TypeError)


def resolve_hints(
    fn: Callable[..., Any], signature: inspect.Signature, scope: Scope
) -> dict[str, Any]:
    """Parameter name (and "return") -> type; refuses a function that lacks annotations.

    `scope` holds the names visible where the function was decorated: a stringified annotation
    does not make the enclosing function keep them in a closure.
    """
    missing = [n for n, p in signature.parameters.items() if p.annotation is p.empty]
    if signature.return_annotation is inspect.Signature.empty:
        missing.append("return")
    if missing:
        raise BadSignature(
            f"no type annotation on {', '.join(missing)}",
            parameter=missing[0] if missing[0] != "return" else None,
            found=f"def {fn.__name__}{signature}",
            fix="annotate every parameter and the return value (-> None if nothing is returned)",
        )
    visible = {**scope, **_closure(fn)}
    try:
        return typing.get_type_hints(fn, localns=visible, include_extras=True)
    except _NOT_AN_ANNOTATION as error:
        raise unresolved(error, _who_says(signature, fn, visible)) from error


def resolve_class_hints(cls: type[Any], scope: Scope, parameter: str) -> dict[str, Any]:
    """Field name -> type, for a dataclass or a NamedTuple."""
    with contextlib.suppress(*_NOT_AN_ANNOTATION):
        # A name of the class's own module comes before one where the op is decorated.
        return typing.get_type_hints(cls, include_extras=True)
    try:
        return typing.get_type_hints(cls, localns=dict(scope), include_extras=True)
    except _NOT_AN_ANNOTATION as error:
        raise unresolved(error, parameter) from error


def unresolved(error: Exception, parameter: str | None) -> BadSignature:
    return BadSignature(
        f"unresolved string annotation: {error}",
        parameter=parameter,
        fix="use a type that is imported or defined where the function is decorated "
        "(not only under `if TYPE_CHECKING:`)",
    )


def strip(annotation: Any) -> Any:
    """See through `Annotated`, `NewType` and `type X = ...` aliases, as deep as they go."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """`X | None` -> (X, True); anything else unchanged. `A | B | None` -> (A | B, True)."""
    if not is_union(annotation):
        return annotation, False
    args = typing.get_args(annotation)
    rest = tuple(a for a in args if a is not type(None))
    if len(rest) == len(args):
        return annotation, False
    return (rest[0] if len(rest) == 1 else typing.Union[rest]), True  # noqa: UP007  # built from a tuple


def is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def spell(annotation: Any) -> str:
    """An annotation as the user would write it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def user_scope(fn: types.FunctionType) -> dict[str, Any]:
    """Local names that `fn`'s annotations may use: those of the functions and classes around it.

    A function is decorated where it is defined, so the code around it is running: the nearest
    frame outside opforge, and the frames of the same module that called it. A function at module
    level has none.
    """
    if "." not in fn.__qualname__:
        return {}
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "opforge":
        frame = frame.f_back
    home = fn.__globals__
    scope: dict[str, Any] = {}
    while frame is not None and frame.f_globals is home:
        if frame.f_locals is not home:
            scope = {**frame.f_locals, **scope}
        frame = frame.f_back
    return scope


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(fn)
    cells = getattr(inner, "__closure__", None) or ()
    names = inner.__code__.co_freevars if hasattr(inner, "__code__") else ()
    found = {}
    for name, cell in zip(names, cells, strict=False):
        # A name bound after the decoration has an empty cell.
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _who_says(
    signature: inspect.Signature, fn: Callable[..., Any], visible: dict[str, Any]
) -> str | None:
    """The first parameter whose annotation does not resolve by itself."""
    hints = {n: p.annotation for n, p in signature.parameters.items()}
    hints["return"] = signature.return_annotation
    for name, annotation in hints.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            typing.get_type_hints(alone, fn.__globals__, visible)
        except _NOT_AN_ANNOTATION:
            return name
    return None


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
