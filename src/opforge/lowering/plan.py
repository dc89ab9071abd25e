"""Parameter tree -> flat signature and schema.

original   (q: Tensor, cfg: AttnCfg, mode: Literal['a', 'b'] = 'a') -> Tensor
lowered    (Tensor q, float cfg__scale, bool cfg__causal, str mode="a") -> Tensor
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..errors import BadDeclaration, BadOption
from ..model import (
    MISSING,
    FlatArgument,
    Leaf,
    Lowered,
    Node,
    Parameter,
    Record,
    Signature,
    leaves_of,
    lowered_name,
)
from .codegen import PREFIX, starred
from .defaults import flatten_default, schema_text


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
    slots = _slots(parameter.node, absent=False)
    return [
        FlatArgument(lowered_name(path), path, kind, leaf, default)
        for (path, kind, leaf), default in zip(slots, defaults, strict=True)
    ]


def _slots(node: Node, *, absent: bool) -> list[tuple[str, str, Leaf | None]]:
    """(path, schema type, leaf) per flat argument; `absent`: inside an optional record."""
    if isinstance(node, Leaf):
        return [(node.path, node.schema_type(optional=absent), node)]
    slots: list[tuple[str, str, Leaf | None]] = []
    if node.optional:
        slots.append((node.present_path, "bool?" if absent else "bool", None))
    for item in node.fields:
        slots += _slots(item.node, absent=absent or node.optional)
    return slots


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
    return None if leaf.container and argument.type.endswith("?") else schema_text(leaf, default)


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
