"""torch's own checks of an operator, over ops of every kind."""

import dataclasses
import enum
from typing import Literal

import pytest
import torch

import opforge

Tensor = torch.Tensor


class Mode(enum.Enum):
    ADD = "add"
    MULTIPLY = "multiply"


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Result:
    value: Tensor
    squared: Tensor


def save_first(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def cube_gradient(ctx, grad):
    return grad * 3 * ctx.saved_tensors[0] ** 2


def like(x):
    return torch.empty_like(x)


def cube(x: Tensor) -> Tensor:
    return x**3


def plain(x: Tensor, y: Tensor | None = None, scale: float = 2.0) -> Tensor:
    return x * scale if y is None else x * scale + y


def mutates(x: Tensor) -> None:
    x.add_(1)


def mutates_and_returns(x: Tensor, out: Tensor) -> Tensor:
    out.copy_(x)
    return x * 2


def mutates_a_list(items: list[Tensor]) -> None:
    for item in items:
        item.add_(1)


def returns_a_list(x: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
    return x + 0, [x + i for i in range(n)]


def takes_a_list(items: list[Tensor]) -> Tensor:
    return items[0] + items[1]


def lowered(x: Tensor, how: Literal["a", "b"] = "a", *, n: int = 2) -> Tensor:
    return x * n if how == "a" else x + n


def takes_a_member(x: Tensor, mode: Mode) -> Tensor:
    return x + 1 if mode is Mode.ADD else x * 2


def takes_a_record(x: Tensor, cfg: Weights) -> Tensor:
    return x + cfg.weight


def takes_an_optional_record(x: Tensor, cfg: Weights | None = None) -> Tensor:
    return x + cfg.weight if cfg is not None else x + 1


def mutates_a_field(x: Tensor, cfg: Weights) -> Tensor:
    cfg.weight.add_(x)
    return x * cfg.scale


def returns_a_record(x: Tensor) -> Result:
    return Result(x + 1, x * x)


def opaque(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() + 1)


def returns_an_int(x: Tensor) -> tuple[Tensor, int]:
    return x + 1, x.shape[0]


def allocates(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(n, dtype=dtype, device=device)


def real():
    return torch.randn(3)


def grad():
    return torch.randn(3, requires_grad=True)


# function, options, flat arguments
SAMPLES = [
    (cube, {"backward": cube_gradient, "setup_context": save_first}, lambda: (grad(),)),
    (cube, {"backward": cube_gradient, "setup_context": save_first}, lambda: (real(),)),
    (cube, {"vmap": "sequential"}, lambda: (real(),)),
    (cube, {"autocast": torch.bfloat16}, lambda: (real(),)),
    (plain, {}, lambda: (real(),)),
    (plain, {}, lambda: (real(), real(), 1.5)),
    (mutates, {"mutates_args": ["x"]}, lambda: (real(),)),
    (mutates_and_returns, {"mutates_args": ["out"]}, lambda: (real(), torch.zeros(3))),
    (mutates_a_list, {"mutates_args": ["items"]}, lambda: ([real(), torch.randn(2)],)),
    (mutates_a_field, {"mutates_args": ["cfg"]}, lambda: (real(), real(), real(), 2.0)),
    (returns_a_list, {"backward": lambda ctx, g, gs: (g + sum(gs), None)}, lambda: (grad(), 2)),
    (returns_a_list, {}, lambda: (real(), 2)),
    (takes_a_list, {"backward": lambda ctx, g: ([g, g],)}, lambda: ([grad(), grad()],)),
    (lowered, {}, lambda: (real(), "b")),
    (takes_a_member, {}, lambda: (real(), "multiply")),
    (
        takes_a_record,
        {"backward": lambda ctx, g: (g, {"weight": g})},
        lambda: (grad(), grad(), None, 1.0),
    ),
    (takes_an_optional_record, {}, lambda: (real(), True, real(), None, 1.0)),
    (takes_an_optional_record, {}, lambda: (real(), False, None, None, None)),
    (returns_a_record, {}, lambda: (real(),)),
    (opaque, {"fake": ["x"]}, lambda: (real(),)),
    (opaque, {"fake": like}, lambda: (real(),)),
    (opaque, {"fake": like, "backward": lambda ctx, g: g}, lambda: (grad(),)),
    (opaque, {}, lambda: (real(),)),
    (returns_an_int, {}, lambda: (real(),)),
    (allocates, {}, lambda: (3, torch.float64, torch.device("cpu"))),
]


@pytest.mark.parametrize(
    ("fn", "options", "arguments"),
    SAMPLES,
    ids=[
        f"{fn.__name__}-{', '.join(options) or 'plain'}-{i}"
        for i, (fn, options, _) in enumerate(SAMPLES)
    ],
)
def test_opcheck_is_clean(op_name, fn, options, arguments):
    op = opforge.op(op_name(), **options)(fn)
    torch.library.opcheck(opforge.info(op).overload, arguments())
