"""The C runtime under attack: calls, faults of the driver, threads, and a million calls.

The programs are in native/. They call a library of hand-made operators, whose kernels they run on
the stand-in driver, and compare what happens with what they expect themselves.
"""

import itertools
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from support.native import hand_made, hand_made_layouts
from support.native.sanitizers import has_sanitizer
from support.standin.driver import SOURCES
from support.standin.library import write

NATIVE = Path(__file__).with_name("native")
PARTS = ("specs", "given", "judge", "plain_ops", "strided_ops", "kernels", "rounds")
# gnu99 for __int128. Not optimized: compiling takes longer than the short runs do.
FLAGS = ("-std=gnu99", "-g1", "-O0", "-Wall", "-Wextra", "-Werror")
SANITIZERS = {
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
    "plain": (),
}
# In seconds; each takes less than ten.
LIMIT = 240
# So that the fault injector is asked before the program is.
WRAPPED = ("dlopen", "dlsym", "calloc")


def program():
    """Operators of every kind; kernels that two of them share are there once."""
    parts = (
        hand_made.add(), hand_made.matmul(), hand_made.everything(), hand_made.special(),
        hand_made.overlapping(), hand_made.copying(), hand_made_layouts.blend(),
        hand_made_layouts.add_to(), hand_made_layouts.turned(), hand_made_layouts.either(),
        hand_made_layouts.cube(), hand_made_layouts.rotate(), hand_made_layouts.window(),
    )  # fmt: skip
    made = hand_made.library(*parts)
    return replace(made, kernels=tuple({k.key: k for k in made.kernels}.values()))


class Programs:
    """Compiles the library, the driver and the fuzzer's parts once per sanitizer."""

    def __init__(self, folder: Path) -> None:
        self.library = write(program(), folder / "dist")
        self.folder = folder

    def build(self, name: str, sanitizer: str, *link: str) -> Path:
        folder = self.folder / sanitizer
        if not folder.exists():
            self._compile(folder, sanitizer)
        driver = folder / "libcuda.so.1"
        objects = [str(o) for o in sorted(folder.glob("*.o"))]
        path = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{folder}", "-ldl", "-lpthread", "-lm"]
        flags = [*self._flags(sanitizer), *link]
        source = str(NATIVE / f"{name}.c")
        command = ["cc", *flags, source, *objects, str(driver), *path, "-o", str(folder / name)]
        subprocess.run(command, check=True)
        return folder / name

    def _flags(self, sanitizer: str) -> list[str]:
        includes = [f"-I{self.library / 'include'}", f"-I{Path(SOURCES[0]).parent}"]
        return [*FLAGS, *SANITIZERS[sanitizer], *includes]

    def _compile(self, folder: Path, sanitizer: str) -> None:
        flags = self._flags(sanitizer)
        if not has_sanitizer(flags, self.folder):
            pytest.skip(f"this compiler has no sanitizer for {flags}")
        folder.mkdir()
        sources = [*self.library.glob("src/*/*.c"), *(NATIVE / f"{part}.c" for part in PARTS)]
        subprocess.run(["cc", *flags, "-c", *sorted(map(str, sources))], cwd=folder, check=True)
        shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1"]
        subprocess.run(["cc", *flags, *SOURCES, *shared, "-lpthread"], cwd=folder, check=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("fuzz"))


def start(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """With a limit, because threads may wait for each other."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "found: it does not end\n", "")


@pytest.fixture
def attack(budget, cases):
    """Runs a program with what was found before, then with new seeds; keeps what it finds."""

    def run(binary: Path, *arguments: int, **variables: str) -> str:
        kept = [case.split() for case in cases.kept(binary.name)]
        new = ([str(n) for n in (seed, *arguments)] for seed in budget.rounds(short=1))
        said = ""
        for given in itertools.chain(kept, new):
            done = start([str(binary), *given], os.environ | variables)
            if "unexpected memory mapping" in done.stderr:
                pytest.skip("this kernel's address space is too random for ThreadSanitizer")
            if done.returncode != 0:
                keep(cases, binary.name, given, done.stdout)
                shown = " ".join([binary.name, *given])
                pytest.fail(f"{shown}: {done.returncode}\n{done.stdout}{done.stderr[-8000:]}")
            said = done.stdout
        return said

    return run


def keep(cases, name: str, given: list[str], said: str) -> None:
    found = re.search(r"^found(?: (\d+) (\d+))?:? *(.*)", said, re.MULTILINE)
    case, reason = " ".join(given), found[3] if found else "a report of the sanitizer"
    # Calls do not depend on those before, so one is enough.
    if name == "calls" and found and found[1]:
        case = f"{found[1]} {found[2]} 1"
    cases.keep(name, case, reason)


def test_calls_of_every_kind(programs, attack):
    attack(programs.build("calls", "asan"), 0, 25_000)


def test_every_call_of_the_driver_fails(programs, attack):
    wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED]
    said = attack(programs.build("faults", "asan", *wrapped), 240)
    assert int(said.split()[0]) > 4000


def test_threads_call_load_and_unload(programs, attack):
    attack(programs.build("threads", "tsan"), 15)


def test_a_million_calls_use_no_more_memory(programs, attack):
    # What that cache of malloc holds counts as used.
    exact = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    attack(programs.build("memory", "plain"), 1_000_000, **exact)
