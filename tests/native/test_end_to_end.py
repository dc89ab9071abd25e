"""From operators to results: built in one process, called in another on the stand-in driver.

The second one is started with TRITON_INTERPRET=1, and runs end_to_end/calls_*.py.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opforge import native
from opforge.native.kernels.image_cache import Cache
from support.processes import ROOT, WITHOUT_PLUGINS, environment, python, without_machine_code
from support.uncompiled import Uncompiled

EXAMPLES = ROOT / "examples" / "native"
# One library for both vendors.
ARCHS = ["sm_80", "gfx942"]
CALLS = sorted(Path(__file__).with_name("end_to_end").glob("calls_*.py"))


@pytest.fixture(scope="module", autouse=True)
def _optimized():
    """As users build: the tests' compilers optimize where warnings are errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "cc -Werror")
        patch.setenv("CXX", "c++ -Werror")
        yield


@pytest.fixture(scope="module")
def kinds():
    from support.native import kinds  # noqa: PLC0415

    return kinds


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("end_to_end")


def start(folder, *arguments):
    """`opforge build`; all builds of a folder share their kernels."""
    variables = without_machine_code() | {"OPFORGE_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen(
        [python(), "-m", "opforge", "build", *map(str, arguments)],
        env=environment(**variables), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    said, noise = process.communicate()
    assert process.returncode == 0, said + noise
    return said


@pytest.fixture(scope="module")
def started(folder):
    """Started before the other library is built: much of a build runs on one core."""
    archs = (option for arch in ARCHS for option in ("--arch", arch))
    return start(folder, EXAMPLES / "ops.py", *archs, "-o", folder / "ops")


@pytest.fixture(scope="module")
def examples(folder, started):
    """The examples, built by the command."""
    said = finish(started)
    counted = (
        r".*: ops, 5 operators, (\d+) kernel variants, (\d+) images for sm_80, gfx942; (\d+) files "
        r"of \3 "
    )
    found = re.match(counted, said)
    assert found, said
    assert int(found[2]) == 2 * int(found[1])
    return folder / "ops"


EVERY_KIND = (
    "scalars", "choose", "scale_", "extremes", "running", "square", "affine", "where",
    "persistent", "halves", "picked", "mixed", "negated", "swish",
)  # fmt: skip


@pytest.fixture(scope="module")
def built_kinds(folder, started, kinds):
    """An operator per kind of host function, built by the Python API."""
    with Uncompiled() as executor:
        return build_kinds(kinds, folder, executor=executor)


def build_kinds(kinds, folder, **more):
    ops = [getattr(kinds, name) for name in EVERY_KIND]
    cache = Cache(folder / "cache")
    return native.build(ops, folder / "kinds", archs=ARCHS, cache=cache, torch=True, **more)


@pytest.fixture(scope="module")
def built_large(folder, pool):
    from support.native.large import large  # noqa: PLC0415

    native.build([large], folder / "large", archs=["sm_80"], executor=pool)


def call(folder, vendor, *files):
    variables = {"OPFORGE_TEST_BUILT": str(folder), "OPFORGE_TEST_VENDOR": vendor}
    done = subprocess.run(
        [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env=environment(EXAMPLES, TRITON_INTERPRET="1", **WITHOUT_PLUGINS, **variables),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_every_call_gives_what_torch_gives(folder, built_kinds, built_large, examples):
    done = call(folder, "nvidia", *CALLS)
    if all(map(shutil.which, ("cmake", "ninja", "make"))):
        assert "skipped" not in done.stdout, done.stdout


def test_every_call_gives_what_torch_gives_on_an_amd_gpu(folder, built_kinds, examples):
    """With the same libraries."""
    # `large` needs more shared memory than gfx942 has.
    call(folder, "amd", *(file for file in CALLS if file.stem != "calls_large"))


def test_an_untuned_autotuner_is_named_once(built_kinds):
    (note,) = [note for note in built_kinds.notes if "autotuning" in note]
    assert note.startswith("square_kernel has 2 autotuning configurations; without a tuning")
    assert "BLOCK: 32" in note


def test_the_header_says_once_that_a_tensor_may_be_null(built_kinds):
    header = (built_kinds.folder / "include" / "kinds.h").read_text()
    (line,) = [line for line in header.splitlines() if line.startswith(" *   bias:")]
    assert line.count("may be NULL") == 1


RECORD = {"build.json", "SHA256SUMS"}


def contents(folder):
    """All files of a build by path, except for its record, which is also among the hashes."""
    files = [f for f in folder.rglob("*") if f.is_file() and f.name not in RECORD]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


def test_two_builds_by_two_processes_are_the_same_to_the_byte(folder, examples):
    archs = ("--arch", "gfx942", "--arch", "80")
    finish(start(folder, EXAMPLES / "ops.py", *archs, "-o", folder / "again"))
    first, second = contents(examples), contents(folder / "again")
    assert first.keys() == second.keys()
    assert [path for path in first if first[path] != second[path]] == []
    assert "lib/libops.so" in first


def test_kernels_compiled_again_are_the_same_to_the_byte(kinds, pool, tmp_path):
    for name in ("first", "second"):
        native.build([kinds.scale_], tmp_path / name, archs=[80], executor=pool, cache=None)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_a_build_from_the_cache_leaves_every_file_as_it_was(kinds, built_kinds):
    before = {f: f.stat().st_mtime_ns for f in built_kinds.folder.rglob("*") if f.is_file()}
    again = build_kinds(kinds, built_kinds.folder.parent)
    assert again.written.changed == ()
    assert {f: f.stat().st_mtime_ns for f in before} == before


def test_nothing_that_is_written_names_the_folders_of_the_build(folder, examples):
    for path, content in contents(examples).items():
        assert str(folder).encode() not in content, path
        assert str(ROOT).encode() not in content, path
