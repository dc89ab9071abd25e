"""Libraries that share a name, with each other or with one of torch's."""

import shutil
import subprocess

import pytest
import torch

import opforge
from opforge.errors import StaleLibrary
from support.processes import environment, python

X = torch.arange(6.0).view(2, 3)


def test_libraries_of_one_name_and_of_torchs_are_open_at_once(namesakes, standin):
    first, second = (opforge.load(f, host_memory=True, adapter=True) for f in namesakes)
    torch.testing.assert_close(torch.ops.first.add(X, X), 2 * X)
    assert torch.ops.second.pick(torch.zeros(6, dtype=torch.int8)).shape == (6,)
    assert standin.launches[0].function == "add_kernel"
    assert len(standin.launches) == 2
    with pytest.raises(RuntimeError, match="c10_add: x: type fp64"):
        torch.ops.first.add(X.double(), X.double())
    for library in (first, second):
        library.close()
        library.unload()


def test_a_copy_of_a_library_is_its_own(namesakes, standin, tmp_path):
    shutil.copytree(namesakes[0], tmp_path / "copy")
    ops = opforge.load(namesakes[0], host_memory=True)
    ops.close()
    copy = opforge.load(tmp_path / "copy", host_memory=True)
    torch.testing.assert_close(copy.add(X, X), 2 * X)
    copy.close()
    copy.unload()
    # What the adapter's library held is what was freed.
    assert standin.alive["modules"] == 0


def test_a_later_build_of_a_name_runs_its_own_kernels(versions, standin):
    for folder in (*versions, versions[0]):
        ops = opforge.load(folder, host_memory=True, adapter=True)
        torch.ops.first.add(X, X)
        ops.close()
        ops.unload()
    functions = [launched.function for launched in standin.launches]
    assert functions == ["add_kernel", "later_kernel", "add_kernel"]


@pytest.mark.parametrize(
    ("pair", "said"),
    # The later build has all the functions that the adapter asks for.
    [("namesakes", "different build of"), ("versions", r"found: manifest \w+ in the adapter")],
)
def test_another_library_of_the_name_beside_the_adapter_is_refused(pair, said, request, tmp_path):
    first, second = (folder / "lib" for folder in request.getfixturevalue(pair))
    shutil.copytree(first, tmp_path / "lib")
    shutil.copy(second / "libc10.so", tmp_path / "lib")
    with pytest.raises(StaleLibrary, match=said):
        opforge.load(tmp_path, host_memory=True)


CHILD = """
import ctypes, shutil, sys
import torch
import opforge
first, second, moved = sys.argv[1:]
ctypes.CDLL(second + "/libc10.so", ctypes.RTLD_GLOBAL)
try:
    opforge.load(first, host_memory=True)
except opforge.errors.NotALibrary as error:
    print(error)
torch.ops.load_library(moved + "/libc10_torch.so")
print(hasattr(torch.ops.first, "add"))
"""


def test_functions_of_another_library_that_come_first_are_refused(namesakes, tmp_path):
    folders = [str(folder / "lib") for folder in namesakes]
    shutil.copytree(folders[0], tmp_path / "moved")
    done = subprocess.run(
        [python(), "-c", CHILD, *folders, str(tmp_path / "moved")],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "libc10_torch.so is bound to a different libc10.so" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
    said = "libc10_torch.so: defines no operators, because it was built for a different build"
    assert said in done.stderr
