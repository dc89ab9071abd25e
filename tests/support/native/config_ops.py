"""Ops whose options are a dataclass, an Enum and a NamedTuple, each with a backward."""

from typing import Literal

from torch import Tensor

import opforge
from opforge import native
from support.native import config_bodies
from support.native.config_bodies import Act, Config, Shaped, Window

X = native.tensor("rows cols", dtype="fp32")
DIMS = {"rows": (1, 64), "cols": (1, 64)}
CONFIG = {
    "scale": native.scalar("fp32"),
    "bias": native.optional(native.tensor("cols", dtype="fp32")),
    "act": native.choice(Act.ABS, Act.TANH),
}
WINDOW = {"low": native.scalar("fp32"), "high": native.scalar("fp32")}


def save_shaped(ctx, inputs, output):
    _, ctx.cfg, _ = inputs
    ctx.save_for_backward(output.slope)


def shaped_gradients(ctx, grad, _):
    (slope,) = ctx.saved_tensors
    inner = grad * slope
    bias = None if ctx.cfg.bias is None else inner.sum(0)
    return inner * ctx.cfg.scale, {"bias": bias}, None


@opforge.op("configs::shaped", backward=shaped_gradients, setup_context=save_shaped)
def shaped(x: Tensor, cfg: Config, window: Window | None) -> Shaped:
    """Its backward becomes a function of the library."""
    return config_bodies.shaped(x, cfg, window)


native.declare(shaped, x=X, cfg=CONFIG, window=WINDOW, dims=DIMS)
native.declare(shaped, x=X, cfg=CONFIG, window=None, dims=DIMS)


@opforge.op("configs::activated_backward")
def activated_backward(grad: Tensor, x: Tensor, act: Act) -> Tensor:
    return grad * config_bodies.activated_slope(x, act)


def save_activated(ctx, inputs, output):
    x, ctx.act = inputs
    ctx.save_for_backward(x)


def activated_gradient(ctx, grad):
    (x,) = ctx.saved_tensors
    return activated_backward(grad, x, ctx.act), None


@opforge.op("configs::activated", backward=activated_gradient, setup_context=save_activated)
def activated(x: Tensor, act: Act = Act.ABS) -> Tensor:
    """Its backward calls an operator that is declared, too."""
    return config_bodies.activated(x, act)


ACT = native.choice(Act.TANH, Act.ABS)
native.declare(activated, x=X, act=ACT, dims=DIMS)
native.declare(activated_backward, grad=X, x=X, act=ACT, dims=DIMS)


@opforge.op("configs::limited_backward")
def limited_backward(grad: Tensor, x: Tensor, window: Window, cfg: Config) -> tuple[Tensor, Tensor]:
    """With a gradient of the bias, which has to be there."""
    inner = grad * config_bodies.shaped(x, cfg, window).slope
    return inner * cfg.scale, inner.sum(0)


def save_limited(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.window, ctx.cfg = inputs[1], inputs[2]


def limited_gradients(ctx, grad):
    (x,) = ctx.saved_tensors
    grad_x, grad_bias = limited_backward(grad, x, ctx.window, ctx.cfg)
    return grad_x, None, {"bias": grad_bias}


@opforge.op("configs::limited", backward=limited_gradients, setup_context=save_limited)
def limited(x: Tensor, window: Window, cfg: Config) -> Tensor:
    """Its backward hands on a dataclass and a NamedTuple."""
    return config_bodies.limited(x, window, cfg)


THERE = {**CONFIG, "bias": native.tensor("cols", dtype="fp32")}
native.declare(limited, x=X, window=WINDOW, cfg=THERE, dims=DIMS)
native.declare(limited_backward, grad=X, x=X, window=WINDOW, cfg=THERE, dims=DIMS)


def save_signed(ctx, inputs, keyword_only_inputs, output):
    ctx.keyword_only = keyword_only_inputs


def signed_gradient(ctx, grad):
    return signed(grad, **ctx.keyword_only)


@opforge.op("configs::signed", backward=signed_gradient, setup_context=save_signed)
def signed(x: Tensor, *, factor: float, sign: Literal["plus", "minus"] = "plus") -> Tensor:
    """Its options are keyword-only, in the schema, too."""
    return x * factor if sign == "plus" else x * -factor


native.declare(
    signed, x=X, factor=native.scalar("fp32"), sign=native.choice("plus", "minus"), dims=DIMS
)

OPS = [shaped, activated, activated_backward, limited, limited_backward, signed]
