"""torch calls that take a number, with numbers in range, at its ends and beyond."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from opforge import native
from opforge.native.ir.dtypes import DTYPES
from support.archs import SM_90
from support.native.torch_bodies import Program
from support.native.torch_table import body_of_one


def mask(x):
    return torch.ones_like(x, dtype=torch.bool)


def assigned(x, k):
    x = x.clone()
    x[0] = k
    return x


CALLS = {
    "add": lambda x, k: x + k,
    "add_alpha": lambda x, k: torch.add(x, x, alpha=k),
    "add_in_place": lambda x, k: x.clone().add_(k),
    "addcdiv": lambda x, k: torch.addcdiv(x, x, x, value=k),
    "addcmul": lambda x, k: torch.addcmul(x, x, x, value=k),
    "and": lambda x, k: x & k,
    "assigned": assigned,
    "clamp": lambda x, k: x.clamp(0, k),
    "clamp_low": lambda x, k: x.clamp(k),
    "clamp_max": torch.clamp_max,
    "clamp_min": torch.clamp_min,
    "div": lambda x, k: x / k,
    "div_trunc": lambda x, k: torch.div(x, k, rounding_mode="trunc"),
    "eq": lambda x, k: x == k,
    "fill": lambda x, k: x.clone().fill_(k),
    "floor_divide": lambda x, k: x // k,
    "fmod": torch.fmod,
    "full": lambda x, k: torch.full((2,), k, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "ge": lambda x, k: x >= k,
    "gt": lambda x, k: x > k,
    "leaky_relu": functional.leaky_relu,
    "le": lambda x, k: x <= k,
    "lshift": lambda x, k: x << k,
    "lt": lambda x, k: x < k,
    "masked_fill": lambda x, k: x.masked_fill(mask(x), k),
    "mul": lambda x, k: x * k,
    "ne": lambda x, k: x != k,
    "new_full": lambda x, k: x.new_full((2,), k),
    "new_tensor": lambda x, k: x.new_tensor(k),
    "or": lambda x, k: x | k,
    "pow": lambda x, k: x**k,
    "remainder": lambda x, k: x % k,
    "rpow": lambda x, k: k**x,
    "rshift": lambda x, k: x >> k,
    "rsub": lambda x, k: k - x,
    "rsub_alpha": lambda x, k: torch.rsub(x, x, alpha=k),
    "softplus": functional.softplus,
    "softplus_threshold": lambda x, k: functional.softplus(x, 1, k),
    "sub": lambda x, k: x - k,
    "sub_alpha": lambda x, k: torch.sub(x, x, alpha=k),
    "where": lambda x, k: torch.where(mask(x), k, x),
    "where_other": lambda x, k: torch.where(mask(x), x, k),
    "xor": lambda x, k: x ^ k,
}


def numbers(dtype):
    if dtype == "i1":
        return [True, 0, 2, -1, 1.5]
    wanted = getattr(torch, DTYPES[dtype].torch)
    if wanted.is_floating_point:
        most = torch.finfo(wanted).max
        beyond = [most * 1.001, -most * 2] if most < 1e300 else []
        return [2, True, -0.5, most, -most, math.inf, math.nan, *beyond]
    low, high = torch.iinfo(wanted).min, torch.iinfo(wanted).max
    found = [1, 2, -1, True, low, high, low - 1, high + 1, high + 46, -high, 1.5, -0.5, 1e30]
    return [k for k in found if isinstance(k, float) or -(2**63) <= k < 2**63]


def inputs(dtype):
    wanted = getattr(torch, DTYPES[dtype].torch)
    return torch.tensor([True, False] if dtype == "i1" else [3, 100]).to(wanted)


def program(call, dtype, *taken):
    """Of a call with each of some numbers."""

    def several(x: Tensor) -> list[Tensor]:
        return [CALLS[call](x, number) for number in taken]

    several.__annotations__["return"] = tuple[(Tensor,) * len(taken)]
    body = several if len(taken) > 1 else body_of_one(lambda x: CALLS[call](x, taken[0]))
    return Program(body, archs=(SM_90,), x=native.tensor("n", dtype=dtype))


# What CUDA torch has kernels for, whatever the dtype.
FOR_ALL_DTYPES = {
    "assigned", "eq", "fill", "full", "full_like", "ne", "new_full", "new_tensor",
}  # fmt: skip
