"""`opforge build`: what it prints, what it leaves, and how it fails."""

import importlib
import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from opforge._compat import compiling
from opforge.cli import main
from opforge.commands.build import BuildArguments, depfile
from opforge.native.artifacts import build_record
from support import served_kernels  # noqa: F401  # of a test below
from support.native.declared_source import SOURCE, write_source
from support.processes import environment, python

PLAIN = """

@opforge.op("SPACE::plain", mode="custom_op")
def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""

BROKEN = """
import opforge
import torch
import triton
import triton.language as tl
from opforge import native


@triton.jit
def broken_kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.no_such_thing(n))


@opforge.op("SPACE::broken", mutates_args=("x",))
def broken(x: torch.Tensor) -> None:
    broken_kernel[(1,)](x, x.numel(), BLOCK=32)


@opforge.op("SPACE::broken_again", mutates_args=("x",))
def broken_again(x: torch.Tensor) -> None:
    broken_kernel[(2,)](x, x.numel(), BLOCK=32)


for op in (broken, broken_again):
    native.declare(op, x=native.tensor("n", dtype="i32"), dims={"n": (0, 1000)})
"""


pytestmark = pytest.mark.usefixtures("lasting_workers")


@pytest.fixture(autouse=True)
def _any_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("sample"), "build_sample", SOURCE + PLAIN)


@pytest.fixture(scope="module")
def pristine(sample, tmp_path_factory):
    """A library, and what was said of its build."""
    dist = tmp_path_factory.mktemp("pristine") / "dist"
    return dist, built(sample, "--arch", "sm_80", "-o", dist)


@pytest.fixture
def dist(pristine, tmp_path):
    """A library that was built before."""
    return shutil.copytree(pristine[0], tmp_path / "dist")


def run(*arguments):
    return CliRunner().invoke(main, ["build", *map(str, arguments)])


def built(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def tree(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_library_is_built_and_reported(pristine):
    dist, said = pristine
    names = {str(path) for path in tree(dist)}
    assert said == (
        f"{dist}: build_sample, 1 operator, 6 kernel variants, 6 images for sm_80; "
        f"{len(names)} files of {len(names)} changed\n"
    )
    assert {
        "include/build_sample.h",
        "lib/libbuild_sample.so",
        "lib/cmake/build_sample/build_sampleConfig.cmake",
        "share/build_sample/manifest.json",
        "src/build_sample/op_twice.c",
    } <= names


LISTED = """

def backward(ctx, grad):
    return grad.sort().values, None


@opforge.op("SPACE::listed", mode="custom_op", backward=backward)
def listed(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    out = torch.empty_like(x)
    twice_kernel[(1,)](x, out, x.numel(), BLOCK=128)
    return out


native.declare(listed, x=native.tensor("n", dtype="fp32"), sizes=[1, 2], dims={"n": (0, 100)})
"""


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A library with a torch adapter, and what was said: 4 s of a C++ compiler."""
    folder = tmp_path_factory.mktemp("adapted")
    source = write_source(folder, "build_adapted", SOURCE + LISTED)
    return folder / "dist", built(source, "--arch", "sm_80", "-o", folder / "dist", "--torch")


def test_a_torch_adapter_on_request_with_what_it_cannot_do(adapted):
    dist, said = adapted
    names = {str(path) for path in tree(dist)}
    adapter = "src/build_adapted/torch/build_adapted_torch.cpp"
    assert {"lib/libbuild_adapted_torch.so", adapter} <= names
    notes = [line for line in said.splitlines() if line.startswith("note: ")]
    assert len(notes) == 3
    assert "the library has no listed_backward, because it cannot be built for" in notes[0]
    assert notes[1].startswith("note: listed is not in the torch adapter, because sizes is of type")
    assert notes[2].startswith(
        "note: listed: the library does not carry its backward, which does more than call"
    )


BACKWARD = """

def backward(ctx, grad):
    return grad * 2


@opforge.op("SPACE::doubled", backward=backward)
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    twice_kernel[(1,)](x, out, x.numel(), BLOCK=128)
    return out


native.declare(doubled, x=native.tensor("n", dtype="fp32"), dims={"n": (0, 100)})
"""


def test_a_wheel_on_request_of_the_library_that_was_built(sample, adapted, tmp_path):
    # Beside another library, of which a wheel could be made as well.
    dist = shutil.copytree(adapted[0], tmp_path / "dist")
    arguments = [sample, "--arch", "sm_80", "-o", dist, "--name", "second", "--wheel", "--tvm-ffi"]
    said = built(*arguments).splitlines()
    (wheel,) = dist.glob("*.whl")
    assert said[-1].startswith(f"{wheel}: 1 operator for sm_80, ")
    assert wheel.name.startswith("second-0.0.0-py3-none-manylinux_2_")
    with zipfile.ZipFile(wheel) as archive:
        assert b"__tvm_ffi_twice" in archive.read("second/lib/libsecond.so")
    before = wheel.read_bytes()
    wheel.unlink()
    unchanged, packed = built(*arguments).splitlines()
    assert unchanged == f"{dist}: nothing has changed since the last build of second"
    assert packed == said[-1]
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("name", ["torch", "json"])
def test_a_wheels_name_is_refused_before_anything_is_imported(name, tmp_path):
    done = run("no_such_module", "--wheel", "-o", tmp_path, "--name", name)
    assert done.exit_code == 1
    assert f"a Python package cannot be named {name}: " in done.output


def test_a_namespace_that_cannot_be_a_wheels_name_is_refused_before_anything_is_built(tmp_path):
    source = write_source(tmp_path, "numpy_ops", SOURCE.replace("SPACE", "tvm_ffi"))
    done = run(source, "--wheel", "-o", tmp_path / "dist")
    assert "a Python package cannot be named tvm_ffi: it would" in done.output
    assert "compiling" not in done.output
    assert not (tmp_path / "dist/lib").exists()


def test_the_listing_shows_what_becomes_of_a_backward(tmp_path):
    source = write_source(tmp_path, "build_backwards", SOURCE + BACKWARD + LISTED)
    said = built(source, "--list", "--arch", "sm_80")
    assert re.search(r"\n  doubled_backward \(.*\)\n    grad_out fp32 1-d\n      always: ", said)
    assert said.index("  doubled (") < said.index("  doubled_backward (") < said.index("  listed (")
    assert "\n- build_backwards::listed: the library has no listed_backward, because" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--name", "math"], "programs that include <math.h> or link -lmath would pick up this"),
        (["--arch", "sm_12"], "cannot compile for sm_12"),
        (["--arch", "gfx942", "--ptx"], "there is no PTX for AMD GPUs"),
        (["--sources-only", "--wheel"], "--sources-only and --wheel were both given"),
    ],
)
def test_options_that_cannot_be_are_refused(sample, tmp_path, options, said):
    done = run(sample, *options, "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert said in done.output
    assert "fix: " in done.output
    assert not (tmp_path / "dist").exists()


def test_list_shows_what_would_be_built_and_builds_nothing(sample, tmp_path):
    said = built(sample, "--arch", "sm_90", "--arch", "sm_80", "--list", "-o", tmp_path / "dist")
    assert said.replace(str(sample), "FILE") == (
        "build_sample for sm_80, sm_90\n"
        "  twice (FILE:16)\n"
        "    x fp32 1-d, mode 'fast', and 1 similar case\n"
        "      where n <= 100: twice_kernel in 3 variants\n"
        "      where 100 < n: twice_kernel in 3 variants\n"
        "  6 kernel variants\n"
    )
    assert "    x fp32 1-d, mode 'exact'\n      where n <= 100: " in built(sample, "--list", "-v")
    assert not (tmp_path / "dist").exists()


def test_verbose_shows_each_variant_and_what_the_compiler_made_of_it(sample, tmp_path):
    said = built(sample, "--arch", "sm_80", "-v", "-o", tmp_path)
    assert "  x fp32 1-d, mode 'exact' where n <= 100: twice_kernel\n" in said
    assert (
        "    x_ptr: *fp32 aligned, out_ptr: *fp32 aligned, n: i32 multiple of 16, BLOCK=32\n"
        in said
    )
    found = re.findall(
        r"      sm_80 twice_kernel_\w{12}: \d+ registers, \d+ bytes shared, 4 warps, "
        r"cubin \d+ bytes\n",
        said,
    )
    assert len(found) == 12


def command(*arguments, options=()):
    """In a process of its own."""
    return subprocess.run(
        [python(), *options, "-m", "opforge", "build", *map(str, arguments)],
        env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def imported(done):
    """The modules that -X importtime lists."""
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}


def test_an_unchanged_build_ends_before_torch_is_imported(tmp_path):
    source, dist = write_source(tmp_path, "build_twice"), tmp_path / "dist"
    arguments = (source, "--arch", "sm_80", "-o", dist)
    built(*arguments)
    before = {f: f.stat().st_mtime_ns for f in dist.rglob("*")}

    second = command(*arguments, options=("-X", "importtime"))
    assert second.returncode == 0, second.stderr
    assert second.stdout == f"{dist}: nothing has changed since the last build of build_twice\n"
    assert "opforge.native.artifacts.build_record" in imported(second)
    assert not {m for m in imported(second) if m.split(".")[0] in {"torch", "triton", "numpy"}}
    assert {f: f.stat().st_mtime_ns for f in dist.rglob("*")} == before

    source.write_text(source.read_text().replace("Two times", "Twice"))
    third = command(*arguments)
    assert re.search(r"; \d+ files of \d+ changed\n$", third.stdout), third.stderr
    assert "Twice x." in (dist / "include" / "build_twice.h").read_text()


def test_what_kernels_call_elsewhere_is_read(tmp_path):
    # Imported already, as a part of a package is by another.
    text = SOURCE.replace("import torch\n", "import torch\nfrom support import served_kernels\n", 1)
    text = text.replace("2 * tl.load", "2 * served_kernels.plus_one(0) * tl.load")
    source, dist = write_source(tmp_path, "build_calls", text), tmp_path / "dist"
    built(source, "--arch", "sm_80", "--sources-only", "-o", dist)
    stamp = build_record.read(dist / build_record.stamp_path("build_calls"))
    names = {Path(file).name for file in stamp.read}
    assert names == {"build_calls.py", "served_kernels.py"}


def test_missing_or_newly_requested_files_are_built_again(sample, dist):
    arguments = (sample, "--arch", "sm_80", "-o", dist)
    before = tree(dist)
    assert "nothing has changed" in built(*arguments)
    assert "no files of" in built(*arguments, "--force")
    (dist / "include" / "build_sample.h").unlink()
    (dist / "lib" / "libbuild_sample.so").write_bytes(b"damaged")
    assert "2 files of" in built(*arguments)
    assert tree(dist) == before


def test_a_kernel_that_does_not_compile_is_shown_with_its_location_and_variant(tmp_path):
    source = write_source(tmp_path, "build_broken", BROKEN)
    done = run(source, "--arch", "sm_80", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    line = 1 + BROKEN[: BROKEN.index("@triton.jit")].count("\n")
    assert f"{source}:{line}" in done.output
    assert "broken_kernel(x_ptr: *i32, n: i32, BLOCK=32)" in done.output
    assert "no_such_thing" in done.output
    launches = [i for i, text in enumerate(BROKEN.splitlines(), 1) if "broken_kernel[" in text]
    both = zip(("broken", "broken_again"), launches, strict=True)
    who = ", ".join(f"build_broken::{name} ({source}:{line})" for name, line in both)
    assert f"\n  launched by {who}\n    CompilationError" in done.output
    assert "sm_80" in done.output
    assert not (tmp_path / "dist").exists()


def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_compiled(sample, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = run(sample, "--arch", "sm_80", "-o", tmp_path / "file" / "dist")
    assert done.exit_code == 1
    assert f"cannot write to {tmp_path / 'file' / 'dist'}" in done.output
    assert "compiling" not in done.output


def test_a_module_that_asks_for_the_vendor_while_it_is_imported_hears_amd(tmp_path):
    asks = (
        "import torch, triton\nassert torch.version.hip\n"
        "assert triton.runtime.driver.active.get_current_target().backend == 'hip'"
    )
    source = write_source(tmp_path, "build_at_import", f"{asks}\n{SOURCE}")
    done = run(source, "--list", "--arch", "gfx942", "--arch", "gfx90a")
    assert done.exit_code == 0, done.output


def test_one_library_is_for_both_vendors(sample, tmp_path):
    done = run(sample, "--arch", "gfx942", "--arch", "sm_80", "-v", "-o", tmp_path / "dist")
    assert done.exit_code == 0, done.output
    assert "for sm_80, gfx942; " in done.output
    assert re.search(r"gfx942 \w+: \d+ registers.*, hsaco \d+ bytes", done.output)
    assert re.search(r"sm_80 \w+: \d+ registers.*, cubin \d+ bytes", done.output)
    (manifest,) = (tmp_path / "dist" / "share").glob("*/manifest.json")
    content = json.loads(manifest.read_text())
    assert content["archs"] == ["sm_80", "gfx942"]
    listed = run(sample, "--list", "--arch", "gfx90a", "--arch", "sm_80")
    assert " for sm_80, gfx90a\n" in listed.output


def test_verbose_lists_a_shared_kernel_for_the_gpus_that_take_the_path(tmp_path):
    asked = "torch.version.hip or n > 100 or torch.cuda.get_device_capability() >= (9, 0)"
    source = write_source(tmp_path, "build_by_gpu", SOURCE.replace("n > 100", asked))
    archs = ("--arch", "sm_80", "--arch", "sm_90", "--arch", "gfx942")
    said = built(source, *archs, "-v", "--sources-only", "-o", tmp_path / "dist")
    listed = {}
    for part in re.split(r"^  (?=x fp32 1-d)", said, flags=re.MULTILINE)[1:]:
        guard = re.match(r".* where (.*): twice_kernel", part)[1]
        listed.setdefault(guard, set()).update(re.findall(r"^      (\w+) ", part, re.MULTILINE))
    assert listed == {
        "device.vendor == NVIDIA and n <= 100 and device.major != 9": {"sm_80"},
        "device.vendor == NVIDIA and n <= 100 and device.major == 9": {"sm_90"},
        "device.vendor == NVIDIA and 100 < n": {"sm_80", "sm_90"},
        "device.vendor == AMD": {"gfx942"},
    }


def test_kernels_come_from_a_cache_that_another_machine_has_filled(sample, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", (tmp_path / "shared").as_uri())
    arguments = (sample, "--arch", "sm_80", "--sources-only", "-o")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "mine"))
    built(*arguments, tmp_path / "first")
    assert len([*(tmp_path / "shared").iterdir()]) == 6
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "yours"))
    monkeypatch.setattr(compiling, "lower", None)
    done = run(*arguments, tmp_path / "second")
    assert done.exit_code == 0, done.output
    assert "compiled 6 of 6 (6 cached)" in done.stderr


def test_a_bad_shared_cache_is_refused_before_anything_is_traced(sample, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", "kernels")
    monkeypatch.setattr(importlib.import_module("opforge.native.build"), "plan", None)
    done = run(sample, "--arch", "sm_80", "-o", tmp_path / "dist")
    assert done.exit_code == 1
    assert "OPFORGE_REMOTE_CACHE is not a URL" in done.stderr


def test_a_name_a_static_library_and_ptx_on_request(sample, tmp_path):
    built(sample, "--arch", "sm_80", "-o", tmp_path, "--name", "other", "--static", "--ptx")
    assert {"include/other.h", "lib/libother.a"} <= {str(path) for path in tree(tmp_path)}
    assert b".version" in (tmp_path / "lib" / "libother.so").read_bytes()


NAMED = """

@opforge.op("SPACE::grad")
def twice_grad(x: torch.Tensor) -> torch.Tensor:
    return twice(x)


native.declare(twice_grad, x=native.tensor("n", dtype="fp32"), dims={"n": (1, 100)})
"""


def test_only_takes_the_names_of_functions_too(tmp_path):
    source = write_source(tmp_path, "build_only", SOURCE + NAMED)
    listed = [run(source, "--list", "--only", name).output for name in ("grad", "twice_grad")]
    assert listed[0] == listed[1]
    assert "  grad (" in listed[0]
    assert "  twice (" not in listed[0]


def test_a_new_folder_makes_another_build(tmp_path):
    (tmp_path / "add").mkdir()
    given = BuildArguments((str(tmp_path),), "dist", ("80",))
    before = given.deciding()
    (tmp_path / "mul").mkdir()
    assert given.deciding() != before


def test_make_reads_a_depfile(tmp_path):
    (tmp_path / "a folder").mkdir()
    read = [tmp_path / "a folder" / "b.py", tmp_path / "c$d#.py"]
    for file in read:
        file.touch()
    text = depfile(tmp_path / "made", [*read, tmp_path / "a folder" / ".." / "c$d#.py"])
    assert len(text.splitlines()) == 3
    (tmp_path / "makefile").write_text(text + "\t@echo made\n")
    command_ = ["make", "-C", tmp_path, "-s"]
    done = subprocess.run(command_, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("made\n", 0), done.stderr
    read[1].unlink()
    done = subprocess.run(command_, capture_output=True, text=True, check=False)
    assert "c$d#.py" in done.stderr
