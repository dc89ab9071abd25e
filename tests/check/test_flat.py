"""A call as the dispatcher sees it."""

import dataclasses
import enum
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import opforge
from opforge.check.flat import flat_arguments
from opforge.check.values import OpCall
from opforge.registry import registry


class Kind(enum.Enum):
    SOFT = "soft"
    HARD = (1, 2)


@dataclasses.dataclass(frozen=True)
class Inner:
    scale: float = 2.0
    kind: Kind = Kind.SOFT


@dataclasses.dataclass(frozen=True)
class Config:
    weight: Tensor
    inner: Inner | None = None


class Pair(NamedTuple):
    left: int
    right: int


def rich(
    x: Tensor,
    cfg: Config,
    pair: Pair,
    size: tuple[int, bool] = (1, True),
    *,
    kind: Kind = Kind.HARD,
) -> Tensor:
    return x + 1


@pytest.mark.parametrize(
    ("inner", "flat"), [(None, (False, None, None)), (Inner(3.0), (True, 3.0, "SOFT"))]
)
def test_records_are_taken_apart_and_members_named(op_name, inner, flat):
    entry = registry.get(opforge.op(op_name())(rich))
    x, weight = torch.ones(2), torch.ones(3)
    call = OpCall((x, Config(weight, inner), Pair(4, 5)), {}, ("x", "cfg", "pair"))
    args, kwargs = flat_arguments(entry, call)
    assert args[0] is x
    assert args[1] is weight
    assert (*args[2:], *kwargs.values()) == (*flat, 4, 5, 1, True, "HARD")
    entry.overload(*args, **kwargs)
