"""Tables for the kernel of tuned_ops."""

import importlib

import pytest

from opforge import _compat
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, as_config, save


@pytest.fixture
def ops():
    return importlib.import_module("support.tuned_ops")


@pytest.fixture
def table_of(ops, tmp_path):
    """`table_of({1024: 128, 65536: 256})`: the file of a table by `n`, for sm_90 and floats."""

    def write(blocks, *, source=None, arch="sm_90", dtype="float32"):
        table = TuningTable()
        kernel = TunedKernel(
            "scale_kernel",
            source or _compat.autotuning.source_hash(ops.scale_kernel),
            arch,
            (dtype, dtype),
            ("n",),
        )
        for n, block in blocks.items():
            config = {"BLOCK": block, "num_warps": 2, "num_ctas": 1, "num_stages": 3}
            table.add(kernel, TuningRow((n,), as_config(config), 1.5))
        path = tmp_path / "tuning.json"
        save(table, path)
        return path

    return write
