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

from . import patches

_Edge = tuple[Any, int]


def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `_engine_run_backward`, which runs nodes of fake CUDA tensors itself."""

    @functools.wraps(original)
    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not has_accelerator() and _reach_cuda(outputs):
            return _run(outputs, *args, **kwargs)
        return original(outputs, *args, **kwargs)

    return run_backward


def _reach_cuda(outputs: Iterable[Any]) -> bool:
    """Whether a node of a graph is of CUDA tensors, which are fake where there is no GPU.

    Its outputs may be on the CPU, or wrapped.
    """
    roots = [_edge(o)[0] for o in outputs if not torch.is_tensor(o) or o.requires_grad]
    metas = (meta for node in _in_order(roots) for meta in _metas(node))
    return any(meta.device.type == "cuda" for meta in metas)


def _metas(node: Any) -> Sequence[Any]:
    """What is known of the gradients that a node takes: shape, dtype and device."""
    return (node.variable,) if hasattr(node, "variable") else node._input_metadata


def has_accelerator() -> bool:
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
    of = _metas(node)[at]
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
    edges: Sequence[_Edge] = [edge for edge in node.next_functions if edge[0] is not None]
    outputs = node._input_metadata
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        given = [grads.get(at, _zeros(meta)) for at, meta in enumerate(outputs)]
        returned = _as_tuple(node.apply(*given))
        # One per argument of forward, where only tensors have an edge. An op of opforge sets
        # `needs_input_grad` anew, and has kept which arguments are tensors.
        needed: Sequence[Any] = node.needs_input_grad
        shapes = getattr(node, "opforge_shapes", None)
        if shapes is not None:
            returned, needed = returned[-len(shapes) :], [shape is not None for shape in shapes]
            edges = node.next_functions
        pairs = zip(returned, needed, strict=False)
        found = zip(edges, (grad for grad, is_needed in pairs if is_needed), strict=True)
        return [(edge, grad) for edge, grad in found if edge[0] is not None]
    given = [grads.get(at) for at in range(len(outputs))]
    returned = _as_tuple(node(*given))
    pairs = zip(node.next_functions, returned, strict=False)
    return [(edge, grad) for edge, grad in pairs if edge[0] is not None]


def _zeros(meta: Any) -> torch.Tensor | None:
    """The gradient of an unused output; None if that is no tensor, such as None itself.

    Torch knows of the latter what it knows of a number on the CPU, which no function of CUDA
    tensors is known to return.
    """
    if meta.device.type == "cpu" and not meta.shape:
        return None
    return torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)


def _as_tuple(returned: Any) -> tuple[Any, ...]:
    return returned if isinstance(returned, tuple) else (returned,)
