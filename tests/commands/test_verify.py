"""`opforge verify`: what it says of a library that is whole, altered, moved or built otherwise."""

import hashlib
import json
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from opforge.cli import main
from opforge.commands.verify import verify
from opforge.native.artifacts.hashes import read_sums, written_sums
from support.native.declared_source import write_source
from support.processes import environment, python

FILES_ONLY = "verify only its files: opforge verify --manifest-only"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a source and the library that the command made of it."""
    folder = tmp_path_factory.mktemp("verified")
    write_source(folder, "verified")
    built = command(folder, "build", "verified.py", "--arch", "sm_80", "-o", "dist")
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def dist(project, tmp_path):
    """A copy of the library, without its source."""
    return shutil.copytree(project / "dist", tmp_path / "dist")


def command(folder, *arguments):
    return subprocess.run(
        [python(), "-m", "opforge", *arguments],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def verified(folder, *options):
    done = CliRunner().invoke(main, ["verify", str(folder), *options])
    return done.exit_code, done.output


def recorded(folder):
    return json.loads((folder / "share/verified/build.json").read_text())


def hashes(folder):
    return read_sums(folder / "share/verified/SHA256SUMS")


def edit_hashes(folder, **files):
    """Forge the hashes of files, or give them those that they have now."""
    now = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in files}
    forged = {file: digest or now[file] for file, digest in files.items()}
    path = folder / "share/verified/SHA256SUMS"
    path.write_bytes(written_sums(hashes(folder) | forged))


def edit_record(folder, **fields):
    path = folder / "share/verified/build.json"
    path.write_text(json.dumps(recorded(folder) | fields))
    edit_hashes(folder, **{"share/verified/build.json": ""})


def test_a_library_built_again_is_the_same_to_the_byte_wherever_the_command_runs(project, tmp_path):
    source = ["--source", str(project / "verified.py")]
    done = command(tmp_path, "verify", str(project / "dist"), *source)
    # All but the record of the build, which names the folder.
    count = len(hashes(project / "dist")) - 1
    assert done.stdout == (
        f"verified, rebuilt from its sources: all {count} files but the record of the build "
        "are the same\n"
    ), done.stderr
    assert done.returncode == 0


def test_files_are_held_against_their_hashes(dist):
    count = len(hashes(dist))
    same = 0, f"verified, compared with its hashes: all {count} files are the same\n"
    assert verified(dist, "--manifest-only") == same
    # The library's file names the build; so does that of one that is loaded.
    assert verified(dist / "lib/libverified.so", "--manifest-only") == same
    checked = ["sha256sum", "--quiet", "--check", "share/verified/SHA256SUMS"]
    assert subprocess.run(checked, cwd=dist, check=False).returncode == 0
    with (dist / "lib/libverified.so").open("r+b") as library:
        library.seek(100)
        library.write(b"?")
    (dist / "include/verified.h").unlink()
    said = (
        f"verified, compared with its hashes: 2 of {count} files differ\n"
        "  include/verified.h is gone\n"
        "  lib/libverified.so has changed\n"
    )
    # An altered library is not built again: the answer is known.
    assert verified(dist, "--manifest-only") == verified(dist) == (1, said)


def test_what_differs_is_explained_by_sources_and_versions(project, tmp_path):
    folder = shutil.copytree(project, tmp_path / "copy")
    edit_record(folder / "dist", arguments=recorded(folder / "dist")["arguments"] | {
        "folder": str(folder),
    }, versions={"triton": "3.5.0"})  # fmt: skip
    source = folder / "verified.py"
    source.write_text(source.read_text().replace("2 * tl", "4 * tl"))
    done = command(tmp_path / "copy", "verify", "dist", "--source", "verified.py")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert "files differ" in lines[0]
    assert "  lib/libverified.so differs" in lines
    assert f"because {source} has changed" in lines
    assert any(line.startswith("because triton was 3.5.0 and is ") for line in lines)


def test_another_c_compiler_shows_by_the_library_alone(project, tmp_path):
    dist = shutil.copytree(project, tmp_path / "copy") / "dist"
    library = dist / "lib/libverified.so"
    library.write_bytes(library.read_bytes() + b"made by another")
    edit_hashes(dist, **{"lib/libverified.so": ""})
    done = command(tmp_path / "copy", "verify", "dist", "--source", "verified.py")
    assert done.stdout.splitlines()[1:] == [
        "  lib/libverified.so differs",
        "because the C compiler differs: the sources that it compiled are the same",
    ], done.stderr


def test_nothing_is_imported_that_the_folder_names(project, dist, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    edit_record(
        dist,
        arguments=recorded(dist)["arguments"] | {"targets": ["evil.py"], "folder": str(tmp_path)},
        read={"../evil.py": hashlib.sha256((tmp_path / "evil.py").read_bytes()).hexdigest()},
    )
    done = command(tmp_path, "verify", "dist")
    assert done.returncode == 1
    assert "verified is not built again: that imports its sources, and nothing" in done.stderr
    assert f"fix: name what it is built from: --source ops.py; or {FILES_ONLY}" in done.stderr
    assert "imported'" not in done.stderr
    # Wherever the library and its source lie now, but names of sources are relative to the folder.
    done = command(project.parent, "verify", str(dist), "--source", str(project / "verified.py"))
    assert done.returncode == 1, done.stderr
    assert f"because it was built in {tmp_path}, and this is {project.parent}\n" in done.stdout
    done = command(tmp_path, "verify", "dist", "--source", str(project / "verified.py"))
    assert (done.returncode, "are the same" in done.stdout) == (0, True), done.stderr


def test_a_library_that_no_command_built(dist):
    edit_record(dist, arguments={}, read={})
    status, said = verified(dist)
    assert status == 1
    assert "Python built it, and its record has no command" in said
    assert f"fix: build it with `opforge build`, or {FILES_ONLY}" in said


def test_a_record_with_other_arguments(dist):
    edit_record(dist, arguments={"targets": ["ops.py"]}, read={})
    said = verified(dist, "--source", "ops.py")[1]
    assert "its record does not have the arguments of a build" in said


def test_a_folder_that_is_not_a_library(tmp_path):
    status, said = verified(tmp_path)
    assert (status, f"{tmp_path} is not part of a build" in said) == (1, True)


def test_hashes_that_lead_out_of_the_folder(dist):
    (dist / "share/verified/SHA256SUMS").write_text(f"{'0' * 64}  ../secret")
    assert "line 1 is not a hash and a path in the folder" in verified(dist)[1]


def test_a_record_that_cannot_be_read(dist):
    (dist / "share/verified/build.json").write_text("{")
    assert "share/verified/build.json has changed" in verified(dist)[1]
    edit_hashes(dist, **{"share/verified/build.json": ""})
    said = verified(dist)[1]
    assert "build.json is missing, cannot be read, or is of another version of opforge" in said
    assert f"fix: build it again, or {FILES_ONLY}" in said


def test_a_copy_that_was_shipped_lacks_what_only_a_build_needs(dist):
    shutil.rmtree(dist / "src")
    (dist / "share/verified/build.json").unlink()
    assert verified(dist, "--manifest-only")[0] == 1
    # Of a wheel's package.
    (dist / "_library.py").touch()
    found = verify(str(dist), manifest_only=True)
    assert all(one.ok for one in found)
    said = f"{found[0]}\n"
    gone = sum(file.startswith("src/") for file in hashes(dist)) + 1
    count = len(hashes(dist)) - gone
    assert said.endswith(
        f"all {count} files are the same; {gone} files that only a rebuild needs are absent\n"
    )
    said = verified(dist)[1]
    assert f"{dist} cannot be built again: what a wheel installed has no sources" in said
    assert f"fix: verify the folder that was packed, or {FILES_ONLY}" in said
    (dist / "include/verified.h").unlink()
    assert "include/verified.h is gone" in verified(dist, "--manifest-only")[1]


@pytest.mark.parametrize("folder", ["dist", "kernels"])
def test_a_build_in_a_python_package_is_not_a_copy_that_was_shipped(dist, folder):
    (dist.parent / "__init__.py").touch()
    dist = dist.rename(dist.parent / folder)
    shutil.rmtree(dist / "src")
    status, said = verified(dist, "--manifest-only")
    assert (status, "  src/verified/arch.c is gone" in said) == (1, True), said


def test_what_cannot_be_read_is_not_gone(dist):
    (dist / "include/verified.h").unlink()
    (dist / "include/verified.h").mkdir()
    said = verified(dist, "--manifest-only")[1]
    assert "  include/verified.h cannot be read: Is a directory\n" in said
