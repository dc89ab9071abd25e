"""Kernels and rules that others add to an op through torch.library."""

import contextlib
import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opforge

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Weights:
    weight: Tensor
    scale: float = 1.0


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def backward(ctx, grad):
    return grad * 10


def record_backward(ctx, grad):
    return grad * 10, None


WITH = {"backward": backward, "setup_context": setup_context}
KINDS = pytest.mark.parametrize("options", [{}, WITH], ids=["without backward", "with backward"])
CALLS = pytest.mark.parametrize("calls", [0, 50], ids=lambda n: f"after {n} calls")
SPELLINGS = pytest.mark.parametrize("by_name", [False, True], ids=["by op", "by name"])


def add_one(op_name, options):
    name = op_name()

    @opforge.op(name, **options)
    def add_one(x: Tensor) -> Tensor:
        return x + 1

    return name, add_one


def register(kernel, op, name, by_name):
    torch.library.register_kernel(name if by_name else op, "cpu", kernel)


def outside(x):
    return x + 100


@KINDS
@CALLS
@SPELLINGS
@pytest.mark.parametrize("grad", [False, True], ids=["", "requires grad"])
def test_a_cpu_kernel_from_outside_is_the_one_that_runs(op_name, options, calls, by_name, grad):
    name, op = add_one(op_name, options)
    for _ in range(calls):
        assert op(torch.zeros(1, requires_grad=grad)).item() == 1.0
    register(outside, op, name, by_name)
    for _ in range(3):
        x = torch.zeros(1, requires_grad=grad)
        out = op(x)
        assert out.item() == op(torch.zeros(1)).item() == 100.0
        if grad and options:
            # The op's backward stays.
            out.sum().backward()
            assert x.grad.item() == 10.0


@CALLS
def test_a_mutating_op_takes_a_cpu_kernel_from_outside(op_name, calls):
    @opforge.op(op_name(), mutates_args=["x"])
    def op(x: Tensor) -> None:
        x.add_(1)

    x = torch.zeros(1)
    for _ in range(calls):
        op(x)

    def fill(x):
        x.numpy()[:] = 7

    torch.library.register_kernel(op, "cpu", fill)
    before = x._version
    op(x)
    assert x.item() == 7.0
    assert x._version > before


@pytest.mark.parametrize("calls", [0, 50])
@pytest.mark.parametrize(
    "options", [{}, {"backward": record_backward}], ids=["plain", "with backward"]
)
def test_a_flattened_op_takes_a_kernel_over_its_flat_arguments(op_name, options, calls):
    @opforge.op(op_name(), **options)
    def op(x: Tensor, cfg: Weights) -> Tensor:
        return x * cfg.weight * cfg.scale

    one = torch.ones(1)
    for _ in range(calls):
        op(one, Weights(one, 2.0))
    torch.library.register_kernel(
        opforge.info(op).overload, "cpu", lambda x, weight, scale: x + 100 * scale
    )
    assert op(one, Weights(one, 2.0)).item() == 201.0
    assert op(one.clone().requires_grad_(), Weights(one, 2.0)).item() == 201.0


@KINDS
@CALLS
def test_a_vmap_rule_from_outside_is_used(op_name, options, calls):
    _, op = add_one(op_name, options)
    for _ in range(calls):
        op(torch.zeros(1))
    seen = []

    def rule(info, in_dims, x):
        seen.append((info.batch_size, in_dims))
        return op(x), in_dims[0]

    torch.library.register_vmap(op, rule)
    assert torch.func.vmap(op)(torch.zeros(3, 2)).tolist() == [[1.0, 1.0]] * 3
    assert seen == [(3, (0,))]
    if options:
        grads = torch.func.vmap(torch.func.grad(lambda x: op(x).sum()))(torch.zeros(3, 2))
        assert grads.tolist() == [[10.0, 10.0]] * 3


@KINDS
@CALLS
def test_an_autocast_rule_from_outside_is_used(op_name, options, calls):
    _, op = add_one(op_name, options)
    for _ in range(calls):
        op(torch.zeros(1))
    torch.library.register_autocast(op, "cpu", torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(torch.zeros(1)).dtype == torch.bfloat16
    assert op(torch.zeros(1)).dtype == torch.float32


def test_a_torch_dispatch_rule_from_outside_is_used(op_name):
    _, op = add_one(op_name, {})

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    torch.library.register_torch_dispatch(
        op, Mode, lambda mode, func, types, args, kwargs: args[0] + 50
    )
    with Mode():
        assert op(torch.zeros(1)).item() == 50.0


def test_an_op_removed_with_a_kernel_from_outside_can_be_made_again(op_name):
    name, op = add_one(op_name, {})
    with implemented(name, outside, "CPU"):
        opforge.unregister(op)
    _, again = add_one(lambda: name, {})
    assert again(torch.zeros(1)).item() == 1.0


COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@contextlib.contextmanager
def implemented(name, kernel, key):
    library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    library.impl(name.partition("::")[2], kernel, key)
    yield
    library._destroy()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("key", COMPOSITE)
@pytest.mark.parametrize("device_types", [None, "cpu"])
@CALLS
@KINDS
def test_a_kernel_for_all_devices_from_outside_runs_where_it_would(
    op_name, options, calls, device_types, key
):
    """A kernel for one device goes before it."""
    name = op_name()

    @opforge.op(name, device_types=device_types, **options)
    def op(x: Tensor) -> Tensor:
        return x + 1

    for _ in range(calls):
        op(torch.zeros(1))
    expected = 100.0 if device_types is None else 1.0
    with implemented(name, outside, key):
        for requires_grad in (False, True):
            assert op(torch.zeros(1, requires_grad=requires_grad)).item() == expected
        torch.compiler.reset()
        compiled = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)
        assert compiled(torch.zeros(1)).item() == 2 * expected
    assert op(torch.zeros(1)).item() == 1.0


@KINDS
@pytest.mark.parametrize("key", ["AutogradCPU", "Meta", "AutocastCPU", "FuncTorchBatched"])
def test_a_kernel_at_another_key_from_outside_runs_as_for_custom_op(op_name, options, key):
    if key == "Meta" and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 refuses a second kernel from Python at a key, custom_op's too")
    name, op = add_one(op_name, options)
    seen = []

    def kernel(x):
        seen.append(key)
        return torch.empty_like(x)

    op(torch.zeros(1))
    with implemented(name, kernel, key), torch.autocast("cpu", enabled=key == "AutocastCPU"):
        if key == "FuncTorchBatched":
            torch.func.vmap(op)(torch.zeros(2, 1))
        else:
            device = "meta" if key == "Meta" else "cpu"
            op(torch.zeros(1, device=device, requires_grad=key == "AutogradCPU"))
    assert seen == [key]
