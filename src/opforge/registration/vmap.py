"""Vmap rules: the user's, or one call per slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption
from ..model import Leaf, Lowered, Node, Record, leaves_of
from .callables import check_call, names_of
from .generated import Generated


def make_vmap_kernel(
    generated: Generated, overload: Any, rule: Callable[..., Any] | str
) -> Callable[..., Any]:
    """A kernel for the FuncTorchBatched key; its rule gets every flat argument by position."""
    lowered = generated.lowered
    call = _by_position(overload, lowered)
    flat_rule = sequential(call) if rule == "sequential" else _structured(generated, rule)

    def kernel(_keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if call is not overload:
            args, kwargs = tuple(lowered.by_name(args, kwargs).values()), {}
        # Of an op that returns what it mutates, the rule's result would be a copy.
        return lowered.itself(_compat.vmap_dispatch(flat_rule, call, args), args, kwargs)

    return kernel


def _by_position(function: Any, lowered: Lowered) -> Callable[..., Any]:
    """A function of flat arguments that takes even the keyword-only ones by position."""
    keyword_only = [a.name for a in lowered.arguments if a.keyword_only]
    if not keyword_only:
        return function  # type: ignore[no-any-return]

    def call(*flat: Any) -> Any:
        at = len(flat) - len(keyword_only)
        return function(*flat[:at], **dict(zip(keyword_only, flat[at:], strict=True)))

    return call


def check_vmap(rule: Any, fn: Callable[..., Any], lowered: Lowered) -> None:
    """Refuse at registration what would fail on the first call under torch.vmap."""
    if isinstance(rule, str) and rule == "sequential":
        return
    if not callable(rule):
        raise BadOption(
            f"vmap={rule!r} is neither a rule nor 'sequential'",
            fix="vmap='sequential', or a function (info, in_dims, *args) -> (output, out_dims)",
        )
    positional, keyword = names_of(fn)
    try:
        check_call("vmap", rule, ["info", "in_dims", *positional], keyword)
    except BadOption:
        # torch leaves out arguments that have their defaults, and so may such a rule.
        if not _takes_flat(lowered):
            raise
        shortest, _ = names_of(fn, required=True)
        if shortest == positional or not _accepts(rule, ["info", "in_dims", *shortest]):
            raise


def _accepts(rule: Callable[..., Any], positional: list[str]) -> bool:
    try:
        check_call("vmap", rule, positional)
    except BadOption:
        return False
    return True


def _takes_flat(lowered: Lowered) -> bool:
    """Whether a rule gets what the dispatcher passes, as it is."""
    return lowered.path == "direct" and not any(a.keyword_only for a in lowered.arguments)


def sequential(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call the op once per slice and stack the results."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        results = [
            call(*[_slice(a, d, i) for a, d in zip(args, in_dims, strict=True)])
            for i in range(info.batch_size)
        ]
        if all(r is None for r in results):
            return None, None
        if not isinstance(results[0], (tuple, list)):
            return _stack(results), 0
        stacked = [_stack(list(column)) for column in zip(*results, strict=True)]
        return type(results[0])(stacked), type(results[0])([0] * len(stacked))

    return rule


def _slice(value: Any, dim: Any, index: int) -> Any:
    if isinstance(value, (list, tuple)):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return [_slice(v, d, index) for v, d in zip(value, dims, strict=True)]
    return value if dim is None else value.select(dim, index)


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values)
    if isinstance(values[0], (list, tuple)):
        return [torch.stack(list(column)) for column in zip(*values, strict=True)]
    raise TypeError(f"vmap='sequential' cannot stack outputs of type {type(values[0]).__name__}")


def _structured(generated: Generated, rule: Any) -> Callable[..., Any]:
    """A rule on original arguments, as a rule on flat ones."""
    lowered = generated.lowered
    if _takes_flat(lowered):
        return rule  # type: ignore[no-any-return]
    parameters = lowered.signature.parameters

    def flat_rule(info: Any, in_dims: Any, *flat: Any) -> Any:
        values = _by_position(generated.structure("_of_inputs"), lowered)(*flat)
        dims = [*in_dims, *[None] * (len(lowered.arguments) - len(in_dims))]
        structured = tuple(rebuild_plain(p.node, dims) for p in parameters)
        positional = [v for v, p in zip(values, parameters, strict=True) if not p.keyword_only]
        keyword = {p.name: v for v, p in zip(values, parameters, strict=True) if p.keyword_only}
        output, out_dims = rule(info, structured, *positional, **keyword)
        return generated.structure("_of_flat")(output), _flat_dims(lowered, out_dims)

    return flat_rule


def rebuild_plain(node: Node, flat: list[Any]) -> Any:
    """Values such as batch dimensions, structured like the parameter (consumes `flat`)."""
    if isinstance(node, Leaf):
        return flat.pop(0)
    if node.optional:
        flat.pop(0)
    return node.holding([rebuild_plain(item.node, flat) for item in node.fields])


def _flat_dims(lowered: Lowered, out_dims: Any) -> Any:
    returns = lowered.signature.returns
    if not isinstance(returns, Record):
        return out_dims
    flat = _flatten_plain(returns, out_dims)
    return flat[0] if len(flat) == 1 else tuple(flat)


def _flatten_plain(node: Node, value: Any) -> list[Any]:
    if isinstance(node, Leaf) or value is None or isinstance(value, int):
        return [value for _ in leaves_of(node)]
    flat: list[Any] = []
    for index, item in enumerate(node.fields):
        part = value[index] if isinstance(value, tuple) else getattr(value, item.name)
        flat += _flatten_plain(item.node, part)
    return flat
