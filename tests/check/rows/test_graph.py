"""compile, compile dynamic, kernels visible: each passing, failing and skipped."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._dynamo.utils import counters

import opforge
from opforge.check import check_call
from opforge.check.rows import graph
from opforge.check.subject import OpCall, Subject
from opforge.doctor import Finding
from opforge.registry import registry
from support.checking import row, statuses
from support.launching import CONFIGS, blocks, double, double_in_place, no_gpu

hooked = triton.autotune(CONFIGS, key=["n"], pre_hook=lambda args, **_: None)(double)


@triton.jit
def evenly(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = None if EVEN else offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) * 2, mask=mask)


def add_one(x: Tensor) -> Tensor:
    return x + 1


def test_compile_fails_if_the_result_differs(op_name):
    compiled = []

    @opforge.op(op_name(), fake=lambda x: compiled.append(1) or torch.empty_like(x))
    def remembers(x: Tensor) -> Tensor:
        return x + len(compiled)

    found = row("compile", remembers, torch.zeros(4, 3))
    assert found.status == "fail"
    assert found.reason.startswith("compiled, output: ")
    assert "see the rows fake and mutation" in found.fix


def test_compile_fails_by_the_error_that_the_trace_raised(op_name):
    def refuse(x):
        raise ValueError("cannot be faked")

    found = row("compile", opforge.op(op_name(), fake=refuse)(add_one), torch.ones(2))
    assert found.status == "fail"
    assert "cannot be faked" in found.reason
    assert len(found.reason) < 320


def test_a_graph_break_in_a_plain_function_fails(op_name):
    inner = opforge.op(op_name(), mode="triton_op", kernels=[double])(_doubled)

    @opforge.op
    def breaking(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return inner(x)

    assert opforge.info(breaking).mode == "none"
    try:
        found = row("compile", breaking, torch.ones(2))
        assert found.status == "fail"
        assert "graph_break" in found.reason
        assert "make what breaks the trace an op of its own" in found.fix
    finally:
        opforge.unregister(breaking)


def launch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
    return out


def _doubled(x: Tensor) -> Tensor:
    return x * 2 if x.device.type == "cpu" else launch(x)


def test_compile_runs_the_backward_as_well(op_name):
    runs = []

    def backward(ctx, grad):
        # Leaves a trace only in eager, as a backward that reads global state may.
        runs.append(1)
        return grad * len(runs)

    op = opforge.op(op_name(), backward=backward, setup_context=lambda ctx, inputs, output: None)(
        add_one
    )
    found = row("compile", op, torch.ones(2))
    assert found.status == "fail"
    assert found.reason.startswith("compiled backward: gradient of x: ")


def test_inductor_is_used_where_it_works_and_else_aot_eager_with_a_note(op_name, monkeypatch):
    op = opforge.op(op_name())(add_one)
    lacking = [Finding("torch.compile", "limited", "Inductor lacks a C++ compiler", "apt-get g++")]
    monkeypatch.setattr(graph, "examine", lambda: lacking)
    found = row("compile", op, torch.ones(2), backend="inductor")
    assert (found.status, found.reason) == ("pass", "aot_eager, 1 graph")
    (note,) = found.notes
    assert note == ("with backend='aot_eager', because Inductor lacks a C++ compiler (apt-get g++)")


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def transposed(x: Tensor) -> Tensor:
    m, n = x.shape
    return x.reshape(-1).reshape(m, n).T.clone() + n


def even_rows(x: Tensor) -> Tensor:
    torch._check(x.shape[0] % 2 == 0, lambda: "even only")
    return x + 1


@pytest.mark.parametrize(
    ("fn", "shapes", "sizes"),
    [
        (add_one, [(4, 3)], "4 and 9"),
        # torch takes a size of 1 for a constant, and equal sizes for one size.
        (add_one, [(1, 3)], "2 and 5"),
        (weighted, [(4, 4), (4,)], "5 and 11"),
        (transposed, [(4, 4)], "5 and 11"),
        (even_rows, [(4, 3)], "4 and 8"),
    ],
)
def test_dynamic_passes_with_one_graph_for_two_sizes(op_name, fn, shapes, sizes):
    found = row("compile dynamic", opforge.op(op_name())(fn), *map(torch.ones, shapes))
    assert (found.status, found.reason) == ("pass", f"aot_eager, one graph for batch {sizes}")


def test_dynamic_fails_on_a_recompile_and_names_the_guard(op_name):
    def fake(x):
        return torch.empty_like(x) if x.shape[0] < 6 else x.clone()

    found = row("compile dynamic", opforge.op(op_name(), fake=fake)(add_one), torch.ones(4, 3))
    assert found.status == "fail"
    assert found.reason.startswith("batch 9 after 4 recompiles: ")
    assert "x.size()[0] <= 5" in found.reason
    assert "do not branch on sizes" in found.fix


def test_dynamic_is_skipped_where_there_is_no_batch_to_vary(op_name):
    @opforge.op(op_name())
    def fixed(x: Tensor) -> Tensor:
        if x.shape[0] != 4:
            raise ValueError("four rows only")
        return x + 1

    found = row("compile dynamic", fixed, torch.ones(4, 3))
    expected = "the op accepts no batch size but 4: ValueError: four rows only"
    assert (found.status, found.reason) == ("skipped", expected)

    @opforge.op(op_name())
    def allocate(n: int) -> Tensor:
        return torch.zeros(n)

    assert row("compile dynamic", allocate, 3).reason == "no tensor input has a batch dimension"


def test_kernels_are_visible_where_the_graph_launches_them(op_name):
    found = row("kernels visible", opforge.op(op_name())(_doubled), torch.ones(2, 8))
    assert (found.status, found.reason) == ("pass", "the graph launches double")


def test_kernels_that_are_not_launched_fail(op_name):
    @opforge.op(op_name())
    def seldom(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if x.numel() > 100:
            double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
        return out

    found = row("kernels visible", seldom, torch.ones(2))
    assert found.status == "fail"
    assert found.reason.startswith(
        "the graph has no launch: double is not launched on these inputs"
    )


def test_an_op_that_is_opaque_by_choice_is_skipped(op_name):
    op = opforge.op(op_name(), mode="custom_op")(_doubled)
    found = row("kernels visible", op, torch.ones(2))
    assert found.reason == "mode='custom_op' keeps the op opaque, as requested"


def test_an_op_that_is_opaque_because_of_missing_support_fails(op_name):
    def with_hook(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        hooked[blocks(x.numel())](x, out, x.numel())
        return out

    with pytest.warns(opforge.OpforgeWarning, match="pre_hook"):
        with_hook = opforge.op(op_name())(with_hook)
    found = row("kernels visible", with_hook, torch.ones(2))
    assert found.status == "fail"
    assert found.reason.startswith("the op is opaque: ")


@no_gpu
def test_without_a_gpu_graphs_are_traced_on_fakes_and_runs_are_skipped(op_name):
    launched = opforge.op(op_name())(launch)
    found = statuses(launched, torch.ones(4, 8))
    passing = {"mutation", "compile", "compile dynamic", "kernels visible", "export"}
    passing |= {"export strict", "save and load"}
    assert {n for n, s in found.items() if s == "pass"} == passing
    assert {s for n, s in found.items() if n not in passing} == {"skipped"}
    skipped = row("eager", launched, torch.ones(4, 8))
    assert skipped.reason == "needs a GPU: the op launches Triton kernels"
    assert "TRITON_INTERPRET=1" in skipped.fix


@no_gpu
@pytest.mark.parametrize(
    ("fake", "status", "reason"),
    [
        (lambda x: x.new_empty(3), "fail", "output[0]: the fake says shape (3,), the op gives"),
        (torch.empty_like, "pass", "from: given, as the body on fake CUDA tensors"),
        (["x"], "pass", "from: listed, as the body on fake CUDA tensors"),
        (None, "skipped", "needs a GPU: the fake is the body itself"),
    ],
)
def test_without_a_gpu_a_fake_is_compared_with_the_body_on_fakes(op_name, fake, status, reason):
    launched = opforge.op(op_name(), fake=fake)(launch)
    found = row("fake", launched, torch.ones(4, 8))
    assert found.status == status
    assert found.reason.startswith(reason)


@no_gpu
def test_without_a_gpu_an_undeclared_write_is_found_by_analysis(op_name):
    @opforge.op(op_name())
    def overwrites(x: Tensor) -> Tensor:
        double_in_place[blocks(x.numel())](x, x.numel(), BLOCK=64)
        return x + 1

    found = row("mutation", overwrites, torch.ones(4, 8))
    assert found.status == "fail"
    assert "kernel double_in_place" in found.reason
    assert found.fix == "mutates_args=['x'], or write to a copy"


@no_gpu
def test_without_a_gpu_the_backward_is_traced_as_well(op_name):
    op = opforge.op(op_name(), backward=lambda ctx, grad: grad.reshape(7, 7))(launch)
    found = row("compile", op, torch.ones(4, 8))
    assert found.status == "fail"
    assert found.reason == "RuntimeError: shape '[7, 7]' is invalid for input of size 32"
    assert found.notes == ()

    def for_gpus(x: Tensor) -> Tensor:
        if not x.is_cuda:
            raise ValueError("CUDA only")
        return launch(x)

    op = opforge.op(op_name(), backward=lambda ctx, grad: grad * 2)(for_gpus)
    found = check_on_fakes(op)
    assert found.status == "pass"
    assert found.notes == ("the backward was not traced: on CPU tensors, ValueError: CUDA only",)


def check_on_fakes(op):
    """The row for an op that cannot run here for a reason other than a missing GPU."""
    subject = Subject(registry.get(op), OpCall((torch.ones(4, 8),), {}, ("x",)))
    return graph.compile_static_on_fakes(subject)


def doubled_into_empty(x: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
    return out


@no_gpu
def test_without_a_gpu_outputs_may_be_made_on_the_device_of_an_input(op_name):
    def backward(ctx, grad):
        return doubled_into_empty(grad)

    op = opforge.op(op_name(), backward=backward)(doubled_into_empty)
    for name in ("compile", "compile dynamic"):
        found = row(name, op, torch.ones(4, 8))
        assert (found.status, found.notes) == ("pass", ()), found


@no_gpu
def test_without_a_gpu_an_op_without_tensor_inputs_is_traced_as_well(op_name):
    @opforge.op(op_name())
    def allocate(n: int) -> Tensor:
        out = torch.zeros(n, device="cuda")
        double[blocks(n)](out, out, n, BLOCK=64)
        return out

    found = statuses(allocate, 64)
    assert [n for n, s in found.items() if s == "fail"] == []
    assert found["kernels visible"] == found["compile"] == found["export"] == "pass"


@triton.jit
def misspelt(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.expp(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


@triton.jit
def unassembled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """What only ptxas refuses."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = tl.inline_asm_elementwise("nothing $0, $1;", "=f,f", [x], tl.float32, True, 1)
    tl.store(out_ptr + offs, y, mask=offs < n)


@no_gpu
@pytest.mark.parametrize("kernel", [misspelt, unassembled])
def test_without_a_gpu_a_kernel_that_does_not_compile_fails(kernel, op_name):
    @opforge.op(op_name(), kernels=[kernel])
    def launched(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
        return out

    found = check_call(launched, (torch.ones(4, 8),), only=["mutation", "compile"])
    assert found["compile"].status == "fail"
    assert f"{kernel.__name__} does not compile for sm_90" in found["compile"].reason
    assert "test_graph.py" in found["compile"].reason
    assert found["mutation"].status == "skipped"


even = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(evenly)


@pytest.mark.parametrize("size", [(8, 16), (7, 9)])
@no_gpu
def test_a_graph_for_each_value_of_a_heuristic_is_no_failure(size, op_name):
    @opforge.op(op_name())
    def launched(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        even[blocks(x.numel())](x, out, x.numel(), BLOCK=64)
        return out

    found = row("compile dynamic", launched, torch.ones(*size))
    assert found.status == "pass"
    if size == (8, 16):
        assert found.reason.startswith("one graph for batch 8 and 16")
        (note,) = found.notes
        assert "batch 17 after 8 recompiles" in note
        assert "a heuristic of evenly" in note


wide = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(double)


@no_gpu
def test_a_graph_for_every_size_fails_and_the_fix_names_the_heuristics(op_name):
    @opforge.op(op_name())
    def launched(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        wide[(1,)](x, out, x.numel())
        return out

    found = row("compile dynamic", launched, torch.ones(4, 8))
    assert found.status == "fail"
    assert "the heuristics of double" in found.fix


def test_dynamos_counters_are_as_before(op_name):
    before = {key: dict(value) for key, value in counters.items()}
    row("compile", opforge.op(op_name())(add_one), torch.ones(2))
    assert {key: dict(value) for key, value in counters.items()} == before
