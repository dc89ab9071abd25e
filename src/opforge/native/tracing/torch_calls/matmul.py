"""torch's products of matrices, which are launches of ops/gemm's kernel."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._compat.tracing import Traced
from ...device.gemm import FULL_TILES, FULL_TUNER, HALF_TILES, HALF_TUNER, gemm_kernel
from ...ir.dtypes import ALIASES
from ...ir.expr import variables
from ...symbolic.symint import term_of
from ..views import same
from .calls import CALLS, Call, refuse_beyond
from .values import Called, Inexpressible

_ATEN = torch.ops.aten
_FLOATS = {torch.float16, torch.bfloat16, torch.float32}


def _addmm(call: Call, c: Traced, a: Traced, b: Traced, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _product(call, a, b, c, alpha, beta)


def _product(call: Call, a: Traced, b: Traced, c: Traced | None, alpha: Any, beta: Any) -> Any:
    if a.dtype not in _FLOATS:
        dtype = str(a.dtype).removeprefix("torch.")
        raise Inexpressible(f"products are of fp16, bf16 and fp32, not {ALIASES.get(dtype, dtype)}")
    if len(a.sizes) == 3 and a.sizes[0] != b.sizes[0]:
        raise RuntimeError(f"{a.sizes[0]} matrices cannot be multiplied with {b.sizes[0]} others")
    if a.sizes[-1] != b.sizes[-2]:
        raise RuntimeError(f"{a.sizes[-1]} columns cannot be multiplied with {b.sizes[-2]} rows")
    out = call.trace.allocate([*a.sizes[:-1], b.sizes[-1]], a.dtype)
    (m, k), n = a.sizes[-2:], b.sizes[-1]
    a, a_columns, a_line, a_stack = _lines(call, a)
    b, b_columns, b_line, b_stack = _lines(call, b)
    c, beta = (out, 0.0) if c is None else (_added(call, c, out), beta)
    deciding = {
        "a_ptr": a, "b_ptr": b, "c_ptr": c, "out_ptr": out, "m": m, "n": n, "k": k,
        "A_COLUMNS": a_columns, "B_COLUMNS": b_columns,
    }  # fmt: skip
    for number in (alpha, beta):
        refuse_beyond(call.trace.symbols, number, torch.float32)
    tiles, said = _tiles(call, a.dtype, deciding)
    down, across = (-(-size // tiles[name]) for size, name in ((m, "BLOCK_M"), (n, "BLOCK_N")))
    count = out.sizes[0] if len(out.sizes) == 3 else 1
    arguments = {
        **deciding, "alpha": _float(alpha), "beta": _float(beta),
        "a_stack": a_stack, "a_line": a_line, "b_stack": b_stack, "b_line": b_line,
        "c_stack": _stack(c), "c_row": c.strides[-2], "down": down, "across": across,
        **{name: size for name, size in tiles.items() if name.startswith("BLOCK")},
    }  # fmt: skip
    options = {name: size for name, size in tiles.items() if not name.startswith("BLOCK")}
    grid = (count * down * across,)
    call.trace.steps.append(Called(gemm_kernel, arguments, grid, options, out, (call.made,), said))
    return out


def _tiles(call: Call, dtype: torch.dtype, deciding: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The tiles that a tuning table has for a product, else fixed ones; and that in words."""
    tuner, fixed = (FULL_TUNER, FULL_TILES) if dtype is torch.float32 else (HALF_TUNER, HALF_TILES)
    choice = call.trace.choose(tuner, deciding)
    if choice.index is None:
        said = f", with fixed {_of(fixed, dtype)}"
        if not choice.table:
            return fixed, f"{said}; `opforge tune` measures others, for `build --tuning`"
        return fixed, f"{said}: {choice.why.removesuffix(', so')}"
    tiles = tuner.configs[choice.index].all_kwargs()
    said = f", with {_of(tiles, dtype)} on {choice.arch}, from {choice.table}"
    return tiles, f"{said}{_where(call, deciding)}"


def _of(tiles: dict[str, int], dtype: torch.dtype) -> str:
    sizes = " x ".join(str(tiles[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    return f"tiles of {sizes} for {ALIASES[str(dtype).removeprefix('torch.')]}"


def _where(call: Call, deciding: dict[str, Any]) -> str:
    """The conditions of this path on the sizes of a product: ` where m <= 64`."""
    sizes = {v for name in ("m", "n", "k") for v in variables(term_of(deciding[name]))}
    asked = [guard.condition for guard in call.trace.symbols.guards]
    about = [str(c) for c in asked if sizes.issuperset(variables(c))]
    return f" where {' and '.join(about)}" if about else ""


def _float(number: Any) -> Any:
    return number if isinstance(number, torch.SymFloat) else float(number)


def _added(call: Call, c: Traced, out: Traced) -> Traced:
    c = call.trace.views.expand(c, list(out.sizes))
    return c if c.strides[-1] == 1 else call.copy(call.trace.allocate(c.sizes, c.dtype), c)


def _stack(x: Traced) -> Any:
    return x.strides[0] if len(x.sizes) == 3 else 0


def _lines(call: Call, x: Traced) -> tuple[Traced, bool, Any, Any]:
    """x, whether its columns rather than its rows are dense, and the strides of lines and stack."""
    # What is known needs no question: of `w.t()` the columns are dense, whether k is 1 or not.
    known = same(x.strides[-2], 1) and not same(x.strides[-1], 1)
    if not known and x.strides[-1] == 1:
        return x, False, x.strides[-2], _stack(x)
    if known or x.strides[-2] == 1:
        return x, True, x.strides[-1], _stack(x)
    return _lines(call, call.copy(call.trace.allocate(x.sizes, x.dtype), x))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`F.linear`, as one product of two matrices."""
    if weight.dim() == 1:
        found = matmul(x, weight)
        return found if bias is None else found + bias
    rows = _rows(x)
    found = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return found.view(*x.shape[:-1], weight.shape[0])


def _rows(x: Any) -> Any:
    """All rows of a stack; not as `reshape(-1, k)`, which has no answer for a k of 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def matmul(a: Any, b: Any) -> Any:
    """`torch.matmul`: vectors become matrices, and one matrix takes all rows of a stack."""
    if a.dim() == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        return matmul(a, b.unsqueeze(-1)).squeeze(-1)
    if b.dim() == 2:
        return torch.mm(_rows(a), b).view(*a.shape[:-1], b.shape[-1])
    stacks = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(stacks)
    left, right = (x.expand(*stacks, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    return torch.bmm(left, right).view(*stacks, a.shape[-2], b.shape[-1])


_PLAIN = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
FUNCTIONS: dict[Any, Any] = {
    **dict.fromkeys(_PLAIN, matmul),
    torch.Tensor.__rmatmul__: lambda b, a: matmul(a, b),
    torch.nn.functional.linear: linear,
}
CALLS.update({
    **dict.fromkeys((_ATEN.addmm.default, _ATEN.baddbmm.default), _addmm),
    **dict.fromkeys(
        (_ATEN.mm.default, _ATEN.bmm.default),
        lambda call, a, b: _product(call, a, b, None, 1.0, 0.0),
    ),
})  # fmt: skip
