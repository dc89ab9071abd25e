"""Kernels of backends that a decorator chooses at run time: listed apart from what is launched."""

import pytest
import torch

import opforge
from support import backends
from support.cache_keys import key_of
from support.launch_patterns import double_kernel, triple_kernel, tuned_kernel


def calls_a_dispatched_one(x):
    return backends.scale(x)


@pytest.mark.parametrize(
    "host", [backends.scale, calls_a_dispatched_one, torch.compiler.disable(backends.scale)]
)
def test_kernels_of_another_backend_are_listed_apart(host):
    found = opforge.find_kernels(host)
    assert [ref.kernel for ref in found] == [double_kernel]
    assert {id(ref.kernel): ref.only_if for ref in found.conditional} == {
        id(triple_kernel): "OtherDevice is active",
        id(tuned_kernel): "Experimental is active",
    }
    assert [ref.only_if for ref in found] == [""]


def test_a_kernel_that_is_launched_anyway_is_listed_once():
    found = opforge.find_kernels(backends.scale)
    assert double_kernel not in [ref.kernel for ref in found.conditional]


def test_what_another_backend_lacks_is_not_reported():
    found = opforge.find_kernels(backends.scale)
    assert found.unresolved == ()
    assert found.unbound == ()
    assert "missing_helper" in [
        u.name for u in opforge.find_kernels(backends.launch_for_other_device).unbound
    ]


def test_a_hook_that_runs_as_well_is_no_alternative():
    found = opforge.find_kernels(backends.scale_with_hooks)
    assert {id(ref.kernel) for ref in found} == {id(double_kernel), id(tuned_kernel)}
    assert found.conditional == ()


def test_an_op_is_decided_by_what_it_launches_itself(op_name):
    @opforge.op(op_name())
    def op(x: torch.Tensor) -> torch.Tensor:
        return backends.scale(x)

    info = opforge.info(op)
    assert info.mode == "triton_op"
    assert [ref.kernel for ref in info.kernels] == [double_kernel]
    assert {ref.only_if for ref in info.conditional} == {
        "OtherDevice is active",
        "Experimental is active",
    }
    assert "only if OtherDevice is active" in str(opforge.explain(op))


def test_compiled_code_depends_on_the_kernels_of_other_backends(op_name):
    @opforge.op(op_name())
    def op(x: torch.Tensor) -> torch.Tensor:
        return backends.scale(x)

    key = key_of(opforge.info(op).name)
    assert all(f"def {name}(" in key for name in ("double_kernel", "triple_kernel"))
