"""An op's declared backward as a body: gradients of outputs in, gradients of inputs out.

    scale(x, factor) -> out     body(grad_out, x, factor, out) -> [grad of x]

What `setup_context` saves, it saves of the tensors that C callers pass, right before the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..._compat.tracing import Traced
from ...errors import BadGradient
from ...registration.autograd import flatten_gradients, fold_needs, with_all_inputs
from ...registration.generated import Generated
from ...registry import Entry
from ..frontend.expand import Declared
from .views import same


class Context:
    """Stands for autograd's ctx."""

    def __init__(self, needs_input_grad: tuple[bool, ...], on_mark: Callable[[], None]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._on_mark = on_mark

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Any) -> None:
        self._on_mark()

    def _no_effect(self, *_: Any) -> None:
        """All gradients are given, and nothing goes forward."""

    set_materialize_grads = save_for_forward = _no_effect


def backward_body(
    entry: Entry, forward: Declared, on_mark: Callable[[], None]
) -> Callable[..., list[Any]]:
    """A function of the gradients, the op's C parameters and its outputs, in this order.

    It returns a gradient or None for each of these parameters. `on_mark` is called if an output
    is marked as not differentiable.
    """
    definition = entry.registration.definition
    backward = definition.backward
    assert backward is not None
    lowered = entry.flat()
    setup = with_all_inputs(lowered.signature, definition.setup_context)
    result = Generated(entry.name, entry.location, lowered).structure("_of_result")
    names = [param.name for param in forward.params]
    count = len(forward.outputs)

    def body(*given: Any) -> list[Any]:
        grads, outputs = given[:count], given[len(given) - count :]
        values = {**forward.constants, **dict(zip(names, given[count:], strict=False))}
        flat = tuple(_is_differentiable(values[a.name]) for a in lowered.arguments)
        ctx = Context(fold_needs(lowered.signature, flat), on_mark)
        if setup is not None:
            args, kwargs = forward.rebuilt(values.__getitem__)
            output = outputs[0] if count == 1 else outputs
            setup(ctx, (*args, *kwargs.values()), result(output))
        returned = backward(ctx, *grads)
        found = flatten_gradients(lowered.signature, returned, needed=ctx.needs_input_grad)
        by_name = {a.name: grad for a, grad in zip(lowered.arguments, found, strict=True)}
        own = _Own()
        return [own(name, by_name[name], values[name]) for name in names]

    return body


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


class _Own:
    """Gradients as autograd hands them on, each in memory of its own for C callers to bring."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def __call__(self, name: str, grad: Any, value: Any) -> Any:
        if grad is None or not _is_differentiable(value):
            return None
        grad = _summed(name, grad, value).to(value.dtype)
        if not isinstance(grad, Traced):
            return grad
        memory: Any = grad.memory
        is_whole = same(grad.offset, 0) and same(math.prod(grad.sizes), memory.count)
        if not (memory.allocated and is_whole) or id(memory) in self._taken:
            grad = grad.clone(memory_format=torch.contiguous_format)
        self._taken.add(id(grad.memory))
        return grad


def _summed(name: str, grad: Any, value: Any) -> Any:
    """Of the input's shape: autograd sums over what the op repeated."""
    more = grad.dim() - value.dim()
    pairs = list(zip(grad.shape[max(more, 0) :], value.shape, strict=False))
    repeated = [more + i for i, (g, v) in enumerate(pairs) if same(v, 1) and not same(g, 1)]
    if more < 0 or any(i + more not in repeated and g != v for i, (g, v) in enumerate(pairs)):
        raise BadGradient(
            f"backward returned a gradient of shape {tuple(grad.shape)} for {name}, whose shape is "
            f"{tuple(value.shape)}",
            parameter=name,
            fix="return a gradient of the input's shape",
        )
    if repeated:
        grad = grad.sum(repeated, keepdim=True)
    return grad.sum(list(range(more))) if more else grad
