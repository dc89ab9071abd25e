"""An in-place momentum step: it returns nothing, and `mutates_args` says what changes."""

import dataclasses

from torch import Tensor

import opforge


@dataclasses.dataclass(frozen=True)
class State:
    weight: Tensor
    velocity: Tensor


@opforge.op("examples::momentum_step", mutates_args=["state"])
def momentum_step(state: State, grad: Tensor, *, lr: float, momentum: float = 0.9) -> None:
    """velocity = momentum * velocity + grad; weight -= lr * velocity."""
    state.velocity.mul_(momentum).add_(grad)
    state.weight.sub_(state.velocity, alpha=lr)
