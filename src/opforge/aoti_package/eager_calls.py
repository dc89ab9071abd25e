"""Calls in eager, which a package must reproduce: as given, at other sizes, and `also`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from .. import _compat
from ..errors import BuildFailed, OpforgeError, WrongArgument, first_line
from .export import DynamicDim, Exportable


@dataclass(frozen=True)
class EagerCall:
    """One call in eager: its inputs, its outputs, and the inputs after the call."""

    label: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    after: list[torch.Tensor]


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


def eager_calls(
    program: Any, exportable: Exportable, symbols: Sequence[Symbol], also: Sequence[Any]
) -> list[EagerCall]:
    """The given call, other sizes, and further arguments; the given call again if state changes."""
    traced = ", ".join(f"{s.label}={s.traced}" for s in symbols)
    wanted = [(f"{traced} (traced)" if traced else "as given", exportable.leaves)]
    for sizes in other_sizes(symbols):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wanted.append((label, resized(program, exportable, symbols, sizes)))
    wanted += [(f"also[{i}]", _leaves_of(exportable, i, args)) for i, args in enumerate(also)]
    mutated = mutated_state(program, exportable.module)
    if mutated:
        wanted.append((f"{wanted[0][0]}, again", exportable.leaves))
    with restored(mutated.values()):
        return [_run(exportable, label, leaves) for label, leaves in wanted]


def _leaves_of(exportable: Exportable, index: int, args: Any) -> list[Any]:
    leaves = _compat.aoti.flatten((args, dict(exportable.kwargs)))
    if not isinstance(args, (tuple, list)) or len(leaves) != len(exportable.leaves):
        raise WrongArgument(
            f"also[{index}] is not a tuple of positional arguments as args is",
            found=f"{len(leaves)} values instead of {len(exportable.leaves)}",
        )
    return leaves


def _run(exportable: Exportable, label: str, leaves: list[Any]) -> EagerCall:
    own = [copy_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
    args, kwargs = _compat.aoti.refill((exportable.args, dict(exportable.kwargs)), own)
    try:
        with torch.no_grad():
            values = _compat.aoti.flatten(exportable.module(*args, **kwargs))
    except OpforgeError:
        raise
    except Exception as error:
        raise BuildFailed(
            f"{exportable.title} itself fails in eager for {label}",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="narrow the range in dynamic, or correct the model",
        ) from error
    # A package returns an integer, such as a size, as a tensor.
    outputs = tensors_of([torch.tensor(v) if type(v) is int else v for v in values])
    inputs = [copy_of(tensor) for tensor in tensors_of(leaves)]
    # Copied, because an output may be a buffer that the next call changes.
    return EagerCall(label, inputs, [copy_of(t) for t in outputs], tensors_of(own))


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v.detach() for v in values if isinstance(v, torch.Tensor)]


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps."""
    plain = tensor.detach()
    if type(plain) is not torch.Tensor or plain.layout is not torch.strided or not plain.numel():
        return plain.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
    memory = plain.as_strided((extent,), (1,), plain.storage_offset()).clone()
    return memory.as_strided(plain.shape, plain.stride())


def mutated_state(program: Any, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers and parameters that a call may change."""
    signature = program.graph_signature
    names = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    written = _compat.aoti.written_inputs(program)
    state = dict(module.named_buffers(remove_duplicate=False))
    state.update(module.named_parameters(remove_duplicate=False))
    return {
        target: state[target]
        for name, target in names.items()
        if name in written and target in state
    }


@contextlib.contextmanager
def restored(state: Iterable[torch.Tensor]) -> Iterator[None]:
    """Undo what the block changes in the user's model."""
    saved = [(t, t.detach().clone()) for t in state]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)


def open_sizes(
    program: Any, exportable: Exportable, dims: tuple[DynamicDim, ...]
) -> tuple[Symbol, ...]:
    """The symbols in the shapes of the program's inputs."""
    named = {(d.path, d.index): d for d in dims}
    symbols: dict[Any, Symbol] = {}
    for path, fake in _fakes(program, exportable).items():
        for index, size in enumerate(fake.shape):
            expression = size.node.expr if isinstance(size, torch.SymInt) else size
            # A derived size such as 2*batch follows from the one that is a symbol by itself.
            if getattr(expression, "is_Symbol", False) and expression not in symbols:
                dim = named.get((path, index))
                symbols[expression] = Symbol(
                    expression,
                    dim.label if dim else f"{path}[{index}]",
                    exportable.by_path[path].shape[index],
                    *_range(program, expression, dim),
                )
    return tuple(symbols.values())


def _range(program: Any, symbol: Any, dim: DynamicDim | None) -> tuple[int, int | None]:
    bounds = program.range_constraints.get(symbol)
    if bounds is None:
        return 2, None
    least, upper = int(bounds.lower), bounds.upper
    # A range that starts at 0 by default does not ask for empty tensors.
    if least == 0 and (dim is None or dim.least is None):
        least = 1
    # torch writes "no bound" as infinity, or as the largest int.
    is_number = getattr(upper, "is_Integer", isinstance(upper, int)) and int(upper) < 2**62
    return least, int(upper) if is_number else None


def other_sizes(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """The smallest of each range, then sizes other than the smallest and the traced ones."""
    smallest = {s.label: s.least for s in symbols}
    # Each a little larger than the last, so that a mix-up of two dimensions shows.
    another = {s.label: _another(s, 2 * s.traced + 1 + 2 * i) for i, s in enumerate(symbols)}
    traced = {s.label: s.traced for s in symbols}
    wished = [smallest] if another == smallest else [smallest, another]
    return [sizes for sizes in wished if sizes != traced]


def _another(symbol: Symbol, wished: int) -> int:
    top = wished if symbol.most is None else min(wished, symbol.most)
    sizes = (size for size in range(top, symbol.least, -1) if size != symbol.traced)
    return next(sizes, symbol.least)


def resized(
    program: Any, exportable: Exportable, symbols: Sequence[Symbol], sizes: Mapping[str, int]
) -> list[Any]:
    """The leaves at these sizes; their values are drawn from the given leaves."""
    values = {s.symbol: sizes[s.label] for s in symbols}
    generator = torch.Generator().manual_seed(0)
    fakes = _fakes(program, exportable)

    def numbers(expressions: Iterable[Any]) -> list[int]:
        return [
            int(e.node.expr.subs(values)) if isinstance(e, torch.SymInt) else int(e)
            for e in expressions
        ]

    return [
        _like(leaf, numbers(fakes[path].shape), numbers(fakes[path].stride()), generator)
        if path in fakes
        else leaf
        for path, leaf in zip(exportable.paths, exportable.leaves, strict=True)
    ]


def _fakes(program: Any, exportable: Exportable) -> dict[str, Any]:
    """By path, the traced fake of each tensor argument."""
    specs = program.graph_signature.input_specs
    names = [s.arg.name for s in specs if s.kind == InputKind.USER_INPUT]
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    leaves = zip(exportable.paths, exportable.leaves, names, strict=True)
    return {
        path: nodes[name].meta["val"]
        for path, leaf, name in leaves
        if isinstance(leaf, torch.Tensor)
    }


def _like(
    leaf: torch.Tensor, shape: list[int], strides: list[int], generator: torch.Generator
) -> torch.Tensor:
    values = leaf.detach()
    if values.numel() == 0:
        values = torch.zeros(shape, dtype=leaf.dtype, device=leaf.device)
    elif values.dtype.is_floating_point or values.dtype.is_complex:
        drawn = torch.randint(values.numel(), shape, generator=generator)
        values = values.reshape(-1)[drawn.to(leaf.device)]
    else:
        # Integers are often indices or offsets: kept in order, and repeated to fill the size.
        for dim, size in enumerate(shape):
            index = torch.arange(size, device=leaf.device) % leaf.shape[dim]
            values = values.index_select(dim, index)
    return _strided(values, strides)


def _strided(values: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The values at these strides; along a stride of 0, from expand, all elements are one."""
    first = [1 if d == 0 and n else n for n, d in zip(values.shape, strides, strict=True)]
    made = torch.empty_strided(first, strides, dtype=values.dtype, device=values.device)
    return made.copy_(values[tuple(map(slice, first))]).expand(values.shape)
