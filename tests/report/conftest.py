"""Two builds of a library that were never compiled, and files that go with them."""

import dataclasses
import json

import pytest

from opforge.serving.report import Served
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, as_config, save
from support.native import hand_made
from support.standin.library import write


def library(spills=0, registers=40):
    """`demo_ops` with two operators; kernels for fp32 spill as told."""
    (add, adding), (everything, others) = hand_made.add(), hand_made.everything()

    def used(kernel):
        spilled = spills if "*fp32" in kernel.types[0] else 0
        images = [
            image._replace(registers=registers, spills=spilled, shared=1024)
            for image in kernel.images
        ]
        return dataclasses.replace(kernel, images=tuple(images))

    whole = hand_made.every_op()
    kernels = tuple(map(used, (*adding, *others)))
    return dataclasses.replace(
        whole, name="demo_ops", ops=(add, everything), kernels=kernels, notes=("a <note>",)
    )


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    return write(library(), tmp_path_factory.mktemp("report") / "dist")


@pytest.fixture(scope="session")
def spilling(tmp_path_factory):
    """The same library, whose kernels for fp32 spill."""
    return write(library(spills=12, registers=48), tmp_path_factory.mktemp("report") / "spilling")


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """By kind, a file of everything that goes with a build."""
    folder = tmp_path_factory.mktemp("files")
    served = Served(
        {"ops:add_kernel": 120}, {"ops:add_kernel": 7}, {("ops:odd_kernel", "it was edited"): 3}
    )
    (folder / "served.json").write_text(served.to_json())
    table = TuningTable()
    gemm = TunedKernel("gemm_kernel", "5e1f", "sm_90", ("float16",), ("m", "n", "mode"))
    for m in (16, 256, 4096):
        for n in (1024, 4096):
            for mode in ("fast", "exact"):
                config = as_config({"BLOCK": 64, "num_warps": 4})
                table.add(gemm, TuningRow((m, n, mode), config, 2 + m * n / 1e5, "NVIDIA H200"))
    save(table, folder / "tuning.json")
    passed = {"name": "eager", "status": "pass", "seconds": 0.4}
    failed = {
        "name": "autograd", "status": "fail", "reason": "the gradient of x is 0",
        "fix": "return it", "seconds": 1.5, "notes": ["in float64"],
    }  # fmt: skip
    check = {"ok": False, "outcome": "failed", "op": "demo::add", "rows": [passed, failed]}
    (folder / "check.json").write_text(json.dumps(check))
    times = {
        "device": "NVIDIA H200",
        "rows": [
            {"op": "add", "dtype": dtype, "microseconds": {"op": 20.0, "torch": 25.0}}
            for dtype in ("bf16", "fp32")
        ],
    }
    (folder / "times.json").write_text(json.dumps(times))
    return {file.stem: str(file) for file in folder.iterdir()}
