"""Operators that a function calls, in every spelling."""

import dataclasses

import pytest
import torch
import triton

import opforge

NAME = "opforge_nested::double"


@torch.library.custom_op(NAME, mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


handle = torch.ops.opforge_nested.double
overload = torch.ops.opforge_nested.double.default
space = torch.ops.opforge_nested


def by_path(x):
    return torch.ops.opforge_nested.double(x)


def by_overload_path(x):
    return torch.ops.opforge_nested.double.default(x)


def by_handle(x):
    return handle(x)


def by_overload(x):
    return overload(x)


def by_overload_of_a_handle(x):
    return handle.default(x)


def by_definition(x):
    return double(x)


def by_local(x):
    op = torch.ops.opforge_nested.double
    return op(x)


def by_namespace(x):
    return space.double(x)


def by_ops(x):
    from torch import ops

    return ops.opforge_nested.double(x)


def by_helper(x):
    return by_path(x)


def by_getattr(x):
    return getattr(torch.ops.opforge_nested, "double")(x)


def by_vmap(x):
    return torch.vmap(handle)(x)


EVERY = [
    by_path, by_overload_path, by_handle, by_overload, by_overload_of_a_handle, by_definition,
    by_local, by_namespace, by_ops, by_helper, by_getattr, by_vmap,
]  # fmt: skip


@pytest.mark.parametrize("fn", EVERY, ids=lambda fn: fn.__name__)
def test_an_operator_is_found(fn):
    found = opforge.find_kernels(fn)
    assert found.nested_ops == (NAME,)
    assert found.nested_ops[0].op is not None
    assert found.nested_ops[0].location.startswith(__file__)
    assert found.unresolved == ()


def test_an_operator_that_is_not_registered_is_found_without_one():
    def host(x):
        return torch.ops.opforge_nowhere.missing(x)

    (found,) = opforge.find_kernels(host).nested_ops
    assert (found, found.op) == ("opforge_nowhere::missing", None)
    assert found.location == f"{__file__}:{host.__code__.co_firstlineno + 1}"
    assert "opforge_nowhere" not in vars(torch.ops)


def test_an_operator_that_is_only_mentioned_is_not_called():
    def host(x):
        print(torch.ops.opforge_nested.double, handle)

    assert opforge.find_kernels(host).nested_ops == ()


def test_operators_of_torch_itself_do_not_count():
    def host(x):
        x = torch.ops.aten.add.Tensor(x, x)
        torch.ops.prims.sin(x)
        torch.ops._c10d_functional.wait_tensor(x)
        return torch.ops.aten.mul(x, x)

    assert opforge.find_kernels(host).nested_ops == ()


def test_an_opforge_op_is_nested_and_not_read(op_name):
    name = op_name()

    @opforge.op(name)
    def inner(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        return by_path(x) * n

    def host(x):
        return inner(x)

    (found,) = opforge.find_kernels(host).nested_ops
    assert found == name
    assert found.op is opforge.info(inner).overload


def test_a_marked_callable_is_nested_and_not_read():
    def marked(x):
        return by_path(x)

    marked._magi_torch_registered_op = torch.ops.aten.add.Tensor

    def host(x):
        return marked(x)

    assert opforge.find_kernels(host).nested_ops == ()
    marked._magi_torch_registered_op = overload
    assert opforge.find_kernels(host).nested_ops == (NAME,)
    assert opforge.find_kernels(host).nested_ops[0].op is overload


def test_an_operator_is_read_by_the_function_it_was_made_of():
    @torch.library.custom_op("opforge_nested::outer", mutates_args=())
    def outer(x: torch.Tensor) -> torch.Tensor:
        return double(x)

    assert opforge.find_kernels(outer).nested_ops == (NAME,)


@triton.jit
def kernel(x):
    pass


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float


def launches(x: torch.Tensor) -> torch.Tensor:
    kernel[(1,)](x)
    return x + 1


def launches_with(x: torch.Tensor, cfg: Config) -> torch.Tensor:
    kernel[(1,)](x)
    return x + 1


@pytest.mark.parametrize("fn", [launches, launches_with])
@pytest.mark.parametrize("mode", ["auto", "custom_op"])
def test_an_op_that_opforge_made_is_read_as_its_function(op_name, fn, mode):
    name = op_name()
    op = opforge.op(fn, name=name, mode=mode)
    overload = opforge.info(op).overload
    packet = getattr(torch.ops.opforge_tests, name.partition("::")[2])
    for asked in (op, overload, packet):
        found = opforge.find_kernels(asked)
        assert [ref.kernel for ref in found] == [kernel]
        assert found.nested_ops == ()
