"""Other sizes to verify: arguments like the given ones, with the dynamic dimensions changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from .dynamic import DynamicDim
from .subject import Subject


@dataclass(frozen=True)
class Symbol:
    """A size that the exported program leaves open, the traced value, and its range."""

    symbol: Any
    label: str
    traced: int
    least: int
    most: int | None

    @property
    def range(self) -> str:
        return f"{self.least} to {'any' if self.most is None else self.most}"


def open_sizes(program: Any, subject: Subject, dims: tuple[DynamicDim, ...]) -> tuple[Symbol, ...]:
    """The symbols in the shapes of the program's inputs."""
    named = {(d.path, d.index): d for d in dims}
    found: dict[Any, Symbol] = {}
    for path, leaf, value in _inputs(program, subject):
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
    """The smallest of each range, then sizes that are neither that nor the traced ones."""
    if not symbols:
        return []
    smallest = {s.label: s.least for s in symbols}
    # Each a little larger than the last, so that a mix-up of two dimensions shows.
    another = {s.label: _another(s, 2 * s.traced + 1 + 2 * i) for i, s in enumerate(symbols)}
    traced = {s.label: s.traced for s in symbols}
    return [sizes for sizes in _distinct([smallest, another]) if sizes != traced]


def resized(
    program: Any, subject: Subject, symbols: Sequence[Symbol], sizes: Mapping[str, int]
) -> list[Any]:
    """The subject's leaves for these sizes; values are drawn from the given ones."""
    values = {s.symbol: sizes[s.label] for s in symbols}
    generator = torch.Generator().manual_seed(0)
    shapes = {path: value for path, _, value in _inputs(program, subject)}
    made: list[Any] = []
    for path, leaf in zip(subject.paths, subject.leaves, strict=True):
        if path not in shapes:
            made.append(leaf)
            continue
        shape = [_value(size, values) for size in shapes[path].shape]
        stride = [_value(step, values) for step in shapes[path].stride()]
        made.append(_like(leaf, shape, stride, generator))
    return made


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where they overlap or leave gaps."""
    return _strided(tensor, list(tensor.shape), list(tensor.stride()))


def _inputs(program: Any, subject: Subject) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Path, given tensor and traced fake of each tensor argument."""
    specs = program.graph_signature.input_specs
    names = [s.arg.name for s in specs if s.kind == InputKind.USER_INPUT]
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for path, leaf, name in zip(subject.paths, subject.leaves, names, strict=True):
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
    # A range that starts at 0 because nobody named its start is not a wish for empty tensors.
    if least == 0 and (dim is None or dim.least is None):
        least = 1
    return least, most


def _is_number(bound: Any) -> bool:
    # torch writes "no bound" as infinity, or as the largest int.
    return bool(getattr(bound, "is_Integer", isinstance(bound, int))) and int(bound) < 2**62


def _another(symbol: Symbol, wished: int) -> int:
    top = wished if symbol.most is None else min(wished, symbol.most)
    for size in range(top, symbol.least, -1):
        if size != symbol.traced:
            return size
    return symbol.least


def _distinct(sizes: list[dict[str, int]]) -> list[dict[str, int]]:
    return [s for i, s in enumerate(sizes) if s not in sizes[:i]]


def _like(
    leaf: torch.Tensor, shape: list[int], stride: list[int], generator: torch.Generator
) -> torch.Tensor:
    values = leaf.detach()
    if values.numel() == 0:
        values = torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
    elif values.dtype.is_floating_point or values.dtype.is_complex:
        total = int(torch.tensor(shape).prod())
        drawn = torch.randint(values.numel(), (total,), generator=generator)
        values = values.reshape(-1)[drawn.to(leaf.device)].reshape(shape)
    else:
        # Whole numbers are often indices or offsets: kept in order, and repeated along the way.
        for dim, size in enumerate(shape):
            index = torch.arange(size, device=leaf.device) % leaf.shape[dim]
            values = values.index_select(dim, index)
    return _strided(values, shape, stride)


def _strided(values: torch.Tensor, shape: list[int], stride: list[int]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=values.dtype, device=values.device)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    made = torch.zeros(span, dtype=values.dtype, device=values.device).as_strided(shape, stride)
    # Of dimensions that overlap (stride 0, as expand makes) only the first index is written.
    first = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
    made[first].copy_(values.detach()[first])
    return made
