"""The platform of a wheel: auditwheel's verdict, and what no verdict can be read from."""

import os
import subprocess

import pytest
from auditwheel import wheel_abi

from opforge.errors import NotALibrary
from opforge.shipping.platform_tag import platform_of

MACHINE = os.uname().machine


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
    found = platform_of([compiled(tmp_path, "use", source, f"-L{tmp_path}", "-lmine")])
    assert found.tag == f"linux_{MACHINE}"
    assert found.notes == ("libmine.so is not part of every Linux system",)


def test_a_version_that_no_known_system_has_is_no_manylinux(tmp_path):
    (tmp_path / "map").write_text("GLIBC_2.99 { mine; };")
    options = (f"-Wl,--version-script={tmp_path / 'map'}", "-Wl,-soname,libc.so.6")
    compiled(tmp_path, "mine", "int mine(void) { return 1; }", *options)
    source = "int mine(void); int use(void) { return mine(); }"
    file = compiled(tmp_path, "use", source, f"-L{tmp_path}", "-lmine", "-nodefaultlibs")
    found = platform_of([file])
    assert found.tag == f"linux_{MACHINE}"
    assert found.notes == ("no known system has all of GLIBC_2.99",)


@pytest.mark.parametrize("size", [0, 3, 20, 64, 200])
def test_a_file_that_ends_early_is_refused(dist, tmp_path, size):
    file = tmp_path / "lib.so"
    file.write_bytes((dist / "lib/libshipped_ops.so").read_bytes()[:size])
    with pytest.raises(NotALibrary, match="is not a shared object for Linux") as caught:
        platform_of([file])
    assert caught.value.fix == "give the folder that `opforge build --torch -o` wrote"
