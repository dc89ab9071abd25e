"""A program that is recorded, built and served on a GPU, without an edit."""

import json
import sys
from pathlib import Path

import pytest
import torch

from support import served_program
from support.gpu.served_programs import NO_JIT, opforge, run

PROGRAM = Path(served_program.__file__)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    launches = folder / "launches.json"
    opforge("record", "-o", launches, "--", sys.executable, PROGRAM, "1000", "4096")
    opforge("build", launches, "--arch", "sm_80", "--arch", "sm_90", "-o", folder / "kernels")
    return folder / "kernels"


def test_other_sizes_are_served_to_the_bit_and_nothing_is_compiled(kernels, tmp_path):
    sizes = ("1000", "4096", "4097", "33", "16384")
    jit = run(sys.executable, PROGRAM, *sizes)
    cache = tmp_path / "no-cache"
    cache.touch()
    cache.chmod(0o444)
    served = opforge(
        "serve", "--strict", "--counts", tmp_path / "counts.json", kernels, "--",
        sys.executable, "-c", NO_JIT, PROGRAM, *sizes,
        TRITON_CACHE_DIR=str(cache / "below-a-file"),
    )  # fmt: skip
    assert served == jit
    report = json.loads(
        opforge("report", kernels, tmp_path / "counts.json", "--json", "--fail-on", "uncovered>0")
    )
    counted = report["totals"]
    assert counted["uncovered"] == 0
    assert counted["launches"] > 0
    assert counted["registers"] > 0
    known = {variant["kernel"] for variant in report["builds"][0]["variants"]}
    assert {one["kernel"] for one in report["launched"]} <= known


def test_forked_processes_graphs_threads_and_every_gpu(kernels):
    uses = PROGRAM.with_name("served_uses.py")
    said = run(sys.executable, "-c", NO_JIT, uses, kernels)
    assert said == f"{torch.cuda.device_count()} GPUs\n"


def test_a_program_that_looks_at_what_a_launch_returned_sees_tritons_kernel(kernels, tmp_path):
    program = PROGRAM.with_name("looking_program.py")
    jit = run(sys.executable, program)
    counts = tmp_path / "counts.json"
    assert opforge("serve", "--counts", counts, kernels, "--", sys.executable, program) == jit
    (looked, warmed) = json.loads(counts.read_text())["handed_over"]
    assert "looks at .n_regs" in looked["reason"]
    assert "warmup()" in warmed["reason"]
