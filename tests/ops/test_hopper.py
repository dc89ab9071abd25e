"""Operators that have kernels for Hopper: planned for it and for others, and compiled."""

import json

import pytest

from support.processes import ROOT, run_python

PLANNED = """
import json

from opforge import native
from opforge.native.targets import operators
from opforge.native.frontend.declaration import declarations_of, keep_declarations
from opforge.native.kernels.compile import compile_all
from opforge.registry import registry
from support.archs import GFX942
from support.ops.subset import narrowed

(op,) = operators([ROOT + "/ops"], [NAME])
entry = registry.get(op)
halves = [narrowed(one, ["bf16"], []) for one in declarations_of(entry)]
keep_declarations(entry, [one for one in halves if all(types for _, types in one.types)][:1])
plan = native.plan([op], archs=["sm_80", "sm_90", "gfx942"])
(planned,) = plan.ops
paths = [path for case in planned.cases for path in case.paths]
steps = [step for path in paths for step in path.steps if hasattr(step, "kernel_name")]
wanted = [one for one in plan.requests.values() if one[0].name == HOPPER]
(image,) = compile_all(wanted[:1], cache=None).values()
# One of each size of tiles, because AMD's GPUs have less shared memory.
amds = {
    (one.name, one.options, tuple(v for v in one.constants if v[0].startswith("BLOCK"))): one
    for one, archs in plan.requests.values()
    if GFX942 in archs
}
compile_all([(one, (GFX942,)) for one in amds.values()], cache=None)
print(json.dumps({
    "launched": sorted({step.kernel_name for step in steps}),
    "archs": sorted({len(archs) for _, archs in wanted}),
    "maps": len(image.maps),
    "for_amd": len(amds),
    "refused": sorted({path.refused for path in paths if path.refused}),
}))
"""


@pytest.mark.parametrize(
    ("name", "older", "maps", "tiles"),
    [("attention_varlen", "attention_kernel", 3, 1), ("gemm", "gemm_kernel", 4, 4)],
)
def test_one_library_has_kernels_for_both_kinds_of_gpu(name, older, maps, tiles):
    hopper = f"hopper_{older}"
    given = f"ROOT, NAME, HOPPER = {str(ROOT)!r}, 'ops::{name}', {hopper!r}\n"
    told = json.loads(run_python(given + PLANNED))
    assert {older, hopper} <= {*told["launched"]}
    # Of three: gfx942 has capability 9.4, as if it were a Hopper.
    assert told["archs"] == [1]
    assert told["maps"] == maps
    assert told["for_amd"] == tiles
    assert all("the body raises ValueError" in reason for reason in told["refused"])
