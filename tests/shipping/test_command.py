"""`opforge wheel`: the file it writes, and what it refuses."""

import base64
import csv
import dataclasses
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from auditwheel import wheel_abi

from opforge.errors import BadOption, NotALibrary, OutputNotWritable, Untrusted
from opforge.shipping.command import check_package_name, run
from opforge.shipping.package import copied_files, platform_of
from support.shipped_library import build, library, recorded

# A machine other than this one, and its number in ELF.
HERE = os.uname().machine
OTHER, NUMBER = ("x86_64", 62) if HERE == "aarch64" else ("aarch64", 183)


def contents(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def for_machine(dist, folder, number):
    """A copy of the library whose files claim to be for another machine."""
    shutil.copytree(dist, folder)
    for file in folder.glob("lib/*.so"):
        content = bytearray(file.read_bytes())
        content[18:20] = number.to_bytes(2, "little")
        file.write_bytes(content)
    return recorded(folder, "shipped_ops")


def test_the_wheel_has_the_library_and_nothing_of_its_build(wheel):
    names = [name.removeprefix("shipped_ops/") for name in contents(wheel)]
    assert names == [
        "__init__.py",
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
    other = for_machine(dist, tmp_path / "other", NUMBER)
    run(str(other), str(tmp_path / "wheels"), "1.2.0")
    (file,) = (tmp_path / "wheels").iterdir()
    assert file.name.endswith(f"_{OTHER}.whl")
    assert f'MACHINE = "{OTHER}"'.encode() in contents(file)["shipped_ops/_library.py"]
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--target", str(tmp_path / "site")]
    done = subprocess.run([*pip, str(file)], capture_output=True, text=True, check=False)
    assert f"{file.name} is not a supported wheel on this platform" in done.stderr


def refused(folder, kind, tmp_path):
    with pytest.raises(kind) as caught:
        run(str(folder), str(tmp_path / "wheels"), "1")
    assert not (tmp_path / "wheels").exists()
    return caught.value


def test_a_library_for_a_machine_without_wheels_is_refused(dist, tmp_path):
    other = for_machine(dist, tmp_path / "other", 4)
    assert "is not for x86_64 or aarch64" in refused(other, NotALibrary, tmp_path).what


@pytest.mark.parametrize(
    ("path", "file"), [("no", None), ("", None), ("notes.txt", "notes.txt"), ("", "libalone.so")]
)
def test_what_is_not_in_the_folder_of_a_build_is_refused(tmp_path, path, file):
    if file:
        (tmp_path / file).touch()
    error = refused(tmp_path / path, NotALibrary, tmp_path)
    assert str(tmp_path / path) in error.what
    assert "opforge build" in error.fix


def test_a_library_without_an_adapter_is_refused(dist, tmp_path):
    shutil.copytree(dist, tmp_path / "dist")
    (tmp_path / "dist/lib/libshipped_ops_torch.so").unlink()
    error = refused(tmp_path / "dist", NotALibrary, tmp_path)
    assert "was built without --torch" in error.what
    assert "opforge build SOURCE.py --torch --name shipped_ops" in error.fix


@pytest.mark.parametrize(
    "file", ["include/shipped_ops.h", "lib/libshipped_ops.so", "share/shipped_ops/manifest.json"]
)
def test_a_file_that_is_changed_or_gone_is_refused(dist, tmp_path, file):
    shutil.copytree(dist, tmp_path / "dist")
    place = tmp_path / "dist" / file
    place.write_bytes(place.read_bytes()[:2000] + b"more")
    assert f"{file} has changed" in refused(tmp_path / "dist", Untrusted, tmp_path).what
    if not file.startswith("lib"):
        place.unlink()
        assert f"{file} is gone" in refused(tmp_path / "dist", Untrusted, tmp_path).what


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


@pytest.mark.parametrize("name", ["Torch", "TVM_FFI", "tvm__ffi", "json", "lambda", "a-b"])
def test_names_are_compared_as_pip_does_and_must_be_importable(name):
    with pytest.raises(BadOption, match=f"cannot be named {name}, after its folder: "):
        check_package_name(name, fix="choose another one", origin=", after its folder")


@pytest.mark.parametrize("version", ["", "v1", "1.0-beta", "../1"])
def test_what_is_no_version_is_refused(dist, tmp_path, version):
    with pytest.raises(BadOption, match="not the version of a Python package"):
        run(str(dist), str(tmp_path), version)


def test_an_output_that_is_a_file_is_refused(dist, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="choose another folder with -o"):
        run(str(dist), str(tmp_path / "file"), "1")


def compiled(folder, name, source, *options):
    file = folder / f"lib{name}.so"
    (folder / "source.c").write_text(source)
    command = ["cc", "-shared", "-o", str(file), str(folder / "source.c"), *options]
    subprocess.run(command, check=True)
    return file


def test_the_tag_is_auditwheels_verdict(wheel):
    """Torch, which the caller brings, and `$ORIGIN/...`, which it cannot resolve, are left out."""
    excluded = frozenset({"libtorch_cpu.so", "$ORIGIN/libshipped_ops.so"})
    judged = wheel_abi.analyze_wheel_abi(
        None, None, wheel, excluded, disable_isa_ext_check=False, allow_graft=False
    )
    assert wheel.name == f"shipped_ops-1.2.0-py3-none-{judged.overall_policy.name}.whl"


def test_a_library_that_is_not_of_the_system_is_no_manylinux(tmp_path):
    compiled(tmp_path, "mine", "int mine(void) { return 1; }", "-Wl,-soname,libmine.so")
    source = "int mine(void); int use(void) { return mine(); }"
    platform = platform_of([compiled(tmp_path, "use", source, f"-L{tmp_path}", "-lmine")])
    assert platform.tag == f"linux_{HERE}"
    assert platform.notes == ("libmine.so is not part of every Linux system",)


def test_a_version_that_no_known_system_has_is_no_manylinux(tmp_path):
    (tmp_path / "map").write_text("GLIBC_2.99 { mine; };")
    options = (f"-Wl,--version-script={tmp_path / 'map'}", "-Wl,-soname,libc.so.6")
    compiled(tmp_path, "mine", "int mine(void) { return 1; }", *options)
    source = "int mine(void); int use(void) { return mine(); }"
    file = compiled(tmp_path, "use", source, f"-L{tmp_path}", "-lmine", "-nodefaultlibs")
    platform = platform_of([file])
    assert platform.tag == f"linux_{HERE}"
    assert platform.notes == ("no known system has all of GLIBC_2.99",)
