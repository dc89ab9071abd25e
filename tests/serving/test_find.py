"""Recorded kernels are found again, in packages that do odd things when they are imported."""

import linecache
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._inductor.codecache import PyCodeCache

import opforge
from opforge._compat import settings
from opforge._compat.kernel_hash import digest
from opforge.errors import NotFound
from opforge.recording.model import RecordedKernel, read
from opforge.serving.find import find, find_function
from opforge.serving.plan import plan
from support.processes import environment
from support.served_kernels import recorded


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`odd` puts a folder of its own on the path, and imports a module from there."""
    files = {
        "odd/__init__.py": """
            import sys
            from pathlib import Path
            sys.path.append(str(Path(__file__).parent / "vendors"))
            """,
        "odd/vendors/__init__.py": "",
        "odd/vendors/oddhopper/__init__.py": "",
        "odd/vendors/oddhopper/mm.py": """
            import triton

            @triton.jit
            def kernel(x_ptr):
                pass

            class Wrapper:
                fn = kernel

            wrapped = Wrapper()
            """,
        "odd/tables.py": """
            import torch
            import triton
            import triton.language as tl

            on_gpu = [torch.arange(4, device=f"cuda:{n}") for n in range(torch.cuda.device_count())]
            halves = on_gpu[0].half() + torch.ones(4).half().to("cuda:0")
            WIDTH = torch.tensor([16, 32]).tolist()[1]

            @triton.jit
            def kernel(x_ptr):
                tl.store(x_ptr, WIDTH)
            """,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "odd"
    for name in [name for name in sys.modules if name.startswith("odd")]:
        del sys.modules[name]


def test_a_folder_that_a_package_puts_on_the_path_is_searched(package):
    kernel = RecordedKernel(
        "oddhopper.mm", "wrapped", "another source", "", settings=settings.current()
    )
    with pytest.raises(NotFound, match="No module named 'oddhopper'"):
        find(kernel)
    path = (str(package / "vendors"),)
    with pytest.raises(NotFound, match="has been edited") as caught:
        find(replace(kernel, path=path))
    assert "wrapped is not the kernel that was recorded" in str(caught.value)
    assert path[0] not in sys.path


def test_a_module_that_makes_tensors_on_a_gpu_is_imported_without_one(package):
    kernel = RecordedKernel(
        "odd.tables", "kernel", "another source", "", settings=settings.current()
    )
    with opforge.target("sm_90"), pytest.raises(NotFound, match="has been edited"):
        find(kernel)
    module = sys.modules["odd.tables"]
    assert (module.halves.device.type, module.halves.dtype) == ("cuda", torch.float16)
    assert module.WIDTH == 32


TUTORIAL = """
import enum
import triton
import triton.language as tl
from folder_of_its_own.sizes import SIZE

class Kind(enum.Enum):
    A = 1

@triton.jit
def store(x_ptr, K: tl.constexpr):
    tl.store(x_ptr, SIZE)

@triton.jit
def calls(x_ptr, F: tl.constexpr):
    F(x_ptr, 1)
"""
PROGRAM = """
import importlib.util, os, runpy, sys, torch, opforge
from torch._subclasses import FakeTensorMode

here = os.path.dirname(__file__)
file = os.path.join(here, "06-fused-attention.py")
sys.path.insert(0, os.path.join(here, "libraries"))
spec = importlib.util.spec_from_file_location("tutorial", file)
module = sys.modules["tutorial"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with opforge.target("sm_90"), FakeTensorMode():
    x = torch.empty(16, device="cuda")
    module.store[(1,)](x, module.Kind.A)
    module.calls[(1,)](x, module.store)
    runpy.run_path(file)["store"][(1,)](x, 2)
"""


def test_scripts_that_a_program_loads_by_their_files_are_found(tmp_path):
    script = tmp_path / "06-fused-attention.py"
    script.write_text(TUTORIAL)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "libraries/folder_of_its_own").mkdir(parents=True)
    (tmp_path / "libraries/folder_of_its_own/sizes.py").write_text(
        "import triton.language as tl\nSIZE = tl.constexpr(3)\n"
    )
    launches = tmp_path / "launches.json"
    done = subprocess.run(
        [sys.executable, "-m", "opforge", "record", "-o", launches, "--",
         sys.executable, tmp_path / "program.py"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recording = read(launches)
    assert [(k.module, k.name, len(k.variants)) for k in recording.kernels] == [
        (str(script), "store", 2), (str(script), "calls", 1),
    ]  # fmt: skip
    made = plan(recording)
    assert made.notes == []
    assert [len(function.instances) for function in made.functions] == [2, 1]
    for name in ("06-fused-attention", "folder_of_its_own", "folder_of_its_own.sizes"):
        del sys.modules[name]


SCRIPT = """
import sys
import triton

{more}

@triton.jit
def kernel(x_ptr):
    pass
"""


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("import os; os._exit(0)", "Exited: it called os._exit(0)"),
        ("sys.exit(3)", "sys.exit: 3"),
        ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
    ],
)
def test_a_script_that_cannot_be_imported_is_not_found(tmp_path, more, found):
    script = tmp_path / "odd_script.py"
    script.write_text(SCRIPT.format(more=more))
    with pytest.raises(NotFound) as caught:
        find_function(f"{script}:kernel", "")
    assert f"found: {found}" in str(caught.value)
    assert 'below `if __name__ == "__main__":`' in str(caught.value)
    script.unlink()
    with pytest.raises(NotFound, match="there is no file"):
        find_function(f"{script}:kernel", "")


FORKS = """
import os
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.parametrize("more", ["import argparse; argparse.ArgumentParser().parse_args()", FORKS])
def test_a_script_sees_no_arguments_of_the_build_and_what_it_forks_may_end(
    tmp_path, monkeypatch, more
):
    script = tmp_path / "odd_main.py"
    script.write_text(SCRIPT.format(more=more))
    monkeypatch.setattr(sys, "argv", ["opforge", "build", "launches.json", "-o", "kernels"])
    with pytest.raises(NotFound, match="has been edited"):
        find_function(f"{script}:kernel", "another source")
    assert sys.argv[1] == "build"
    del sys.modules["odd_main"]


@pytest.mark.parametrize(
    "kept", ["renamed = triton.jit(impl)", "KERNELS = {1: [triton.jit(impl)]}"]
)
def test_a_kernel_that_has_another_name_than_its_function_is_found(tmp_path, kept):
    script = tmp_path / "odd_names.py"
    script.write_text(f"import triton\n\ndef impl(x_ptr):\n    pass\n\n{kept}\n")
    with pytest.raises(NotFound):
        find_function(f"{script}:impl", "another source")
    module = sys.modules["odd_names"]
    (kernel,) = [module.renamed] if hasattr(module, "renamed") else module.KERNELS[1]
    assert find_function(f"{script}:impl", digest(kernel)) is kernel
    del sys.modules["odd_names"]


PRINTED = """
import triton
import triton.language as tl

SIZE = tl.constexpr(3)

@triton.jit
def printed(x_ptr):
    tl.store(x_ptr, SIZE)
"""


def test_a_kernel_of_a_module_that_inductor_loads_is_found_without_its_cache(tmp_path):
    module = PyCodeCache.load(PRINTED)
    recorded(module.printed[(1,)]).save(tmp_path / "launches.json")
    Path(module.__file__).unlink()
    linecache.cache.pop(module.__file__)
    del sys.modules[module.__name__]
    (kernel,) = read(tmp_path / "launches.json").kernels
    found = find(kernel)
    assert found is not module.printed
    assert digest(found) == digest(module.printed) == kernel.source
    PyCodeCache.cache_clear()
