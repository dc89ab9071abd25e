"""Signatures: `opforge sign`, `opforge verify --trusted-key` and `load(trusted_keys=...)`."""

import json
import sys

import minisign
import pytest
from click.testing import CliRunner

import opforge
from opforge.cli import main
from opforge.errors import BadOption, Untrusted
from opforge.native.artifacts import build_record
from opforge.native.artifacts.publish import write_output

FILES = {"lib/libplain.so": b"library", "include/plain.h": b"header"}


@pytest.fixture
def dist(tmp_path):
    """A folder with the files and the hashes of a build."""
    folder = tmp_path / "dist"
    write_output(folder, FILES, stamp=build_record.make(folder, {}, {}), name="plain")
    return folder


@pytest.fixture
def keys(tmp_path):
    """A secret key, its public key, and that of somebody else, as files."""
    pair, other = minisign.KeyPair.generate(), minisign.KeyPair.generate()
    contents = {"key": pair.secret_key, "pub": pair.public_key, "other": other.public_key}
    files = {name: tmp_path / f"minisign.{name}" for name in contents}
    for name, content in contents.items():
        files[name].write_bytes(bytes(content))
    return files


def run(*arguments, given=None):
    done = CliRunner().invoke(main, [*map(str, arguments)], input=given)
    return done.exit_code, done.output


def verified(folder, *keys):
    options = [part for key in keys for part in ("--trusted-key", key)]
    return run("verify", folder, "--manifest-only", *options)


@pytest.fixture
def signed(dist, keys):
    place = dist / "share/plain/SHA256SUMS.minisig"
    assert run("sign", dist, "--key", keys["key"]) == (0, f"wrote {place}\n")
    return dist


def test_what_a_trusted_key_has_signed_is_accepted(signed, keys):
    same = "plain, compared with its hashes, which {} has signed: all 3 files are the same\n"
    assert verified(signed, keys["pub"]) == (0, same.format(keys["pub"]))
    assert verified(signed, keys["other"], keys["pub"]) == (0, same.format(keys["pub"]))
    # As --trusted-key "$(cat minisign.pub)" gives it, and the key alone.
    text = keys["pub"].read_text().strip()
    for given in (text, text.splitlines()[1]):
        assert verified(signed, given) == (0, same.format(text.splitlines()[1]))


def test_as_json(signed, keys):
    status, said = run(
        "verify", signed, "--manifest-only", "--json", "--trusted-key", keys["other"]
    )
    [found] = json.loads(said)
    assert (status, found["signed_by"], found["different"]) == (1, "", {})
    assert found["untrusted"].startswith("none of the trusted keys has signed ")
    _, said = run("verify", signed, "--manifest-only", "--json", "--trusted-key", keys["pub"])
    [found] = json.loads(said)
    assert (found["signed_by"], found["untrusted"]) == (str(keys["pub"]), "")


def test_nothing_that_nobody_signed_is_built_again(dist, keys):
    status, said = run("verify", dist, "--trusted-key", keys["pub"])
    assert (status, said.count("\n")) == (1, 2)
    assert "SHA256SUMS is not signed" in said


def test_the_signature_is_minisigns(signed, keys):
    public = minisign.PublicKey.from_bytes(keys["pub"].read_bytes())
    sums = signed / "share/plain/SHA256SUMS"
    signature = minisign.Signature.from_file(f"{sums}.minisig")
    public.verify(sums.read_bytes(), signature)
    assert signature.trusted_comment == "opforge plain"
    sums.write_text(sums.read_text() + " ")
    status, said = verified(signed, keys["pub"])
    assert (status, f"none of the trusted keys has signed {sums}" in said) == (1, True)


def test_what_would_be_loaded_and_is_not_listed_is_refused(signed, keys):
    (signed / "notes.txt").write_text("mine")
    assert verified(signed, keys["pub"])[0] == 0
    (signed / "include/stdint.h").write_bytes(b"evil")
    said = "include/stdint.h is not in SHA256SUMS, and would be loaded: remove it"
    for status, found in (verified(signed, keys["pub"]), verified(signed)):
        assert (status, said in found) == (1, True)
    status, found = run("sign", signed, "--key", keys["key"])
    assert (status, said in found) == (1, True)


def test_what_another_library_of_the_folder_lists_counts_if_it_is_trusted(signed, keys):
    files = {"lib/libother.so": b"other", "lib/libplain_torch.so": b"evil"}
    write_output(signed, files, stamp=build_record.make(signed, {}, {}), name="other")
    library = signed / "lib/libplain.so"
    assert verified(library)[0] == 0
    status, said = verified(library, keys["pub"])
    assert (status, "lib/libplain_torch.so is not in SHA256SUMS" in said) == (1, True)
    assert run("sign", signed, "--key", keys["key"])[0] == 0
    assert verified(library, keys["pub"])[0] == 0


def test_without_a_signature_or_with_something_else(dist, keys):
    status, said = verified(dist, keys["pub"])
    assert (status, "SHA256SUMS is not signed: there is no" in said) == (1, True)
    (dist / "share/plain/SHA256SUMS.minisig").write_text("x")
    assert "is not a signature" in verified(dist, keys["pub"])[1]


def test_a_librarys_file_names_the_folder_that_is_signed(dist, keys):
    place = dist / "share/plain/SHA256SUMS.minisig"
    said = run("sign", dist / "lib/libplain.so", "--key", keys["key"])
    assert said == (0, f"wrote {place}\n")
    place.unlink()
    place.mkdir()
    status, said = run("sign", dist, "--key", keys["key"])
    assert (status, f"{place} cannot be written" in said) == (1, True)


def test_a_build_of_other_files_has_no_signature(signed):
    place = signed / "share/plain/SHA256SUMS.minisig"
    write_output(signed, FILES, stamp=build_record.make(signed, {}, {}), name="plain")
    assert place.exists()
    other = {**FILES, "lib/libplain.so": b"other"}
    write_output(signed, other, stamp=build_record.make(signed, {}, {}), name="plain")
    assert not place.exists()


def test_a_key_with_a_password(dist, keys):
    secret = minisign.SecretKey.from_bytes(keys["key"].read_bytes())
    secret.encrypt("sesame", opslimit=32768, memlimit=16777216)
    keys["key"].write_bytes(bytes(secret))
    assert run("sign", dist, "--key", keys["key"], given="sesame\n")[0] == 0
    assert verified(dist, keys["pub"])[0] == 0
    for given, why in (("other\n", "wrong password"), ("", "standard input has none")):
        status, said = run("sign", dist, "--key", keys["key"], given=given)
        assert (status, why in said) == (1, True)


def test_keys_that_are_none(dist, tmp_path):
    (tmp_path / "empty").write_text("")
    for key in (tmp_path / "gone", tmp_path / "empty"):
        assert (f"{key} " in run("sign", dist, "--key", key)[1]) is True
        status, said = verified(dist, key)
        assert (status, f"{key} is not the " in said) == (1, True)


def test_a_wheel_is_signed_before_it_is_packed(keys, tmp_path):
    wheel = tmp_path / "plain-1.0-py3-none-linux_x86_64.whl"
    wheel.touch()
    status, said = run("sign", wheel, "--key", keys["key"])
    assert (status, f"{wheel} is a wheel, which is signed before" in said) == (1, True)


def load(folder, **options):
    return opforge.load(folder / "lib/libplain.so", **options)


def test_a_library_is_not_opened_unless_a_trusted_key_has_signed_it(signed, keys):
    with pytest.raises(Untrusted, match="none of the trusted keys has signed"):
        load(signed, trusted_keys=[keys["other"]])
    # It is trusted, and so opened: only then does anybody see that it is not a library.
    with pytest.raises(opforge.errors.NotALibrary):
        load(signed, trusted_keys=[keys["pub"]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "trusted_keys is empty"),
        ("minisign.pub", "must be a list"),
    ],
)
def test_options_that_trust_nothing(signed, given, said):
    with pytest.raises(BadOption, match=said):
        load(signed, trusted_keys=given)


def test_without_the_package(dist, keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "minisign", None)
    said = verified(dist, keys["pub"])[1]
    assert "signatures need the package py-minisign" in said
    assert "fix: pip install 'opforge[sign]'" in said
