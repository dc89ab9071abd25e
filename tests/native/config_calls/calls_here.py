"""The library loaded without its source, and opened by tvm-ffi."""

import pytest
import torch

import opforge
from support.native.config_bodies import Act
from support.native.config_calls import by_autograd, compare, compare_keyword_only


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize("adapter", [True, False], ids=["C++", "ctypes"])
def test_autograd_takes_the_backward_that_a_loaded_library_carries(dist, adapter):
    loaded = opforge.load(dist, host_memory=True, adapter=adapter)
    compare(by_autograd)
    compare_keyword_only(torch.ops.configs.signed)
    with pytest.raises(RuntimeError, match="act is SQUARE"):
        torch.ops.configs.activated(torch.ones(3, 5), Act.SQUARE.value)
    loaded.close()
    loaded.unload()


@pytest.mark.usefixtures("standin")
def test_tvm_ffi_has_a_function_for_each_backward(dist):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    ops = tvm_ffi.load_module(dist / "lib" / "libconfigs.so")
    ops.opforge_host_memory(True)

    def by_hand(name, grad, x, *options):
        value, slope, grad_x = (torch.empty_like(x) for _ in range(3))
        bias = next((o for o in options if isinstance(o, torch.Tensor)), None)
        grad_bias = None if bias is None else torch.empty_like(bias)
        grads = [grad_x] if bias is None else [grad_x, grad_bias]
        if name == "shaped":
            ops.shaped(x, *options, value, slope)
            ops.shaped_backward(grad, options[0], bias, slope, grad_x, grad_bias)
        else:
            ops[name](x, *options, value)
            ops[f"{name}_backward"](grad, x, *options, *grads)
        return value, grads

    compare(by_hand)
