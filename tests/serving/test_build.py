"""A folder of served kernels: its files and its manifest."""

import hashlib
import importlib
import json
import re
import sys

import pytest
import torch
from click.testing import CliRunner

from opforge._compat import compiling
from opforge.cli import main
from opforge.errors import BuildFailed, NotFound, NotServable
from opforge.native.ir.kernels import image_file
from opforge.native.kernels.image_cache import Cache
from opforge.recording.model import Recording
from opforge.report.read import read_served
from opforge.serving.build import build
from opforge.serving.manifest import read
from support.archs import SM_80, SM_90
from support.served_kernels import combine, made, narrowed, plus_one, recorded


@pytest.fixture(scope="module")
def recording():
    return recorded(
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64, num_warps=2),
        lambda x: combine[(1,)](x, None, x, 7, 128, plus_one),
    )


@pytest.fixture(scope="module")
def built(recording, tmp_path_factory):
    return build(recording, tmp_path_factory.mktemp("served") / "kernels", archs=["sm_80", "sm_90"])


def test_the_manifest_tells_every_image(built):
    manifest = read(built.folder)
    assert manifest.functions == built.library.functions
    (function,) = manifest.functions
    first, second = function.instances
    assert (dict(first.constants), first.kinds) == (
        {"BLOCK": 64, "ACT": None}, ("*fp32", "*fp32", "*fp32", "int"),
    )  # fmt: skip
    assert second.kinds == ("*fp32", "none", "*fp32", "int")
    assert [v.types for v in second.variants] == [
        ("p16", "none", "p16", "i32"), ("p", "none", "p", "i32"), ("p", "none", "p", "i64"),
    ]  # fmt: skip
    keys = {v.kernel for one in (first, second) for v in one.variants}
    assert manifest.keys == keys
    assert {i.num_warps for v in first.variants for i in manifest.images(v.kernel)} == {2}
    for key in keys:
        images = manifest.images(key)
        assert [image.arch for image in images] == [SM_80, SM_90]
        for image in images:
            content = (built.folder / image_file(key, image.arch)).read_bytes()
            assert content.startswith(b"\x7fELF")
            assert (len(content), hashlib.sha256(content).hexdigest()) == (image.size, image.sha256)


def test_a_recording_is_built_for_both_vendors(tmp_path):
    """From either vendor's launches."""
    for number, arch in enumerate(("sm_80", "gfx942")):
        recording = recorded(lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64), arch=arch)
        ((variant,),) = [kernel.variants for kernel in recording.kernels]
        assert (variant.arch, set(variant.divisible)) == (arch, {"x_ptr", "y_ptr", "out_ptr", "n"})
        folder = tmp_path / str(number)
        build(recording, folder, archs=["sm_80", "gfx942", "gfx1100"])
        manifest = read(folder)
        assert manifest.archs == ("sm_80", "gfx942", "gfx1100")
        ((instance,),) = [function.instances for function in manifest.functions]
        for variant in instance.variants:
            for image in manifest.images(variant.kernel):
                assert (folder / image_file(variant.kernel, image.arch)).is_file()
        report = read_served(folder, "kernels")
        assert all(image.registers for v in report.variants for image in v.images)


def test_the_command_ends_early_where_nothing_has_changed(recording, tmp_path):
    launches, kernels = tmp_path / "launches.json", tmp_path / "kernels"
    recording.save(launches)
    command = ["build", str(launches), "--arch", "sm_80", "-o", str(kernels)]

    def lines(*more):
        done = CliRunner().invoke(main, [*command, *more])
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    def said(*more):
        return lines(*more)[-1]

    assert said().startswith(f"{kernels}: 1 kernel, 6 kernel variants, 6 images for sm_80; ")
    assert said() == f"{kernels}: nothing has changed since the last build of served"
    assert "no files of" in said("--force")
    weight = next(line for line in lines("-v") if line.startswith("  combine: 6 kernel variants, "))
    assert weight.endswith(" kB for sm_80")
    assert "15 kernel variants" in said("--widen", "combine:BLOCK=64,256")
    recording.joined(recording).save(launches)
    assert "6 kernel variants" in said()


def test_a_folder_built_again_is_the_same_to_the_byte(recording, tmp_path):
    launches, kernels = tmp_path / "launches.json", tmp_path / "kernels"
    recording.save(launches)
    source = ["--source", launches]

    def said(*command):
        done = CliRunner().invoke(main, [*map(str, command)])
        return done.exit_code, done.output

    assert said("build", launches, "--arch", "sm_80", "-o", kernels)[0] == 0
    held = "served, compared with its hashes: all 9 files are the same\n"
    assert said("verify", kernels, "--manifest-only") == (0, held)
    # The record of the build names the folder, and would not be the same.
    again = "rebuilt from its sources: all 8 files but the record of the build are the same"
    assert said("verify", kernels, *source) == (0, f"served, {again}\n")
    image = next((kernels / "images").iterdir())
    image.write_bytes(b"")
    status, told = said("verify", kernels, *source)
    assert status == 1
    assert f"images/{image.name} has changed" in told


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Two modules of kernels, one with a helper and a constant of further modules."""
    texts = {
        "again_config": "FACTOR = 2",
        "again_helper": "import triton\n@triton.jit\ndef h(x):\n    return x + 1",
        "again_far": "from again_helper import h\nimport again_config",
        "again_one": KERNEL.format("again_far.h(1) * again_far.again_config.FACTOR"),
        "again_other": KERNEL.format("2"),
    }
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    forget()


def forget():
    """As in a new process."""
    for name in [name for name in sys.modules if name.startswith("again_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


KERNEL = """
import triton, triton.language as tl
import again_far
@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, {})
"""


@pytest.fixture
def said(library):
    """Builds what the library launches, and returns what the command says."""
    found = [importlib.import_module(name).kernel for name in ("again_one", "again_other")]
    recorded(*(kernel[(1,)] for kernel in found)).save(library / "launches.json")
    kernels = library / "kernels"
    command = ["build", str(library / "launches.json"), "--arch", "sm_80", "-o", str(kernels)]

    def build_again():
        forget()
        return CliRunner().invoke(main, command).output

    assert "2 kernels" in build_again()
    assert build_again() == f"{kernels}: nothing has changed since the last build of served\n"
    return build_again


@pytest.mark.parametrize("name", ["again_config", "again_helper", "again_one"])
def test_the_command_notices_what_kernels_call_and_use(library, said, name):
    path = library / f"{name}.py"
    before = path.read_text()
    path.write_text(re.sub("[12]", "3", before))
    assert "kernel is not built, and so not served: " in said()
    path.write_text(before)
    assert "2 kernels" in said()


def test_the_command_notices_a_module_that_is_back(library, said):
    path = library / "again_other.py"
    path.rename(library / "elsewhere")
    assert "No module named 'again_other'" in said()
    (library / "elsewhere").rename(path)
    assert "2 kernels" in said()
    assert "nothing has changed" in said()


def test_files_of_modules_that_were_imported_before_are_read_too(library):
    kernel = importlib.import_module("again_one").kernel
    build(recorded(kernel[(1,)]), library / "kernels", archs=["sm_80"])
    stamp = json.loads((library / "kernels/share/served/build.json").read_text())
    assert {"../again_one.py", "../again_helper.py", "../again_config.py"} <= stamp["read"].keys()


def test_kernels_come_from_a_cache_that_another_machine_has_filled(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_REMOTE_CACHE", (tmp_path / "shared").as_uri())
    launched = recorded(lambda x: combine[(1,)](x, None, x, 7, 128, plus_one))
    first = build(launched, tmp_path / "first", archs="sm_80", cache=Cache(tmp_path / "mine"))
    assert len([*(tmp_path / "shared").iterdir()]) == 3
    monkeypatch.setattr(compiling, "lower", None)
    second = build(launched, tmp_path / "second", archs="sm_80", cache=Cache(tmp_path / "yours"))
    assert second.library == first.library


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launches.json", "ops.py"], "is a recording, and the other targets are not"),
        (["launches.json", "--torch"], "--torch is for operators, not for recordings"),
        (["launches.json", "--tvm-ffi"], "fix: leave out --tvm-ffi"),
        (["ops.py", "--widen", "k:B=1"], "--widen is for recordings, not for operators"),
    ],
)
def test_options_of_operators_and_of_recordings_are_told_apart(arguments, said):
    done = CliRunner().invoke(main, ["build", *arguments])
    assert done.exit_code == 1
    assert said in done.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 9}, "has format 9, ABI 1, but this opforge reads format 10, ABI 1"),
        ({"abi": 0}, "has format 10, ABI 0, but this opforge reads format 10, ABI 1"),
        ({"functions": [{}]}, "functions[0].module is missing"),
    ],
)
def test_a_manifest_of_another_format_is_refused(built, tmp_path, change, said):
    content = json.loads((built.folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | change))
    with pytest.raises(NotServable) as caught:
        read(tmp_path)
    assert said in str(caught.value)
    assert "build it again" in caught.value.fix


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    library = tmp_path / "library"
    (library / "share" / "ops").mkdir(parents=True)
    (library / "share" / "ops" / "manifest.json").touch()
    with pytest.raises(NotServable, match=r"is a C library of operators, not recorded kernels"):
        read(library)
    with pytest.raises(NotServable, match=r"has no manifest\.json: No such file"):
        read(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(NotServable, match="cannot be read"):
        read(tmp_path)


def test_what_does_not_compile_for_an_architecture_is_left_out_there(tmp_path):
    """fp8e4nv needs sm_89."""
    recording = recorded(
        lambda x: narrowed[(1,)](x.to(torch.float8_e4m3fn), x),
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64),
    )
    done = build(recording, tmp_path / "kernels", archs=["sm_80", "sm_90"], cache=None)
    images = {kernel.key: kernel.images for kernel in done.library.kernels}
    archs = {
        f.name: {image.arch for v in f.instances[0].variants for image in images[v.kernel]}
        for f in done.library.functions
    }
    assert archs == {"narrowed": {SM_90}, "combine": {SM_80, SM_90}}
    (note,) = [note for note in done.notes if note.startswith("narrowed(")]
    assert " is not built for sm_80, nor is 1 other variant of it: ValueError(" in note
    assert "; sm_80 has no fp8e4nv: branch on the GPU" in note
    assert "fp8e4nv not supported" in note
    assert read(done.folder).functions == done.library.functions


def test_what_cannot_be_built_is_left_out_with_a_note(tmp_path):
    recording = recorded(
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64, launch_pdl=True),
        lambda x: combine[(1,)](x, x, x, 7, 64, made()),
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64),
    )
    done = build(recording, tmp_path / "kernels", archs=["sm_80"])
    ((instance,),) = [function.instances for function in done.library.functions]
    assert dict(instance.constants) == {"BLOCK": 64, "ACT": None}
    assert sum("launch_pdl=True" in note for note in done.notes) == 1
    assert any("inner was recorded, but cannot be found" in note for note in done.notes)


def test_a_programmatic_launch_is_served_by_gpus_that_have_it(tmp_path):
    recording = recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64, launch_pdl=True))
    done = build(recording, tmp_path / "kernels", archs=["sm_80", "sm_90"])
    images = [image for kernel in done.library.kernels for image in kernel.images]
    assert {(image.arch, image.pdl) for image in images} == {(SM_90, True)}
    (note,) = [note for note in done.notes if "sm_80" in note]
    assert note.endswith("launch_pdl=True needs sm_90 or later, which sm_80 is not")


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_without_architectures_it_is_for_the_recorded_ones(tmp_path, arch):
    recording = recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64), arch=arch)
    done = build(recording, tmp_path / "kernels")
    assert [*map(str, done.library.archs)] == [arch]


def test_a_build_of_which_nothing_is_left_fails(tmp_path):
    with pytest.raises(NotFound, match="there is nothing to build"):
        build(Recording(), tmp_path / "kernels", archs=["sm_80"])
    with pytest.raises(BuildFailed, match="launch_pdl=True"):
        build(
            recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64, launch_pdl=True)),
            tmp_path / "kernels",
            archs=["sm_80"],
        )
