"""Private torch APIs: the tensors that autograd saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from .dispatcher import write_count

_WATCHED = "opforge_watched"
Overwritten = Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]


def let_be_overwritten(tensors: Iterable[torch.Tensor], stand_in: Overwritten) -> None:
    """Do not raise in this trace where going back from tensors needs what was written since.

    What `stand_in` makes of the gradients that come there, and of the saved tensor, is used then.
    """
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors]
    while nodes:
        node = nodes.pop()
        if node is None or _WATCHED in node.metadata:
            continue
        node.metadata[_WATCHED] = True
        found = [s for s in _saved_by(node) if s is not None and _is_functional(s.data)]
        if found:
            _watch(node, found, stand_in)
        nodes += [before for before, _ in node.next_functions]


def _watch(node: Any, found: list[Any], stand_in: Overwritten) -> None:
    grads: list[torch.Tensor] = []

    def before(arriving: Any) -> None:
        grads[:] = [grad for grad in arriving if grad is not None]

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return tensor, write_count(tensor)

    def unpack(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
        tensor, count = packed
        return tensor if write_count(tensor) == count else stand_in(grads, tensor)

    node.register_prehook(before)
    for saved in found:
        saved.register_hooks(pack, unpack)


def _is_functional(value: Any) -> bool:
    return isinstance(value, FunctionalTensor)


def _saved_by(node: Any) -> Iterator[Any]:
    # torch 2.13: `_raw_saved_self` and the like, each one object or a tuple of them;
    # `_raw_saved_tensors` of a Function.
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            found = getattr(node, name)
            yield from found if isinstance(found, (tuple, list)) else (found,)
