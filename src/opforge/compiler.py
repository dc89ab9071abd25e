"""What `compute_sensitive` and `subgraph_boundary` mean to the compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from . import _compat
from .errors import BadOption
from .registry import registry

Backend = Callable[..., Any]


def checkpoint_policy() -> Callable[..., CheckpointPolicy]:
    """A policy for selective activation checkpointing that saves compute-sensitive ops.

        contexts = functools.partial(
            torch.utils.checkpoint.create_selective_checkpoint_contexts, opforge.checkpoint_policy()
        )
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    Outputs of ops with `compute_sensitive=True` are kept for the backward, and everything else is
    recomputed: in eager, compiled, and where the compiler saw through the op.
    """
    return _policy


def _policy(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    entry = registry.find(op)
    if entry is not None and entry.describe().compute_sensitive:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True)
class Piece:
    """A part of a graph that `piecewise` compiles by itself, or leaves as it is."""

    name: str
    boundary: bool
    ops: tuple[str, ...]

    def __str__(self) -> str:
        what = "called as it is" if self.boundary else "compiled"
        return f"{self.name}  {what}: {', '.join(self.ops)}"


def piecewise(backend: str | Backend = "inductor", *, report: bool = False) -> Piecewise:
    """A backend that splits graphs at ops with `subgraph_boundary=True`.

        torch.compile(model, backend=opforge.piecewise(backend="inductor"))

    `backend` compiles the parts between these ops, each by itself; the ops are called as they
    are. `report=True` prints the pieces of every graph, and `.pieces` holds those of the last.
    """
    return Piecewise(_backend(backend), report=report)


def _backend(backend: str | Backend) -> Backend:
    if callable(backend):
        return backend
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise BadOption(
            f"backend={backend!r} is not a torch.compile backend",
            fix=f"one of {', '.join(sorted(known))}, or a function that takes a graph "
            "and example inputs and returns a callable",
        )
    return _compat.graphs.backend_named(backend)


class Piecewise:
    """A backend for `torch.compile`; see `piecewise`."""

    def __init__(self, backend: Backend, *, report: bool) -> None:
        self.backend = backend
        self.report = report
        self.pieces: tuple[Piece, ...] = ()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        parts = _partition(graph)
        if parts is None:
            self._show((Piece("piece_0", boundary=False, ops=_ops(graph.graph)),))
            compiled: Callable[..., Any] = self.backend(graph, list(inputs))
            return compiled
        split = _compat.graphs.split(graph, lambda node: parts[node])
        boundaries = {f"submod_{part}" for node, part in parts.items() if _is_boundary(node)}
        self._show(
            tuple(
                Piece(name, boundary=name in boundaries, ops=_ops(module.graph))
                for name, module in split.named_children()
                if isinstance(module, torch.fx.GraphModule)
            )
        )
        kept = {piece.name for piece in self.pieces if piece.boundary}
        _compat.graphs.compile_pieces(split, list(inputs), self.backend, kept)
        return split

    def _show(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        if self.report:
            sys.stdout.write("".join(f"{piece}\n" for piece in pieces))


def _partition(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, int] | None:
    """The part of each node, counting up at and after every boundary op; None without any."""
    parts: dict[torch.fx.Node, int] = {}
    part = 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if _is_boundary(node):
            parts[node] = part + 1
            part += 2
        else:
            parts[node] = part
    return parts if part else None


def _is_boundary(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    entry = registry.find(node.target) if _compat.overload_of(node.target) is not None else None
    return entry is not None and entry.describe().subgraph_boundary


def _ops(graph: torch.fx.Graph) -> tuple[str, ...]:
    called = ("call_function", "call_method", "call_module")
    targets = [node.target for node in graph.nodes if node.op in called]
    return tuple(str(getattr(target, "__name__", target)) for target in targets)
