"""Calls in eager, which a package must reproduce."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BuildFailed, OpforgeError, WrongArgument, first_line
from .dynamic_sizes import Symbol, copy_of, other_sizes, resized
from .exportable import Exportable


@dataclass(frozen=True)
class EagerCall:
    """One call in eager: its inputs, its outputs, and the inputs after the call."""

    label: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    after: list[torch.Tensor]


def eager_calls(
    program: Any, exportable: Exportable, symbols: Sequence[Symbol], also: Sequence[Any]
) -> list[EagerCall]:
    """The given call, other sizes, and further arguments; the given call again if state changes."""
    traced = ", ".join(f"{s.label}={s.traced}" for s in symbols)
    given = exportable.leaves
    wanted = [(f"{traced} (traced)" if traced else "as given", given)]
    for sizes in other_sizes(symbols):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wanted.append((label, resized(program, exportable, symbols, sizes)))
    wanted += [(f"also[{i}]", _leaves_of(exportable, i, args)) for i, args in enumerate(also)]
    mutated = mutated_state(program, exportable.module)
    if mutated:
        wanted.append((f"{wanted[0][0]}, again", given))
    with restored(mutated.values()):
        return [_run(exportable, label, leaves) for label, leaves in wanted]


def _leaves_of(exportable: Exportable, index: int, args: Any) -> list[Any]:
    if not isinstance(args, (tuple, list)):
        raise WrongArgument(
            f"also[{index}] must be a tuple of the positional arguments", found=type(args).__name__
        )
    leaves = _compat.aoti.flatten((tuple(args), dict(exportable.kwargs)))
    if len(leaves) != len(exportable.leaves):
        raise WrongArgument(
            f"also[{index}] does not have the same arguments as args",
            found=f"{len(leaves)} values instead of {len(exportable.leaves)}",
        )
    return leaves


def _run(exportable: Exportable, label: str, leaves: list[Any]) -> EagerCall:
    own = [copy_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
    inputs = tensors_of(leaves)
    args, kwargs = _compat.aoti.refill((exportable.args, dict(exportable.kwargs)), own)
    try:
        # A package returns an integer, such as a size, as a tensor.
        outputs = [torch.tensor(v) if type(v) is int else v for v in exportable.call(args, kwargs)]
    except OpforgeError:
        raise
    except Exception as error:
        raise BuildFailed(
            f"{exportable.title} itself fails in eager for {label}",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="narrow the range in dynamic, or correct the model",
        ) from error
    # Copied, because an output may be a buffer that the next call changes.
    kept = [copy_of(t) for t in tensors_of(outputs)]
    return EagerCall(label, [copy_of(t) for t in inputs], kept, tensors_of(own))


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v.detach() for v in values if isinstance(v, torch.Tensor)]


def mutated_state(program: Any, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers and parameters that a call may change."""
    signature = program.graph_signature
    names = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    written = _compat.aoti.written_inputs(program)
    state = dict(module.named_buffers(remove_duplicate=False))
    state.update(module.named_parameters(remove_duplicate=False))
    found = [target for name, target in names.items() if name in written]
    return {name: state[name] for name in found if name in state}


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
