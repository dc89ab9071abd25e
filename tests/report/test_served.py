"""A folder of served kernels, read from its manifest and its images."""

import hashlib
import shutil

import pytest

from opforge.errors import NotALibrary, NotServable
from opforge.report.model import ReportedImage
from opforge.report.read import read_all
from opforge.report.served import read_served
from opforge.serving.manifest import (
    Manifest,
    ServedImage,
    ServedInstance,
    ServedKernel,
    ServedVariant,
)
from support.archs import SM_80, SM_90, sm
from support.native.hand_made import cubin


@pytest.fixture
def folder(tmp_path):
    """Two variants, of which the second lacks an image for sm_90."""
    (tmp_path / "images").mkdir()

    def image(name, arch):
        content = cubin(name, arch)
        file = f"images/{name}.{arch}.cubin"
        (tmp_path / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return ServedImage(arch, file, digest, len(content), name, 4, 512, 1, False, False, 0, 1)

    variants = (
        ServedVariant(("p16", "i32:16"), (image("one", SM_80), image("one", SM_90))),
        ServedVariant(("p", "i32"), (image("two", SM_80),)),
    )
    constants, kinds = (("ACT", {"dtype": "fp16"}), ("BLOCK", 64)), ("*fp32", "int")
    instance = ServedInstance(constants, kinds, (("num_warps", 4),), variants)
    kernel = ServedKernel("mod", "scale", "ab12", "mod.py:3", (instance,))
    manifest = Manifest(sm(80, 90), "3.7.1", "0" * 64, (kernel,), (("TRITON_DEBUG", "1"),))
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    (tmp_path / "_opforge_served.abi3.so").write_bytes(bytes(1000))
    return tmp_path


def test_variants_say_what_they_take_and_lack(folder):
    build = read_served(folder, "kernels")
    first, second = build.variants
    assert str(first) == "mod:scale(*fp32:16, i32:16, ACT=tl.fp16, BLOCK=64, num_warps=4)"
    assert (first.lacks, second.lacks) == ((), ("sm_90",))
    assert build.versions == {"triton": "3.7.1", "TRITON_DEBUG": "1"}


def test_the_size_has_every_image_once_and_the_extension(folder):
    images = sum(file.stat().st_size for file in (folder / "images").iterdir())
    assert read_served(folder, "kernels").bytes == images + 1000


def test_an_image_without_a_record_of_registers_has_none(folder):
    size = (folder / "images/two.sm_80.cubin").stat().st_size
    assert read_served(folder, "kernels").variants[1].images == (
        ReportedImage("sm_80", 0, 0, 512, size, 4),
    )


def test_the_package_of_a_wheel_has_them_inside(folder, tmp_path_factory):
    package = tmp_path_factory.mktemp("site") / "my_kernels"
    shutil.copytree(folder, package / "kernels")
    with pytest.raises(NotALibrary, match="is neither a library nor a folder of served kernels"):
        read_all([str(package)])
    (package / "__init__.py").touch()
    (report,) = read_all([str(package)])
    assert report.builds == (read_served(folder, "my_kernels"),)


def test_the_extension_stands_for_its_folder(folder):
    (report,) = read_all([str(folder / "_opforge_served.abi3.so")])
    assert report.builds == (read_served(folder, folder.name),)


def test_an_image_that_is_gone_is_named(folder):
    (folder / "images/two.sm_80.cubin").unlink()
    with pytest.raises(NotServable) as raised:
        read_all([str(folder)])
    assert "lacks images/two.sm_80.cubin: No such file or directory" in str(raised.value)
    assert "fix: build it again with `opforge build launches.json`" in str(raised.value)
