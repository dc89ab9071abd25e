"""Backward passes of fake CUDA tensors on machines without a GPU.

Torch's engine asks the machine's accelerator for a stream before it runs a node of a CUDA tensor,
even a fake one, and fails where there is none. The nodes themselves can be called, so they are
called here, each after all that leads to it. Tensor hooks do not run.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import patches

_Edge = tuple[Any, int]


def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `_engine_run_backward`, which runs nodes of fake CUDA tensors itself."""

    @functools.wraps(original)
    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if any(map(_is_fake, outputs)) and not _has_accelerator():
            return _run(outputs, *args, **kwargs)
        return original(outputs, *args, **kwargs)

    return run_backward


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.device.type == "cuda"


def _has_accelerator() -> bool:
    return bool(patches.original(torch.accelerator, "is_available")())


def _run(
    outputs: Sequence[Any],
    gradients: Sequence[Any],
    _retain_graph: Any,
    create_graph: Any,
    inputs: Sequence[Any],
    allow_unused: Any = None,
    *,
    accumulate_grad: bool,
    **_: Any,
) -> tuple[Any, ...]:
    roots, wanted = [*map(_edge, outputs)], [*map(_edge, inputs)]
    arriving: dict[Any, dict[int, Any]] = collections.defaultdict(dict)
    for (node, at), gradient in zip(roots, gradients, strict=True):
        _add(arriving[node], at, gradient)
    captured: dict[_Edge, Any] = {}
    with torch.set_grad_enabled(create_graph):
        for node in _in_order(node for node, _ in roots):
            grads = {at: _as_output(node, at, grad) for at, grad in arriving.pop(node, {}).items()}
            captured |= {(node, at): grad for at, grad in grads.items()}
            if hasattr(node, "variable"):
                if accumulate_grad and not inputs:
                    _accumulate(node.variable, grads.get(0))
            elif grads:
                for (following, at), grad in _called(node, grads):
                    _add(arriving[following], at, grad)
        found = tuple(captured.get(edge) for edge in wanted)
        if accumulate_grad:
            for given, grad in zip(inputs, found, strict=True):
                _accumulate(given, grad)
    if not accumulate_grad and not allow_unused and any(grad is None for grad in found):
        raise RuntimeError(
            "a differentiated tensor was not used in the graph; allow_unused=True gives None"
        )
    return found


def _edge(value: Any) -> _Edge:
    edge = torch.autograd.graph.get_gradient_edge(value) if torch.is_tensor(value) else value
    return edge[0], edge[1]


def _add(grads: dict[int, Any], at: int, grad: Any) -> None:
    if grad is not None:
        grads[at] = grad if grads.get(at) is None else grads[at] + grad


def _as_output(node: Any, at: int, grad: Any) -> Any:
    """In the shape and dtype of what the gradient is of, as the engine hands it to a node."""
    of = node.variable if hasattr(node, "variable") else node._input_metadata[at]
    shape = tuple(of.shape)
    return (grad if tuple(grad.shape) == shape else grad.sum_to_size(shape)).to(of.dtype)


def _accumulate(tensor: Any, grad: Any) -> None:
    if grad is not None:
        tensor.grad = grad if tensor.grad is None else tensor.grad + grad


def _in_order(roots: Iterable[Any]) -> Iterator[Any]:
    """Every node of a graph, after all nodes that lead to it."""
    waiting, counts = [*dict.fromkeys(roots)], collections.Counter[Any]()
    known = set(waiting)
    for node in waiting:
        for following in _following(node):
            counts[following] += 1
            if following not in known:
                known.add(following)
                waiting.append(following)
    ready = [node for node in known if not counts[node]]
    for node in ready:
        yield node
        for following in _following(node):
            counts[following] -= 1
            if not counts[following]:
                ready.append(following)


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _called(node: Any, grads: dict[int, Any]) -> list[tuple[_Edge, Any]]:
    """The gradients that a node hands on, by where they go."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    outputs = node._input_metadata
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        given = [grads.get(at, _zeros(meta)) for at, meta in enumerate(outputs)]
        returned = _as_tuple(node.apply(*given))
        # One per argument of forward, where only tensors have an edge.
        pairs = zip(returned, node.needs_input_grad, strict=False)
        return [*zip(edges, (grad for grad, needed in pairs if needed), strict=True)]
    given = [grads.get(at) for at in range(len(outputs))]
    returned = _as_tuple(node(*given))
    pairs = zip(node.next_functions, returned, strict=False)
    return [(edge, grad) for edge, grad in pairs if edge[0] is not None]


def _zeros(meta: Any) -> torch.Tensor:
    return torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)
