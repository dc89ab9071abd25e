"""The library's wheel, in a process that has no other build of it."""

import ctypes
import sys

import pytest
import torch

from support.native.calling import BUILT
from support.native.config_bodies import Act
from support.native.config_calls import by_autograd, compare, compare_keyword_only


@pytest.fixture
def package(standin):
    sys.path.insert(0, str(BUILT / "site"))
    import configs  # noqa: PLC0415

    # The operators are for CUDA; here the stand-in driver has them on the CPU.
    adapter = ctypes.CDLL(configs.get_library().replace(".so", "_torch.so"))
    for name in ("shaped", "activated", "limited", "signed"):
        for operator in (f"configs::{name}".encode(), f"configs::{name}_backward".encode()):
            adapter.configs_torch_detach(operator)
            assert adapter.configs_torch_attach(operator, b"CPU") == 0
    return configs


def test_autograd_takes_the_backward_that_a_wheel_carries(package):
    compare(by_autograd)
    compare_keyword_only(package.signed)


def test_its_functions_take_and_return_fields_by_name(package):
    shaped = package.shaped(torch.ones(3, 5), 0.5, None, Act.ABS.value, False, 0.0, 0.0)
    assert type(shaped) is package.Shaped
    assert shaped.value.eq(0.5).all()
    assert shaped.slope.eq(1).all()
    x = torch.randn(3, 5, requires_grad=True)
    out = package.limited(
        x,
        window__low=-1.0,
        window__high=1.0,
        cfg__scale=2.0,
        cfg__bias=torch.zeros(5),
        cfg__act=Act.ABS.value,
    )
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * x.sign() * ((2 * x).abs() <= 1))
