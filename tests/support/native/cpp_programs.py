"""C++ programs of generated headers, with the stand-in as their driver."""

import subprocess
from pathlib import Path

from opforge.native.artifacts.toolchain import compile_library
from support.standin.driver import SOURCES, build_standin
from support.standin.library import write

STANDIN = Path(SOURCES[0]).parent
CXX17 = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic")
# RPATH, which precedes LD_LIBRARY_PATH: on a GPU machine that leads to the real driver.
RPATH = "-Wl,--disable-new-dtags,-rpath,{}"


def build_program(folder: Path, program: Path, *libraries: str, compiler="g++", flags=()) -> Path:
    """A program with the libraries linked in, and the stand-in as its driver."""
    binary = folder / f"main-{compiler}"
    driver = build_standin()
    includes = [f"-I{folder / name / 'include'}" for name in libraries]
    archives = [str(folder / name / "lib" / f"lib{name}.a") for name in libraries]
    linked = [*archives, str(driver), RPATH.format(driver.parent), "-ldl", "-lpthread", "-lm"]
    command = [compiler, *CXX17, *flags, *includes, f"-I{STANDIN}", str(program), *linked]
    subprocess.run([*command, "-o", str(binary)], check=True)
    return binary


def build_archive(program, folder: Path) -> None:
    write(program, folder / program.name)
    compile_library(folder / program.name, program.name, static=True, flags=("-O0",))
