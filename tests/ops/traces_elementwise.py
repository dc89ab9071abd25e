"""add, mul and rotary as compilers see them: with fake tensors of a GPU that is not there."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from support.launching import Module, graph_of, kernel_names, launches, targets
from support.ops.operators import LAYOUTS, laid_out, numbers

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_compact_tensors_are_one_line(tree, dtype):
    x = numbers((3, 5, 7), dtype)
    graph = graph_of(tree["add"], x, x)
    assert kernel_names(graph) == ["line_kernel"]
    (launch,) = launches(graph)
    assert launch.arguments["n"] == 105
    assert launch.cloned == ["out_ptr"]


@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {"compact", "shifted"}))
def test_other_layouts_are_tiles_with_their_strides(tree, layout):
    x, y = laid_out(layout, (2, 3, 5, 7)), numbers((2, 3, 5, 7))
    (launch,) = launches(graph_of(tree["add"], x, y))
    given = [launch.arguments[f"x_{d}"] for d in ("outer", "inner", "row", "col")]
    assert given == list(x.stride())
    tensors = {n for n, v in launch.arguments.items() if not isinstance(v, (int, str))}
    assert tensors == {"x_ptr", "y_ptr", "out_ptr"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_the_result_is_allocated_and_nothing_copied(tree, layout):
    """Sizes and strides are arguments of the launch, not device memory."""
    graph = graph_of(tree["add"], laid_out(layout, (2, 3, 5, 7)), numbers((5, 1)))
    aten = [t.name() for t in targets(graph) if isinstance(t, torch._ops.OpOverload)]
    assert [name for name in aten if name != "aten::expand"] == ["aten::empty.memory_format"]


def test_broadcast_dimensions_have_strides_of_0(tree):
    (launch,) = launches(graph_of(tree["mul"], numbers((3, 5)), numbers((5,))))
    assert [launch.arguments[f"y_{d}"] for d in ("row", "col")] == [0, 1]
    assert launch.arguments["OPERATION"] == "mul"


def exported(op, shapes, dynamic, *rest, dtype=torch.bfloat16):
    with opforge.target("sm_90"), FakeTensorMode():
        fakes = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
        return torch.export.export(
            Module(op), (*fakes, *rest), dynamic_shapes=(dynamic,), strict=False
        )


def test_add_is_exported_for_any_number_of_rows(tree):
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    program = exported(tree["add"], [(8, 64), (64,)], ({0: rows}, None))
    (out,) = [node.args[0][0] for node in program.graph.nodes if node.op == "output"]
    assert str(out.meta["val"].shape[1]) == "64"
    assert not isinstance(out.meta["val"].shape[0], int)
    assert torch.ops.ops.add.default in [n.target for n in program.graph.nodes]


def test_rotary_is_exported_as_what_it_changes(tree):
    tokens = torch.export.Dim("tokens", min=2, max=64)
    shapes = [(8, 4, 64), (8, 2, 64), (64, 32), (64, 32)]
    program = exported(tree["rotary"], shapes, ({0: tokens}, {0: tokens}, None, None))
    changed = program.run_decompositions({}).graph_signature.user_inputs_to_mutate
    assert sorted(changed.values()) == ["args_0", "args_1"]


def test_rotary_writes_q_and_k_only(tree):
    q, k, table = numbers((3, 4, 8)), numbers((3, 2, 8)), numbers((3, 4))
    (launch,) = launches(graph_of(tree["rotary"], q, k, table, table))
    assert sorted(launch.cloned) == ["k_ptr", "q_ptr"]
