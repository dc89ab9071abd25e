"""Calls of the library `configs` and its gradients, whichever way in, against torch."""

import itertools

import torch

from support.native import config_bodies
from support.native.config_bodies import Act, Config, Window

ACTS = (Act.TANH, Act.ABS)


def compare(call):
    """`call(name, grad, *flat)` gives a function's first output and the gradients of its tensors.

    The flat arguments are those of the torch operator.
    """
    torch.manual_seed(0)
    x, bias, grad = torch.randn(3, 5), torch.randn(5), torch.randn(3, 5)
    for act, with_bias, window in itertools.product(ACTS, (False, True), (None, Window(-1, 0.5))):
        cfg = Config(1.5, bias if with_bias else None, act)
        # C has no absent numbers.
        limits = (window is not None, *(window or (0.0, 0.0)))
        flat = (x, 1.5, cfg.bias, act.value, *limits)
        _same(call("shaped", grad, *flat), "shaped", grad, x, cfg, window)
    for act in ACTS:
        _same(call("activated", grad, x, act.value), "activated", grad, x, act)
        cfg, window = Config(0.5, bias, act), Window(-0.25, 0.75)
        flat = (x, *window, 0.5, bias, act.value)
        _same(call("limited", grad, *flat), "limited", grad, x, window, cfg)


def _same(found, name, grad, x, *options):
    """With what the same function of torch calls gives in eager."""
    x = x.clone().requires_grad_()
    tensors = [x]
    if cfg := next((o for o in options if isinstance(o, Config) and o.bias is not None), None):
        tensors.append(cfg.bias.clone().requires_grad_())
        changed = Config(cfg.scale, tensors[1], cfg.act)
        options = [changed if option is cfg else option for option in options]
    out = getattr(config_bodies, name)(x, *options)
    out = out if isinstance(out, torch.Tensor) else out.value
    expected = torch.autograd.grad(out, tensors, grad)
    torch.testing.assert_close(found[0], out.detach())
    torch.testing.assert_close(list(found[1]), list(expected))


def compare_keyword_only(signed):
    x, grad = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
    out = signed(x, factor=3.0, sign="minus")
    torch.testing.assert_close(out.detach(), -3 * x.detach())
    (found,) = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(found, -3 * grad)


def by_autograd(name, grad, *flat):
    """As torch's operators, which the process has been given."""
    flat = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in flat]
    out = getattr(torch.ops.configs, name)(*flat)
    out = out[0] if isinstance(out, tuple) else out
    tensors = [a for a in flat if isinstance(a, torch.Tensor)]
    return out.detach(), torch.autograd.grad(out, tensors, grad)
