"""Whether two results are the same: bit by bit, or within what their dtype can hold."""

from __future__ import annotations

from typing import Any

import torch

from ..notebook import counted
from .values import leaves, paired

Tensor = torch.Tensor
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
