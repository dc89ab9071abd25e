"""Folders of builds: a library's, read from its manifest, and one of served kernels."""

import shutil

import pytest

from opforge.errors import NotALibrary
from opforge.native.codegen.sources import manifest
from opforge.native.ir.kernels import (
    Image,
    ServedFunction,
    ServedInstance,
    ServedVariant,
    image_file,
)
from opforge.native.ir.program import Kernel, Library
from opforge.report.model import ReportedImage
from opforge.report.read import read_builds, read_library, read_served
from support.archs import sm
from support.native.hand_made import cubin

MANIFEST = "share/demo_ops/manifest.json"


@pytest.fixture(scope="module")
def build(dist):
    return read_library(dist / MANIFEST)


def test_operators_have_their_cases_and_what_is_not_built(build):
    add, everything = build.operators
    assert (add.torch_name, add.location) == ("demo::add", "ops.py:10")
    assert [case.case for case in add.cases[:2]] == ["x fp16 1-d, y fp16 1-d",
                                                     "x fp16 2-d, y fp16 2-d"]  # fmt: skip
    assert add.covers.startswith("x: fp16 or fp32")
    (first, *_) = everything.cases
    assert first.case == "x fp32 2-d, bias fp32 1-d, state fp32 1-d, mode 'relu'"
    assert (first.paths, first.raises) == (1, ())
    assert first.uncovered == ("where 1000 < rows: aten.mm at ops.py:62",)


def test_variants_have_what_each_architecture_uses(build):
    (variant,) = [v for v in build.variants if v.types == ("*fp16", "*fp16", "*fp16", "i64")]
    assert (variant.kernel, variant.constants) == ("add_kernel", {"BLOCK": "128"})
    assert variant.operators == ("add",)
    used = [(i.arch, i.registers, i.spills, i.shared, i.num_warps) for i in variant.images]
    assert used == [("sm_80", 40, 0, 1024, 4), ("sm_90a", 40, 0, 1024, 4)]
    assert build.notes == ("a <note>",)


def test_the_size_is_that_of_the_shared_library_once_there_is_one(dist, build, tmp_path):
    assert build.bytes == sum(i.bytes for v in build.variants for i in v.images)
    copied = shutil.copytree(dist, tmp_path / "dist")
    (copied / "lib").mkdir(exist_ok=True)
    (copied / "lib/libdemo_ops.so").write_bytes(bytes(12345))
    assert read_library(copied / MANIFEST).bytes == 12345


@pytest.mark.parametrize("binary", ["libdemo_ops.so", "libdemo_ops_torch.so"])
def test_a_binary_stands_for_its_library(dist, tmp_path, binary):
    copy = shutil.copytree(dist, tmp_path / "dist")
    shutil.copytree(copy / "share/demo_ops", copy / "share/another")
    (copy / "lib").mkdir(exist_ok=True)
    (copy / "lib" / binary).write_bytes(b"\x7fELF")
    assert [build.name for build in read_builds(copy / "lib" / binary)] == ["demo_ops"]


def test_a_folder_or_a_binary_that_is_not_of_a_build_says_what_is_missing(tmp_path):
    (tmp_path / "libz.so").touch()
    with pytest.raises(NotALibrary, match=r"no share/\*/manifest.json .*, but libz.so"):
        read_builds(tmp_path)
    with pytest.raises(NotALibrary, match=r"share/z/manifest\.json"):
        read_builds(tmp_path / "libz.so")


@pytest.fixture
def folder(tmp_path):
    """Two variants, of which the second lacks an image for sm_90."""

    def kernel(key, archs, **more):
        images = tuple(Image(arch, "scale", 4, 512).holding(cubin(key, arch)) for arch in archs)
        return Kernel(
            key, "scale", "mod.py:3", ("*fp32", "i32"), (("BLOCK", "64"),), images,
            qualified_name="mod:scale", options=(("num_warps", "4"),), **more,
        )  # fmt: skip

    kernels = kernel("one", sm(80, 90), divisible=(0, 1)), kernel("two", sm(80))
    for one in kernels:
        for image in one.images:
            place = tmp_path / image_file(one.key, image.arch)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(image.cubin)
    variants = ServedVariant(("p16", "i32:16"), "one"), ServedVariant(("p", "i32"), "two")
    instance = ServedInstance((("BLOCK", 64),), ("*fp32", "int"), (("num_warps", 4),), variants)
    library = Library(
        "served", (), kernels, sm(80, 90), (("triton", "3.7.1"),),
        functions=(ServedFunction("mod", "scale", "ab12", "mod.py:3", (instance,)),),
        settings=(("TRITON_DEBUG", "1"),),
    )  # fmt: skip
    (tmp_path / "manifest.json").write_bytes(manifest(library))
    (tmp_path / "_opforge_served.abi3.so").write_bytes(bytes(1000))
    return tmp_path


def test_served_variants_say_what_they_take_and_lack(folder):
    build = read_served(folder, "kernels")
    first, second = build.variants
    assert str(first) == "mod:scale(*fp32:16, i32:16, BLOCK=64, num_warps=4)"
    assert (first.lacks, second.lacks) == ((), ("sm_90a",))
    assert build.versions == {"triton": "3.7.1", "TRITON_DEBUG": "1"}


def test_a_served_image_is_told_as_it_was_compiled(folder):
    size = (folder / "images/two.sm_80.cubin").stat().st_size
    build = read_served(folder, "kernels")
    assert build.variants[1].images == (ReportedImage("sm_80", 0, 0, 512, size, 4),)
    # The size has every image once, and the extension.
    images = sum(file.stat().st_size for file in (folder / "images").iterdir())
    assert build.bytes == images + 1000


def test_the_package_of_a_wheel_and_the_extension_stand_for_their_kernels(folder, tmp_path_factory):
    package = tmp_path_factory.mktemp("site") / "my_kernels"
    shutil.copytree(folder, package / "kernels")
    (package / "__init__.py").touch()
    assert read_builds(package) == (read_served(folder, "my_kernels"),)
    extension = folder / "_opforge_served.abi3.so"
    assert read_builds(extension) == (read_served(folder, folder.name),)


def test_one_folder_may_hold_a_library_and_kernels_that_are_served(folder, dist, build):
    shutil.copytree(dist / "share", folder / "share")
    served = read_served(folder, folder.name)
    assert read_builds(folder) == (served, build)
