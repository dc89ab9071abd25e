"""`opforge verify` of a wheel, and of the package that one has installed."""

import py_compile
import re
import shutil
import zipfile

import minisign
import pytest
from click.testing import CliRunner

import opforge
from opforge.cli import main
from opforge.shipping.command import archive_bytes, run


def verified(path, *options):
    done = CliRunner().invoke(main, ["verify", str(path), "--manifest-only", *map(str, options)])
    return done.exit_code, done.output


def repacked(wheel, folder, **changed):
    """A wheel with other contents: files by name, None for those that are left out."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(copy, "w") as after:
        for name in before.namelist():
            content = changed.pop(name, before.read(name))
            if content is not None:
                after.writestr(name, content)
        for name, content in changed.items():
            after.writestr(name, content)
    return copy


def test_a_wheel_and_what_it_installs_have_the_files_of_the_build(wheel, installed, tmp_path):
    status, said = verified(wheel)
    assert status == 0, said
    packed, built = said.splitlines()
    packs = f"compared with what opforge {opforge.__version__} packs: all "
    assert packed.startswith(f"{wheel.name}, {packs}")
    assert built.startswith("shipped_ops, compared with its hashes: all ")
    assert built.endswith(" that only a rebuild needs are absent")
    bytecode = shutil.ignore_patterns("__pycache__")
    site = shutil.copytree(installed, tmp_path / "site", ignore=bytecode)
    for path in ("shipped_ops", "shipped_ops/lib/libshipped_ops.so"):
        status, said = verified(site / path)
        assert (status, said.splitlines()[1:]) == (0, [built])
        assert re.fullmatch(
            f"the package shipped_ops, {packs}[0-9]+ files are the same", said.splitlines()[0]
        )


def test_bytecode_of_an_installed_package_is_not_trusted(unpacked):
    package = unpacked / "shipped_ops"
    py_compile.compile(str(package / "_library.py"))
    py_compile.compile(str(package / "_opforge/errors.py"))
    status, said = verified(package)
    loaded = "has bytecode, which is loaded in place of the source: remove it"
    assert (status, said.splitlines()[1:-1]) == (
        1,
        [f"  __pycache__ {loaded}", f"  _opforge/__pycache__ {loaded}"],
    )


def test_a_wheel_with_two_entries_of_one_name(wheel, tmp_path):
    copy = shutil.copy(wheel, tmp_path)
    module = "shipped_ops/__init__.py"
    with zipfile.ZipFile(copy, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(module, archive.read(module))
    status, said = verified(copy)
    assert (status, f"has several files {module}" in said) == (1, True)


def test_the_python_files_of_an_installed_package_are_those_that_were_packed(unpacked):
    package = unpacked / "shipped_ops"
    with (package / "__init__.py").open("a") as file:
        file.write("print('other')\n")
    (package / "evil.py").touch()
    (package / "py.typed").unlink()
    status, said = verified(package)
    packs = f"is not what opforge {opforge.__version__} packs with these files"
    assert (status, said.splitlines()[1:-1]) == (
        1,
        [f"  __init__.py {packs}", f"  evil.py {packs}", "  py.typed is gone"],
    )
    (info,) = unpacked.glob("*.dist-info/WHEEL")
    info.write_text(info.read_text().replace(f"opforge {opforge.__version__}", "opforge 0.0.1"))
    reason = f"because opforge 0.0.1 packed it, and this is opforge {opforge.__version__}"
    assert reason in verified(package)[1].splitlines()
    # What the build wrote is not packed again if it is not what the build wrote.
    (package / "include/shipped_ops.h").write_text("")
    assert verified(package)[1].splitlines()[1:] == ["  include/shipped_ops.h has changed"]


def test_every_file_of_a_wheel_is_held_against_what_opforge_packs(wheel, tmp_path):
    header, typed = "shipped_ops/include/shipped_ops.h", "shipped_ops/py.typed"
    changed = {typed: None, "shipped_ops/evil.py": b"evil", "evil.pth": b""}
    status, said = verified(repacked(wheel, tmp_path, **changed))
    packs = f"is not what opforge {opforge.__version__} packs with these files"
    assert status == 1
    assert f"  {typed} is gone" in said
    assert f"  shipped_ops/evil.py {packs}" in said
    assert f"  evil.pth {packs}" in said
    status, said = verified(repacked(wheel, tmp_path, **{header: b"other"}))
    assert (status, said.splitlines()[1:]) == (1, ["  include/shipped_ops.h has changed"])


def test_a_signature_goes_along(dist, tmp_path):
    pair, other = minisign.KeyPair.generate(), minisign.KeyPair.generate()
    for name, key in (("key", pair.secret_key), ("pub", pair.public_key), ("no", other.public_key)):
        (tmp_path / name).write_bytes(bytes(key))
    signed = shutil.copytree(dist, tmp_path / "signed")
    CliRunner().invoke(main, ["sign", str(signed), "--key", str(tmp_path / "key")])
    run(str(signed), str(tmp_path / "wheelhouse"), "1.2.0")
    (wheel,) = (tmp_path / "wheelhouse").iterdir()
    assert verified(wheel, "--trusted-key", tmp_path / "pub")[0] == 0
    status, said = verified(wheel, "--trusted-key", tmp_path / "no")
    assert (status, "none of the trusted keys has signed" in said) == (1, True)


def test_a_wheel_cannot_be_built_again(wheel):
    done = CliRunner().invoke(main, ["verify", str(wheel)])
    assert "cannot be built again: a wheel has no sources" in done.output


@pytest.mark.parametrize("content", [b"not a zip", None, "damaged", "of something else"])
def test_what_is_not_a_wheel_of_opforge(content, wheel, tmp_path):
    file = tmp_path / "x.whl"
    if content == "damaged":
        # A block of a kind that deflate does not have, behind the header of the first entry.
        damaged = bytearray(wheel.read_bytes())
        with zipfile.ZipFile(wheel) as archive:
            first = archive.infolist()[0]
        damaged[first.header_offset + 30 + len(first.filename)] |= 0b110
        content = bytes(damaged)
    elif content == "of something else":
        content = archive_bytes({"other/__init__.py": b"", "other-1.0.dist-info/RECORD": b""})
    if content is not None:
        file.write_bytes(content)
    status, said = verified(file)
    assert (status, str(file) in said) == (1, True)
    assert "fix: give a wheel that `opforge wheel` wrote" in said
