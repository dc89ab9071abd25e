"""The C runtime under attack: calls, faults of the driver, threads, and a million calls.

The programs are in native/. They call a library of hand-made operators, whose kernels they run on
the stand-in driver of either vendor, and compare what happens with what they expect themselves.
"""

import importlib
import itertools
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from opforge.native.artifacts.toolchain import as_unit
from opforge.native.codegen.text import runtime
from support.archs import SM_80, SM_90, gfx
from support.native import hand_made, hand_made_layouts
from support.native.sanitizers import has_sanitizer
from support.standin.driver import AMD, NVIDIA, Vendor
from support.standin.library import write

NATIVE = Path(__file__).with_name("native")
PARTS = ("specs", "given", "judge", "plain_ops", "strided_ops", "kernels", "rounds")
# What a library for AMD has that is not in one for NVIDIA.
OF_A_VENDOR = {"images.c", "manifest.c"}
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


# In place of which of NVIDIA's.
AMDS = dict(zip((SM_80, SM_90), gfx("942", "950"), strict=True))


def program(vendor):
    """Operators of every kind; kernels that two of them share are there once."""
    parts = (
        hand_made.add(), hand_made.matmul(), hand_made.everything(), hand_made.special(),
        hand_made.overlapping(), hand_made.copying(), hand_made_layouts.blend(),
        hand_made_layouts.add_to(), hand_made_layouts.turned(), hand_made_layouts.either(),
        hand_made_layouts.cube(), hand_made_layouts.rotate(), hand_made_layouts.window(),
    )  # fmt: skip
    made = hand_made.library(*parts)
    made = replace(made, kernels=tuple({k.key: k for k in made.kernels}.values()))
    return made if vendor is NVIDIA else for_amd(made)


def for_amd(library):
    kernels = tuple(replace(k, images=tuple(map(hsaco, k.images))) for k in library.kernels)
    return replace(library, kernels=kernels, archs=tuple(AMDS.values()))


def hsaco(image):
    key = image.cubin[64:].split()[0].decode()
    arch = AMDS[image.arch]
    image = image._replace(arch=arch, pdl=False, maps=())
    return image.holding(hand_made.cubin(key, arch))


class Programs:
    """Compiles the library, the fuzzer's parts and the drivers once per sanitizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with pytest.MonkeyPatch.context() as patch:
            # Not a number more, so that sanitizers see what goes beyond.
            code = importlib.import_module("opforge.native.codegen.sources")
            patch.setattr(code, "room", lambda most: max(1, most))
            self.libraries = {v: write(program(v), folder / v.name) for v in (NVIDIA, AMD)}

    def build(self, name: str, sanitizer: str, vendor: Vendor, *link: str) -> Path:
        shared, folder = self.folder / sanitizer, self.folder / f"{sanitizer}-{vendor.name}"
        if not shared.exists():
            self._compile_shared(shared, sanitizer)
        if not folder.exists():
            self._compile(folder, sanitizer, vendor)
        driver = folder / vendor.file
        objects = [str(o) for place in (shared, folder) for o in sorted(place.glob("*.o"))]
        path = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{folder}", "-ldl", "-lpthread", "-lm"]
        flags = [*self._flags(sanitizer), *link]
        source = str(NATIVE / f"{name}.c")
        command = ["cc", *flags, source, *objects, str(driver), *path, "-o", str(folder / name)]
        subprocess.run(command, check=True)
        return folder / name

    def _flags(self, sanitizer: str) -> list[str]:
        standin = Path(NVIDIA.sources[0]).parent
        includes = [f"-I{self.libraries[NVIDIA] / 'include'}", f"-I{standin}"]
        return [*FLAGS, *SANITIZERS[sanitizer], *includes]

    def _compile_shared(self, folder: Path, sanitizer: str) -> None:
        flags = self._flags(sanitizer)
        if not has_sanitizer(flags, self.folder):
            pytest.skip(f"this compiler has no sanitizer for {flags}")
        folder.mkdir()
        first, second = (sorted(each.glob("src/*/*.c")) for each in self.libraries.values())
        own = [a for a, b in zip(first, second, strict=True) if a.read_bytes() != b.read_bytes()]
        assert {file.name for file in own} == OF_A_VENDOR
        # In units, so that their headers are not read for each file.
        units = {
            "runtime.o": [f for f in first if f.name in runtime()],
            "fuzzer.o": [NATIVE / f"{part}.c" for part in PARTS],
        }
        for made, files in units.items():
            command = ["cc", *flags, "-c", *as_unit(files), "-o", made]
            subprocess.run(command, cwd=folder, check=True)
        ops = [str(f) for f in first if f not in own and f not in units["runtime.o"]]
        subprocess.run(["cc", *flags, "-c", *ops], cwd=folder, check=True)

    def _compile(self, folder: Path, sanitizer: str, vendor: Vendor) -> None:
        flags = self._flags(sanitizer)
        folder.mkdir()
        sources = [str(self.libraries[vendor] / "src" / "demo" / name) for name in OF_A_VENDOR]
        subprocess.run(["cc", *flags, "-c", *sources], cwd=folder, check=True)
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{vendor.file}", "-o", vendor.file]
        command = ["cc", *flags, *vendor.sources, *shared, "-lpthread"]
        subprocess.run(command, cwd=folder, check=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("fuzz"))


# The runtime is the same for both, so that the second need not try as much.
vendors = pytest.mark.parametrize(
    ("vendor", "share"), [(NVIDIA, 1), (AMD, 4)], ids=["nvidia", "amd"]
)


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


@vendors
def test_calls_of_every_kind(programs, attack, vendor, share):
    attack(programs.build("calls", "asan", vendor), 0, 25_000 // share)


@vendors
def test_every_call_of_the_driver_fails(programs, attack, vendor, share):
    wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED]
    said = attack(programs.build("faults", "asan", vendor, *wrapped), 240 // share)
    assert int(said.split()[0]) > 4000 // share


@vendors
def test_threads_call_load_and_unload(programs, attack, vendor, share):
    attack(programs.build("threads", "tsan", vendor), 15 // share)


@vendors
def test_a_million_calls_use_no_more_memory(programs, attack, vendor, share):
    # What that cache of malloc holds counts as used.
    exact = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    attack(programs.build("memory", "plain", vendor), 1_000_000 // share, **exact)
