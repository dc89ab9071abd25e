"""Compiled graphs that are recorded, built and served on a GPU, without an edit."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opforge.recording.model import read
from support import compiled_program
from support.processes import environment

PROGRAM = Path(compiled_program.__file__)
GENERATING = PROGRAM.with_name("generating_program.py")
# Notes all that is compiled or started; Triton's compiler raises, too. Inductor asks tools for
# their versions, which its caches depend on.
NOTED = """
import atexit, os, subprocess, sys, triton, triton.compiler.compiler

noted = []

def refuse(source, *args, **kwargs):
    noted.append(f"compiled {getattr(source, 'name', source)}")
    raise AssertionError(noted[-1])

def start(self, command, *args, **kwargs):
    if list(command[1:]) != ["--version"]:
        noted.append(f"started {command}")
    return popen(self, command, *args, **kwargs)

popen = subprocess.Popen.__init__
triton.compile = triton.compiler.compiler.compile = refuse
subprocess.Popen.__init__ = start
atexit.register(lambda: os.write(1, "".join(f"noted: {n}\\n" for n in noted).encode()))
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments, folder, threads="1"):
    return subprocess.run(
        [sys.executable, "-m", "opforge", *map(str, arguments)],
        env=environment(
            TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
            TRITON_CACHE_DIR=str(folder / "triton"),
            TORCHINDUCTOR_COMPILE_THREADS=threads,
        ),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def opforge(*arguments, folder, threads="1"):
    done = run(*arguments, folder=folder, threads=threads)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def results(text):
    return re.findall(r"^\d+ .* [0-9a-f]{64}$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a recording and its kernels, and what the program printed meanwhile."""
    folder = tmp_path_factory.mktemp("compiled")
    launches = folder / "launches.json"
    # In other processes, as Inductor does unless it is told otherwise.
    said = opforge(
        "record", "-o", launches, "--", sys.executable, PROGRAM, "6400", "12864",
        folder=folder / "recorded", threads="4",
    )  # fmt: skip
    opforge("build", launches, "--arch", "sm_80", "--arch", "sm_90", "-o", folder / "kernels",
            folder=folder / "built")  # fmt: skip
    return folder, results(said)


def test_user_kernels_and_inductors_own_are_recorded(recorded):
    folder, _ = recorded
    shown = opforge("list", folder / "launches.json", folder=folder / "listed")
    for name in ("scale_kernel", "shift_kernel", "triton_poi_", "triton_per_", "triton_red_"):
        assert f"torch.compile:{name}" in shown
    assert "notes" not in shown


def test_the_same_sizes_are_served_to_the_bit_and_nothing_is_compiled(recorded):
    folder, jit = recorded
    said = opforge(
        "serve", "--strict", folder / "kernels", "--", sys.executable, "-c", NOTED, PROGRAM,
        "6400", "12864", folder=folder / "served",
    )  # fmt: skip
    assert results(said) == jit
    assert "noted: " not in said, said
    for name in ("scale_kernel", "shift_kernel", "triton_poi_", "triton_per_", "triton_red_"):
        assert re.search(rf"torch.compile:{name}\w*: \d", said), said


def test_other_sizes_are_served(recorded):
    folder, _ = recorded
    said = opforge(
        "serve", "--strict", folder / "kernels", "--", sys.executable, "-c", NOTED, PROGRAM,
        "7040", "64064", "1280", folder=folder / "others",
    )  # fmt: skip
    assert len(results(said)) == 3 * 9
    assert "noted: " not in said, said


def test_what_inductor_prints_otherwise_is_refused_with_its_name(recorded):
    """It splits the sum of so many."""
    folder, _ = recorded
    done = run(
        "serve", "--strict", folder / "kernels", "--", sys.executable, "-c", NOTED, PROGRAM,
        "640000", folder=folder / "split",
    )  # fmt: skip
    assert done.returncode == 1
    assert "noted: compiled" not in done.stdout
    assert re.search(r"NotServed: torch.compile:triton_\w+ is not covered by", done.stderr)
    assert "fix: record it with `opforge record`" in done.stderr


def test_a_cache_of_inductors_works_served_and_not(recorded):
    """What was cached by a run that was served is compiled by one that is not, and the reverse."""
    folder, jit = recorded
    plain = subprocess.run(
        [sys.executable, str(PROGRAM), "6400", "12864"],
        env=environment(TORCHINDUCTOR_CACHE_DIR=str(folder / "served" / "inductor")),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert plain.returncode == 0, plain.stderr[-6000:]
    # It may measure other configurations to be the fastest, so the bits need not be the same.
    assert len(results(plain.stdout)) == len(jit)
    said = opforge(
        "serve", "--strict", folder / "kernels", "--", sys.executable, "-c", NOTED, PROGRAM,
        "6400", "12864", folder=folder / "recorded",
    )  # fmt: skip
    assert results(said) == jit
    assert "noted: " not in said, said


def test_what_the_folder_lacks_is_compiled_where_it_is_launched(recorded):
    folder, jit = recorded
    whole = read(folder / "launches.json")
    inductors = tuple(k for k in whole.kernels if k.name.startswith("triton_"))
    replace(whole, kernels=inductors).save(folder / "part.json")
    opforge("build", folder / "part.json", "--arch", "sm_90", "-o", folder / "part",
            folder=folder / "built")  # fmt: skip
    done = run("serve", folder / "part", "--", sys.executable, PROGRAM, "6400",
               folder=folder / "handed")  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    assert len(results(done.stdout)) == len(jit) // 2
    for name in ("scale_kernel", "shift_kernel"):
        assert f"torch.compile:{name} is compiled by Inductor: {name} is not in" in done.stderr
    assert "compiled_program.py:scale_kernel is launched by Triton: " in done.stderr
    assert "opforge: 3 launches were not served and went to Triton: " in done.stderr


def texts_of(file):
    """By name, the texts of the kernels of a recording, each as lines."""
    found = {}
    for kernel in read(file).kernels:
        found.setdefault(kernel.name, []).append(kernel.text.splitlines())
    return {name: sorted(texts) for name, texts in found.items()}


def test_generation_is_recorded_the_same_twice_and_served(tmp_path):
    said = []
    for name in ("one", "other"):
        launches = tmp_path / f"{name}.json"
        said.append(opforge(
            "record", "-o", launches, "--", sys.executable, GENERATING, folder=tmp_path / name
        ))  # fmt: skip
        assert not read(launches).missed
    recorded = texts_of(tmp_path / "one.json")
    assert texts_of(tmp_path / "other.json") == recorded
    # Two scores are two kernels.
    templates = [text for name, texts in recorded.items() if "tem_fused" in name for text in texts]
    assert len(templates) == 2, sorted(recorded)
    opforge("build", tmp_path / "one.json", "-o", tmp_path / "kernels", folder=tmp_path / "built")
    served = opforge(
        "serve", "--strict", tmp_path / "kernels", "--", sys.executable, "-c", NOTED, GENERATING,
        folder=tmp_path / "served",
    )  # fmt: skip
    assert re.findall(r"^.* [0-9a-f]{64}$", served, re.MULTILINE) == said[0].splitlines()
    assert "noted: " not in served, served
