"""Served kernels in a wheel, on the stand-in driver."""

import importlib
import inspect
import os
import subprocess
import sys
import zipfile

import pytest
import torch
import triton
from click.testing import CliRunner

import opforge
from opforge.cli import main
from opforge.errors import BadOption
from opforge.serving.build import build
from opforge.shipping.command import run
from support.served_folders import interpret
from support.served_kernels import combine, recorded


@pytest.fixture(scope="module")
def recording():
    return recorded(lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64))


@pytest.fixture(scope="module")
def folder(recording, tmp_path_factory):
    return build(recording, tmp_path_factory.mktemp("served") / "kernels", archs=["sm_80"]).folder


@pytest.fixture
def site(folder, tmp_path):
    """A folder that pip installed the wheel into."""
    run(str(folder), str(tmp_path), "1.0", "my_kernels")
    (wheel,) = tmp_path.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    return tmp_path / "site"


def test_what_is_installed_is_served(site, folder, device, jit, monkeypatch):
    monkeypatch.syspath_prepend(site)
    shipped = importlib.import_module("my_kernels")
    interpret(device, folder, combine)
    with pytest.raises(BadOption, match="trusted_keys is empty"):
        shipped.serve(trusted_keys=[])
    _, *options = inspect.signature(opforge.serve).parameters
    assert [*inspect.signature(shipped.serve).parameters] == options
    shipped.serve(strict=True)
    x, y, out = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    combine[(triton.cdiv(1000, 64),)](x, y, out, 1000, BLOCK=64)
    torch.testing.assert_close(out, x + y)
    assert not jit
    assert list(opforge.served().launches.values()) == [1]
    del sys.modules["my_kernels"]


def test_without_opforge_the_folder_is_found_and_serving_says_what_to_install(site):
    code = """
import os, sys
sys.modules["opforge"] = None
import my_kernels
assert os.path.isfile(os.path.join(my_kernels.get_folder(), "manifest.json"))
my_kernels.serve()
"""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.endswith(
        "ImportError: kernels are served by opforge, which is not installed\n"
        "  fix: pip install opforge\n"
    )


def test_a_recording_is_built_and_packed_in_one_command(recording, tmp_path):
    recording.save(tmp_path / "launches.json")
    built = ["build", str(tmp_path / "launches.json"), "--arch", "sm_80", "--wheel"]
    output = ["-o", str(tmp_path / "kernels"), "--name", "my_kernels"]
    done = CliRunner().invoke(main, [*built, *output])
    assert done.exit_code == 0, done.output
    (wheel,) = (tmp_path / "kernels").glob("*.whl")
    assert wheel.name.startswith("my_kernels-0.0.0-cp310-abi3-manylinux_2_")
    assert done.output.splitlines()[-1].startswith(f"{wheel}: 1 kernel for sm_80, ")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.startswith("my_kernels/kernels/images/")]
        metadata = archive.read("my_kernels-0.0.0.dist-info/METADATA").decode()
    assert names == [
        "my_kernels/__init__.py",
        "my_kernels/kernels/_opforge_served.abi3.so",
        "my_kernels/kernels/manifest.json",
        "my_kernels/kernels/share/served/SHA256SUMS",
        "my_kernels/py.typed",
        "my_kernels-0.0.0.dist-info/METADATA",
        "my_kernels-0.0.0.dist-info/WHEEL",
        "my_kernels-0.0.0.dist-info/RECORD",
    ]
    assert "Requires-Dist" not in metadata


def test_a_folder_that_has_the_name_of_a_package_needs_another(folder, tmp_path):
    with pytest.raises(BadOption, match="cannot be named kernels, after its folder: ") as caught:
        run(str(folder), str(tmp_path), "1")
    assert "--name NAME" in caught.value.fix


def test_a_name_is_refused_before_anything_is_built(tmp_path):
    (tmp_path / "launches.json").write_text("no recording")
    output = ["-o", str(tmp_path / "out"), "--name", "torch", "--wheel"]
    done = CliRunner().invoke(main, ["build", str(tmp_path / "launches.json"), *output])
    assert done.exit_code == 1
    assert "a Python package cannot be named torch" in done.output


def test_a_library_is_not_renamed(tmp_path):
    with pytest.raises(BadOption, match="has the library's name") as caught:
        run(str(tmp_path), str(tmp_path), "1", "other")
    assert "opforge build --name other" in caught.value.fix
