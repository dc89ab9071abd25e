"""Splits graphs that Dynamo passes to a backend, and compiles the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import patches


def backends() -> list[str]:
    from torch._dynamo.backends.registry import list_backends

    return sorted(list_backends(exclude_tags=()))


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
    _PieceCompiler(split, backend, kept, fake_mode).compile(*inputs)


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

    def compile(self, *args: Any) -> None:
        fakes = [self._fake(a) for a in args]
        with self._faking():
            self.run(*fakes)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part = self.fetch_attr(target)
        outputs = part(*args, **kwargs)
        if target not in self.kept:
            setattr(self.module, target, self._compiled(part, list(args)))
        return outputs

    def _compiled(self, part: torch.fx.GraphModule, args: list[Any]) -> Any:
        # Backends expect graphs that return a tuple.
        single = _as_tuple(part)
        with torch._guards.tracing(torch._guards.TracingContext(self.fake_mode)), _outside_fakes():
            compiled = self.backend(part, args)
        return _Compiled(compiled, single=single)

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and self.fake_mode is not None:
            return self.fake_mode.from_tensor(value)
        return value

    @contextmanager
    def _faking(self) -> Iterator[None]:
        if self.fake_mode is None:
            yield
            return
        with patches.FAKE_MODE.on(self.fake_mode, allow_non_fake_inputs=True), self.fake_mode:
            yield


@contextmanager
def _outside_fakes() -> Iterator[None]:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        yield


def _as_tuple(part: torch.fx.GraphModule) -> bool:
    output = next(node for node in part.graph.nodes if node.op == "output")
    if isinstance(output.args[0], tuple):
        return False
    output.args = ((output.args[0],),)
    part.recompile()
    return True


class _Compiled(torch.nn.Module):
    def __init__(self, compiled: Callable[..., Any], *, single: bool) -> None:
        super().__init__()
        self.compiled = compiled
        self.single = single

    def forward(self, *args: Any) -> Any:
        out = self.compiled(*args)
        return out[0] if self.single else out
