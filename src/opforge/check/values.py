"""The values of a call: the tensors in them by path, and the same call with other tensors.

`op(x, cfg=Cfg(weight, eps=1e-6))` has the tensors `x` and `cfg.weight`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
Change = Callable[[str, Tensor], Any]
# Indices and flags stay as they are, so that they remain valid; 8-bit floats have no arithmetic.
HALVED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class OpCall:
    """Arguments as the user gives them; `names` are the parameters of the positional ones."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor with its path, in order."""
        named = [*zip(self.names, self.args, strict=True), *self.kwargs.items()]
        return [pair for name, value in named for pair in tensors_in(value, name)]

    def map(self, change: Change) -> OpCall:
        """The call with every tensor replaced."""
        args = tuple(
            replace_tensors(value, change, name)
            for name, value in zip(self.names, self.args, strict=True)
        )
        kwargs = {name: replace_tensors(v, change, name) for name, v in self.kwargs.items()}
        return OpCall(args, kwargs, self.names)

    def with_tensors(self, tensors: Iterable[Any]) -> OpCall:
        """The call with other tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        return self.map(lambda _path, _tensor: next(rest))

    def map_each(self, change: Callable[[Tensor], Tensor]) -> OpCall:
        """The call with every tensor changed once; one given twice stays one."""
        made: dict[int, Tensor] = {}

        def changed(_path: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = change(tensor)
            return made[id(tensor)]

        return self.map(changed)

    def cloned(self) -> OpCall:
        """Copies of all tensors, without their history."""
        return self.map_each(clone)

    def recording(self, paths: Iterable[str]) -> OpCall:
        """Copies; those at `paths` require grad."""
        wanted = set(paths)
        return self.cloned().map(lambda p, t: t.requires_grad_(p in wanted))


def clone(tensor: Tensor) -> Tensor:
    """A copy with the same strides, gaps and overlaps."""
    plain = tensor.detach()
    if type(plain) is not Tensor or plain.layout is not torch.strided or not plain.numel():
        return plain.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
    memory = plain.as_strided((extent,), (1,), plain.storage_offset()).clone()
    return memory.as_strided(plain.shape, plain.stride())


def tensors_in(value: Any, path: str) -> list[tuple[str, Tensor]]:
    return [(p, v) for p, v in leaves(value, path) if isinstance(v, Tensor)]


def leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    """The leaves of a value with their paths: `output[1]`, `cfg.weight`."""
    parts = _parts(value)
    if parts is None:
        return [(path, value)]
    return [pair for step, part in parts for pair in leaves(part, path + step)]


def paired(found: Any, expected: Any, path: str) -> list[tuple[str, Any, Any]] | None:
    """The leaves of two values side by side; None if they are not arranged alike.

    A function may return a tuple where another returns a NamedTuple or a list.
    """
    left, right = _parts(found), _parts(expected)
    if left is None or right is None:
        return [(path, found, expected)] if left is right else None
    steps = [[step for step, _ in parts] for parts in (left, right)]
    by_position = any(isinstance(value, (list, tuple)) for value in (found, expected))
    by_key = any(isinstance(value, dict) for value in (found, expected))
    if len(left) != len(right) or (steps[0] != steps[1] and (by_key or not by_position)):
        return None
    pairs = []
    for (step, one), (_, other) in zip(left, right, strict=True):
        below = paired(one, other, path + step)
        if below is None:
            return None
        pairs += below
    return pairs


def replace_tensors(value: Any, change: Change, path: str) -> Any:
    if isinstance(value, Tensor):
        return change(path, value)
    parts = _parts(value)
    if parts is None or not tensors_in(value, path):
        return value
    new = [replace_tensors(part, change, path + step) for step, part in parts]
    if dataclasses.is_dataclass(value):
        # Not dataclasses.replace: __post_init__ may look into tensors that are fake now.
        made = copy.copy(value)
        for field, part in zip(dataclasses.fields(value), new, strict=True):
            object.__setattr__(made, field.name, part)
        return made
    if isinstance(value, dict):
        return dict(zip(value, new, strict=True))
    return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return [(f".{n}", getattr(value, n)) for n in names]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{n}", getattr(value, n)) for n in value._fields]
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if type(value) is list or isinstance(value, tuple):
        # torch's own, such as that of torch.topk, are tuples.
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return None


def resized(tensor: Tensor, size: int) -> Tensor:
    """The tensor with its rows repeated to `size`; dimensions keep their order in memory."""
    if tensor.shape[0] == 0:
        return tensor.new_zeros((size, *tensor.shape[1:]))
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    rows = torch.arange(size, device=tensor.device) % tensor.shape[0]
    dense = tensor.detach().index_select(0, rows).permute(order).contiguous()
    return dense.permute([order.index(d) for d in range(tensor.dim())])


def with_gaps(tensor: Tensor) -> Tensor:
    """The same values with gaps; code that assumes none reads wrong values, in bounds."""
    if not tensor.dim():
        return torch.stack([tensor, tensor + 1])[0]
    # Of integers, which may be indices, others would be out of range.
    has_others = tensor.dtype in (*HALVED, torch.complex64, torch.complex128)
    wide = torch.stack([tensor, tensor + 1 if has_others else tensor.roll(1, -1)], -1)
    return torch.cat([wide, wide], -2).select(-1, 0).narrow(-1, 0, tensor.shape[-1])


def describe(path: str, tensor: Tensor) -> str:
    """`x: float32 (8, 128) on cpu`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{path}: {dtype} {tuple(tensor.shape)} on {tensor.device}"
