"""CMake projects that use opforge: configured, built, installed and run, and refused.

Each generation imports torch, so that the projects share what can be shared: one build folder is
configured once, and the tests that change its operators come after those that look at it.
"""

import importlib.util
import shutil
import sys

import pytest

import opforge
from opforge._compat.autotuning import source_hash
from support.native.cmake import CMAKE_DIR, Project, environment_of
from support.processes import ROOT, python

PROJECTS = ROOT / "tests" / "cmake_projects"
EXAMPLE = ROOT / "examples" / "cmake_project"
COMPILING = "Building C object"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "ninja", "make"))), reason="no CMake, ninja or make here"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return environment_of(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def make_project(environment, tmp_path_factory):
    def make(source, *arguments, **options):
        build = tmp_path_factory.mktemp("project") / "build"
        given = [f"-Dopforge_DIR={CMAKE_DIR}", *arguments]
        return Project(source, build, environment, arguments=given, **options)

    return make


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    """The operators, where tests may change them; the spaces and signs are part of the test."""
    folder = tmp_path_factory.mktemp("sources") / "some $ops #1"
    shutil.copytree(PROJECTS / "ops", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def shared(make_project, operators):
    """Configured and built; Python is the first on the path."""
    project = make_project(PROJECTS / "library", "-DKIND=SHARED", f"-DOPS={operators}")
    assert "compiled 5 of 5" in project.configure()
    assert project.make().count(COMPILING) > 5
    return project


@pytest.fixture
def quick(make_project):
    """A project that is refused before anything is generated."""
    return make_project(
        PROJECTS / "library",
        f"-DOPFORGE_PYTHON_EXECUTABLE={python()}",
        "-DCMAKE_C_COMPILER_WORKS=ON",
    )


def test_a_program_runs_with_a_shared_library(shared, operators):
    assert (shared.build / "libtiny-ops.so").is_file()
    assert [f.name for f in operators.rglob("*")] == ["add", "op.py"]
    assert shared.run() == "tiny::add\n"


def test_nothing_is_done_when_nothing_changed(shared):
    assert "no work to do" in shared.make()
    assert "nothing has changed since the last build of tiny" in shared.configure()
    assert "no work to do" in shared.make()


def test_a_file_with_a_new_time_and_the_same_content_compiles_nothing(shared, operators):
    (operators / "add" / "op.py").touch()
    printed = shared.make()
    assert "nothing has changed since the last build of tiny" in printed
    assert COMPILING not in printed


def test_what_was_installed_is_found(shared, make_project, tmp_path):
    assert run_installed(shared, make_project, tmp_path) == "tiny::add\n"
    files = {str(f.relative_to(tmp_path / "moved")) for f in (tmp_path / "moved").rglob("*.*")}
    assert {"include/tiny.h", "include/tiny_dispatch.inc"} <= files
    assert {"share/tiny/manifest.json", "lib/libtiny-ops.so"} <= files


def run_installed(project, make_project, tmp_path):
    """What a program prints that finds the library where it was installed, and then moved to."""
    project.install(tmp_path / "prefix")
    # Nothing in it may hold where it was installed, or where it was built.
    moved = (tmp_path / "prefix").rename(tmp_path / "moved")
    user = make_project(PROJECTS / "installed", f"-DCMAKE_PREFIX_PATH={moved}")
    user.configure()
    user.make()
    return user.run()


def test_a_changed_kernel_is_generated_and_compiled_again(shared, operators):
    file = operators / "add" / "op.py"
    before = file.read_text()
    file.write_text(before.replace("x + tl.load", "x - tl.load"))
    printed = shared.make()
    assert "1 operator, 5 kernel variants" in printed
    compiled = [line for line in printed.splitlines() if COMPILING in line]
    assert any("images.c" in line for line in compiled)
    assert not any("tensor.c" in line for line in compiled)
    assert shared.run() == "tiny::add\n"
    assert "no work to do" in shared.make()


def test_a_kernel_that_fails_is_told_with_the_generators_message_above(shared, operators):
    file = operators / "add" / "op.py"
    before = file.read_text()
    file.write_text(before.replace("x - tl.load", "x - tl.loaded"))
    printed = shared.make(fails=True)
    generator, _, error = printed.partition("CMake Error")
    assert "module 'triton.language' has no attribute 'loaded'" in generator
    assert "cannot generate tiny: " in " ".join(error.split())
    assert "OPFORGE_PYTHON_EXECUTABLE" in error
    file.write_text(before)
    assert COMPILING not in shared.make()


def test_operators_that_go_and_come_are_seen(shared, operators):
    (operators / "add").rename(operators.parent / "add")
    assert "has no operators" in " ".join(shared.make(fails=True).split())
    (operators.parent / "add").rename(operators / "add")
    printed = shared.make()
    assert "nothing has changed since the last build of tiny" in printed
    assert COMPILING not in printed


def test_an_unknown_operator_in_only_is_refused(shared):
    printed = shared.configure("-DONLY=ad", fails=True)
    generator, _, error = printed.partition("CMake Error")
    assert "fix: did you mean add?" in generator
    assert "cannot generate tiny: there is no operator 'ad'" in " ".join(error.split())


def test_a_static_library_of_a_subdirectory_goes_into_shared_ones(make_project, tmp_path):
    project = make_project(
        PROJECTS / "subdirectory",
        "-DKIND=STATIC",
        "-DOPS=",
        "-DMODULES=../ops/add/op.py",
        f"-DOPFORGE_PYTHON_EXECUTABLE={python()}",
        generator="Unix Makefiles",
    )
    project.configure()
    project.make()
    assert (project.build / "library" / "libtiny-ops.a").is_file()
    assert (project.build / "libengine.so").is_file()
    assert project.run() == "tiny::add\n"
    assert COMPILING not in project.make()
    assert run_installed(project, make_project, tmp_path) == "tiny::add\n"


def test_an_empty_tree_is_refused(quick, tmp_path):
    printed = quick.configure(f"-DOPS={tmp_path}", fails=True)
    assert "has no operators" in " ".join(printed.partition("CMake Error")[2].split())
    assert "there is no folder" in quick.configure(f"-DOPS={tmp_path}/none", fails=True)


def test_a_python_without_the_packages_is_refused(quick, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    printed = quick.configure(f"-DOPFORGE_PYTHON_EXECUTABLE={bare}", fails=True)
    assert "does not have opforge, torch, triton" in " ".join(printed.split())
    printed = quick.configure(f"-DOPFORGE_PYTHON_EXECUTABLE={tmp_path}/none", fails=True)
    assert "does not run (it is what OPFORGE_PYTHON_EXECUTABLE says)" in " ".join(printed.split())


CALLS = {
    "mylib": "there is nothing to build",
    "mylib OPERATORS ops": "no GPU architecture is given: ARCHS 80 90",
    "mylib MODULES ops.py ARCHS 80 TUNING t.json": "there is no tuning table",
    "mylib OPERATORS ops ARCHS 80 STATIC SHARED": "STATIC and SHARED are both given",
    "mylib SOURCES ops": "unknown arguments: SOURCES ops; there are OPERATORS, MODULES, ONLY",
    "mylib OPERATORS ops ARCH 80": "unknown keyword ARCH, after OPERATORS; there are OPERATORS",
    "mylib OPERATORS ops ARCHS 80 jobs 4": "unknown keyword jobs, after ARCHS",
    "my-lib OPERATORS ops ARCHS 80": "give another: NAMESPACE <name>",
}


@pytest.mark.parametrize(("call", "message"), CALLS.items())
def test_a_call_that_cannot_be_meant_is_refused(make_project, tmp_path, call, message):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user C)\n"
        f"find_package(opforge CONFIG REQUIRED)\nopforge_add_library({call})\n"
    )
    project = make_project(tmp_path, "-DCMAKE_C_COMPILER_WORKS=ON")
    told = " ".join(project.configure(fails=True).split())
    assert message in told


TUNED = """
import torch, triton, triton.language as tl, opforge
from opforge import native

@triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=["n"])
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)

@opforge.op("tuned::copy")
def copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    copy_kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, out, x.shape[0])
    return out

native.declare(copy, x=native.tensor("n", dtype="fp32"))
"""


def test_a_tuning_table_decides_and_a_new_one_decides_anew(make_project, tmp_path):
    (tmp_path / "ops.py").write_text(TUNED)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user C)\n"
        "find_package(opforge CONFIG REQUIRED)\n"
        "opforge_add_library(tuned MODULES ops.py ARCHS 80 TUNING t.json)\n"
    )
    spec = importlib.util.spec_from_file_location("tuned_in_cmake", tmp_path / "ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    opforge.unregister(module.copy)
    source = source_hash(module.copy_kernel)
    table = (
        '{"format": 1, "kernels": [{"kernel": "copy_kernel", "source": "%s", "arch": "sm_80", '
        '"dtypes": ["float32", "float32"], "key": ["n"], "rows": [{"at": [64], "us": 1, "config": '
        '{"BLOCK": %d, "num_warps": 4, "num_ctas": 1, "num_stages": 3}}]}]}'
    )
    project = make_project(tmp_path)
    for block in (32, 16):
        (tmp_path / "t.json").write_text(table % (source, block))
        project.configure() if block == 32 else project.make()
        (manifest,) = project.build.rglob("manifest.json")
        assert f'"BLOCK": "{block}"' in manifest.read_text()


def test_a_project_without_c_is_told_to_enable_it(make_project, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user NONE)\n"
        "find_package(opforge CONFIG REQUIRED)\nopforge_add_library(a OPERATORS ops ARCHS 80)\n"
    )
    told = " ".join(make_project(tmp_path).configure(fails=True).split())
    assert "add enable_language(C) before this call" in told


def test_another_version_than_this_is_not_found(make_project, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user NONE)\n"
        "find_package(opforge 99 CONFIG REQUIRED)\n"
    )
    told = make_project(tmp_path).configure(fails=True)
    assert f"opforgeConfig.cmake, version: {opforge.__version__}" in told


@pytest.fixture(scope="module")
def example(make_project):
    return make_project(EXAMPLE)


def test_the_example_builds_without_python(example):
    nowhere = "-DOPFORGE_PYTHON_EXECUTABLE=/nowhere"
    printed = example.configure(nowhere)
    assert "The C compiler" not in printed
    example.make()
    assert example.run("engine") == "cpu\n"
