"""Where the compiler sees through an op, and where the op stays an op."""

import functools
import sys

import pytest
import torch
from torch._library.triton import is_wrap_triton_enabled
from torch.library import wrap_triton
from torch.testing._internal.two_tensor import TwoTensor

import opforge
from opforge.errors import NeedsGpu, UnsupportedBody
from opforge.registry import registry
from support import launching
from support.launching import (
    WRAPPERS,
    Module,
    biased,
    blocks,
    compiled_graph_of,
    double,
    graph_of,
    joint_graph_of,
    kernel_names,
    launches,
    no_gpu,
    targets,
)
from support.processes import TORCH_ALONE, run_python

Tensor = torch.Tensor
x = torch.ones(8, 128)


def run_double(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def run_wrapped(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(double)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


wrapped = wrap_triton(double)


@pytest.fixture
def wrapped_anew(monkeypatch):
    """torch cannot use what `wrap_triton` returned before a torch._dynamo.reset()."""
    monkeypatch.setitem(globals(), "wrapped", wrap_triton(double))


def run_wrapped_before(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrapped[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


@torch.library.triton_op("transparent_tests::theirs", mutates_args=())
def theirs(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(double)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


@pytest.fixture
def op(op_name):
    return opforge.op(run_double, name=op_name())


def test_make_fx_sees_through_the_op_where_it_functionalizes(op):
    plain = graph_of(lambda x: op(x) + 1, x, functional=False)
    assert targets(plain) == [op, torch.ops.aten.add.Tensor]
    graph = graph_of(lambda x: op(x) + 1, x)
    assert kernel_names(graph) == ["double"]
    assert op not in targets(graph)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_export_keeps_the_op_until_triton_ops_are_decomposed(op, strict):
    exported = torch.export.export(Module(lambda x: op(x) + 1), (x,), strict=strict)
    assert op in targets(exported)
    assert op in targets(exported.run_decompositions())
    decomposed = exported.run_decompositions(decompose_custom_triton_ops=True)
    assert op not in targets(decomposed)
    [launch] = launches(decomposed)
    assert launch.kernel is double
    assert launch.cloned == ["out_ptr"]


def test_what_export_does_is_what_it_does_with_torchs_triton_op(op):
    def kinds(op):
        exported = torch.export.export(Module(op), (x,))
        decomposed = exported.run_decompositions(decompose_custom_triton_ops=True)
        return [t for t in targets(exported) if t is not op], targets(decomposed)

    with opforge.target("sm_90"):
        assert kinds(op) == kinds(torch.ops.transparent_tests.theirs.default)


def test_a_kernel_wrapped_at_module_level_outlives_a_reset(op_name):
    graph_of(opforge.op(launch_others, name=op_name()), x)
    op = opforge.op(run_wrapped_before, name=op_name())
    torch._dynamo.reset()
    graph_of(opforge.op(launch_others, name=op_name()), x)
    assert kernel_names(graph_of(op, x)) == ["double"]


def launch_others(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    biased[blocks(x.numel())](x, None, out, x.numel(), BLOCK=128)
    return out


def test_a_schema_is_honoured(op_name):
    name = op_name()

    @opforge.op(name, schema="(Tensor x, *, int block=64) -> Tensor")
    def op(x, *, block=64):
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=block)
        return out

    assert opforge.info(op).mode == "triton_op"
    assert opforge.info(op).schema == f"{name}(Tensor x, *, int block=64) -> Tensor"
    [default] = launches(graph_of(op, x))
    [given] = launches(graph_of(lambda x: op(x, block=32), x))
    assert (default.arguments["BLOCK"], given.arguments["BLOCK"]) == (64, 32)


@pytest.mark.parametrize("how", ["traced", "fake"])
def test_a_default_that_only_the_schema_has_is_filled_in(op_name, how):
    @opforge.op(op_name(), schema="(Tensor x, *, int block=64) -> Tensor")
    def op(x, *, block):
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=block)
        return out

    graph_of(op, x, functional=how == "traced")


@pytest.fixture
def higher_order(monkeypatch, wrapped_anew):
    """How often torch's operators for a launch were called; kernels run on the CPU."""
    calls = []
    for wrapper in WRAPPERS:
        original = type(wrapper).__call__

        def count(self, *args, original=original, **kwargs):
            calls.append(self)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(type(wrapper), "__call__", count)

    def run(self, x, out, *args, **kwargs):
        out.copy_(x * 2)

    monkeypatch.setattr(launching.double.__class__, "run", run)
    return calls


@pytest.mark.parametrize("body", [run_double, run_wrapped, run_wrapped_before])
@pytest.mark.parametrize("grad", [False, True])
def test_an_eager_call_launches_without_a_higher_order_op(op_name, higher_order, body, grad):
    op = opforge.op(body, name=op_name())
    assert is_wrap_triton_enabled()
    given = torch.ones(8, 128, requires_grad=grad)
    torch.testing.assert_close(op(given).detach(), 2 * x)
    assert is_wrap_triton_enabled()
    assert higher_order == []


def test_an_eager_call_with_a_backward_launches_without_a_higher_order_op(op_name, higher_order):
    op = opforge.op(run_wrapped, name=op_name(), backward=lambda ctx, grad: run_wrapped(grad))
    given = torch.ones(8, 128, requires_grad=True)
    op(given).sum().backward()
    torch.testing.assert_close(given.grad, 2 * x)
    assert higher_order == []
    assert is_wrap_triton_enabled()
    # The count would notice one.
    run_wrapped_before(x)
    assert higher_order != []


@pytest.mark.parametrize("before", [True, False])
def test_an_error_in_the_body_leaves_wrap_triton_as_it_was(op_name, before):
    seen = []

    @opforge.op(op_name(), kernels=[double])
    def op(x: Tensor) -> Tensor:
        seen.append(is_wrap_triton_enabled())
        raise LookupError("in the body")

    with torch._library.triton.set_wrap_triton_enabled(before):
        with pytest.raises(LookupError, match="in the body"):
            op(x)
        assert is_wrap_triton_enabled() is before
    assert seen == [False]


LOADED_LATER = """
from support.launching import double

def launch(x, out):
    double[(8,)](x, out, x.numel(), BLOCK=128)
"""


def test_the_mode_is_resolved_by_a_module_that_the_first_trace_imports(
    op_name, tmp_path, monkeypatch
):
    (tmp_path / "loaded_later.py").write_text(LOADED_LATER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loaded_later", raising=False)

    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        import loaded_later  # noqa: PLC0415  # what is tested

        out = torch.empty_like(x)
        loaded_later.launch(x, out)
        return out

    assert "not loaded yet" in opforge.explain(op)
    graph_of(op, torch.ones(8, 128))
    assert opforge.info(op).mode == "triton_op"
    assert kernel_names(graph_of(op, torch.ones(8, 128))) == ["double"]
    assert "not loaded yet" not in opforge.explain(op)


def test_wrap_triton_is_enabled_again_inside_of_a_nested_trace(op_name):
    inner = opforge.op(run_wrapped, name=op_name())

    @opforge.op(op_name(), kernels=[double])
    def op(x: Tensor) -> Tensor:
        assert kernel_names(graph_of(inner, x)) == ["double"]
        return x + 1

    torch.testing.assert_close(op(x), x + 1)


def subclass_targets(op):
    graph = compiled_graph_of(op, TwoTensor(torch.ones(4), torch.ones(4)))
    return [t for t in targets(graph) if t in WRAPPERS]


def test_a_tensor_subclass_is_asked_as_it_is_with_torchs_triton_op(op):
    found = subclass_targets(lambda x: op(x) + 1)
    assert len(found) == 2
    assert found == subclass_targets(lambda x: theirs(x) + 1)


def backward_by_kernel(ctx, grad):
    out = torch.empty_like(grad)
    biased[blocks(grad.numel())](grad, None, out, grad.numel(), BLOCK=64)
    return out


@pytest.fixture
def differentiable(op_name):
    return opforge.op(run_double, name=op_name(), backward=backward_by_kernel)


def test_kernels_of_the_backward_are_listed_apart(differentiable):
    info = opforge.info(differentiable)
    assert [ref.kernel for ref in info.kernels] == [double]
    assert [ref.kernel for ref in info.backward_kernels] == [biased]
    text = opforge.explain(differentiable)
    assert "in the backward" in next(line for line in text.splitlines() if "biased" in line)
    entries = torch._library.triton.triton_ops_to_kernels[info.name]
    assert double in entries
    assert biased in entries


class Backward:
    def __call__(self, ctx, grad):
        return backward_by_kernel(ctx, grad)

    def method(self, ctx, grad):
        return backward_by_kernel(ctx, grad)


@pytest.mark.parametrize(
    "backward",
    [backward_by_kernel, functools.partial(backward_by_kernel), Backward(), Backward().method],
    ids=["a function", "a partial", "an object", "a method"],
)
def test_a_backward_of_any_kind_is_captured(op_name, backward):
    op = opforge.op(run_double, name=op_name(), backward=backward)
    graph = joint_graph_of(lambda x: op(x) + 1, torch.ones(30, requires_grad=True))
    assert kernel_names(graph) == ["double", "biased"]
    assert [launch.cloned for launch in launches(graph)] == [["out_ptr"]] * 2
    assert [ref.kernel for ref in opforge.info(op).backward_kernels] == [biased]


def test_kernels_of_setup_context_are_captured(op_name):
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(backward_by_kernel(ctx, inputs[0]))

    op = opforge.op(
        run_double,
        name=op_name(),
        setup_context=setup_context,
        backward=lambda ctx, grad: grad * ctx.saved_tensors[0],
    )
    graph = joint_graph_of(lambda x: op(x) + 1, torch.ones(30, requires_grad=True))
    assert kernel_names(graph) == ["double", "biased"]


def test_without_a_backward_an_input_that_requires_grad_compiles(op):
    given = torch.ones(8, 128, requires_grad=True)
    graph = compiled_graph_of(lambda x: op(x) + 1, given)
    assert kernel_names(graph) == ["double"]


def test_cpu_tensors_are_refused_with_three_ways_out(op):
    with pytest.raises(NeedsGpu, match="cannot use CPU tensors") as caught:
        op(x)
    text = str(caught.value)
    name = opforge.info(op).name
    assert text.startswith(f"{name} ({__file__}:{run_double.__code__.co_firstlineno})")
    assert "found: tensors on cpu" in text
    assert "TRITON_INTERPRET=1" in text
    assert 'op.register_kernel("cpu")' in text
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.__cause__ is not None


@no_gpu
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_compiled_cpu_tensors_are_refused_as_in_eager(op, backend):
    with pytest.raises(NeedsGpu) as eager:
        op(x)
    with pytest.raises(NeedsGpu) as compiled:
        torch.compile(lambda x: op(x) + 1, fullgraph=True, backend=backend)(x)
    assert str(compiled.value) == str(eager.value)


@no_gpu
def test_an_exported_program_refuses_cpu_tensors_as_long_as_the_op_is_whole(op):
    exported = torch.export.export(launching.Module(op), (x,))
    for program in (exported, exported.run_decompositions()):
        with pytest.raises(NeedsGpu, match="cannot use CPU tensors"):
            program.module()(x)
    taken_apart = exported.run_decompositions(decompose_custom_triton_ops=True)
    # The launch is torch's own; docs/faq.md says what to do.
    with pytest.raises(RuntimeError, match="0 active drivers"):
        taken_apart.module()(x)


@no_gpu
def test_compiled_cpu_tensors_in_the_backward_are_refused_when_it_runs(op_name):
    @opforge.op(op_name(), backward=backward_by_kernel)
    def op(x: Tensor) -> Tensor:
        return x * 2

    for run in (op, torch.compile(lambda x: op(x) + 1)):
        out = run(torch.ones(4, requires_grad=True))
        with pytest.raises(NeedsGpu, match="backward launches Triton kernels, which cannot use C"):
            out.sum().backward()


@no_gpu
def test_an_op_without_tensors_says_that_there_is_no_gpu(op_name):
    @opforge.op(op_name())
    def op(n: int) -> Tensor:
        out = torch.empty(n)
        launching.fill[(1,)](out, n, 1.0, BLOCK=32)
        return out

    with pytest.raises(NeedsGpu, match="there is no GPU"):
        op(3)


def test_a_branch_for_the_cpu_is_taken(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return x * 2
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        return out

    torch.testing.assert_close(op(x), 2 * x)
    assert kernel_names(graph_of(op, x)) == ["double"]
    assert targets(graph_of(op, x, device="cpu")) == [torch.ops.aten.mul.Tensor]


def test_a_kernel_registered_for_the_cpu_is_called_and_kept_as_an_op(op):
    calls = []

    @torch.library.register_kernel(opforge.info(op).name, "cpu")
    def on_cpu(x):
        calls.append(x)
        return x * 2

    torch.testing.assert_close(op(x), 2 * x)
    assert len(calls) == 1
    assert targets(compiled_graph_of(op, x)) == [op]
    compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * x + 1)
    assert kernel_names(graph_of(op, x)) == ["double"]


def test_a_native_build_of_the_op_is_called_and_the_compiler_sees_the_body(op):
    entry = registry.get(op)
    library = torch.library.Library(entry.name.partition("::")[0], "FRAGMENT")
    library.impl(entry.name.partition("::")[2], lambda x: x * 2, "CPU")
    entry.registration.runs_natively("CPU", "where covered, from libops.so")
    torch.testing.assert_close(op(x), 2 * x)
    assert kernel_names(compiled_graph_of(op, x)) == ["double"]
    assert "  native    where covered, from libops.so\n" in opforge.explain(op)
    entry.registration.runs_its_body("CPU")
    assert targets(compiled_graph_of(op, x)) == [op]
    library._destroy()


DECORATE = """
import sys
import torch, triton, opforge
import launch_module
heavy = [m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))]
assert opforge.info(launch_module.op).mode == "triton_op"
print(sorted(m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))), heavy)
"""
LAUNCH_MODULE = """
import torch, triton, opforge
import triton.language as tl

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, 0)

def backward(ctx, grad):
    kernel[(1,)](grad, BLOCK=1)
    return grad

@opforge.op("launch::op", backward=backward)
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[(1,)](out, BLOCK=1)
    return out
"""


def test_decorating_and_describing_load_neither_dynamo_nor_inductor(tmp_path):
    (tmp_path / "launch_module.py").write_text(LAUNCH_MODULE)
    script = tmp_path / "script.py"
    script.write_text(DECORATE)
    assert run_python(script, **TORCH_ALONE).strip() == "[] []"


kept = {"loaded": torch.ones(8, 128)}


def reads_numpy(x: Tensor, scale: Tensor) -> Tensor:
    return run_double(x * float(scale.numpy()[0]))


def reads_a_pointer(x: Tensor, scale: Tensor) -> Tensor:
    return run_double(x.clone() if x.data_ptr() % 16 else x)


def branches_on_a_value(x: Tensor, scale: Tensor) -> Tensor:
    return run_double(x) if scale.sum() > 0 else run_double(-x)


def adds_a_loaded_tensor(x: Tensor, scale: Tensor) -> Tensor:
    return run_double(x + kept["loaded"])


HOST_READERS = [reads_numpy, reads_a_pointer, branches_on_a_value, adds_a_loaded_tensor]


@pytest.mark.parametrize("fake", [None, lambda x, scale: torch.empty_like(x)])
@pytest.mark.parametrize("body", HOST_READERS)
def test_a_body_that_reads_on_the_host_makes_the_op_opaque(op_name, body, fake):
    op = opforge.op(op_name(), fake=fake)(body)
    inputs = (x, torch.ones(1))
    with pytest.warns(opforge.OpforgeWarning, match="mode='custom_op'") as warned:
        graph = graph_of(lambda x, s: op(x, s) + 1, *inputs, device="cpu")
    # Nothing of the body stays.
    assert targets(graph) == [op, torch.ops.aten.add.Tensor]
    assert len(warned) == 1
    first = body.__code__.co_firstlineno
    said = str(warned[0].message)
    assert f"{__file__}:{first + 1}," in said
    # torch's first sentence, which may have "(e.g. FakeTensor)" in it.
    assert said.count("(") == said.count(")")
    # Warnings are errors here: there is no second one.
    assert op in targets(compiled_graph_of(lambda x, s: op(x, s) + 1, *inputs))
    assert opforge.info(op).mode == "custom_op"


def test_a_body_that_has_to_be_traced_and_reads_on_the_host_is_refused(op_name):
    op = opforge.op(op_name(), mode="triton_op")(branches_on_a_value)
    with pytest.raises(UnsupportedBody, match=rf"{__file__}:\d+.*\n.*mode='custom_op'.*fake="):
        graph_of(op, x, torch.ones(1))


def test_a_body_that_wrote_before_it_reads_on_the_host_is_refused(op_name):
    @opforge.op(op_name(), mutates_args=["scale"])
    def op(x: Tensor, scale: Tensor) -> Tensor:
        scale.add_(1)
        return branches_on_a_value(x, scale)

    with pytest.raises(UnsupportedBody, match="mode='custom_op'"):
        graph_of(op, x, torch.ones(1))


def test_a_launch_with_a_parameter_that_the_body_keeps_makes_the_op_opaque(op_name):
    weight = torch.nn.Parameter(torch.ones(8, 128))

    def launches_with_a_weight(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        double[(8,)](weight, out, x.numel(), BLOCK=128)
        return out

    op = opforge.op(op_name())(launches_with_a_weight)
    with pytest.warns(
        opforge.OpforgeWarning, match=r"is opaque to the compiler.*test_transparent.py"
    ):
        graph = graph_of(op, torch.ones(8, 128))
    assert targets(graph) == [op]


def test_a_tensor_kept_from_another_trace_is_refused(op_name):
    def adds_what_it_keeps(x: Tensor) -> Tensor:
        if "made" not in kept:
            kept["made"] = x + 1
        return run_double(x + kept["made"])

    op = opforge.op(op_name())(adds_what_it_keeps)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"mode='custom_op'.*fake="):
        compiled_graph_of(op, x)
