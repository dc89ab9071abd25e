"""Bodies of torch calls: run on Triton's interpreter, and on a GPU."""

import torch
from torch import Tensor
from torch.nn import functional

FLOATS = ("fp16", "bf16", "fp32", "fp64")
HALVES = ("fp16", "bf16", "fp32")
INTS = ("i8", "i16", "i32", "i64", "u8")
BOOL = ("i1",)

UNARY = {
    "abs": (torch.abs, FLOATS + INTS),
    "neg": (torch.neg, FLOATS + INTS),
    "exp": (torch.exp, (*FLOATS, "i32")),
    "exp2": (torch.exp2, HALVES),
    "expm1": (torch.expm1, FLOATS),
    "log": (torch.log, FLOATS),
    "log2": (torch.log2, FLOATS),
    "log10": (torch.log10, FLOATS),
    "log1p": (torch.log1p, FLOATS),
    "sqrt": (torch.sqrt, (*FLOATS, "i64")),
    "rsqrt": (torch.rsqrt, FLOATS),
    "sin": (torch.sin, FLOATS),
    "cos": (torch.cos, FLOATS),
    "erf": (torch.erf, FLOATS),
    "tanh": (torch.tanh, FLOATS),
    "sigmoid": (torch.sigmoid, (*FLOATS, "i32")),
    "silu": (functional.silu, FLOATS),
    "relu": (torch.relu, (*FLOATS, "i32")),
    "gelu": (functional.gelu, FLOATS),
    "gelu_tanh": (lambda x: functional.gelu(x, approximate="tanh"), HALVES),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.1), FLOATS),
    "softplus": (functional.softplus, FLOATS),
    "reciprocal": (torch.reciprocal, (*FLOATS, "i32")),
    "floor": (torch.floor, (*FLOATS, "i32")),
    "ceil": (torch.ceil, FLOATS),
    "trunc": (torch.trunc, FLOATS),
    "round": (torch.round, FLOATS),
    "sign": (torch.sign, FLOATS + INTS),
    "square": (torch.square, (*FLOATS, "i32")),
    "cube": (lambda x: x**3, (*FLOATS, "i32")),
    "pow_half": (lambda x: x**0.5, FLOATS),
    "pow_minus_2": (lambda x: x**-2.0, FLOATS),
    "pow_odd": (lambda x: x**1.7, FLOATS),
    "two_to_the": (lambda x: 2.0**x, FLOATS),
    "logical_not": (torch.logical_not, FLOATS + INTS + BOOL),
    "bitwise_not": (torch.bitwise_not, INTS + BOOL),
    "isnan": (torch.isnan, FLOATS),
    "add_number": (lambda x: x + 0.1, (*FLOATS, "i32")),
    "add_int": (lambda x: x + 3, FLOATS + INTS),
    "add_alpha": (lambda x: torch.add(x, 0.7, alpha=0.3), FLOATS),
    "sub_from": (lambda x: 1.5 - x, FLOATS),
    "mul_number": (lambda x: x * 0.1, (*FLOATS, "i32")),
    "div_number": (lambda x: x / 3.0, (*FLOATS, "i32")),
    "div_into": (lambda x: 3.0 / x, FLOATS),
    "floor_div_number": (lambda x: x // 3, FLOATS + INTS),
    "mod_number": (lambda x: x % 3, FLOATS + INTS),
    "shifted": (lambda x: (x << 2) ^ (x >> 1), ("i32", "i64")),
    "compare_number": (lambda x: x > 0.1, (*FLOATS, "i32")),
    "clamp": (lambda x: x.clamp(-0.3, 0.7), FLOATS),
    "clamp_int": (lambda x: x.clamp(3, 70), INTS),
    "clamp_min": (lambda x: x.clamp_min(0.1), FLOATS),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), FLOATS),
    "where_number": (lambda x: torch.where(x > 0, x, 0.25), FLOATS),
    "to_half": (lambda x: x.half(), ("bf16", "fp32", "fp64", *INTS, *BOOL)),
    "to_bfloat16": (lambda x: x.bfloat16(), ("fp16", "fp32", "fp64", *INTS)),
    "to_float": (lambda x: x.float(), ("fp16", "bf16", "fp64", *INTS, *BOOL)),
    "to_int": (lambda x: x.clamp(-100, 100).to(torch.int32), FLOATS),
    "to_bool": (lambda x: x.to(torch.bool), FLOATS + INTS),
    "clone": (torch.clone, FLOATS + INTS + BOOL),
    "chain": (lambda x: torch.tanh(torch.sigmoid(x * x + 1.5) * x - 0.5), FLOATS),
    "in_place": (lambda x: x.clone().mul_(2.5).add_(1).relu_(), FLOATS),
    "fma": (lambda x: x * x + x, FLOATS),
}

BINARY = {
    "add": (torch.add, FLOATS + INTS + BOOL),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=0.3), FLOATS),
    "add_alpha_int": (lambda x, y: torch.add(x, y, alpha=3), INTS),
    "sub": (torch.sub, FLOATS + INTS),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=0.3), FLOATS),
    "mul": (torch.mul, FLOATS + INTS + BOOL),
    "div": (torch.div, (*FLOATS, "i32")),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), FLOATS),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), FLOATS),
    "remainder": (torch.remainder, FLOATS),
    "fmod": (torch.fmod, FLOATS),
    "pow": (torch.pow, FLOATS),
    "maximum": (torch.maximum, FLOATS + INTS + BOOL),
    "minimum": (torch.minimum, FLOATS + INTS),
    "eq": (torch.eq, FLOATS + INTS),
    "lt": (torch.lt, FLOATS + INTS),
    "ge": (torch.ge, FLOATS + INTS),
    "logical_and": (torch.logical_and, FLOATS + BOOL),
    "logical_xor": (torch.logical_xor, FLOATS + BOOL),
    "bitwise_and": (torch.bitwise_and, INTS + BOOL),
    "bitwise_or": (torch.bitwise_or, INTS + BOOL),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), FLOATS),
    "clamp_tensor": (lambda x, y: torch.clamp(x, min=y), FLOATS),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y), FLOATS),
    "addcmul_value": (lambda x, y: torch.addcmul(x, x, y, value=0.3), FLOATS),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.3), FLOATS),
}


def body_of_one(function):
    def body(x: Tensor) -> Tensor:
        return function(x)

    return body


def body_of_two(function):
    def body(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    return body


REDUCED = {
    "sum": (lambda x: x.sum(), FLOATS + INTS + BOOL),
    "sum_last": (lambda x: x.sum(-1), (*FLOATS, "i32")),
    "sum_first": (lambda x: x.sum(0), FLOATS),
    "sum_middle": (lambda x: x.sum(1, keepdim=True), HALVES),
    "sum_two": (lambda x: x.sum((0, 2)), HALVES),
    "sum_as_float": (lambda x: x.sum(-1, dtype=torch.float32), ("fp16", "bf16")),
    "mean": (lambda x: x.mean(), FLOATS),
    "mean_last": (lambda x: x.mean(-1, keepdim=True), FLOATS),
    "mean_of_squares": (lambda x: (x * x).mean(-1), FLOATS),
    "prod": (lambda x: x.clamp(0.5, 1.5).prod(-1), ("fp32",)),
    "amax": (lambda x: x.amax(-1), FLOATS + INTS),
    "amin": (lambda x: x.amin((0, 1)), FLOATS + INTS),
    "max": (lambda x: x.max(), FLOATS),
    "max_dim": (lambda x: x.max(-1)[0], FLOATS),
    "max_dim_at": (lambda x: x.max(1)[1], FLOATS),
    "argmax": (lambda x: x.argmax(-1), FLOATS + INTS),
    "argmax_of_all": (lambda x: x.argmax(), HALVES),
    "argmin": (lambda x: x.argmin(0), FLOATS),
    "any": (lambda x: (x > 2).any(-1), FLOATS),
    "all": (lambda x: (x > -2).all(0), FLOATS),
    "any_of_all": (lambda x: x.any(), ("fp32", "u8", "i1")),
    "logsumexp": (lambda x: x.logsumexp(-1), FLOATS),
    "softmax": (lambda x: x.softmax(-1), FLOATS),
    "softmax_first": (lambda x: x.softmax(0), HALVES),
    "softmax_as_float": (lambda x: x.softmax(-1, dtype=torch.float32), ("fp16",)),
    "log_softmax": (lambda x: x.log_softmax(-1), FLOATS),
    "var_mean": (lambda x: torch.var_mean(x, -1)[0], FLOATS),
    "var_mean_mean": (lambda x: torch.var_mean(x, (0, 1), correction=0)[1], FLOATS),
    "std": (lambda x: x.std(1), FLOATS),
    "cumsum": (lambda x: x.cumsum(-1), (*FLOATS, "i32", "i64")),
    "cumsum_first": (lambda x: x.cumsum(0), HALVES),
    "norm": (lambda x: x.norm(dim=-1), HALVES),
    "rms_norm": (
        lambda x: x * torch.rsqrt((x.float() ** 2).mean(-1, keepdim=True) + 1e-5).to(x.dtype),
        HALVES,
    ),
    "layer_norm": (
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3),
        FLOATS,
    ),
}


def _part_written(x):
    out = torch.zeros_like(x)
    out[:, 1:].copy_(x[:, :-1])
    out[:, 0] += 2
    return out * 3


MOVED = {
    "cat": lambda x: torch.cat([x, x * 2, x[:, :2]], 1),
    "stack": lambda x: torch.stack([x, x + 1], -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "expanded": lambda x: x[:, :1].expand(3, 4, 7).contiguous(),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((2, -1), (1, 2)),
    "roll_flat": lambda x: x.roll(5),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "transposed": lambda x: x.transpose(0, 2).contiguous(),
    "transposed_sum": lambda x: x.transpose(0, 2) + x.transpose(0, 2),
    "arange": lambda x: torch.arange(3, 20, 2, device=x.device) + 0 * x[0, 0, 0].long(),
    "row_of": lambda x: x * torch.arange(x.shape[-1], device=x.device),
    "filled": lambda x: torch.full_like(x.transpose(0, 1), 2.5) + x.transpose(0, 1),
    "written": lambda x: x.clone().transpose(0, 1).fill_(3),
    "part_written": _part_written,
    "broadcast": lambda x: x[:, :1] * x[:1] + x[..., :1],
    "scaled_rows": lambda x: x / x.amax(-1, keepdim=True),
}

INDEXED = {
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "gather": lambda x, i: x.gather(1, i[:, :, None].expand(3, 2, 7)),
    "embedding": lambda x, i: functional.embedding(i, x[0]),
    "index": lambda x, i: x[:, i - 5],
}

PRODUCTS = {
    "mm": lambda x, y: x[0] @ y[0],
    "mm_transposed": lambda x, y: x[0] @ y[0].t().contiguous().t(),
    "bmm": torch.bmm,
    "matmul_one": lambda x, y: x @ y[0],
    "matmul_of_vectors": lambda x, y: x[0, 0] @ y[0, :, 0],
    "linear_of_vector": lambda x, y: functional.linear(x, y[0, :, 0].contiguous()),
    "addmm": lambda x, y: torch.addmm(x[0, 0, :1], x[0], y[0], alpha=0.5, beta=2.0),
    "linear": lambda x, y: functional.linear(x, y[0].t(), y[0, 0]),
    "linear_silu": lambda x, y: functional.silu(functional.linear(x, y[0].t())),
}
