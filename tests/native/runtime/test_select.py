"""Which case, path and variant a call gets, and the error if there is none."""

import ctypes

import pytest
import torch

from opforge.native.ir.expr import Expr
from support.native import hand_made
from support.native.hand_made_calls import everything, fresh, name_of
from support.standin.library import OpforgeTensor, Refused, numbers


def refusal(library, op, *arguments, **options):
    with pytest.raises(Refused) as refused:
        library.run(op, *arguments, **options)
    return refused.value


def test_outputs_are_described_without_a_driver_or_data(library, standin):
    x = OpforgeTensor.of(torch.zeros(3, 5))
    x.data = None
    (out,) = library.outputs("add", x, x)
    assert (out.sizes, out.stride, out.code, out.bits, out.lanes) == ((3, 5), (5, 1), 2, 32, 1)
    assert (out.device_type, out.device_id, out.byte_offset) == (x.device_type, 0, 0)
    assert standin.calls == []


def test_outputs_without_room_for_a_shape_are_refused(library):
    filled = OpforgeTensor()
    x = OpforgeTensor.of(torch.zeros(3, 5))
    given = [ctypes.byref(t) for t in (x, x, filled)]
    with pytest.raises(Refused, match="demo_add: out: its shape is NULL, expected room for 8"):
        library.check(library.function("add_outputs")(*given))


def test_types_that_are_declared_only_separately_list_every_case(library):
    found = refusal(library, "add", torch.zeros(4), torch.zeros(4).half())
    assert found.status == "UNCOVERED"
    assert found.text == (
        "demo_add: nothing was built for this call (x fp32 [4], y fp16 [4]):\n"
        "  x fp16 [m], y fp16 [m]: x is fp32\n"
        "  x fp16 [m, n], y fp16 [m, n]: x is fp32\n"
        "  x fp32 [m], y fp32 [m]: y is fp16\n"
        "  x fp32 [m, n], y fp32 [m, n]: x has 1 dimension"
    )


def test_a_refused_path_says_why_it_was_not_built(library):
    found = refusal(library, "everything", *everything(rows=1001))
    assert found.status == "UNCOVERED"
    head, case, *paths = found.text.splitlines()
    assert head.startswith("demo_everything: nothing was built for this call (x fp32 [1001, 8], ")
    assert case.startswith("  x fp32 [rows, 8], bias fp32 [8], state fp32 [rows], mode=RELU, with ")
    assert "rows = 1001" in case
    assert "device.multi_processor_count = 108" in case
    assert paths == [
        "    path 1: rows <= 1000 does not hold (ops.py:60)",
        "    path 2: aten.mm at ops.py:62",
    ]


def test_several_cases_of_the_same_types_are_tried_in_turn(library, standin):
    library.run("pick", torch.zeros(77, dtype=torch.int8))
    library.run("pick", torch.zeros(64, dtype=torch.int8))
    assert [name_of(launched) for launched in standin.launches] == ["fixed", "small"]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (66, "x: n is 66, expected 1 to 64"),
        (7, "path 1: n % 2 == 0 does not hold (ops.py:81)"),
    ],
)
def test_each_case_of_the_same_types_says_why_it_refuses(library, size, reason):
    found = refusal(library, "pick", torch.zeros(size, dtype=torch.int8))
    assert found.status == "UNCOVERED"
    lines = found.text.splitlines()
    assert lines[0] == f"demo_pick: nothing was built for this call (x i8 [{size}]):"
    assert lines[1] == f"  x i8 [77]: x: size {size} in dimension 0, expected 77"
    assert lines[-1].endswith(reason)


def test_a_stride_beyond_32_bits_takes_the_wide_kernel(library, standin):
    a, b = (OpforgeTensor.of(fresh((4, 4))) for _ in range(2))
    a.strides = numbers([2**40, 1])
    library.call("matmul", a, b, fresh((4, 4)))
    assert name_of(standin.launches[0]) == "matmul_wide"


def test_a_launch_is_refused_before_the_ones_in_front_of_it_are_made(make, standin):
    n = hand_made.Var("n")
    narrow = hand_made.Launch(
        "narrow_kernel", "kernels.py:1", (1, 1, 1), (hand_made.ScalarValue("n", n),),
        (hand_made.Variant("one", ("1",)), hand_made.Variant("narrow", ("i8",), (), (0,))),
    )  # fmt: skip
    wide = hand_made.Launch(
        "wide_kernel", "kernels.py:2", (1, 1, 1), (), (hand_made.Variant("wide", ()),)
    )
    case = hand_made.Case(
        hand_made.tensors("i8", (n,), "x"),
        paths=(hand_made.Path((), (), (wide, narrow)),),
    )
    op = hand_made.Op("narrow", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    keys = {"one": (), "narrow": ("i8",), "wide": ()}
    kernels = [hand_made.kernel(key, f"{key}_kernel", types) for key, types in keys.items()]
    library = make(hand_made.library((op, kernels)))
    library.call("narrow", torch.zeros(1, dtype=torch.int8))
    library.call("narrow", torch.zeros(32, dtype=torch.int8))
    assert [name_of(launched) for launched in standin.launches] == ["wide", "one", "wide", "narrow"]
    standin.launches.clear()
    for size, reason in ((17, "not a multiple of 16"), (208, "which does not fit into i8")):
        found = refusal(library, "narrow", torch.zeros(size, dtype=torch.int8))
        assert standin.launches == []
        assert found.status == "UNCOVERED"
        assert found.text.splitlines()[1:] == [
            f"  one: n is {size}, not 1", f"  narrow: n is {size}, {reason}",
        ]  # fmt: skip


def test_a_long_list_of_candidates_ends_with_a_count(make):
    cases = [
        hand_made.Case(
            hand_made.tensors("i8", (n,), "x"),
            paths=(hand_made.Path((), (hand_made.out_like("i8", (n,)),)),),
        )
        for n in range(1, 400)
    ]
    op = hand_made.Op("many", "", "", (hand_made.TensorParam("x"),), ("out",), tuple(cases))
    library = make(hand_made.library((op, [])))
    found = refusal(library, "many", torch.zeros(500, dtype=torch.int8))
    lines = found.text.splitlines()
    assert lines[1] == "  x i8 [1]: x: size 500 in dimension 0, expected 1"
    assert lines[-1] == f"  and {399 - (len(lines) - 2)} more"
    library.run("many", torch.zeros(399, dtype=torch.int8))


@pytest.mark.parametrize("shift", range(4))
def test_a_text_that_is_cut_off_ends_with_a_whole_character(make, shift):
    n = hand_made.Var("n")
    place = "x" * shift + "äß€😀" * 1000
    path = hand_made.Path((hand_made.Guard(Expr("<", (n, 1)), place),))
    case = hand_made.Case(hand_made.tensors("i8", (n,), "x"), paths=(path,))
    op = hand_made.Op("long", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    library = make(hand_made.library((op, [])))
    with pytest.raises(Refused) as refused:
        library.call("long", torch.zeros(1, dtype=torch.int8))
    assert refused.value.status == "UNCOVERED"
    assert 8187 <= len(refused.value.text.encode()) <= 8191
