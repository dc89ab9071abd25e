"""Functions that tests declare, and the text of refusals."""

# The old spellings are tested, too.
# ruff: noqa: UP045

import enum
from dataclasses import dataclass
from typing import Literal, NamedTuple, Optional

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.native.frontend.declaration import declarations_of
from opforge.registry import registry


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True)
class Inner:
    k: int
    weight: Optional[Tensor] = None


@dataclass(frozen=True)
class Config:
    scale: float
    inner: Inner
    mode: Mode = Mode.FAST


class Window(NamedTuple):
    left: int
    right: int = 0


def silu(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def gemm(a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return torch.empty_like(x)


def configured(x: Tensor, cfg: Config, bias: Optional[Tensor] = None) -> Tensor:
    return torch.empty_like(x)


def many(  # noqa: PLR0917  # a parameter of each kind
    x: Tensor,
    n: int,
    flag: bool,
    name: str,
    act: Literal["relu", "silu"],
    mode: Mode,
    dtype: torch.dtype,
    parts: Optional[list[Tensor]],
    sizes: list[int],
    factor: torch.types.Number,
) -> Tensor:
    return torch.empty_like(x)


X = native.tensor("m n", dtype="fp16")
GIVEN = {
    "x": X,
    "n": 1,
    "flag": True,
    "name": "a",
    "act": "relu",
    "mode": Mode.FAST,
    "dtype": torch.float16,
    "parts": None,
    "sizes": [1],
    "factor": 2,
}


def refusal(error, op, /, **specs):
    with pytest.raises(error) as caught:
        native.declare(op, **specs)
    assert caught.value.location.startswith(__file__)
    text = str(caught.value).replace(caught.value.location, "HERE")
    return text.replace(caught.value.op, "OP")


def declarations(op):
    return list(declarations_of(registry.get(op)))
