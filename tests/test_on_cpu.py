"""examples/on_cpu.py: programs that call a library on the stand-in of either driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import opforge
from support.processes import ROOT, environment, python
from support.standin.driver import AMD, build_standin

SOURCE = """
import torch, triton, triton.language as tl, opforge
from opforge import native
from triton.language.target_info import is_hip

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor: tl.constexpr = 3 if is_hip() else 2
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)

@opforge.op("on_cpu::double")
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out

native.declare(double, x=native.tensor("n", dtype="fp32"))
"""
SCRIPT = """
import torch
from opforge import native
print(native.open("dist", host_memory=True).double(torch.arange(3.0)).tolist())
"""
PROGRAM = """
#include "ops.h"
#include <stdio.h>
int main(void)
{
    static float x[4], out[4];
    int64_t shape[1] = {4};
    OpforgeTensor given = {x, {DEVICE_TYPE, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    OpforgeTensor made = given;
    made.data = out;
    if (ops_double(&given, &made, NULL) != OPFORGE_OK) puts(ops_last_error());
    return 0;
}
"""


# As a program for AMD GPUs is written, but for the headers of ROCm.
HIP_PROGRAM = """
#include "ops.h"
#include <stdio.h>
extern int hipMalloc(void **address, size_t bytes);
extern int hipMemcpy(void *target, const void *source, size_t bytes, int kind);
extern int hipDeviceSynchronize(void);
extern int hipFree(void *address);
int main(void)
{
    float values[3] = {1, 2, 3};
    int64_t shape[1] = {3};
    OpforgeTensor given = {NULL, {10, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    OpforgeTensor made = given;
    if (hipMalloc(&given.data, 12) || hipMalloc(&made.data, 12)) return 2;
    if (hipMemcpy(given.data, values, 12, 1)) return 3;
    if (ops_double(&given, &made, NULL) != OPFORGE_OK) return puts(ops_last_error()), 1;
    if (hipDeviceSynchronize() || hipMemcpy(values, made.data, 12, 2)) return 4;
    printf("%g %g %g\\n", values[0], values[1], values[2]);
    return hipFree(given.data) || hipFree(made.data);
}
"""


@pytest.fixture(scope="module", params=["sm_90", "gfx942", "sm_90 gfx942"])
def arch(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, arch):
    """A library for one GPU, which is not the one that stand-ins present by themselves."""
    folder = tmp_path_factory.mktemp("on_cpu")
    (folder / "ops.py").write_text(SOURCE)
    (folder / "use.py").write_text(SCRIPT)
    (folder / "main.c").write_text(PROGRAM)
    archs = [option for one in arch.split() for option in ("--arch", one)]
    build = ["build", "ops.py", "--name", "ops", *archs, "-o", "dist"]
    subprocess.run([python(), "-m", "opforge", *build], cwd=folder, env=environment(), check=True)
    return folder


def on_cpu(folder, *program, options=()):
    command = [python(), str(ROOT / "examples" / "on_cpu.py"), *options, "dist", *program]
    variables = environment(folder, TRITON_INTERPRET="1")
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_a_script_runs_on_a_gpu_of_the_library(folder, arch):
    for one in arch.split():
        done = on_cpu(folder, "use.py", options=("--arch", one))
        factor = 3.0 if one == "gfx942" else 2.0
        assert done.stdout == f"{[0.0, factor, 2 * factor]}\n", done.stderr


@pytest.mark.parametrize("arch", ["sm_90"], indirect=True, scope="module")
def test_a_name_that_is_not_a_gpus_is_refused(folder):
    done = on_cpu(folder, "use.py", options=("--arch", "mi300"))
    assert done.returncode == 2
    assert "'mi300' is not a GPU architecture" in done.stderr


def test_memory_of_a_programs_own_is_refused_by_name(folder, arch):
    device_type = 10 if arch == "gfx942" else 2
    flags = [f"-DDEVICE_TYPE={device_type}", "-Idist/include", "-Ldist/lib", "-Wl,-rpath,dist/lib"]
    subprocess.run(["cc", "main.c", *flags, "-lops", "-o", "main"], cwd=folder, check=True)
    done = on_cpu(folder, "./main")
    assert done.returncode == 1
    assert "ops_double: " in done.stdout
    assert "ValueError: double_kernel's x points to 0x" in done.stderr
    assert "which the program has not allocated with the driver" in done.stderr


@pytest.mark.parametrize("arch", ["gfx942"], indirect=True, scope="module")
def test_a_program_for_amd_gpus_runs(folder):
    (folder / "hip.c").write_text(HIP_PROGRAM)
    flags = ["-Idist/include", "-Ldist/lib", "-Wl,-rpath,dist/lib", "-lops"]
    driver = str(build_standin(AMD))
    subprocess.run(["cc", "hip.c", *flags, driver, "-o", "hip"], cwd=folder, check=True)
    done = on_cpu(folder, "./hip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "3 6 9\n"


def test_it_finds_the_stand_in_where_opforge_is_installed_elsewhere(tmp_path):
    (tmp_path / "opforge").symlink_to(Path(opforge.__file__).parent)
    command = [sys.executable, str(ROOT / "examples" / "on_cpu.py"), "--help"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
