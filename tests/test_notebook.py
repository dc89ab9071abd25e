"""What a prompt and a notebook show of records: a line or a few, and a table."""

import pickle
from pathlib import Path

import pytest
import torch

import opforge
from opforge.aoti_package.package_record import Package, PackagedKernel, PackagedOp, ReportRow
from opforge.check.report import CheckReport, Row
from opforge.model import Discovery, KernelRef, NestedOp, Unresolved
from opforge.native.artifacts.publish import Written
from opforge.native.build import Result
from opforge.native.ir.interface import Op
from opforge.native.ir.program import Library, Plan
from opforge.notebook import counted, size
from support.archs import sm

OP = Op("silu", "lib::silu", "ops.py:3", params=(), outputs=(), cases=())
ROWS = (Row("eager", "pass"), Row("vmap", "fail", "output 0 < 1", "vmap='sequential'"))

SHOWN = {
    "discovery": (
        Discovery(
            (KernelRef("silu_kernel", None, "k.py:1", "silu_kernel[grid]"),),
            (Unresolved("f", "k.py:2", "it is <computed>"),),
            (NestedOp("lib::add", "k.py:3"),),
        ),
        "<Discovery: 1 kernel (silu_kernel), 1 operator, 1 unresolved call>",
        "it is &lt;computed&gt;",
    ),
    "nothing discovered": (Discovery(), "<Discovery: no kernels>", "<table>"),
    "report": (
        CheckReport("lib::silu", "ops.py:3", (), "CPU", ROWS),
        "<CheckReport of lib::silu: 1 passed, 1 failed, 0 skipped in 0.0 s; failed: vmap>",
        "output 0 &lt; 1",
    ),
    "plan": (
        Plan("lib", [OP], sm(80, 90), {"a": (None, sm(80, 90))}),
        "<Plan of lib: 1 operator, 2 kernel variants to compile>",
        ">ops.py:3<",
    ),
    "result": (
        Result(Library("lib", (OP,), (), sm(80, 90)), Path("dist"), Written()),
        "<Result: library lib in dist, with 1 operator, no kernel variants for sm_80, sm_90>",
        ">ops.py:3<",
    ),
    "package": (
        Package(
            path=Path("m.pt2"),
            title="Model",
            strict=True,
            reasons=("strict\nfailed",),
            report=(ReportRow("size", 1.0, "1 MB"),),
            ops=(PackagedOp("lib::silu", seen_through=True, why="its kernels"),),
            kernels=(PackagedKernel("silu_kernel", "k.py:1", "lib::silu"),),
            inputs=(),
        ),
        "<Package m.pt2 (Model): 1 operator, 1 kernel>",
        "strict\nfailed",
    ),
}


@pytest.mark.parametrize(("record", "line", "cell"), SHOWN.values(), ids=SHOWN)
def test_a_record_is_one_line_at_a_prompt_and_a_table_in_a_notebook(record, line, cell):
    assert repr(record) == line
    table = record._repr_html_()
    assert table.startswith("<table>")
    assert cell in table


def test_an_explanation_is_its_text_and_shows_a_line_or_a_table(op_name):
    @opforge.op(op_name())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    info, explained = opforge.info(double), opforge.explain(double)
    assert isinstance(explained, str)
    assert explained.splitlines()[0] == f"{info.name}  ({info.location})"
    assert repr(explained).startswith(f"<Explanation of {info.name} (")
    assert len(repr(explained).splitlines()) == 1
    assert "<td" in explained._repr_html_()
    assert f">{info.schema.replace('>', '&gt;')}<" in explained._repr_html_()
    assert pickle.loads(pickle.dumps(explained)) == str(explained)


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (999_499, "999 kB"), (999_500, "1 MB"), (3_210_000, "3.21 MB")],
)
def test_sizes_have_three_digits(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("noun", "several"), [("launch", "launches"), ("process", "processes"), ("path", "paths")]
)
def test_plurals_are_spelled_as_in_english(noun, several):
    assert (counted(1, noun), counted(2, noun)) == (f"1 {noun}", f"2 {several}")
