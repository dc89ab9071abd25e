"""Compiles a library's sources with the machine's C compiler."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

from ... import environment
from ...errors import BuildFailed
from ...versions import INSTALL_TORCH

# No path and no time goes into the objects: the same sources give the same library.
FLAGS = ("-std=c99", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
CXX_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-fno-strict-aliasing",
)  # fmt: skip
EXTENSION_FLAGS = ("-std=c11", *FLAGS[1:])
LINK_FLAGS = ("-shared", "-Wl,--no-undefined")
LIBRARIES = ("-ldl", "-lpthread", "-lm")

# One by one, the 19 files of the runtime take 2.0 s of CPU time, and 1.1 s with -O0: for each, a
# compiler starts and reads the same headers. Five at a time they take 1.55 and 0.5 s; all at once
# takes hardly less, 1.5 and 0.35 s, and leaves all cores but one idle. The number is fixed: the
# library must not depend on jobs or cores.
_FILES_PER_UNIT = 5


def compile_library(
    folder: Path, name: str, *, static: bool = False, jobs: int = 1, flags: tuple[str, ...] = ()
) -> list[Path]:
    """Compile `folder/src/NAME/*.c` into `folder/lib/libNAME.so`, with `static` also `libNAME.a`.

    The compiler is `$CC`, else `cc`; the archiver `$AR`, else `ar`. Returns the files written.
    """
    compiler = _tool(environment.CC, "cc")
    archiver = _tool(environment.AR, "ar") if static else []
    # Relative, and compiled inside the folder: the compiler sees no path of this machine.
    units = _units(sorted(f.relative_to(folder) for f in (folder / "src" / name).glob("*.c")))
    output = folder / "lib"
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="opforge-cc-") as temporary:
        objects = [str(Path(temporary, files[-1].stem + ".o")) for files in units]
        commands = [
            [*compiler, *FLAGS, *flags, "-c", *as_unit(files), "-o", target]
            for files, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            list(pool.map(lambda command: _run(command, folder), commands))
        shared = output / f"lib{name}.so"
        soname = f"-Wl,-soname,{shared.name}"
        link = [*LINK_FLAGS, soname, "-o", str(shared.resolve()), *objects, *LIBRARIES]
        _run([*compiler, *flags, *link], folder)
        written = [shared]
        if static:
            written.append(output / f"lib{name}.a")
            written[-1].unlink(missing_ok=True)
            _run([*archiver, "rcsD", str(written[-1].resolve()), *objects], folder)
    return written


def as_unit(files: Sequence[Path]) -> list[str]:
    """The arguments that make a compiler read several C files as one translation unit.

    No file is written that includes them: the compiler sees their paths alone, and names them in
    its errors.
    """
    before = [argument for file in files[:-1] for argument in ("-include", str(file))]
    return [*before, str(files[-1])]


def _units(files: Sequence[Path]) -> list[Sequence[Path]]:
    """The files that are compiled together.

    Not generated ones, whose static names are the same, and not the one that changes with them.
    """
    static = {f.name for f in resources.files("opforge.native").joinpath("runtime").iterdir()}
    static.discard("library.c")
    runtime = [f for f in files if f.name in static]
    parts = range(0, len(runtime), _FILES_PER_UNIT)
    generated = [[f] for f in files if f.name not in static]
    return [*(runtime[i : i + _FILES_PER_UNIT] for i in parts), *generated]


def compile_adapter(folder: Path, name: str, *, flags: tuple[str, ...] = ()) -> Path:
    """Compile `folder/src/NAME/torch/NAME_torch.cpp` into `folder/lib/libNAME_torch.so`.

    The compiler is `$CXX`, else `c++`; headers and libraries come from this Python's torch.
    """
    compiler = _tool(environment.CXX, "c++")
    torch = _torch_folder()
    output = folder / "lib" / f"lib{name}_torch.so"
    headers = ["-Iinclude", "-isystem", str(torch / "include")]
    needed = [f"lib/lib{name}.so", f"-L{torch / 'lib'}", "-ltorch_cpu", "-ldl"]
    with tempfile.TemporaryDirectory(prefix="opforge-cc-") as temporary:
        compiled, tried = (str(Path(temporary, f)) for f in ("adapter.o", "tried"))
        source = f"src/{name}/torch/{name}_torch.cpp"
        _run(
            [*compiler, *CXX_FLAGS, *flags, *headers, "-c", source, "-o", compiled],
            folder,
        )
        link = [*compiler, *flags, "-shared", "-Wl,--as-needed", compiled]
        # Whether everything that the adapter uses is there.
        _run([*link, "-o", tried, *needed, "-Wl,--no-undefined"], folder)
        # By its name the loader would take any library of that name which the process has: torch's
        # own libc10.so, or another build. It takes a path as it is, and a linker gets that from
        # a stub. It also takes torch's name from one: to read torch's symbols again takes 0.4 s.
        stubs = []
        for number, known_as in enumerate((f"$ORIGIN/lib{name}.so", "libtorch_cpu.so")):
            stubs.append(str(Path(temporary, f"stub{number}.so")))
            empty = ["-nostdlib", "-x", "c++", "/dev/null", "-o", stubs[-1]]
            _run([*compiler, "-shared", f"-Wl,-soname,{known_as}", *empty], folder)
        bound = ["-Wl,--no-as-needed", *stubs, "-Wl,--as-needed", "-ldl"]
        soname = f"-Wl,-soname,{output.name}"
        _run([*link, soname, "-o", str(output.resolve()), *bound], folder)
    return output


def compile_extension(
    folder: Path, output: Path, headers: Path, *, flags: tuple[str, ...] = ()
) -> None:
    """Compile `folder/*.c` into `output`, a module for the Python whose `headers` are given.

    The compiler is `$CC`, else `cc`.
    """
    compiler = _tool(environment.CC, "cc")
    # Relative, and compiled inside the folder: the compiler sees no path of this machine.
    files = sorted(f.name for f in folder.glob("*.c"))
    # Python's symbols stay undefined: the process that loads it has them.
    made = ["-shared", *files, f"-Wl,-soname,{output.name}", "-o", str(output.resolve())]
    include = ["-I.", "-isystem", str(headers)]
    _run([*compiler, *EXTENSION_FLAGS, *flags, *include, *made, *LIBRARIES], folder)


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    places = found.submodule_search_locations if found is not None else None
    folder = Path(places[0]) if places else None
    if folder is None or not (folder / "include/torch/csrc/stable/c/shim.h").is_file():
        raise BuildFailed(
            "torch's headers, which a torch adapter is compiled with, are not installed",
            found="no torch" if folder is None else f"{folder}",
            fix=f"{INSTALL_TORCH} into the Python that runs the build",
        )
    return folder


def _tool(variable: environment.Variable, default: str) -> list[str]:
    given = variable.get()
    try:
        command = list(filter(None, shlex.split(given))) or [default]
    except ValueError as error:
        raise BuildFailed(
            f"the environment variable {variable.name} cannot be read as a command: {error}",
            found=f"{variable.name}={given}",
            fix=f"quote it as for a shell: {variable.name}='{default} -m64'",
        ) from None
    if shutil.which(command[0]) is None:
        raise BuildFailed(
            f"{command[0]}, which compiles native libraries, is not installed",
            found=f"{variable.name}={given}" if given else None,
            fix="install a C compiler (`apt install gcc`, `dnf install gcc`, "
            f"`conda install gxx_linux-64`), or set the environment variable {variable.name}=...",
        )
    if os.sep in command[0]:
        # It runs in another folder.
        command[0] = str(Path(command[0]).absolute())
    return command


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(  # noqa: S603 - the compiler that the user has
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise BuildFailed(
            f"{command[0]} failed with exit code {done.returncode}",
            found=f"{shlex.join(command)}\n{done.stderr.strip() or done.stdout}".strip(),
            fix="name a C and a C++ compiler that work: CC=gcc CXX=g++",
        )
