"""Tuning on a GPU: measured, used by the JIT in eager and compiled, and built into a library."""

import importlib
import json
import subprocess
import sys
import warnings

import pytest
import torch
import triton

import opforge
from opforge.native.build import build
from support import product_ops
from support.gpu.arch import arch_name
from support.processes import environment

SIZES = (100, 4096, 1_000_000)


@pytest.fixture(scope="module")
def ops():
    return importlib.import_module("support.tuned_ops")


@pytest.fixture(scope="module")
def arch():
    return arch_name()


@pytest.fixture(scope="module")
def table(ops, tmp_path_factory, arch):
    """Measured by the command, twice: the second run has nothing to do."""
    path = tmp_path_factory.mktemp("tuning") / "tuning.json"
    command = [
        sys.executable, "-m", "opforge", "tune", f"{ops.__file__}:scale",
        "--sizes", f"n={','.join(map(str, SIZES))}", "--arch", arch, "-o", str(path),
    ]  # fmt: skip
    first = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "6 rows measured, 0 already there" in first.stdout
    again = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "0 rows measured, 6 already there" in again.stdout
    return path


@pytest.fixture
def in_use(table):
    opforge.use_tuning(table)
    yield table
    opforge.use_tuning(None)


def chosen(table, n, dtype):
    for block in json.loads(table.read_text())["kernels"]:
        if block["dtypes"][0] == dtype:
            return {tuple(r["at"]): r["config"]["BLOCK"] for r in block["rows"]}[n,]
    raise AssertionError(dtype)


def test_eager_does_not_measure(ops, in_use, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("measured on live traffic")

    monkeypatch.setattr(triton.runtime.Autotuner, "_bench", refuse)
    for n in (*SIZES, 77, 30_000):
        x = torch.randn(n, device="cuda")
        torch.testing.assert_close(ops.scale(x), x * 2)
        if n in SIZES:
            assert ops.scale_kernel.best_config.kwargs["BLOCK"] == chosen(in_use, n, "float32")


def test_compiled_code_has_the_one_configuration(ops, in_use):
    from torch._inductor.utils import run_and_get_code  # noqa: PLC0415  # it takes seconds

    x = torch.randn(4096, device="cuda")
    compiled = torch.compile(lambda x: ops.scale(x) + 1, fullgraph=True)
    found, (code,) = run_and_get_code(compiled, x)
    torch.testing.assert_close(found, x * 2 + 1)
    block = chosen(in_use, 4096, "float32")
    others = {64, 128, 256} - {block}
    assert f"'BLOCK': {block}" in code
    assert not any(f"'BLOCK': {other}" in code for other in others)


def test_a_library_has_the_tables_configurations(ops, table, arch, tmp_path):
    done = build([ops.scale], tmp_path, archs=(arch,), name="tuned", tuning=table)
    assert not done.notes
    library = opforge.native.open(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (*SIZES, 0, 77, 30_000):
            x = torch.randn(n, device="cuda").half()
            torch.testing.assert_close(torch.from_dlpack(library.scale(x, 2.0)), x * 2)


PRODUCT_SIZES = {"m": (1, 16, 2000), "n": (768,), "k": (512,)}


@pytest.fixture(scope="module")
def product_table(tmp_path_factory, arch):
    path = tmp_path_factory.mktemp("products") / "tuning.json"
    sizes = [f"--sizes={name}={','.join(map(str, tried))}" for name, tried in PRODUCT_SIZES.items()]
    command = [
        sys.executable, "-m", "opforge", "tune", f"{product_ops.__file__}:gated", *sizes,
        "--arch", arch, "-o", str(path),
    ]  # fmt: skip
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert "6 rows measured, 0 already there" in ran.stdout, ran.stderr
    return path


def test_a_library_has_the_tables_tiles_for_its_products(product_table, arch, tmp_path):
    done = build([product_ops.gated], tmp_path, archs=(arch,), name="tiled", tuning=product_table)
    tiled = f"on {arch}, from tuning.json"
    assert any("gemm_kernel, with tiles of" in note and tiled in note for note in done.notes)
    library = opforge.native.open(tmp_path)
    generator = torch.Generator("cuda").manual_seed(0)
    for dtype in (torch.float16, torch.float32):
        for m, n, k in ((1, 768, 512), (16, 768, 512), (2000, 768, 512), (77, 33, 40), (5, 8, 1)):
            x = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
            w = torch.randn(n, k, device="cuda", generator=generator).to(dtype)
            found = torch.from_dlpack(library.gated(x, w))
            exact = torch.nn.functional.silu(x.double() @ w.double().t())
            torchs = torch.nn.functional.silu(x @ w.t())
            rounding = torch.finfo(dtype).eps * exact.abs().max()
            off, torchs_off = ((r.double() - exact).abs().max() for r in (found, torchs))
            assert off <= 4 * torchs_off + rounding, (dtype, m, n, k, off, torchs_off)
