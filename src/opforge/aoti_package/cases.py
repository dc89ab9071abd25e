"""What eager computes: the calls that a package must reproduce."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BadInputs, EagerFailed, OpforgeError
from .sizes import Symbol, copy_of, other_sizes, resized
from .subject import Subject


@dataclass(frozen=True)
class Case:
    """One call in eager: tensors in, tensors out, and what the inputs were afterwards."""

    label: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    after: list[torch.Tensor]


def eager_cases(
    program: Any, subject: Subject, symbols: Sequence[Symbol], also: Sequence[Any]
) -> list[Case]:
    """The given call, other sizes, and further arguments; the given call again if state changes."""
    traced = ", ".join(f"{s.label}={s.traced}" for s in symbols)
    given = subject.leaves
    calls = [(f"{traced} (traced)" if traced else "as given", given)]
    for sizes in other_sizes(symbols):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items())
        calls.append((label, resized(program, subject, symbols, sizes)))
    calls += [(f"also[{i}]", _leaves_of(subject, i, args)) for i, args in enumerate(also)]
    mutated = mutated_state(program, subject.module)
    if mutated:
        calls.append((f"{calls[0][0]}, again", given))
    with _restored(mutated.values()):
        return [_run(subject, label, leaves) for label, leaves in calls]


def _leaves_of(subject: Subject, index: int, args: Any) -> list[Any]:
    if not isinstance(args, (tuple, list)):
        raise BadInputs(
            f"also[{index}] must be a tuple of positional arguments", found=type(args).__name__
        )
    leaves = _compat.aoti.flatten((tuple(args), dict(subject.kwargs)))
    if len(leaves) != len(subject.leaves):
        raise BadInputs(
            f"also[{index}] has other arguments than args",
            found=f"{len(leaves)} values in place of {len(subject.leaves)}",
        )
    return leaves


def _run(subject: Subject, label: str, leaves: list[Any]) -> Case:
    own = [copy_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
    inputs = _tensors(leaves)
    args, kwargs = _compat.aoti.refill((subject.args, dict(subject.kwargs)), own)
    try:
        # A package returns a whole number, a size say, as a tensor.
        outputs = [torch.tensor(v) if type(v) is int else v for v in subject.call(args, kwargs)]
    except OpforgeError:
        raise
    except Exception as error:
        raise EagerFailed(
            f"{subject.title} itself fails in eager for {label}",
            found=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            fix="narrow the range in dynamic, or correct the model",
        ) from error
    # Copied, because an output may be a buffer that the next call changes.
    kept = [copy_of(t) for t in _tensors(outputs)]
    return Case(label, [copy_of(t) for t in inputs], kept, _tensors(own))


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
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
def _restored(state: Iterable[torch.Tensor]) -> Iterator[None]:
    """Leave the user's model as it was."""
    saved = [(t, t.detach().clone()) for t in state]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)


@contextlib.contextmanager
def unchanged(program: Any, module: torch.nn.Module) -> Iterator[None]:
    """Calls inside leave no trace in the module's state."""
    with _restored(mutated_state(program, module).values()):
        yield
