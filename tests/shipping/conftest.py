"""A small library with its torch adapter, and its wheel."""

import subprocess
import sys
import zipfile

import pytest

from opforge.shipping import command
from support.shipped_library import build, library


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    """What `opforge build --torch -o` would have written."""
    return build(library(), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(dist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheelhouse")
    command.run(str(dist), str(folder), "1.2.0")
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """A folder that pip installed the wheel into."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    done = subprocess.run(
        [*pip, "--target", str(folder), str(wheel)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def unpacked(wheel, tmp_path):
    """The wheel's files, to be changed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"
