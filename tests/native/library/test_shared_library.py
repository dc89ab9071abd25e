"""A library is opened only if it is whole, fits this opforge, and is the one on disk."""

import json
import random
import shutil
import subprocess

import pytest

import opforge
from opforge import native
from opforge.errors import NotALibrary, StaleLibrary, Untrusted
from opforge.native.artifacts import build_record
from opforge.native.artifacts.hashes import VerifiedFiles
from opforge.native.artifacts.publish import write_output
from opforge.native.ir.abi import MANIFEST_FORMAT
from opforge.native.library.shared_library import (
    SharedLibrary,
    find_library,
    rebuild,
    refuse_damaged,
)
from support.processes import environment, python

MANIFEST = {"format": MANIFEST_FORMAT, "name": "made", "archs": ["sm_80"], "ops": [], "kernels": []}


def shared_object(folder, manifest=MANIFEST, *, abi=1, answer=1):
    """The bytes of a small library; `answer` tells two of them apart."""
    text = json.dumps(manifest if isinstance(manifest, str) else json.dumps(manifest))
    source = folder / "made.c"
    source.write_text(
        f"int made_abi_version(void) {{ return {abi}; }}\n"
        f"int made_answer(void) {{ return {answer}; }}\n"
        f"const char *made_manifest(void) {{ return {text}; }}\n"
        'const char *made_last_error(void) { return ""; }\n'
    )
    target = folder / "made.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return target.read_bytes()


def publish(folder, content):
    """As a build writes it, with its record."""
    stamp = build_record.make(folder, {}, {})
    write_output(folder, {"lib/libmade.so": content}, stamp=stamp, name="made")
    return folder / "lib" / "libmade.so"


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return shared_object(tmp_path_factory.mktemp("made"))


def test_a_library_that_was_built_again_is_not_taken_for_the_first(tmp_path, content):
    dist = tmp_path / "dist"
    publish(dist, content)
    assert native.open(dist)._c.made_answer() == 1
    publish(dist, content)
    assert native.open(dist)._c.made_answer() == 1
    publish(dist, shared_object(tmp_path, answer=2))
    with pytest.raises(StaleLibrary, match=r"libmade\.so was rebuilt after"):
        opforge.load(dist)


@pytest.mark.parametrize("open_it", [native.open, opforge.load])
@pytest.mark.parametrize(
    ("faults", "refusal"),
    [
        ({"abi": 99}, (NotALibrary, "has ABI 99, and this opforge has ABI 1")),
        (
            {"manifest": {**MANIFEST, "format": 99, "ops": "elsewhere"}},
            (StaleLibrary, "has format 99, and this opforge reads 10"),
        ),
        ({"manifest": "no JSON"}, (NotALibrary, "cannot be read")),
    ],
)
def test_a_file_that_failed_once_can_be_opened_when_it_is_whole(
    faults, refusal, open_it, tmp_path, content
):
    file = publish(tmp_path / "dist", shared_object(tmp_path, **faults))
    with pytest.raises(refusal[0], match=refusal[1]):
        open_it(file)
    publish(tmp_path / "dist", content)
    open_it(file)


TRY_ALL = """
import sys
from pathlib import Path
from opforge import native
from opforge.errors import NotALibrary
opened = 0
for folder in Path(sys.argv[1]).iterdir():
    try:
        native.open(folder)
        opened += 1
    except NotALibrary:
        pass
print(opened)
"""


@pytest.mark.parametrize("with_record", [True, False])
def test_a_library_that_is_cut_short_is_not_opened(with_record, tmp_path, content):
    chance = random.Random(0)
    for number in range(20):
        file = publish(tmp_path / str(number), content)
        file.write_bytes(content[: chance.randrange(len(content))])
        if not with_record:
            shutil.rmtree(tmp_path / str(number) / "share")
    # In a process of its own, because opening one may end it.
    done = subprocess.run(
        [python(), "-c", TRY_ALL, str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_verified_library_is_opened_from_the_bytes_that_were_compared(tmp_path, content):
    file = publish(tmp_path, content)
    other = bytearray(content)
    other[len(content) // 2] ^= 1
    for change in (bytes(other), content + b"?", content[:-1]):
        file.write_bytes(change)
        with pytest.raises(Untrusted, match=r"libmade\.so is not what was built"):
            SharedLibrary(file, VerifiedFiles(tmp_path, "made"))
    file.write_bytes(content)
    library = SharedLibrary(file, VerifiedFiles(tmp_path, "made"))
    file.write_bytes(bytes(len(content)))
    assert library._c.made_answer() == 1


def test_an_adapter_that_the_hashes_do_not_list_is_refused(tmp_path, content):
    file = publish(tmp_path, content)
    adapter = file.with_name("libmade_torch.so")
    adapter.write_bytes(content)
    with pytest.raises(NotALibrary, match=r"lists lib/libmade_torch\.so"):
        refuse_damaged(adapter, "made")


def test_hashes_that_a_killed_build_left_empty_are_told_with_what_writes_them(tmp_path, content):
    publish(tmp_path, content)
    (tmp_path / "share" / "made" / "SHA256SUMS").write_bytes(b"")
    with pytest.raises(NotALibrary, match="SHA256SUMS cannot be read") as caught:
        native.open(tmp_path)
    assert f"opforge build SOURCE.py --name made -o {tmp_path}" in caught.value.fix


def test_a_library_without_its_hashes_is_opened(tmp_path, content):
    publish(tmp_path / "dist", content)
    shutil.copy(tmp_path / "dist" / "lib" / "libmade.so", tmp_path)
    assert native.open(tmp_path / "libmade.so")._c.made_answer() == 1


def test_what_a_wheel_has_installed_is_not_built_into_its_place(tmp_path):
    file = tmp_path / "lib/libmade.so"
    archs = ["sm_80", "sm_90a"]
    assert rebuild(file, archs=archs, torch=True) == (
        f"opforge build SOURCE.py --arch sm_80 --arch sm_90 --torch --name made -o {tmp_path}"
    )
    file.parent.mkdir()
    file.touch()
    (tmp_path / "_library.py").touch()
    assert rebuild(file, archs=archs, torch=True) == (
        "opforge build SOURCE.py --arch sm_80 --arch sm_90 --wheel --name made -o dist && "
        "pip install --force-reinstall dist/made-*.whl"
    )
    with pytest.raises(NotALibrary, match="it is empty") as caught:
        refuse_damaged(file, "made")
    assert caught.value.fix == "install its wheel again: pip install --force-reinstall made"
    for path, fix in (
        (tmp_path / "site-packages/made", "install its wheel, which `opforge build SOURCE.py"),
        (tmp_path / "dist", f"build it: opforge build SOURCE.py -o {tmp_path / 'dist'}"),
        (tmp_path / "dist/lib/libmade.so", "build it: opforge build SOURCE.py --name made -o"),
    ):
        with pytest.raises(NotALibrary) as caught:
            find_library(path)
        assert caught.value.fix.startswith(fix)
