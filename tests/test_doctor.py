"""The doctor's findings on made-up machines, and on this one."""

import warnings

import pytest
import torch

from opforge import doctor
from opforge.doctor import MachineFacts, Tool, examine, judge, look, works
from support.processes import TORCH_ALONE, run_python

ABSENT = Tool(present=False, detail="not here")
OPTIONAL = ("signing", "wheels", "remote cache", "JAX", "tvm-ffi")
VERSIONS = {
    "torch": "2.13.0", "Triton": "3.7.1", "NumPy": "2.4.6", "C compiler": "cc 12",
    "C++ compiler": "g++ 12", "Python headers": "Python.h", "ptxas": "ptxas", "GPU": "H200",
    "CMake": "3.25.1", **dict.fromkeys(OPTIONAL, "10.2"),
}  # fmt: skip
HEALTHY = {name: Tool(present=True, detail=detail) for name, detail in VERSIONS.items()}


def findings(tools=(), **changes):
    """On a healthy machine but for some tools: None for those that are absent, or a version."""
    other = {n: Tool(present=True, detail=v) if v else ABSENT for n, v in dict(tools).items()}
    return {f.name: f for f in judge(MachineFacts(HEALTHY | other, **changes))}


def not_ok(tools=(), **changes):
    found = findings(tools, **changes)
    return {name for name, finding in found.items() if finding.status != "ok"}


def test_a_healthy_machine_has_nothing_to_fix():
    assert not_ok() == set()
    assert all(finding.fix == "" for finding in findings().values())


@pytest.mark.parametrize(
    ("tools", "changes"),
    [
        ({"torch": None}, {}),
        ({"torch": "2.9.1+cu128"}, {}),
        ({"Triton": "3.5.0"}, {}),
        ({"NumPy": None}, {}),
        ({"C++ compiler": None}, {}),
        ({"Python headers": None}, {}),
        (dict.fromkeys(OPTIONAL), {}),
        ({"JAX": "0.4.38"}, {}),
        ({"CMake": "3.22.1"}, {}),
        ({}, {"interpret": "1"}),
        ({}, {"libstdcxx": "libstdc++.so.6"}),
    ],
    ids=str,
)
def test_whatever_is_wrong_comes_with_a_fix(tools, changes):
    wrong = [f for f in findings(tools, **changes).values() if f.status != "ok"]
    assert wrong
    assert all(finding.fix for finding in wrong)


def test_without_a_gpu_only_what_needs_one_is_missing():
    assert not_ok({"GPU": None}) == {"GPU", "Triton kernels on GPU"}


def test_without_what_is_optional_the_machine_works():
    found = findings(dict.fromkeys(("GPU", "CMake", *OPTIONAL)))
    assert works(found.values())
    assert found["wheels"].fix == "pip install 'opforge[wheel]'"
    assert found["remote cache"].fix == "pip install 'opforge[remote]'"


@pytest.mark.parametrize("name", ["torch", "Triton", "C compiler", "ptxas"])
def test_without_what_is_needed_it_does_not(name):
    assert not works(findings({name: None}).values())


def test_without_a_cxx_compiler_compile_is_limited_to_backends_that_need_none():
    compiled = findings({"C++ compiler": None})["torch.compile"]
    assert compiled.status == "limited"
    assert "lacks a C++ compiler; backend='aot_eager' works" in compiled.detail
    assert "g++" in compiled.fix or "xcode-select" in compiled.fix


def test_without_a_gpu_compile_needs_neither_triton_nor_a_c_compiler():
    assert findings(dict.fromkeys(("GPU", "Triton", "C compiler")))["torch.compile"].status == "ok"


def test_two_needs_met_by_one_command_name_it_once():
    build = findings({"Triton": None, "ptxas": None})["native build tools"]
    assert build.fix.count("pip install") == 1


def test_the_interpreter_on_a_gpu_machine_is_reported_as_a_limit():
    limited = findings(interpret="1")
    assert limited["TRITON_INTERPRET"].fix == "unset TRITON_INTERPRET"
    assert limited["Triton kernels on GPU"].status == "limited"


def test_a_cpu_build_of_torch_on_a_gpu_machine_suggests_a_reinstall():
    assert "torch==2.13.*" in findings({"GPU": None}, gpu_unused=True)["GPU"].fix


def test_where_loading_a_package_crashes_the_fix_is_what_to_preload():
    found = findings(libstdcxx="libstdc++.so.6")["AOTInductor packages"]
    assert found.status == "limited"
    assert found.fix == "LD_PRELOAD=libstdc++.so.6 python your_script.py"


def test_a_compiler_that_does_not_run_counts_as_absent(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    compiler = look().tools["C compiler"]
    assert not compiler.present
    assert str(broken) in compiler.detail


def test_a_compiler_that_is_quoted_badly_counts_as_absent(monkeypatch):
    monkeypatch.setenv("CXX", "g++ '-O2")
    compiler = look().tools["C++ compiler"]
    assert not compiler.present
    assert "CXX=g++ '-O2 cannot be read as a command" in compiler.detail


def test_a_compiler_that_is_named_but_absent_is_named_in_the_report(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert look().tools["C++ compiler"] == Tool(
        present=False, detail="CXX=no-such-compiler: not found"
    )


def test_a_package_that_is_installed_but_broken_says_so(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libfoo.so: no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = doctor._package("broken_package")
    assert not found.present
    assert "libfoo.so" in found.detail


def test_a_warning_of_torch_about_the_driver_becomes_the_detail(monkeypatch):
    def is_available():
        warnings.warn("the NVIDIA driver is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert look().tools["GPU"] == Tool(present=False, detail="the NVIDIA driver is too old")


def test_this_machine_can_be_examined():
    found = {finding.name: finding for finding in examine()}
    assert found["torch"].detail == torch.__version__
    assert found["eager"].status == "ok"
    assert (found["GPU"].status == "ok") is torch.cuda.is_available()


def test_examining_imports_neither_inductor_nor_dynamo():
    code = (
        "import sys; from opforge.doctor import examine; examine();"
        "print([m for m in ('torch._inductor', 'torch._dynamo') if m in sys.modules])"
    )
    assert run_python(code, **TORCH_ALONE).strip() == "[]"
