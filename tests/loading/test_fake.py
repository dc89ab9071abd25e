"""Fakes from the manifest: shapes of any sizes, without needless guards."""

import dataclasses

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatelessSymbolicContext

from opforge.errors import Uncovered, UnsupportedBody
from opforge.loading.rules import Shapes, _is_compact
from opforge.native.ir.cases import Case, Guard, Output, Path, TensorCase
from opforge.native.ir.expr import Expr, Var
from opforge.native.ir.interface import Op, SchemaArgument, TensorParam

SCALARS = [1.0, 1.0, 1.0, 1.0, 1, 1, 1, 1, 3, 1, 1, 1, True]


def symbolic(mode, tensor):
    sizes = [torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC] * tensor.dim()
    context = StatelessSymbolicContext(sizes)
    return mode.from_tensor(tensor, symbolic_context=context)


@pytest.fixture
def traced():
    return FakeTensorMode(shape_env=ShapeEnv())


def test_sizes_stay_symbolic_and_no_guard_is_added(loading, traced):
    loading()
    x = symbolic(traced, torch.zeros(5, 7))
    with traced:
        out = torch.ops.demo.add(x, x)
    assert (out.dtype, out.device) == (torch.float32, x.device)
    assert all(isinstance(size, torch.SymInt) for size in out.shape)
    assert traced.shape_env.guards == []


def test_outputs_that_are_missing_and_types_that_differ(loading, traced):
    loading()
    with traced:
        x, state = torch.empty(3, 8), torch.empty(3)
        out, stats = torch.ops.demo.everything(x, None, state, *SCALARS)
        assert (out.shape, out.dtype) == ((3, 8), torch.float32)
        assert (stats.shape, stats.dtype) == ((3,), torch.float64)
        _, stats = torch.ops.demo.everything(x, None, state, *SCALARS, None)
        assert stats is None
        assert torch.ops.demo.special(x[0], "pdl") is None


def test_a_call_that_no_library_serves_fails_while_it_is_traced(loading, traced):
    loading()
    with (
        traced,
        pytest.raises(Uncovered, match=r"for this call \(x: float64 \[2\], y: float64 \[2\]"),
    ):
        torch.ops.demo.add(*[torch.empty(2, dtype=torch.float64)] * 2)
    with traced, pytest.raises(Uncovered, match="mode is 'gelu'"):
        torch.ops.demo.everything(torch.empty(3, 8), None, torch.empty(3), *SCALARS, "gelu")


@pytest.mark.parametrize("strict", [True, False])
def test_it_is_exported_with_dynamic_sizes(loading, strict):
    loading()

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.demo.add(x, x * 2) + 1

    sizes = {"x": {0: Dim("rows"), 1: Dim("cols")}}
    exported = torch.export.export(
        Model(), (torch.ones(2, 3),), dynamic_shapes=sizes, strict=strict
    )
    assert "demo.add" in str(exported.graph)
    x = torch.arange(20.0).view(4, 5)
    torch.testing.assert_close(exported.module()(x), 3 * x + 1)


def test_mutation_is_functionalized(loading, standin):
    loading()
    compiled = torch.compile(
        lambda x: (torch.ops.demo.special(x, "pdl"), x + 1)[1], fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert [launch.function for launch in standin.launches] == ["pdl_kernel"]


N = Var("n")


X = (TensorParam("x"),)


def shapes(*cases, params=X):
    names = [param.name for param in params]
    op = Op(
        "cut", "made::cut", "ops.py:1", params, ("out",), cases,
        schema=f"made::cut({', '.join(f'Tensor {name}' for name in names)}) -> Tensor",
        arguments=tuple(SchemaArgument(name, "Tensor") for name in names), returns=("Tensor",),
    )  # fmt: skip
    return Shapes(op, cases)


def case(*paths, shape=(N,)):
    return Case((TensorCase("x", True, "fp32", shape),), (), (), paths)


def one_d(size, *guards):
    return Path(tuple(Guard(g) for g in guards), (Output("fp32", (size,), (1,)),))


HALF = Expr("//", (N, 2))
SMALL, LARGE = Expr("<", (N, 10)), Expr("<=", (10, N))


def test_guards_are_asked_where_outputs_differ(traced):
    cut = shapes(case(one_d(N, SMALL), one_d(HALF, LARGE)))
    assert cut(torch.empty(4)).shape == (4,)
    assert cut(torch.empty(12)).shape == (6,)
    x = symbolic(traced, torch.zeros(12))
    with traced:
        out = cut(x)
    assert len(traced.shape_env.guards) == 1
    assert "//2" in str(out.shape[0])


def test_an_output_of_any_strides_has_those_of_the_body():
    """A branch on them is taken as for the output that a traced call would allocate."""
    stride = Var("out.stride[0]")
    dense, other = Expr("==", (stride, 1)), Expr("!=", (stride, 1))
    paths = [
        Path((Guard(LARGE), Guard(other)), refused="rows must be dense"),
        Path((Guard(SMALL), Guard(other)), (Output("fp32", (N,), (1,), strided=True),)),
        Path((Guard(dense),), (Output("fp32", (HALF,), (1,), strided=True),)),
    ]
    said = TensorCase("out", True, "fp32", (Var("half"),), (stride,))
    cut = shapes(dataclasses.replace(case(*paths), returns=(said,)))
    assert cut(torch.empty(4)).shape == (2,)
    assert cut(torch.empty(12)).shape == (6,)


def test_minima_stay_symbolic(traced):
    cut = shapes(case(one_d(Expr("max", (N, Expr("min", (HALF, 64)))))))
    x = symbolic(traced, torch.zeros(12))
    with traced:
        out = cut(x)
    assert out.shape[0].node.hint == 12
    assert traced.shape_env.guards == []


def test_cases_with_fixed_sizes_are_distinguished():
    cut = shapes(case(one_d(1), shape=(77,)), case(one_d(N)))
    assert cut(torch.empty(77)).shape == (1,)
    assert cut(torch.empty(5)).shape == (5,)


def test_an_output_that_depends_on_the_device_is_unknown():
    asks = Expr("<", (N, Var("device.multi_processor_count")))
    cut = shapes(case(one_d(N, asks), one_d(1)))
    with pytest.raises(UnsupportedBody, match=r"depends on device\.multi_processor_count"):
        cut(torch.empty(3))


@pytest.mark.parametrize(
    ("shape", "strides", "compact"),
    [
        ((), (), True),
        ((N, Var("m"), 4), (Expr("*", (Var("m"), 4)), 4, 1), True),
        ((N, 4), (8, 1), False),
        ((4, N), (1, 4), False),
    ],
)
def test_compact_strides_are_known_by_how_they_are_written(shape, strides, compact):
    assert _is_compact(Output("fp32", shape, strides)) is compact
    if not compact:
        out = shapes(case(Path((), (Output("fp32", shape, strides),))))(torch.empty(3))
        assert out.stride() == strides


def test_tensors_of_one_group_are_brought_to_one_shape(traced):
    m = Var("m")
    params = tuple(TensorParam(name, broadcast=True, group=1) for name in "xy")
    tensors = tuple(TensorCase(name, True, "fp32", (N, m)) for name in "xy")
    whole = Case(tensors, paths=(Path((), (Output("fp32", (N, m), (m, 1)),)),))
    assert shapes(whole, params=params)(torch.empty(4, 1), torch.empty(5)).shape == (4, 5)


def test_torchs_own_check_passes(loading):
    loading()
    x = torch.arange(6.0).view(2, 3)
    torch.library.opcheck(torch.ops.demo.add.default, (x, x))


def test_going_backward_through_compiled_code_raises(loading):
    loading()
    compiled = torch.compile(
        lambda x: torch.ops.demo.add(x, x) * 2, backend="aot_eager", fullgraph=True
    )
    out = compiled(torch.ones(2, 3, requires_grad=True))
    torch.testing.assert_close(out.detach(), torch.full((2, 3), 4.0))
    with pytest.raises(RuntimeError, match="has no backward"):
        out.sum().backward()
