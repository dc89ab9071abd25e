"""Values of wrong types in calls of flattened ops: refused in the user's terms."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import pytest
import torch

import opforge
from opforge.errors import WrongArgument

Tensor = torch.Tensor
x = torch.ones(2)


class Kind(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True)
class Inner:
    weight: Tensor | None = None
    rows: int = 1


@dataclass(frozen=True)
class Cfg:
    scale: float = 2.0
    causal: bool = False
    sizes: tuple[int, ...] = (1,)
    bounds: list[float] | None = None
    dtype: torch.dtype = torch.float32
    kind: Kind = Kind.SLOW
    how: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)


def scaled(x: Tensor, cfg: Cfg, eps: float = 0.0, *, times: int = 1) -> Tensor:
    return x * cfg.scale * times + eps


@pytest.fixture
def op(op_name):
    return opforge.op(scaled, name=op_name())


@pytest.mark.parametrize(
    ("path", "call", "wanted", "value"),
    [
        ("cfg.scale", lambda op, v: op(x, Cfg(scale=v)), "a float", "a"),
        ("cfg.scale", lambda op, v: op(x.clone().requires_grad_(), Cfg(scale=v)), "a float", None),
        ("cfg.causal", lambda op, v: op(x, Cfg(causal=v)), "a bool", "a"),
        ("cfg.sizes", lambda op, v: op(x, Cfg(sizes=v)), "a tuple of int", ("a",)),
        ("cfg.bounds", lambda op, v: op(x, Cfg(bounds=v)), "a list of float, or None", 3),
        ("cfg.dtype", lambda op, v: op(x, Cfg(dtype=v)), "a torch.dtype", "half"),
        ("cfg.how", lambda op, v: op(x, Cfg(how=v)), "one of 'a', 'b'", 3),
        ("cfg.inner.rows", lambda op, v: op(x, Cfg(inner=Inner(rows=v))), "an int", 2.5),
        ("cfg.inner.weight", lambda op, v: op(x, Cfg(inner=Inner(v))), "a Tensor, or None", 2.5),
        ("eps", lambda op, v: op(x, Cfg(), v), "a float", "a"),
        ("times", lambda op, v: op(x, Cfg(), times=v), "an int", "a"),
        ("x", lambda op, v: op(v, Cfg()), "a Tensor", 3),
    ],
)
def test_a_wrong_value_is_named_as_the_user_wrote_it(op, path, call, wanted, value):
    with pytest.raises(WrongArgument) as caught:
        call(op, value)
    assert (caught.value.op, caught.value.parameter) == (opforge.info(op).name, path)
    assert f"expected {wanted}, got {type(value).__name__}\n" in str(caught.value)


def test_what_the_body_raises_is_left_alone(op_name):
    @opforge.op(op_name())
    def inner(x: Tensor, n: int) -> Tensor:
        return x * n

    @opforge.op(op_name())
    def outer(x: Tensor, cfg: Cfg) -> Tensor:
        return inner(x, "a")

    with pytest.raises(RuntimeError, match="for argument 'n' but instead found type 'str'") as e:
        outer(x, Cfg())
    assert not isinstance(e.value, WrongArgument)


def test_values_that_torch_converts_still_pass(op):
    assert op(x, Cfg(scale=True)).tolist() == [1.0, 1.0]
    assert op(x, Cfg(scale=torch.tensor(3.0))).tolist() == [3.0, 3.0]
