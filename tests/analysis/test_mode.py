"""The table from what a body has to how its op is registered, cell by cell."""

from dataclasses import replace

import pytest

from opforge.analysis.mode import Facts, decide
from opforge.errors import ModeRefused
from opforge.model import MENTIONED, KernelRef, NestedOp

KERNEL = KernelRef("silu_kernel", object(), "ops.py:3", "silu_kernel[grid] in silu (ops.py:9)")
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
    with pytest.raises(ModeRefused, match=r"Triton kernel|cannot see into") as caught:
        decide(ROWS[row], asked)
    assert "\n  fix: " in str(caught.value)


@pytest.mark.parametrize("row", ROWS)
def test_opaque_and_none_are_always_given_when_asked(row):
    for asked in ("custom_op", "none"):
        assert decide(ROWS[row], asked).mode == asked
        decision = decide(replace(ROWS[row], interpreted=True), "auto")
        assert (decision.mode, decision.warning) == ("custom_op", "")


def test_kernels_that_are_only_mentioned_may_be_launched():
    assert "may launch tanh_kernel" in decide(ROWS["mentioned"], "auto").reason
    assert "launches tanh_kernel" not in decide(ROWS["mentioned"], "auto").reason
    both = Facts(kernels=(KERNEL,), mentioned=(NAMED,))
    assert "it launches silu_kernel" in decide(both, "auto").reason
    assert "only names tanh_kernel" in decide(ROWS["mentioned and opaque"], "auto").reason


@pytest.mark.parametrize(
    ("facts", "asked", "data"),
    [
        (ROWS["kernels and opaque"], "auto", ("silu_kernel", "lib::wall at ops.py:14")),
        (ROWS["opaque"], "triton_op", ("mode='triton_op'", "lib::wall at ops.py:14")),
        (
            Facts(kernels=(KERNEL,), opaque=(ABSENT,)),
            "auto",
            ("lib::absent at ops.py:16", "not registered"),
        ),
        (Facts(), "triton_op", ("kernels=[...]", "max_depth=")),
    ],
)
def test_a_refusal_names_what_stands_in_the_way(facts, asked, data):
    with pytest.raises(ModeRefused) as caught:
        decide(facts, asked)
    assert all(datum in str(caught.value) for datum in data)


def test_a_gluon_kernel_is_opaque_without_a_warning_unless_triton_op_was_asked():
    facts = Facts(kernels=(KERNEL,), barred=((KERNEL, "it is a Gluon kernel"),))
    assert decide(facts, "auto").warning == ""
    decision = decide(facts, "triton_op")
    assert "Gluon" in decision.warning
    assert "mode='custom_op'" in decision.change
