"""Forged files of `opforge report`: shown, or refused with an error of opforge."""

import functools
import json
import tempfile
from pathlib import Path

from opforge.errors import OpforgeError
from opforge.report.command import make
from opforge.report.model import (
    LIBRARY,
    Build,
    Checked,
    Launched,
    Report,
    ReportedCase,
    ReportedImage,
    ReportedOperator,
    ReportedVariant,
    Timed,
)
from opforge.serving.report import Served
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, as_config
from support.fuzzing import attack, forged

KERNEL = TunedKernel("gemm", "s", "sm_90", ("float16",), ("m", "mode"))
TABLE = TuningTable()
for at, us in (((1, "a"), 1.0), ((64, "b"), 20.0)):
    TABLE.add(KERNEL, TuningRow(at, as_config({"BLOCK": 64}), us, "NVIDIA H200"))
VARIANT = ReportedVariant(
    "add", "k.py:1", ("*fp16",), {"BLOCK": "64"}, {"num_warps": "4"},
    (ReportedImage("sm_90a", 40, 2, 0, 900, 4),), ("add",), ("sm_80",),
)  # fmt: skip
OPERATOR = ReportedOperator(
    "add", "d::add", "d::add(Tensor x) -> Tensor", "o.py:1", "Adds.", "x: fp16",
    (ReportedCase("x fp16 1-d", 1, ("where n == 0: aten.mm",)),),
)  # fmt: skip
WHOLE = Report(
    "dist",
    (Build(LIBRARY, "demo", ("sm_90a",), 900, {"triton": "3.7.1"}, ("note",), (OPERATOR,),
           (VARIANT,)),),
    (Launched("m:add", 3, 1, 1, ("it was edited",)),),
    TABLE,
    (Timed("add", {"op": 20.0}, "bf16", "NVIDIA H200"),),
    (Checked("d::add", "eager", "fail", "it is wrong", "mend it", 1.0, ("note",)),),
)  # fmt: skip
CHECK = {"outcome": "passed", "op": "d::add", "rows": [{"name": "eager", "status": "pass"}]}


@functools.cache
def folder():
    made = Path(tempfile.mkdtemp(prefix="opforge-fuzz-"))
    (made / "whole.json").write_text(json.dumps(WHOLE.to_content()))
    return made


def is_shown_or_refused(text):
    place = folder() / "forged.json"
    place.write_bytes(text)
    try:
        made = make([str(folder() / "whole.json"), str(place)])
    except OpforgeError:
        return
    assert made.to_html().endswith("</html>")
    json.loads(made.to_json())
    assert str(made)


@attack(forged(WHOLE.to_content()), examples=80)
def test_a_forged_report(text):
    is_shown_or_refused(text)


@attack(forged(json.loads(Served({"m:a": 1}, {}, {("m:b", "why"): 2}).to_json())), examples=30)
def test_forged_counts(text):
    is_shown_or_refused(text)


@attack(forged(CHECK), examples=30)
def test_a_forged_check(text):
    is_shown_or_refused(text)


@attack(forged({"device": "H200", "rows": [{"op": "a", "microseconds": {"op": 1}}]}), examples=30)
def test_forged_times(text):
    is_shown_or_refused(text)


@attack(forged(json.loads(TABLE.to_json())), examples=30)
def test_a_forged_tuning_table(text):
    is_shown_or_refused(text)
