"""Parameter tree -> flat signature and schema, and a schema that the user wrote -> the same.

original   (q: Tensor, cfg: AttnCfg, mode: Literal['a', 'b'] = 'a') -> Tensor
lowered    (Tensor q, float cfg__scale, bool cfg__causal, str mode="a") -> Tensor
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadDeclaration, BadOption, BadSignature
from ..model import (
    MISSING,
    Field,
    FlatArgument,
    Leaf,
    Lowered,
    Node,
    Parameter,
    Record,
    Signature,
    fits_int64,
    flat_width,
    leaves_of,
    lowered_name,
    slots_of,
)
from .codegen import PREFIX, starred


def lower(signature: Signature, mutates_args: str | Iterable[str] = ()) -> Lowered:
    """Flatten a signature into schema arguments with their defaults, and choose the call path."""
    bare = [a for p in signature.parameters for a in _flatten_parameter(p)]
    _refuse_collisions(bare)
    mutated = mutated_names(signature, bare, mutates_args) if mutates_args else set()
    arguments, notes, wrapper = _place_defaults(signature, bare, mutated)
    returns = tuple(leaves_of(signature.returns)) if signature.returns else ()
    if wrapper:
        path = "flattened"
    else:
        path = "lowered" if any(_changes(p) for p in signature.parameters) else "direct"
    schema = schema_of(arguments, returns)
    return Lowered(signature, tuple(arguments), returns, schema, path, tuple(notes))


def schema_of(
    arguments: Sequence[FlatArgument], returns: Sequence[Leaf], returned: Sequence[str] = ()
) -> str:
    """The schema's text; `returned` names the mutated arguments that are what the op returns."""
    at = {argument.name: index for index, argument in enumerate(arguments)}
    aliases = [f"(a{at[name]}!)" for name in returned] or [""] * len(returns)
    words = [leaf.schema_type(alias=a) for leaf, a in zip(returns, aliases, strict=True)]
    text = words[0] if len(words) == 1 else f"({', '.join(words)})"
    return f"({_arguments_text(arguments)}) -> {text}"


def mutated_names(
    signature: Signature, arguments: Sequence[FlatArgument], mutates_args: str | Iterable[str]
) -> set[str]:
    """The flat tensor arguments that `mutates_args` names, in any of its spellings."""
    if mutates_args == "unknown":
        return {a.name for a in arguments if a.is_tensor}
    if isinstance(mutates_args, str):
        raise BadOption(
            f"mutates_args={mutates_args!r} is a string",
            fix=f"mutates_args=[{mutates_args!r}], or 'unknown' for all tensors",
        )
    if not isinstance(mutates_args, Iterable):
        raise BadOption(
            f"mutates_args={mutates_args!r} is not a list of parameter names",
            fix="mutates_args=['x'], or 'unknown' for all tensors",
        )
    return {
        argument.name
        for name in mutates_args
        for argument in _select(signature, arguments, name, "mutates_args")
    }


def select_tensor(lowered: Lowered, name: str, option: str) -> FlatArgument:
    """The one tensor argument that a name such as `x`, `cfg__x` or `cfg.x` refers to."""
    chosen = _select(lowered.signature, lowered.arguments, name, option)
    if len(chosen) != 1:
        raise BadOption(
            f"{option} names {name!r}, which holds {len(chosen)} tensors",
            parameter=name,
            fix=f"name one of them: {', '.join(a.path for a in chosen)}",
        )
    return chosen[0]


def _select(
    signature: Signature, arguments: Sequence[FlatArgument], name: str, option: str
) -> list[FlatArgument]:
    path = name.replace("__", ".") if name not in {a.path for a in arguments} else name
    # The op is called by the schema's names, one of which may be another parameter's own.
    exact = [a for a in arguments if a.name == name] or [a for a in arguments if a.path == name]
    below = [a for a in arguments if a.path.startswith((f"{name}.", f"{path}."))]
    valid = _valid_names(signature, [a for a in arguments if a.is_tensor])
    if not exact and not below:
        close = difflib.get_close_matches(name, valid, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise BadOption(
            f"{option} names {name!r}, which does not match any parameter",
            parameter=name,
            fix=f"{hint}valid names: {', '.join(valid) or 'none, the op takes no tensors'}",
        )
    chosen = [a for a in (exact or below) if a.is_tensor]
    if not chosen:
        raise BadOption(
            f"{option} names {name!r}, which holds no tensor",
            parameter=name,
            found=", ".join(f"{a.path}: {a.type}" for a in exact or below),
            fix=f"valid names: {', '.join(valid)}",
        )
    return chosen


def _valid_names(signature: Signature, tensors: list[FlatArgument]) -> list[str]:
    records = [p.name for p in signature.parameters if isinstance(p.node, Record)]
    holders = [n for n in records if any(a.path.startswith(f"{n}.") for a in tensors)]
    return [*dict.fromkeys(holders + [a.path for a in tensors])]


def _flatten_parameter(parameter: Parameter) -> list[FlatArgument]:
    defaults = flatten_default(parameter.node, parameter.default, parameter.name)
    slots = slots_of(parameter.node)
    return [
        FlatArgument(lowered_name(path), path, kind, leaf, default)
        for (path, kind, leaf), default in zip(slots, defaults, strict=True)
    ]


def _refuse_collisions(arguments: list[FlatArgument]) -> None:
    for argument in arguments:
        if argument.name.startswith(PREFIX):
            raise BadDeclaration(
                f"names that start with {PREFIX!r} are reserved for generated code",
                parameter=argument.path,
                fix="rename it",
            )
    seen: dict[str, FlatArgument] = {}
    for argument in arguments:
        twin = seen.setdefault(argument.name, argument)
        if twin is not argument:
            raise BadDeclaration(
                f"{twin.path!r} and {argument.path!r} both lower to {argument.name!r}",
                parameter=argument.path,
                fix="rename one of them",
            )


def _place_defaults(
    signature: Signature, arguments: list[FlatArgument], mutated: set[str]
) -> tuple[list[FlatArgument], list[str], bool]:
    """Write defaults into the schema where it can hold them.

    It cannot hold a value that it cannot spell, nor a default before a required argument. Either
    makes the op flattened, so that the callable supplies the default, unless the required
    argument is keyword-only: `(float s=1.0, *, Tensor w)`.
    """
    notes: list[str] = []
    texts = [_default_text(a) for a in arguments]
    unspellable = [a.path for a, text in zip(arguments, texts, strict=True) if text is None]
    wrapper = bool(unspellable) or _taken_apart(signature)
    if unspellable:
        notes.append(
            f"the callable supplies the default of {', '.join(unspellable)}, which a schema cannot "
            "express"
        )
    # A flattened op's callable has the user's signature; what it calls may take all by position.
    keyword_only = sum(p.keyword_only for p in signature.parameters)
    star = len(arguments) - (0 if wrapper else keyword_only)
    placed: list[FlatArgument] = []
    required_after = False
    for index in reversed(range(len(arguments))):
        argument, text = arguments[index], texts[index]
        keep = bool(text) and not (wrapper and required_after)
        if text and not keep:
            notes.append(
                f"the callable supplies the default of {argument.path}, which in the schema would "
                "precede a required argument"
            )
        required_after = required_after or not keep
        placed.append(
            replace(
                argument,
                default=argument.default if keep else MISSING,
                default_text=text if keep and text else "",
                keyword_only=index >= star,
                mutated=argument.name in mutated,
            )
        )
    return placed[::-1], notes, wrapper


def _default_text(argument: FlatArgument) -> str | None:
    """The default in the schema language; "" for none, None where it cannot be spelled."""
    leaf, default = argument.leaf, argument.default
    if default is MISSING:
        return ""
    if default is None or leaf is None:
        return str(default)
    return None if leaf.container and argument.is_optional else schema_text(leaf, default)


def _taken_apart(signature: Signature) -> bool:
    nodes = [p.node for p in signature.parameters]
    if any(isinstance(n, Record) or (n.codec and not n.codec.passes_through) for n in nodes):
        return True
    returns = signature.returns
    if isinstance(returns, Leaf) or returns is None:
        return returns is not None and returns.container == "tuple"
    plain = returns.kind == "tuple" and len(returns.fields) > 1
    return not plain or any(
        isinstance(f.node, Record) or f.node.container == "tuple" for f in returns.fields
    )


def _changes(parameter: Parameter) -> bool:
    node = parameter.node
    assert isinstance(node, Leaf)
    return (
        bool(node.codec) or node.container == "tuple" or parameter.kind != "positional-or-keyword"
    )


def _arguments_text(arguments: Sequence[FlatArgument]) -> str:
    parts: list[str] = []
    for index, argument in enumerate(arguments):
        kind = argument.type
        if argument.mutated:
            kind = f"Tensor(a{index}!){kind.removeprefix('Tensor')}"
        default = f"={argument.default_text}" if argument.default_text else ""
        parts.append(f"{kind} {argument.name}{default}")
    return ", ".join(starred(parts, arguments))


_WORDS = {"Layout": "strided", "MemoryFormat": "contiguous_format"}
_TORCH_KINDS = {
    "ScalarType": "dtype",
    "Device": "device",
    "Layout": "layout",
    "MemoryFormat": "memory_format",
}


def flatten_default(node: Node, value: Any, parameter: str) -> list[Any]:
    """A parameter's or field's default as one encoded value per flat argument of its node."""
    if isinstance(node, Leaf):
        return [_encode_default(node, value, parameter)]
    if value is MISSING:
        flags = [MISSING] if node.optional else []
        return flags + [
            v for f in node.fields for v in flatten_default(f.node, f.default, parameter)
        ]
    if value is None:
        if not node.optional:
            raise _misfit(parameter, value, f"{node.cls.__name__}", f"{node.cls.__name__} | None")
        return [False, *[None] * (flat_width(node) - 1)]
    flat: list[Any] = [True] if node.optional else []
    for item, part in zip(node.fields, _default_parts(node, value, parameter), strict=True):
        flat += flatten_default(item.node, part, parameter)
    return flat


def schema_text(leaf: Leaf, value: Any) -> str | None:
    r"""An encoded default in the schema language, or None where it cannot spell the value.

    1e-5 on a float -> "1e-05", "it's" on a str -> "\"it's\"", inf on a float -> None
    """
    if value is None:
        return "None"
    if leaf.container:
        # `int[]? a=[1]`, `str[] a=[]` and `Tensor?[] a=[]` do not parse.
        if (
            leaf.optional
            or leaf.element_optional
            or leaf.base not in ("SymInt", "int", "float", "bool")
        ):
            return None
        words = [_word(leaf.base, v) for v in value]
        return None if None in words else f"[{', '.join(w for w in words if w)}]"
    return _word(leaf.base, value)


def _word(base: str, value: Any) -> str | None:
    if base == "str":
        return _quoted(value)
    if base == "Device":
        return f'"{value}"'
    if base == "ScalarType":
        return str(value).removeprefix("torch.")
    if base in _WORDS:
        return _WORDS[base] if str(value) == f"torch.{_WORDS[base]}" else None
    if isinstance(value, bool) and base in ("bool", "Scalar"):
        return str(value)
    if isinstance(value, complex):
        return None
    if base in ("SymInt", "int"):
        return str(int(value))
    if isinstance(value, float):
        # -0.0 equals 0.0, and the dispatcher drops arguments that equal their default. torch's
        # parser refuses subnormal numbers.
        plain_zero = value == 0 and math.copysign(1, value) > 0
        normal = math.isfinite(value) and abs(value) >= sys.float_info.min
        return repr(value) if normal or plain_zero else None
    return str(value)


def _quoted(text: str) -> str | None:
    if any(ord(c) < 32 and c not in "\n\t" for c in text):
        return None
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    )
    return f'"{escaped}"'


def _encode_default(leaf: Leaf, value: Any, parameter: str) -> Any:
    if value is MISSING:
        return MISSING
    wanted = leaf.base + ("[]" if leaf.container else "")
    if value is None:
        if leaf.optional:
            return None
        raise _misfit(parameter, value, wanted, "X | None")
    if not leaf.container:
        return _encode_element(leaf, value, parameter)
    if not isinstance(value, (list, tuple)):
        raise _misfit(parameter, value, wanted, "a list")
    return [
        None if v is None and leaf.element_optional else _encode_element(leaf, v, parameter)
        for v in value
    ]


def _encode_element(leaf: Leaf, value: Any, parameter: str) -> Any:
    if leaf.codec is not None:
        if leaf.codec.cls is None:
            if value in leaf.codec.values and type(value) in {type(v) for v in leaf.codec.values}:
                return value
        elif isinstance(value, leaf.codec.cls) or value in [m.value for m in leaf.codec.values]:
            return leaf.codec.encode(value)
        allowed = ", ".join(repr(v) for v in leaf.codec.values)
        raise _misfit(parameter, value, f"one of {allowed}", allowed)
    if not _is_of_base(leaf.base, value):
        raise _misfit(parameter, value, leaf.base, _example(leaf.base))
    if leaf.base in ("SymInt", "int"):
        return int(value)
    return float(value) if leaf.base == "float" else value


# Of other bases a default's type is named as in `_TORCH_KINDS`.
_DEFAULTS: dict[str, tuple[type[Any], ...]] = {
    "SymInt": (int,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "Scalar": (int, float, complex),
    "Device": (str,),
}


def _is_of_base(base: str, value: Any) -> bool:
    if isinstance(value, _DEFAULTS.get(base, ())):
        return base not in ("SymInt", "int") or fits_int64(value)
    return base in _TORCH_KINDS and type(value).__name__ == _TORCH_KINDS[base]


def _default_parts(node: Record, value: Any, parameter: str) -> list[Any]:
    if node.kind == "tuple":
        if not isinstance(value, (tuple, list)) or len(value) != len(node.fields):
            raise _misfit(parameter, value, f"a tuple of {len(node.fields)}", "such a tuple")
        return list(value)
    fits = node.duck and all(hasattr(value, item.name) for item in node.fields)
    if type(value) is not node.cls and not fits:
        raise _misfit(parameter, value, node.cls.__name__, f"an instance of {node.cls.__name__}")
    return [getattr(value, item.name) for item in node.fields]


def _example(base: str) -> str:
    if base == "Tensor":
        return "Optional[Tensor] = None, and make the tensor in the body"
    return f"a default of type {_TORCH_KINDS.get(base, base).replace('SymInt', 'int')}"


def _misfit(parameter: str, value: Any, wanted: str, fix: str) -> BadSignature:
    return BadSignature(
        f"the default {value!r} cannot be represented as {wanted}",
        parameter=parameter,
        found=type(value).__name__,
        fix=f"use {fix}",
    )


def lower_given(
    schema: str,
    kinds: Mapping[str, str],
    arguments: Sequence[tuple[str, str, bool, bool, bool]],
    defaults: Mapping[str, Any],
    returns: Sequence[str],
) -> Lowered:
    """`kinds`: parameter name -> kind; `arguments` and `returns` as torch parsed them.

    An argument and a parameter belong together by their place, and may differ in their names.
    The op is called by the argument's, so that is the leaf's; the parameter keeps its own.
    """
    _refuse_other_parameters(arguments, kinds)
    flat, parameters = [], []
    for (name, printed, has_default, keyword_only, mutated), own in zip(
        arguments, kinds, strict=True
    ):
        leaf = _parsed_leaf(name, printed)
        default = defaults[name] if has_default else MISSING
        parameters.append(Parameter(own, kinds[own], leaf, default))
        flat.append(
            FlatArgument(
                name,
                own,
                leaf.schema_type(),
                leaf,
                default,
                keyword_only=keyword_only,
                mutated=mutated,
            )
        )
    leaves = [
        _parsed_leaf("return" if len(returns) == 1 else f"return.{i}", r)
        for i, r in enumerate(returns)
    ]
    node: Node | None = leaves[0] if len(leaves) == 1 else None
    if len(leaves) > 1:
        node = Record(
            "return", "tuple", tuple, tuple(Field(str(i), leaf) for i, leaf in enumerate(leaves))
        )
    return Lowered(Signature(tuple(parameters), node), tuple(flat), tuple(leaves), schema, "direct")


def _refuse_other_parameters(
    arguments: Sequence[tuple[str, str, bool, bool, bool]], kinds: Mapping[str, str]
) -> None:
    """Refuse a schema that does not fit the parameters."""
    names = [a[0] for a in arguments]
    renamed = [
        keyword_only or kinds[own] == "keyword-only"
        for (name, _, _, keyword_only, _), own in zip(arguments, kinds, strict=False)
        if name != own
    ]
    if len(names) != len(kinds) or any(renamed):
        raise BadDeclaration(
            "the schema's arguments do not match the function's parameters",
            found=f"schema: {', '.join(names)}; function: {', '.join(kinds)}",
            fix="one argument per parameter, in the same order; keyword-only ones keep their names",
        )


def _parsed_leaf(path: str, printed: str) -> Leaf:
    """A leaf from a type as torch prints it: `Optional[List[Tensor]]`."""
    optional, inner = _peel("Optional", printed)
    listed, inner = _peel("List", inner)
    element_optional = False
    if listed:
        element_optional, inner = _peel("Optional", inner)
    return Leaf(path, inner, optional, "list" if listed else "", element_optional)


def _peel(wrapper: str, printed: str) -> tuple[bool, str]:
    match = re.fullmatch(rf"{wrapper}\[(.*)\]", printed)
    return (True, match[1]) if match else (False, printed)


def return_mutated(lowered: Lowered, tag: str, *, is_given: bool = False) -> Lowered:
    """The same op, whose schema says that it returns the arguments that it mutates.

    inplace    (Tensor(a0!) x, Tensor y) -> Tensor(a0!)
    out        (Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)

    `is_given`: the user wrote the schema, so it stays as it is.
    """
    mutated, signature = lowered.mutated, lowered.signature
    keyword_only = {p.name for p in signature.parameters if p.keyword_only}
    if tag == "inplace":
        fits = mutated == lowered.arguments[:1] and not any(a.keyword_only for a in mutated)
        kind = "whose first parameter is a tensor and all that it mutates"
        fix = "mutates_args must name the first parameter and no other, or remove the tag"
    else:
        fits = all(a.path in keyword_only for a in mutated)
        kind = "that mutates keyword-only tensors and nothing else"
        fix = "def op(x: Tensor, *, out: Tensor) -> Tensor, with mutates_args=['out']; or remove "
        fix += "the tag"
    if not mutated or not fits or any(a.type != "Tensor" for a in mutated):
        found = f"mutates {[a.path for a in mutated]}"
        raise BadOption(f"torch.Tag.{tag} is for an op {kind}", found=found, fix=fix)
    types = [leaf.schema_type() for leaf in lowered.returns]
    returns = signature.returns
    plain = isinstance(returns, Leaf) or (returns is not None and returns.kind == "tuple")
    if not plain or types != ["Tensor"] * len(mutated):
        what = ", ".join(a.name for a in mutated)
        raise BadOption(
            f"an op with torch.Tag.{tag} returns the tensors that it mutates: {what}",
            found=f"-> ({', '.join(types)})",
            fix=f"annotate -> {'Tensor' if len(mutated) == 1 else 'a tuple of tensors'}, "
            f"and return {what}",
        )
    if lowered.path == "flattened":
        raise BadOption(
            f"torch.Tag.{tag} needs parameters that a schema can express as they are",
            found=lowered.schema,
            fix="remove the tag and the returned tensor; mutates_args alone says what is mutated",
        )
    names = tuple(a.name for a in mutated)
    schema = lowered.schema if is_given else schema_of(lowered.arguments, lowered.returns, names)
    return replace(lowered, schema=schema, returned=names)


def lenient(signature: Signature) -> Signature:
    """The same signature as a lenient dialect reads it, with parameters that take more.

    x: Enum of texts       a member reaches the body as a member, a value as the value
    x: frozen dataclass    anything with its attributes is taken
    """
    parameters = (replace(p, node=_widen(p.node)) for p in signature.parameters)
    return replace(signature, parameters=tuple(parameters))


def _widen(node: Node) -> Node:
    if isinstance(node, Record):
        fields = tuple(replace(item, node=_widen(item.node)) for item in node.fields)
        return replace(node, fields=fields, duck=node.kind == "dataclass")
    codec = node.codec
    if codec is None or codec.cls is None or codec.passes_through or node.base != "str":
        return node
    return replace(node, codec=replace(codec, by="given")) if codec.by == "value" else node
