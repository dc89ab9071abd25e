"""Runs a backward that a library carries: calls of its own operators on what was saved."""

from __future__ import annotations

from typing import Any

import torch

from ..native.ir.interface import Op
from .arguments import unflat


class Formula:
    """`save` and `backward` of an op, made from the manifest's terms for its gradients."""

    def __init__(self, op: Op) -> None:
        self._gradients = op.formula
        self._used = sorted(_used(op.formula))

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        held = {"input": inputs, "output": outputs}
        values = [held[kind][index] for kind, index in self._used]
        tensors = [v if isinstance(v, torch.Tensor) else None for v in values]
        ctx.save_for_backward(*tensors)
        ctx.opforge_numbers = [None if isinstance(v, torch.Tensor) else v for v in values]

    def backward(self, ctx: Any, *grads: Any) -> Any:
        pairs = zip(ctx.saved_tensors, ctx.opforge_numbers, strict=True)
        values = [number if tensor is None else tensor for tensor, number in pairs]
        known = dict(zip(self._used, values, strict=True))
        # Autograd passes expanded gradients, which a library for compact tensors refuses.
        known |= {
            ("grad", i): g.contiguous() if isinstance(g, torch.Tensor) else g
            for i, g in enumerate(grads)
        }
        done: dict[Any, Any] = {}
        made = tuple(None if t is None else _run(t, known, done) for t in self._gradients)
        return made if len(made) > 1 else made[0]


def _used(terms: Any) -> set[tuple[str, int]]:
    found = set()
    for term in terms:
        if isinstance(term, tuple):
            if term[0] in {"input", "output"}:
                found.add(term)
            elif term[0] in {"call", "item"}:
                found |= _used(term[1:])
    return found


def _run(term: Any, known: dict[Any, Any], done: dict[Any, Any]) -> Any:
    """The value of a term; a call that several gradients use is made once."""
    kind, *rest = term
    if kind == "value":
        return unflat(rest[0])
    if kind == "item":
        return _run(rest[0], known, done)[rest[1]]
    if kind != "call":
        return known[term]
    if term not in done:
        namespace, _, name = rest[0].partition("::")
        op = getattr(getattr(torch.ops, namespace), name).default
        done[term] = op(*[_run(argument, known, done) for argument in rest[1:]])
    return done[term]
