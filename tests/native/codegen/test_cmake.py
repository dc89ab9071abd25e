"""The CMake package: found, linked against and run, shared and static."""

import os
import shutil
import subprocess

import pytest

from opforge.native.artifacts.toolchain import compile_library
from support.native import hand_made
from support.standin.driver import build_standin
from support.standin.library import write

CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C CXX)
find_package(demo 1 REQUIRED CONFIG)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE demo::demo)
add_executable(cxx main.cpp)
target_link_libraries(cxx PRIVATE demo::demo)
add_executable(static main.c)
target_link_libraries(static PRIVATE demo::static)
"""
MAIN = """
#include <demo.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    float x[4] = {1, 2, 3, 4};
    float out[4] = {0, 0, 0, 0};
    int64_t shape[OPFORGE_MAX_RANK] = {4};
    OpforgeTensor a = {x, {2, 0}, 1, {2, 32, 1}, shape, NULL, 0};
    OpforgeTensor b = a;
    OpforgeTensor c = a;
    c.data = out;
    if (demo_add(&a, &b, &c, NULL) != OPFORGE_OK) {
        printf("%s\\n", demo_last_error());
        return 1;
    }
    printf("%d %s\\n", demo_abi_version(), strstr(demo_manifest(), "demo::add") ? "add" : "");
    return demo_unload(0);
}
"""

needs_cmake = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja")), reason="no CMake or ninja here"
)


@needs_cmake
def test_a_program_finds_the_package_and_runs(tmp_path):
    package = write(hand_made.library(), tmp_path / "dist")
    compile_library(package, "demo", static=True, flags=("-O0",))
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "main.cpp").write_text(MAIN)
    build = tmp_path / "build"
    configure = [
        "cmake",
        "-G",
        "Ninja",
        "-S",
        tmp_path,
        "-B",
        build,
        f"-DCMAKE_PREFIX_PATH={package}",
    ]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build], check=True, capture_output=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(build_standin().parent)}
    for program in ("shared", "cxx", "static"):
        done = subprocess.run(
            [build / program], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "1 add\n"), done.stdout


@needs_cmake
@pytest.mark.parametrize(
    ("wanted", "message"),
    [("2", "demoConfig.cmake, version: 1"), ("", "neither libdemo.so nor libdemo.a")],
)
def test_a_package_that_does_not_fit_is_not_found(tmp_path, wanted, message):
    package = write(hand_made.library(), tmp_path / "dist")
    if wanted:
        (package / "lib" / "libdemo.so").touch()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES C)\n"
        f"find_package(demo {wanted} REQUIRED CONFIG)\n"
    )
    configure = ["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build"]
    failed = subprocess.run(
        [*configure, f"-DCMAKE_PREFIX_PATH={package}"], capture_output=True, text=True, check=False
    )
    assert failed.returncode != 0
    assert message in failed.stderr
