"""Ops that launch Triton kernels, on a real GPU: eager, compiled, differentiated, exported."""

import dataclasses
import operator

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

import opforge
from opforge.errors import NeedsGpu, OpforgeWarning
from support.gpu import kernels as k

tools = pytest.importorskip("triton.tools.tensor_descriptor")


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def jitted(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.double[blocks(x.numel())](x, out, x.numel(), BLOCK=128, num_warps=2)
    return out


def run(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.double.run(x, out, x.numel(), grid=blocks(x.numel()), warmup=False, BLOCK=128)
    return out


def autotuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.autotuned[blocks(x.numel())](x, out, x.numel())
    return out


def two_autotuned(x: Tensor) -> Tensor:
    half, out = torch.zeros_like(x), torch.empty_like(x)
    k.reset[blocks(x.numel())](x, half, x.numel())
    k.autotuned[blocks(x.numel())](half, out, x.numel())
    return out


def pruned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.pruned[blocks(x.numel())](x, out, x.numel())
    return out


def reset(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    k.reset[blocks(x.numel())](x, out, x.numel())
    return out + x


def restored(x: Tensor) -> Tensor:
    out = x * 1
    k.restored[blocks(x.numel())](x, out, x.numel())
    return out


def heuristic(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.heuristic[blocks(x.numel())](x, out, x.numel())
    return out


def autotuned_heuristic(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.autotuned_heuristic[blocks(x.numel())](x, out, x.numel())
    return out


def heuristic_autotuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    k.heuristic_autotuned[blocks(x.numel())](x, out, x.numel())
    return out


def constants(x: Tensor) -> Tensor:
    """A missing tensor, a tuple and a dtype as constexprs, and a default."""
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 128),)
    k.affine[grid](x, None, out, x.numel(), terms=(2.0, 0.0), DTYPE=tl.float32)
    return out


def described(x: Tensor) -> Tensor:
    """Host-side tensor descriptors."""
    rows = x.view(-1, 64)
    out = torch.empty_like(rows)
    grid = (triton.cdiv(rows.shape[0], 16), 2)
    source = tools.TensorDescriptor.from_tensor(rows, [16, 32])
    target = tools.TensorDescriptor.from_tensor(out, [16, 32])
    k.double_described[grid](source, target, 16, 32)
    return out.view(-1)


def wrapped(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(k.double)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


SYLLABLES = ["dou", "ble"]


def looked_up(x: Tensor) -> Tensor:
    """Reading cannot follow this one; the trace does."""
    out = torch.empty_like(x)
    operator.attrgetter("".join(SYLLABLES))(k)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


DOUBLING = [
    jitted,
    run,
    autotuned,
    two_autotuned,
    pruned,
    reset,
    heuristic,
    autotuned_heuristic,
    heuristic_autotuned,
    constants,
    described,
    wrapped,
]
every_kind = pytest.mark.parametrize("fn", DOUBLING, ids=lambda fn: fn.__name__)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@every_kind
def test_it_doubles_in_eager_and_compiled_with_one_graph_for_two_sizes(fn, op_name):
    op = opforge.op(op_name())(fn)
    assert opforge.info(op).mode == "triton_op"
    x = torch.randn(4096, device="cuda")
    torch.testing.assert_close(op(x), x * 2)
    compiled = torch.compile(lambda t: op(t) + 1, fullgraph=True, dynamic=True)
    for size in (4096, 8192):
        x = torch.randn(size, device="cuda")
        torch.testing.assert_close(compiled(x), x * 2 + 1)


@every_kind
def test_opcheck_passes(fn, op_name):
    op = opforge.op(op_name())(fn)
    torch.library.opcheck(op, (torch.randn(4096, device="cuda"),))


def test_restored_values_hold_in_eager_and_compiled(op_name):
    op = opforge.op(op_name())(restored)
    x = torch.randn(4096, device="cuda")
    torch.testing.assert_close(op(x), x * 2)
    torch.testing.assert_close(torch.compile(op, fullgraph=True)(x), x * 2)


def test_eager_launches_without_a_higher_order_op(op_name, monkeypatch):
    calls = []
    original = type(triton_kernel_wrapper_mutation).__call__

    def count(self, *args, **kwargs):
        calls.append(kwargs)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(triton_kernel_wrapper_mutation), "__call__", count)
    x = torch.randn(1000, device="cuda")
    for fn in (jitted, wrapped, autotuned):
        torch.testing.assert_close(opforge.op(op_name())(fn)(x), x * 2)
    assert calls == []


def test_a_kernel_that_reading_missed_is_in_the_graph_and_warned_about_once(op_name):
    op = opforge.op(op_name(), kernels=[k.double])(looked_up)
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(torch.compile(op, fullgraph=True)(x), x * 2)

    missing = opforge.op(op_name(), kernels=[k.accumulate], mode="triton_op")(looked_up)
    torch._dynamo.reset()
    with pytest.warns(OpforgeWarning, match="kernel double .* was launched while tracing") as seen:
        torch.testing.assert_close(torch.compile(missing, fullgraph=True)(x), x * 2)
    assert len([w for w in seen if issubclass(w.category, OpforgeWarning)]) == 1
    assert [ref.found_via for ref in opforge.info(missing).kernels] == [
        "kernels=",
        "seen while tracing",
    ]


def test_an_autotuner_with_a_pre_hook_runs_opaque(op_name):
    def hooked(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        k.hooked[blocks(x.numel())](x, out, x.numel())
        return out

    with pytest.warns(OpforgeWarning, match="its autotuner has a pre_hook"):
        op = opforge.op(op_name())(hooked)
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(op(x), x * 2)
    torch.testing.assert_close(torch.compile(lambda t: op(t) + 1, fullgraph=True)(x), x * 2 + 1)


@dataclasses.dataclass(frozen=True)
class Scale:
    weight: Tensor
    terms: tuple[float, float] = (2.0, 0.0)


def scale_backward(ctx, grad):
    out = torch.empty_like(grad)
    k.double[blocks(grad.numel())](grad.contiguous(), out, grad.numel(), BLOCK=128)
    return out, None


def test_autograd_and_a_dataclass_go_through_the_triton_path(op_name):
    @opforge.op(op_name(), backward=scale_backward)
    def scaled(x: Tensor, cfg: Scale) -> Tensor:
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 128),)
        k.affine[grid](x, cfg.weight, out, x.numel(), terms=cfg.terms, DTYPE=tl.float32)
        return out

    assert opforge.info(scaled).mode == "triton_op"
    assert [ref.name for ref in opforge.info(scaled).backward_kernels] == ["double"]
    weight = torch.randn(1000, device="cuda")
    for call in (scaled, torch.compile(scaled, fullgraph=True)):
        x = torch.randn(1000, device="cuda", requires_grad=True)
        out = call(x, Scale(weight))
        torch.testing.assert_close(out, (x + weight) * 2)
        (grad,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(grad, torch.full_like(x, 2))


def test_a_kernel_that_writes_its_input_is_functionalized_right(op_name):
    @opforge.op(op_name(), mutates_args=["total"])
    def add_into(total: Tensor, x: Tensor) -> None:
        k.accumulate[blocks(x.numel())](x, total, x.numel(), BLOCK=128)

    def step(x):
        total = torch.zeros_like(x)
        add_into(total, x)
        add_into(total, x)
        return total + 1

    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(step(x), x * 2 + 1)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(x), x * 2 + 1)
    torch.library.opcheck(opforge.info(add_into).overload, (torch.zeros_like(x), x))


def test_an_undeclared_write_is_an_error_when_compiled(op_name):
    @opforge.op(op_name())
    def sneaky(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        k.double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        k.accumulate[blocks(x.numel())](out, x, x.numel(), BLOCK=128)
        return out

    with pytest.raises(Exception, match=r"WrongResult(.|\n)*accumulate .* writes to 'x'"):
        torch.compile(sneaky, fullgraph=True)(torch.randn(1000, device="cuda"))


def test_cpu_tensors_are_refused_with_the_way_out(op_name):
    op = opforge.op(op_name())(jitted)
    with pytest.raises(NeedsGpu, match="TRITON_INTERPRET=1"):
        op(torch.randn(8))


def test_an_op_that_calls_a_transparent_op_is_seen_through(op_name):
    inner = opforge.op(op_name())(jitted)

    @opforge.op(op_name())
    def outer(x: Tensor) -> Tensor:
        return inner(x) + inner(x)

    assert opforge.info(outer).mode == "triton_op"
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(outer(x), x * 4)
    torch.testing.assert_close(torch.compile(outer, fullgraph=True)(x), x * 4)


def test_a_cuda_graph_can_hold_the_op(op_name):
    op = opforge.op(op_name())(jitted)
    x = torch.randn(1000, device="cuda")
    op(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(x)
    x.fill_(3)
    graph.replay()
    assert out.unique().tolist() == [6.0]


def test_undecorated_functions_compile_as_before_beside_an_op(op_name):
    op = opforge.op(op_name())(jitted)
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(torch.compile(op, fullgraph=True)(x), x * 2)
    for fn in (jitted, autotuned, wrapped):
        torch.testing.assert_close(torch.compile(fn, fullgraph=True)(x), x * 2)


def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    k.softmax[(x.shape[0],)](x, out, x.shape[1], x.stride(0), BLOCK=block)
    return out


def test_a_block_size_from_a_dynamic_size_is_specialized(op_name):
    op = opforge.op(op_name())(softmax)
    compiled = torch.compile(op, fullgraph=True, dynamic=True)
    for shape in ((4, 100), (7, 120), (7, 300)):
        x = torch.randn(shape, device="cuda")
        torch.testing.assert_close(op(x), torch.softmax(x, 1))
        torch.testing.assert_close(compiled(x), torch.softmax(x, 1))
