"""attention and its relatives, built for the stand-in driver and called."""

import json
import re

from support.ops.operators import build, run_calls
from support.processes import ROOT, run_python

# Packed sequences have the same kernels.
OPS = ("attention", "attention_backward", "paged_attention")


def test_every_call_gives_what_torch_gives(tmp_path):
    said = run_calls(build(tmp_path, *(f"{name}:fp16" for name in OPS)), "calls_attention.py")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert int(passed[1]) >= 28
    assert "skipped" not in said, said


PLANNED = """
import json

import opforge
from opforge import native
from opforge.native.commands import operator_tree

found = operator_tree.load(ROOT + "/ops")
(op,) = (op for _, op in found.operators if opforge.info(op).name == "ops::attention_varlen")
plan = native.plan([op], archs=["sm_80", "sm_90"])
(planned,) = plan.ops
paths = [path for case in planned.cases for path in case.paths]
steps = [step for path in paths for step in path.steps if hasattr(step, "kernel_name")]
launched = {step.kernel_name for step in steps}
print(json.dumps([sorted(launched), sorted({path.refused for path in paths if path.refused})]))
"""


def test_one_library_has_kernels_for_both_kinds_of_gpu():
    launched, refused = json.loads(run_python(f"ROOT = {str(ROOT)!r}\n{PLANNED}"))
    assert launched == ["attention_kernel", "hopper_attention_kernel"]
    assert all("the body raises ValueError" in reason for reason in refused), refused
