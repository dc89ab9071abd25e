"""`opforge wheel`: the file it writes, and what it refuses."""

import base64
import csv
import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.errors import (
    BadOption,
    NotALibrary,
    OutputNotWritable,
    StaleLibrary,
)
from opforge.shipping.command import run
from opforge.shipping.rules import copied_files
from opforge.shipping.wheel_file import check_package_name
from support.shipped_library import build, library, recorded

# A machine other than this one, and its number in ELF.
HERE = os.uname().machine
OTHER, NUMBER = ("x86_64", 62) if HERE == "aarch64" else ("aarch64", 183)


def contents(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def for_machine(dist, folder, number, *names):
    """A copy of the library whose files claim to be for another machine."""
    shutil.copytree(dist, folder)
    for name in names:
        file = folder / "lib" / name
        content = bytearray(file.read_bytes())
        content[18:20] = number.to_bytes(2, "little")
        file.write_bytes(content)
    return recorded(folder, "shipped_ops")


def test_the_command_says_what_it_wrote(dist, tmp_path):
    done = CliRunner().invoke(main, ["wheel", str(dist), "-o", str(tmp_path), "--version", "2.0"])
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.iterdir()
    assert done.output.startswith(f"{file}: 2 operators for sm_80, sm_90, ")
    assert file.name.startswith("shipped_ops-2.0-py3-none-manylinux_2_")


def test_the_wheel_has_the_library_and_nothing_of_its_build(wheel):
    names = [name.removeprefix("shipped_ops/") for name in contents(wheel)]
    assert names == [
        "__init__.py",
        "__init__.pyi",
        "_library.py",
        *sorted(copied_files()),
        "include/opforge/abi.h",
        "include/opforge/tensor.hpp",
        "include/shipped_ops.h",
        "include/shipped_ops.hpp",
        "include/shipped_ops_dispatch.inc",
        "jax.py",
        "lib/cmake/shipped_ops/shipped_opsConfig.cmake",
        "lib/cmake/shipped_ops/shipped_opsConfigVersion.cmake",
        "lib/libshipped_ops.so",
        "lib/libshipped_ops_torch.so",
        "lib/pkgconfig/shipped_ops.pc",
        "py.typed",
        "share/shipped_ops/SHA256SUMS",
        "share/shipped_ops/manifest.json",
        "shipped_ops-1.2.0.dist-info/METADATA",
        "shipped_ops-1.2.0.dist-info/WHEEL",
        "shipped_ops-1.2.0.dist-info/RECORD",
    ]


def test_torch_and_jax_are_extras_and_nothing_is_required(wheel):
    told = contents(wheel)["shipped_ops-1.2.0.dist-info/METADATA"].decode().splitlines()
    needed = [line for line in told if line.startswith(("Requires-Dist", "Provides-Extra"))]
    assert needed == [
        "Provides-Extra: torch", 'Requires-Dist: torch>=2.11; extra == "torch"',
        "Provides-Extra: jax", 'Requires-Dist: jax>=0.5; extra == "jax"',
    ]  # fmt: skip


def test_the_record_has_the_hash_of_every_file(wheel):
    files = contents(wheel)
    rows = list(csv.reader(io.StringIO(files["shipped_ops-1.2.0.dist-info/RECORD"].decode())))
    assert [row[0] for row in rows] == list(files)
    assert rows[-1][1:] == ["", ""]
    for name, digest, size in rows[:-1]:
        found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode()
        assert (digest, int(size)) == (f"sha256={found.rstrip('=')}", len(files[name]))


def test_the_same_library_gives_the_same_bytes(dist, wheel, tmp_path):
    run(str(dist), str(tmp_path), "1.2.0")
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_library_for_another_machine_is_packed_for_that_machine(dist, wheel, tmp_path):
    names = ("libshipped_ops.so", "libshipped_ops_torch.so")
    other = for_machine(dist, tmp_path / "other", NUMBER, *names)
    run(str(other), str(tmp_path / "wheels"), "1.2.0")
    (file,) = (tmp_path / "wheels").iterdir()
    assert file.name.endswith(f"_{OTHER}.whl")
    assert f'MACHINE = "{OTHER}"'.encode() in contents(file)["shipped_ops/_library.py"]
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--target", str(tmp_path / "site")]
    done = subprocess.run([*pip, str(file)], capture_output=True, text=True, check=False)
    assert f"{file.name} is not a supported wheel on this platform" in done.stderr


def test_an_adapter_for_another_machine_is_refused(dist, tmp_path):
    other = for_machine(dist, tmp_path / "other", NUMBER, "libshipped_ops_torch.so")
    with pytest.raises(NotALibrary, match="a wheel is for one machine") as caught:
        run(str(other), str(tmp_path), "1")
    assert f"libshipped_ops_torch.so for {OTHER}" in caught.value.found
    assert "build the library and its adapter again" in caught.value.fix


def test_a_library_for_a_machine_without_wheels_is_refused(dist, tmp_path):
    names = ("libshipped_ops.so", "libshipped_ops_torch.so")
    other = for_machine(dist, tmp_path / "other", 4, *names)
    with pytest.raises(NotALibrary, match="is not a shared object for Linux on x86_64 or aarch64"):
        run(str(other), str(tmp_path), "1")


def refused(folder, kind, tmp_path):
    with pytest.raises(kind) as caught:
        run(str(folder), str(tmp_path / "wheels"), "1")
    assert not (tmp_path / "wheels").exists()
    return caught.value


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    error = refused(tmp_path / "no", NotALibrary, tmp_path)
    assert error.what == f"there is no {tmp_path / 'no'}"
    assert error.fix.startswith("build it: opforge build")


def test_a_folder_that_is_no_library_is_refused(tmp_path):
    error = refused(tmp_path, NotALibrary, tmp_path)
    assert (error.what, error.found) == (f"{tmp_path}: expected one library there", "no lib*.so")
    assert error.fix == "build it with `opforge build -o FOLDER`"


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    error = refused(tmp_path / "notes.txt", NotALibrary, tmp_path)
    assert error.what == f"{tmp_path / 'notes.txt'} is not in the folder of a build"
    assert error.fix == "give the folder that `opforge build --torch -o` wrote"


def test_a_library_without_an_adapter_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    (tmp_path / "dist/lib/libshipped_ops_torch.so").unlink()
    error = refused(tmp_path / "dist", NotALibrary, tmp_path)
    without = "was built without --torch: a wheel's functions call the torch adapter"
    assert error.what == f"{tmp_path / 'dist'} {without}"
    assert error.fix.startswith("build it, too: opforge build SOURCE.py --torch --name shipped_ops")
    record = tmp_path / "dist/share/shipped_ops/build.json"
    given = {"targets": ["ops.py", "more.py"], "archs": ["sm_80", "sm_90"]}
    record.write_text(json.dumps(json.loads(record.read_text()) | {"arguments": given}))
    error = refused(tmp_path / "dist", NotALibrary, tmp_path)
    command = "opforge build ops.py more.py --arch sm_80 --arch sm_90 --torch --name shipped_ops"
    assert error.fix == f"build it, too: {command} -o {tmp_path / 'dist'}"


def test_a_folder_without_its_manifest_is_refused(dist, tmp_path):
    shutil.copytree(dist / "lib", tmp_path / "dist/lib")
    error = refused(tmp_path / "dist", NotALibrary, tmp_path)
    assert error.found == "no share/shipped_ops/manifest.json"


def test_a_manifest_that_cannot_be_read_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    (tmp_path / "dist/share/shipped_ops/manifest.json").write_text("{")
    recorded(tmp_path / "dist", "shipped_ops")
    assert "cannot be read" in refused(tmp_path / "dist", NotALibrary, tmp_path).what


def test_a_file_that_was_changed_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    (tmp_path / "dist/include/shipped_ops.h").write_text("other")
    error = refused(tmp_path / "dist", NotALibrary, tmp_path)
    assert "is not as it was built, because somebody changed include/shipped_ops.h" in error.what


def test_a_manifest_of_another_build_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    file = tmp_path / "dist/share/shipped_ops/manifest.json"
    file.write_text(file.read_text() + "\n")
    recorded(tmp_path / "dist", "shipped_ops")
    error = refused(tmp_path / "dist", StaleLibrary, tmp_path)
    assert "is not of the same build as shipped_ops's manifest" in error.what
    assert error.fix.startswith("build it again: opforge build")


def test_a_file_that_is_cut_short_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    file = tmp_path / "dist/lib/libshipped_ops.so"
    file.write_bytes(file.read_bytes()[:2000])
    assert "is damaged" in refused(tmp_path / "dist", NotALibrary, tmp_path).what


def test_what_the_package_or_the_adapter_cannot_have_is_told(dist, tmp_path):
    program = library("mixed")
    add, plus = program.ops
    gone = (("grad", 0), ("call", "demo::alone", ("grad", 0), ("input", 0)))
    include = dataclasses.replace(
        plus, name="get_include", torch_name="demo::get_include", formula=gone,
        schema="demo::get_include(Tensor x, Tensor y) -> Tensor",
    )  # fmt: skip
    alone = dataclasses.replace(add, name="alone", torch_name="demo::alone", schema="")
    mixed = dataclasses.replace(program, ops=(add, include, alone))
    folder = build(mixed, tmp_path / "dist", dist)
    said = run(str(folder), str(tmp_path), "1").splitlines()
    why = "its backward calls demo::alone, which is not in the wheel"
    assert said[:3] == [
        "note: alone is left out: it is not a torch operator (mode none)",
        "note: demo::get_include is reached as torch.ops.demo.get_include only",
        f"note: demo::get_include has no gradient there: {why}",
    ]
    assert ": 2 operators for " in said[3]


def test_a_library_without_torch_operators_is_refused(dist, tmp_path):
    program = library("bare")
    add, _ = program.ops
    bare = dataclasses.replace(program, ops=(dataclasses.replace(add, schema=""),))
    error = refused(build(bare, tmp_path / "dist", dist), NotALibrary, tmp_path)
    assert error.found == "add: it is not a torch operator (mode none)"
    assert error.fix == "open it with opforge.native.open"


def test_a_name_that_another_package_has_is_refused(dist, tmp_path):
    folder = build(library("numpy"), tmp_path / "dist", dist)
    error = refused(folder, BadOption, tmp_path)
    why = "it would overwrite or hide the package of NumPy"
    assert error.what == f"a Python package cannot be named numpy: {why}"
    assert error.fix == "build the library with another --name"


@pytest.mark.parametrize("name", ["Torch", "pip", "TVM_FFI", "tvm__ffi", "setuptools"])
def test_names_are_compared_as_pip_does(name):
    with pytest.raises(BadOption, match="it would overwrite or hide the package of"):
        check_package_name(name, fix="choose another one")


@pytest.mark.parametrize("version", ["", "v1", "1.0-beta", "1.0+", "latest", "../1"])
def test_what_is_no_version_is_refused(dist, tmp_path, version):
    with pytest.raises(BadOption, match="not the version of a Python package") as caught:
        run(str(dist), str(tmp_path), version)
    assert caught.value.fix == "give one as 1.2.0, 1.2.0rc1 or 1.2.0+cu128"


def test_an_output_that_is_a_file_is_refused(dist, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable) as caught:
        run(str(dist), str(tmp_path / "file"), "1")
    assert caught.value.fix == "choose another folder with -o"
