"""The platform of a wheel: auditwheel's verdict, and what no verdict can be read from."""

import subprocess
from pathlib import Path

import pytest

from opforge.errors import NotALibrary
from opforge.shipping.platform_tag import SharedObject, platform_of, read_shared_object, tag_of

# What glibc and libstdc++ a library asks for, and the oldest system that has both.
SYSTEMS = [
    ({"GLIBC_2.2.5"}, 17),
    ({"GLIBC_2.2.5", "GLIBC_2.17", "GLIBCXX_3.4.19", "CXXABI_1.3.7", "GCC_3.0"}, 17),
    ({"GLIBC_2.18"}, 24),
    ({"GLIBC_2.29"}, 31),
    ({"GLIBC_2.34", "GLIBC_2.14"}, 34),
    ({"GLIBC_2.17", "GLIBCXX_3.4.29"}, 34),
    ({"GLIBC_2.17", "CXXABI_1.3.12"}, 31),
    ({"GLIBC_2.17", "CXXABI_1.3.9"}, 24),
    ({"GLIBC_2.17", "GLIBC_ABI_DT_RELR"}, 36),
]


@pytest.mark.parametrize(("versions", "minor"), SYSTEMS)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_oldest_system_that_has_all_versions_is_named(versions, minor, machine):
    found = tag_of([SharedObject(machine, ("libc.so.6",), frozenset(versions))])
    assert found.tag == f"manylinux_2_{minor}_{machine}"


@pytest.mark.parametrize("name", ["libcudart.so.12", "libmine.so", "libcrypto.so.3"])
def test_a_library_that_is_not_of_the_system_is_no_manylinux(name):
    found = tag_of([SharedObject("x86_64", ("libc.so.6", name), frozenset())])
    assert found.tag == "linux_x86_64"
    assert found.notes == (f"{name} is not part of every Linux system",)


def test_torch_and_the_library_beside_an_adapter_do_not_count():
    needed = ("$ORIGIN/libmine.so", "libtorch_cpu.so", "libc10.so", "libstdc++.so.6")
    found = tag_of([SharedObject("aarch64", needed, frozenset({"GLIBC_2.17"}))])
    assert (found.tag, found.notes) == ("manylinux_2_17_aarch64", ())


@pytest.mark.parametrize("version", ["GLIBC_2.99", "GLIBC_PRIVATE", "OTHER_1.0"])
def test_a_version_that_no_known_system_has_is_no_manylinux(version):
    found = tag_of([SharedObject("x86_64", (), frozenset({version}))])
    assert found.tag == "linux_x86_64"
    assert found.notes == (f"no known system has all of {version}",)


def test_what_a_file_asks_for_is_what_readelf_says(dist):
    for file in (dist / "lib").glob("*.so"):
        found = read_shared_object(file, file.read_bytes())
        shown = subprocess.run(
            ["readelf", "-dV", "--wide", str(file)], capture_output=True, text=True, check=True
        ).stdout
        needed = [
            line.rpartition("[")[2].rstrip("]") for line in shown.splitlines() if "(NEEDED)" in line
        ]
        assert list(found.needed) == needed
        versions = {
            word for line in shown.splitlines() if "Name: " in line
            for word in line.partition("Name: ")[2].split()[:1]
        }  # fmt: skip
        assert found.versions == versions


def test_the_tag_is_auditwheels_verdict(wheel):
    """Torch, which the caller brings, and `$ORIGIN/...`, which it cannot resolve, are left out."""
    wheel_abi = pytest.importorskip("auditwheel.wheel_abi", reason="auditwheel is not installed")
    excluded = frozenset({"libtorch_cpu.so", "$ORIGIN/libshipped_ops.so"})
    judged = wheel_abi.analyze_wheel_abi(
        None, None, wheel, excluded, disable_isa_ext_check=False, allow_graft=False
    )
    assert wheel.name == f"shipped_ops-1.2.0-py3-none-{judged.overall_policy.name}.whl"


@pytest.mark.parametrize("family", ["GLIBC", "GLIBCXX", "CXXABI"])
def test_the_table_of_systems_is_auditwheels(family):
    """Systems that are older than the oldest of the table are told as that one."""
    policy = pytest.importorskip("auditwheel.policy", reason="auditwheel is not installed")
    libc = pytest.importorskip("auditwheel.libc").Libc.GLIBC
    architecture = pytest.importorskip("auditwheel.architecture").Architecture.x86_64
    policies = policy.WheelPolicies(libc=libc, arch=architecture)
    for version in {v for one in policies for v in one.symbol_versions.get(family, ())}:
        asked = f"{family}_{version}"
        judged = policies.versioned_symbols_policy({"libc.so.6": {asked}}).name
        if judged != "linux_x86_64" and int(judged.split("_")[2]) > 17:
            assert tag_of([SharedObject("x86_64", (), frozenset({asked}))]).tag == judged, asked


@pytest.mark.parametrize("size", [0, 3, 20, 64, 200])
def test_a_file_that_ends_early_is_refused(dist, size):
    content = (dist / "lib/libshipped_ops.so").read_bytes()[:size]
    with pytest.raises(NotALibrary, match="is not a shared object for Linux") as caught:
        platform_of({Path("lib.so"): content})
    assert caught.value.fix == "give the folder that `opforge build --torch -o` wrote"
