"""The table from what a body has to how its op is registered, cell by cell."""

from dataclasses import replace

import pytest

from opforge.analysis.mode import Facts, decide
from opforge.errors import ModeRefused, OpforgeError
from opforge.model import MENTIONED, KernelRef, NestedOp

KERNEL = KernelRef("silu_kernel", object(), "ops.py:3", "silu_kernel[grid] in silu (ops.py:9)")
OTHER = KernelRef("gelu_kernel", object(), "ops.py:30", "kernels=")
CLEAR = NestedOp("lib::clear", "ops.py:12", object())
WALL = NestedOp("lib::wall", "ops.py:14", object())
ABSENT = NestedOp("lib::absent", "ops.py:16")
NAMED = KernelRef("tanh_kernel", object(), "ops.py:50", "named in act (ops.py:60)", MENTIONED)

ALL = Facts(kernels=(KERNEL,), transparent=(CLEAR,), opaque=(WALL,))
ROWS = {
    "kernels": Facts(kernels=(KERNEL,)),
    "kernels and transparent": Facts(kernels=(KERNEL,), transparent=(CLEAR,)),
    "transparent": Facts(transparent=(CLEAR,)),
    "transparent and opaque": Facts(transparent=(CLEAR,), opaque=(WALL,)),
    "opaque": Facts(opaque=(WALL,)),
    "kernels and opaque": Facts(kernels=(KERNEL,), opaque=(WALL,)),
    "all three": ALL,
    "mentioned": Facts(mentioned=(NAMED,)),
    "mentioned and transparent": Facts(mentioned=(NAMED,), transparent=(CLEAR,)),
    "mentioned and opaque": Facts(mentioned=(NAMED,), opaque=(WALL,)),
    "mentioned and all three": replace(ALL, mentioned=(NAMED,)),
    "neither": Facts(),
}
TABLE = {
    "kernels": ("triton_op", "triton_op"),
    "kernels and transparent": ("triton_op", "triton_op"),
    "transparent": ("none", "triton_op"),
    "transparent and opaque": ("none", "refused"),
    "opaque": ("custom_op", "refused"),
    "kernels and opaque": ("refused", "refused"),
    "all three": ("refused", "refused"),
    "mentioned": ("triton_op", "triton_op"),
    "mentioned and transparent": ("triton_op", "triton_op"),
    "mentioned and opaque": ("custom_op", "refused"),
    "mentioned and all three": ("refused", "refused"),
    "neither": ("custom_op", "refused"),
}
CELLS = [
    (row, asked, mode)
    for row, modes in TABLE.items()
    for asked, mode in zip(("auto", "triton_op"), modes, strict=True)
]


@pytest.mark.parametrize(
    ("row", "asked", "mode"), [c for c in CELLS if c[2] != "refused"], ids=lambda v: v
)
def test_a_cell_gives_its_mode(row, asked, mode):
    decision = decide(ROWS[row], asked)
    assert decision.mode == mode
    assert decision.reason
    assert decision.warning == ""


@pytest.mark.parametrize(("row", "asked"), [c[:2] for c in CELLS if c[2] == "refused"])
def test_a_cell_refuses(row, asked):
    with pytest.raises(ValueError, match=r"Triton kernel|cannot see into") as caught:
        decide(ROWS[row], asked)
    assert isinstance(caught.value, ModeRefused)
    assert isinstance(caught.value, OpforgeError)
    assert "\n  fix: " in str(caught.value)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("asked", ["custom_op", "none"])
def test_opaque_and_none_are_always_given_when_asked(row, asked):
    decision = decide(ROWS[row], asked)
    assert decision.mode == asked
    assert f"mode='{asked}'" in decision.reason


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        ("kernels", "kernels"),
        ("kernels and transparent", "kernels and transparent ops"),
        ("transparent", "transparent ops"),
        ("transparent and opaque", "transparent ops and opaque ops"),
        ("opaque", "opaque ops"),
        ("mentioned", "kernels"),
        ("neither", "neither kernels nor operators"),
    ],
)
def test_a_decision_says_what_the_body_has(row, cell):
    assert decide(ROWS[row], "auto").cell == cell


def test_kernels_that_are_only_mentioned_may_be_launched():
    assert "may launch tanh_kernel" in decide(ROWS["mentioned"], "auto").reason
    assert "launches tanh_kernel" not in decide(ROWS["mentioned"], "auto").reason
    both = Facts(kernels=(KERNEL,), mentioned=(NAMED,))
    assert "it launches silu_kernel" in decide(both, "auto").reason
    assert "only names tanh_kernel" in decide(ROWS["mentioned and opaque"], "auto").reason


def test_a_barrier_is_refused_by_name_and_location_with_every_way_out():
    with pytest.raises(ModeRefused) as caught:
        decide(ROWS["kernels and opaque"], "auto")
    text = str(caught.value)
    assert "launches kernel silu_kernel (silu_kernel[grid] in silu (ops.py:9))" in text
    assert "calls lib::wall at ops.py:14" in text
    assert "which the compiler cannot see into" in text
    assert "mode='custom_op'" in text
    assert "make lib::wall transparent" in text
    assert "torch.library.triton_op" in text
    assert "call it outside of this op" in text


def test_a_barrier_says_that_triton_op_was_asked_for():
    with pytest.raises(ModeRefused, match=r"mode='triton_op', and it calls lib::wall at ops.py:14"):
        decide(ROWS["opaque"], "triton_op")


def test_an_operator_that_is_not_registered_is_a_barrier_of_its_own_kind():
    with pytest.raises(ModeRefused, match=r"lib::absent at ops.py:16, which is not registered"):
        decide(Facts(kernels=(KERNEL,), opaque=(ABSENT,)), "auto")


def test_triton_op_without_kernels_says_how_to_name_them():
    with pytest.raises(ModeRefused, match="no launch of a Triton kernel was found") as caught:
        decide(Facts(), "triton_op")
    assert "kernels=[...]" in str(caught.value)
    assert "max_depth=" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "mode"), [("transparent", "triton_op"), ("transparent and opaque", "custom_op")]
)
def test_mode_none_is_not_chosen_where_something_would_be_lost(row, mode):
    decision = decide(replace(ROWS[row], lost="its backward"), "auto")
    assert decision.mode == mode
    assert "mode 'none' would lose its backward" in decision.reason


def test_options_that_would_be_lost_matter_only_for_mode_none():
    for row in ("kernels", "opaque", "neither"):
        assert decide(replace(ROWS[row], lost="its backward"), "auto").mode == TABLE[row][0]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("asked", ["auto", "triton_op"])
def test_the_interpreter_makes_everything_opaque(row, asked):
    decision = decide(replace(ROWS[row], interpreted=True), asked)
    assert decision.mode == "custom_op"
    assert "TRITON_INTERPRET=1" in decision.reason
    assert decision.warning == ""


def test_a_kernel_that_no_graph_holds_makes_the_op_opaque_with_one_warning():
    facts = Facts(kernels=(KERNEL, OTHER), barred=((OTHER, "its autotuner has a pre_hook"),))
    for asked in ("auto", "triton_op"):
        decision = decide(facts, asked)
        assert decision.mode == "custom_op"
        assert decision.reason == (
            "kernel gelu_kernel (ops.py:30) cannot be seen through: its autotuner has a pre_hook"
        )
        assert decision.reason in decision.warning
        assert "mode='custom_op'" in decision.change


def test_a_gluon_kernel_is_opaque_without_a_warning_unless_triton_op_was_asked():
    facts = Facts(kernels=(KERNEL,), barred=((KERNEL, "it is a Gluon kernel"),))
    assert decide(facts, "auto").mode == "custom_op"
    assert decide(facts, "auto").warning == ""
    assert "Gluon" in decide(facts, "triton_op").warning


def test_a_decision_names_the_kernels_and_what_would_change_it():
    decision = decide(Facts(kernels=(KERNEL, OTHER)), "auto")
    assert "it launches silu_kernel, gelu_kernel" in decision.reason
    assert "mode='custom_op'" in decision.change
    assert "mode='triton_op'" in decide(ROWS["transparent"], "auto").change
    assert "kernels=[...]" in decide(ROWS["neither"], "auto").change
