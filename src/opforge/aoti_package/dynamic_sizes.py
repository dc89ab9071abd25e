"""Other sizes to verify: the given arguments with their dynamic dimensions resized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from .dynamic import DynamicDim
from .exportable import Exportable


@dataclass(frozen=True)
class Symbol:
    """A size that the exported program leaves open, with its traced value and its range."""

    symbol: Any
    label: str
    traced: int
    least: int
    most: int | None

    @property
    def range(self) -> str:
        return f"{self.least} to {'any' if self.most is None else self.most}"


def open_sizes(
    program: Any, exportable: Exportable, dims: tuple[DynamicDim, ...]
) -> tuple[Symbol, ...]:
    """The symbols in the shapes of the program's inputs."""
    named = {(d.path, d.index): d for d in dims}
    found: dict[Any, Symbol] = {}
    for path, leaf, value in _inputs(program, exportable):
        for index, size in enumerate(value.shape):
            expression = _expression(size)
            # A derived size such as 2*batch follows from the one that is a symbol by itself.
            if getattr(expression, "is_Symbol", False) and expression not in found:
                dim = named.get((path, index))
                label = dim.label if dim else f"{path}[{index}]"
                least, most = _range(program, expression, dim)
                found[expression] = Symbol(expression, label, leaf.shape[index], least, most)
    return tuple(found.values())


def other_sizes(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """The smallest of each range, then sizes other than the smallest and the traced ones."""
    if not symbols:
        return []
    smallest = {s.label: s.least for s in symbols}
    # Each a little larger than the last, so that a mix-up of two dimensions shows.
    another = {s.label: _another(s, 2 * s.traced + 1 + 2 * i) for i, s in enumerate(symbols)}
    traced = {s.label: s.traced for s in symbols}
    wished = [smallest] if another == smallest else [smallest, another]
    return [sizes for sizes in wished if sizes != traced]


def resized(
    program: Any, exportable: Exportable, symbols: Sequence[Symbol], sizes: Mapping[str, int]
) -> list[Any]:
    """The leaves at these sizes; their values are drawn from the given leaves."""
    values = {s.symbol: sizes[s.label] for s in symbols}
    generator = torch.Generator().manual_seed(0)
    shapes = {path: value for path, _, value in _inputs(program, exportable)}
    made: list[Any] = []
    for path, leaf in zip(exportable.paths, exportable.leaves, strict=True):
        if path not in shapes:
            made.append(leaf)
            continue
        shape = [_value(size, values) for size in shapes[path].shape]
        strides = [_value(stride, values) for stride in shapes[path].stride()]
        made.append(_like(leaf, shape, strides, generator))
    return made


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, even where they overlap or leave gaps."""
    return _strided(tensor, list(tensor.shape), list(tensor.stride()))


def _inputs(program: Any, exportable: Exportable) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Path, given tensor and traced fake of each tensor argument."""
    specs = program.graph_signature.input_specs
    names = [s.arg.name for s in specs if s.kind == InputKind.USER_INPUT]
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for path, leaf, name in zip(exportable.paths, exportable.leaves, names, strict=True):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf, nodes[name].meta["val"]


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _value(size: Any, values: Mapping[Any, int]) -> int:
    return int(_expression(size).subs(values)) if isinstance(size, torch.SymInt) else int(size)


def _range(program: Any, symbol: Any, dim: DynamicDim | None) -> tuple[int, int | None]:
    bounds = program.range_constraints.get(symbol)
    least = int(bounds.lower) if bounds is not None else 2
    most = int(bounds.upper) if bounds is not None and _is_number(bounds.upper) else None
    # A range that starts at 0 by default does not ask for empty tensors.
    if least == 0 and (dim is None or dim.least is None):
        least = 1
    return least, most


def _is_number(bound: Any) -> bool:
    # torch writes "no bound" as infinity, or as the largest int.
    return bool(getattr(bound, "is_Integer", isinstance(bound, int))) and int(bound) < 2**62


def _another(symbol: Symbol, wished: int) -> int:
    top = wished if symbol.most is None else min(wished, symbol.most)
    sizes = (size for size in range(top, symbol.least, -1) if size != symbol.traced)
    return next(sizes, symbol.least)


def _like(
    leaf: torch.Tensor, shape: list[int], strides: list[int], generator: torch.Generator
) -> torch.Tensor:
    values = leaf.detach()
    if values.numel() == 0:
        values = torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
    elif values.dtype.is_floating_point or values.dtype.is_complex:
        total = int(torch.tensor(shape).prod())
        drawn = torch.randint(values.numel(), (total,), generator=generator)
        values = values.reshape(-1)[drawn.to(leaf.device)].reshape(shape)
    else:
        # Integers are often indices or offsets: kept in order, and repeated to fill the size.
        for dim, size in enumerate(shape):
            index = torch.arange(size, device=leaf.device) % leaf.shape[dim]
            values = values.index_select(dim, index)
    return _strided(values, shape, strides)


def _strided(values: torch.Tensor, shape: list[int], strides: list[int]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=values.dtype, device=values.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    made = torch.zeros(span, dtype=values.dtype, device=values.device).as_strided(shape, strides)
    # Along a stride of 0 (from expand) all elements are one: only the first is written.
    first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    made[first].copy_(values.detach()[first])
    return made
