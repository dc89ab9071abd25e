"""What a wheel is where it is installed: a package without opforge, Triton and compilers."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import opforge
from support.native.cmake import Project
from support.processes import python, run_python
from support.shipped_child import CALL, CALL_JAX, CALL_TVM_FFI, CHANGED_TORCH, TRACE, run

NO_DERIVATIVE = (
    "but the operator has no derivative; call it with grad disabled, or on detached tensors"
)


def test_its_operators_run_without_opforge_triton_and_compilers(installed):
    done = run(CALL, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == torch.__version__


def test_its_operators_have_fakes_and_gradients(installed):
    done = run(TRACE, installed, blocked="opforge", program=python())
    assert done.returncode == 0, done.stderr
    x = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    more = [[[value + by for value in row] for row in x] for by in (1, 5)]
    called = f"{more[0]} {2 * [3 * [5.0]]} {more[1]}"
    assert done.stdout.splitlines() == [
        called,
        called,
        "torch.float32 [True, 3]",
        "demo::add: an input requires grad or has a tangent, but the operator has no derivative",
        "demo::add: an input requires grad, but the operator has no derivative",
        f"True {2 * [3 * [0.0]]}",
        *(3 * [f"demo::add: torch.func would differentiate it, {NO_DERIVATIVE}"]),
        *(3 * ["demo::plus: torch.func does not differentiate the operators of a package"]),
    ]


def test_a_torch_with_other_private_apis_refuses_transforms_alone(installed):
    done = run(CHANGED_TORCH, installed, blocked="opforge", program=python())
    assert done.stdout == "torch.Size([2])\n", done.stderr
    assert "demo::add: torch.func cannot call the operators of this package in" in done.stderr


@pytest.mark.skipif(
    "OPFORGE_TEST_OTHER_TORCH" not in os.environ,
    reason="OPFORGE_TEST_OTHER_TORCH is not a folder with another version of torch",
)
def test_the_same_wheel_runs_with_another_torch(installed):
    done = run(CALL, installed, os.environ["OPFORGE_TEST_OTHER_TORCH"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != torch.__version__


def test_jax_runs_them_without_torch(installed):
    jax = importlib.util.find_spec("jax")
    if jax is None:
        pytest.skip("JAX is not installed; make test-jax has it")
    place = Path(jax.origin).parents[1]
    done = run(CALL_JAX, installed, place, blocked="opforge,triton,torch", JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] ['add_kernel']\n"


def test_tvm_ffi_runs_them_without_torch(installed):
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    done = run(CALL_TVM_FFI, installed, blocked="opforge,triton,torch")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] ['add_kernel']\n"


def test_without_torch_the_files_are_there_and_a_call_says_what_to_install(installed):
    done = run(
        """
import os
import shipped_ops
assert os.path.isfile(os.path.join(shipped_ops.get_include(), "shipped_ops.h"))
assert os.path.isfile(shipped_ops.get_library())
assert shipped_ops.__version__ == "1.2.0"
try:
    shipped_ops.add(1, 2)
except ImportError as error:
    print(error)
""",
        installed,
        blocked="opforge,triton,torch",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "demo::add is called with torch's tensors, and torch is not installed\n"
        "  fix: pip install torch\n"
    )


def replaced(file, before, after):
    file.write_bytes(file.read_bytes().replace(before, after))


def test_what_cannot_be_imported_says_what_to_install(unpacked, tmp_path):
    package, here = unpacked / "shipped_ops", os.uname().machine
    replaced(package / "_library.py", f'MACHINE = "{here}"'.encode(), b'MACHINE = "m68k"')
    done = run("import shipped_ops", unpacked)
    assert "ImportError: shipped_ops was built for m68k" in done.stderr
    replaced(package / "_library.py", b'MACHINE = "m68k"', f'MACHINE = "{here}"'.encode())
    (tmp_path / "torch.py").write_text('__version__ = "2.10.0+cu128"\n')
    done = run("import shipped_ops", tmp_path, unpacked)
    assert "torch 2.11 or newer, and this is torch 2.10.0+cu128" in done.stderr
    adapter = package / "lib" / "libshipped_ops_torch.so"
    adapter.write_bytes(adapter.read_bytes()[:100])
    done = run("import shipped_ops", unpacked, program=python())
    assert "ImportError: " in done.stderr
    assert "pip install --force-reinstall shipped_ops" in done.stderr


def test_cmake_finds_the_library_in_the_package(installed, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p C)\n"
        "find_package(shipped_ops CONFIG REQUIRED)\nadd_executable(program program.c)\n"
        "target_link_libraries(program PRIVATE shipped_ops::shipped_ops)\n"
    )
    (tmp_path / "program.c").write_text(
        '#include "shipped_ops.h"\nint main(void) { return shipped_ops_abi_version() == 0; }\n'
    )
    project = Project(tmp_path, tmp_path / "build", dict(os.environ))
    place = Path(installed, "shipped_ops", "lib", "cmake", "shipped_ops")
    project.configure(f"-Dshipped_ops_DIR={place}")
    project.make()
    project.run()


def test_an_operator_that_torch_has_already_is_not_taken_for_its_own(installed):
    code = """
import torch
torch.library.define("demo::add", "(Tensor x, Tensor y) -> Tensor")
try:
    import shipped_ops
except ImportError as error:
    print(error)
"""
    said = run(code, installed, program=python()).stdout
    assert said.startswith("torch already has an operator demo::add, of another package, of ")
    assert "fix: use only one of them in a process" in said


def test_what_the_package_has_defined_is_named_where_opforge_would_define_it(installed):
    said = run_python(f"""
import sys
sys.path.insert(0, {str(installed)!r})
import shipped_ops
import opforge
import torch

def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y

package = {str(installed / "shipped_ops")!r}
for attempt in (lambda: opforge.load(package), lambda: opforge.op("demo::add")(add)):
    try:
        attempt()
    except opforge.errors.BadRegistration as error:
        print(error.what, error.found, error.fix, sep="\\n")
""")
    assert said == 2 * (
        "demo::add is already registered: this process has loaded libshipped_ops_torch.so, "
        "which defines it\n"
        f"{installed / 'shipped_ops/lib/libshipped_ops_torch.so'}\n"
        "in a new process, leave out what loads it: `import shipped_ops`, if its wheel is "
        "installed, or torch.ops.load_library\n"
    )


def test_opforge_loads_the_folder_of_the_package(installed):
    ops = opforge.load(installed / "shipped_ops", host_memory=True)
    try:
        with FakeTensorMode():
            assert torch.ops.demo.add(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)
    finally:
        ops.close()
