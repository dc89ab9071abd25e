"""Splits graphs that Dynamo passes to a backend, and compiles the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import patches


def backend_named(backend: str) -> Callable[..., Any]:
    """The backend that `torch.compile` knows by a name."""
    from torch._dynamo.backends.registry import lookup_backend

    found: Callable[..., Any] = lookup_backend(backend)
    return found


def split(
    graph: torch.fx.GraphModule, part_of: Callable[[torch.fx.Node], int]
) -> torch.fx.GraphModule:
    """One submodule `submod_<part>` per part, in the graph's order."""
    from torch.fx.passes.split_module import split_module

    return split_module(graph, None, part_of, keep_original_order=True)  # type: ignore[arg-type]


def compile_pieces(
    split: torch.fx.GraphModule, inputs: list[Any], backend: Callable[..., Any], kept: set[str]
) -> None:
    """Replace every submodule except those in `kept` by what the backend makes of it."""
    fake_mode = torch._guards.detect_fake_mode(inputs)
    pieces = _PieceCompiler(split, backend, kept, fake_mode)
    if fake_mode is None:
        pieces.run(*inputs)
        return
    fakes = [fake_mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs]
    with patches.FAKE_MODE.on(fake_mode, allow_non_fake_inputs=True), fake_mode:
        pieces.run(*fakes)


class _PieceCompiler(torch.fx.Interpreter):
    """Runs the split graph on fakes, so that each part is compiled for the inputs it will get."""

    def __init__(
        self,
        split: torch.fx.GraphModule,
        backend: Callable[..., Any],
        kept: set[str],
        fake_mode: Any,
    ) -> None:
        super().__init__(split)
        self.backend = backend
        self.kept = kept
        self.fake_mode = fake_mode

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part = self.fetch_attr(target)
        outputs = part(*args, **kwargs)
        if target not in self.kept:
            setattr(self.module, target, self._compiled(part, list(args)))
        return outputs

    def _compiled(self, part: torch.fx.GraphModule, args: list[Any]) -> Any:
        # Backends expect graphs that return a tuple.
        output = part.graph.output_node()
        single = not isinstance(output.args[0], tuple)
        if single:
            output.args = ((output.args[0],),)
            part.recompile()
        context = torch._guards.TracingContext(self.fake_mode)
        with torch._guards.tracing(context), unset_fake_temporarily():
            compiled = self.backend(part, args)
        return _Compiled(compiled, single=single)


class _Compiled(torch.nn.Module):
    def __init__(self, compiled: Callable[..., Any], *, single: bool) -> None:
        super().__init__()
        self.compiled = compiled
        self.single = single

    def forward(self, *args: Any) -> Any:
        out = self.compiled(*args)
        return out[0] if self.single else out
