"""The values of a call: their tensors by path, other tensors in their place, and differences.

`op(x, cfg=Cfg(weight, eps=1e-6))` has the tensors `x` and `cfg.weight`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..aoti_package.verify import copy_of
from ..notebook import counted

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
        return self.map_each(copy_of)

    def recording(self, paths: Iterable[str]) -> OpCall:
        """Copies; those at `paths` require grad."""
        wanted = set(paths)
        return self.cloned().map(lambda p, t: t.requires_grad_(p in wanted))


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


Tolerance = float | tuple[float, float] | None

# Relative; a little wider than torch.testing's for float32, because sums are taken in a different
# order. The absolute part is the same share of the expected values' root mean square.
_RELATIVE = {
    torch.float64: 1e-7,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex128: 1e-7,
    torch.complex64: 1e-5,
}
_COARSE = 0.125  # the rest are 8-bit floats
# A gradient is rounded at every step of the backward, whose steps differ from the reference's.
_GRADIENTS = 4


def gradient_difference(
    found: Tensor, expected: Tensor, path: str, tolerance: Tolerance = None, floor: float = 0.0
) -> str:
    """As `difference`, with a wider tolerance where none is given; errors up to `floor` pass."""
    if tolerance is None:
        tolerance = _GRADIENTS * _RELATIVE.get(found.dtype, _COARSE)
    relative, absolute = _tolerances(found.dtype, expected.detach(), tolerance)
    return difference(found, expected, path, (relative, max(absolute, floor)))


def root_mean_square(tensor: Tensor) -> float:
    """Of what is finite; 0 if nothing is."""
    size = (tensor if tensor.is_complex() else tensor.double()).detach().abs()
    size = size[size.isfinite()]
    return float(size.square().mean().sqrt()) if size.numel() else 0.0


def difference(found: Any, expected: Any, path: str, tolerance: Tolerance = None) -> str:
    """How two values differ beyond the tolerance; empty if they do not."""
    pairs = paired(found, expected, path)
    if pairs is None:
        return f"{path}: {unlike(found, expected, ', expected')}"
    for where, a, b in pairs:
        text = _leaf_difference(a, b, tolerance)
        if text:
            return f"{where}: {text}"
    return ""


def unlike(one: Any, other: Any, between: str) -> str:
    """How two values are arranged: `1 value, expected 2 values`; if in as many, by their names."""
    left, right = ([path or "one value" for path, _ in leaves(v, "")] for v in (one, other))
    if len(left) != len(right):
        return f"{counted(len(left), 'value')}{between} {counted(len(right), 'value')}"
    return f"{', '.join(left)}{between} {', '.join(right)}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN equals NaN here, and 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.layout is not torch.strided:
        return bool(torch.equal(a.to_dense(), b.to_dense()))
    return bool(torch.equal(_bits(a), _bits(b)))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _leaf_difference(a: Any, b: Any, tolerance: Tolerance) -> str:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        same = type(a) is type(b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b
        return "" if same else f"{shown(a)[:80]}, expected {shown(b)[:80]}"
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)}, expected {tuple(b.shape)}"
    for what in ("dtype", "device"):
        own, other = getattr(a, what), getattr(b, what)
        if own != other:
            return f"{what} {own}, expected {other}"
    return _numeric_difference(a.detach(), b.detach(), tolerance)


def _numeric_difference(a: Tensor, b: Tensor, tolerance: Tolerance) -> str:
    if not a.numel() or a.is_meta or same_bits(a, b):
        return ""
    wide = torch.complex128 if a.is_complex() else torch.float64
    left, right = a.to(wide), b.to(wide)
    if a.is_floating_point() or a.is_complex():
        relative, absolute = _tolerances(a.dtype, right, tolerance)
        close = torch.isclose(left, right, relative, absolute, equal_nan=True)
        allowed = f" (allowed: {relative:.2g} relative, {absolute:.2g})"
    else:
        close, allowed = a == b, f", {int((a != b).sum())} of {a.numel()} differ"
    if bool(close.all()):
        return ""
    error = (left - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(close, -1)
    place = torch.unravel_index(error.argmax(), a.shape)
    where = f" at {[int(i) for i in place]}" if a.dim() else ""
    worst = f"{a[place].item()}{where}, expected {b[place].item()}"
    return f"off by {float(error.max()):.3g}{allowed}: {worst}"


def _tolerances(dtype: torch.dtype, expected: Tensor, given: Tolerance) -> tuple[float, float]:
    if isinstance(given, tuple):
        return given
    relative = _RELATIVE.get(dtype, _COARSE) if given is None else given
    return relative, relative * root_mean_square(expected)


def shown(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)
