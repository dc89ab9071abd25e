"""Libraries and adapters that do not fit: other GPUs, other versions, other builds."""

import json
import shutil
import subprocess

import pytest

import opforge
from opforge.arch import Arch
from opforge.errors import NotALibrary, StaleLibrary
from opforge.native.library.manifest_reader import Manifest
from opforge.native.library.shared_library import SharedLibrary


def forge(folder, name, text):
    """A shared library of some C."""
    source = folder / f"{name}.c"
    source.write_text(text)
    target = folder / "lib" / f"lib{name}.so"
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return target


def manifest_of(*images):
    kernels = [{"images": [{"arch": arch, "ptx_sha256": ptx}]} for arch, ptx in images]
    return Manifest(json.dumps({"ops": [], "kernels": kernels}).encode())


@pytest.mark.parametrize(
    ("image", "gpu", "runs"),
    [
        (("sm_80", None), "sm_86", True),
        (("sm_86", None), "sm_80", False),
        (("sm_80", None), "sm_90", False),
        (("sm_80", "ab"), "sm_90", True),
        (("sm_90a", None), "sm_90", True),
        (("sm_100a", None), "sm_103", False),
        (("sm_90a", "ab"), "sm_100", False),
        (("gfx942", None), "gfx942", True),
        (("gfx942", None), "gfx950", False),
        (("sm_90a", "ab"), "gfx90a", False),
    ],
)
def test_a_library_runs_on_the_gpus_that_have_an_image(image, gpu, runs):
    assert manifest_of(image).runs_on(Arch.named(gpu)) is runs


OTHER = """
int loaded_torch_abi_version(void) { return 3; }
const char *loaded_torch_manifest_hash(void) { return "0123456789abcdef"; }
"""


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("int nothing;", NotALibrary, "is not a torch adapter of .*loaded_torch_abi_version"),
        (
            "int loaded_torch_abi_version(void) { return 7; }",
            StaleLibrary, "has adapter ABI 7, and this opforge has 3",
        ),
        (OTHER, StaleLibrary, "(?s)different build of libloaded.so.*manifest 0123456789ab in the"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused(dist, tmp_path, text, error, said):
    (tmp_path / "lib").mkdir()
    shutil.copy(dist / "lib" / "libloaded.so", tmp_path / "lib")
    forge(tmp_path, "loaded_torch", text)
    with pytest.raises(error, match=said) as failed:
        opforge.load(tmp_path, host_memory=True)
    if error is StaleLibrary:
        assert "opforge build SOURCE.py --torch --name loaded" in str(failed.value)


def test_an_adapter_of_an_earlier_opforge_is_refused(dist, tmp_path, monkeypatch):
    folder = tmp_path / "dist"
    shutil.copytree(dist / "lib", folder / "lib")
    monkeypatch.setattr(SharedLibrary, "torch_deferred", None)
    with pytest.raises(StaleLibrary, match=r"libloaded_torch\.so was built by an earlier opforge"):
        opforge.load(folder, host_memory=True)
    ops = opforge.load(folder, host_memory=True, adapter=False)
    assert "by ctypes" in str(ops)
    ops.close()
