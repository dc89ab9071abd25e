"""`opforge verify`: whether the files of a build are what it wrote, and would write again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadOption, NotALibrary, Untrusted
from ..native.artifacts import build_record
from ..native.artifacts.build_record import Stamp
from ..native.artifacts.hashes import PublicKeys, parse_sums, sign, sums_path
from .build import BuildArguments, make

_FILES_ONLY = "verify only its files: opforge verify --manifest-only"
# Of the recorded arguments: what was imported, where the command ran, and what it found there.
_SURROUNDINGS = {"targets", "folder", "folders"}


@dataclass(frozen=True)
class Verified:
    """One build: the files that are not the same, with what is known of each, and why."""

    name: str
    files: int
    rebuilt: bool
    different: Mapping[str, str]
    reasons: tuple[str, ...] = ()
    # Of a copy that was shipped: files that only another build would need.
    left_out: int = 0
    # The trusted key that has signed its hashes; or why no file was looked at: none has.
    signed_by: str = ""
    untrusted: str = ""
    against: str = "its hashes"

    @property
    def ok(self) -> bool:
        return not self.different and not self.untrusted

    def __str__(self) -> str:
        return self.untrusted or self._compared()

    def _compared(self) -> str:
        how = "rebuilt from its sources" if self.rebuilt else f"compared with {self.against}"
        how += f", which {self.signed_by} has signed" if self.signed_by else ""
        if not self.different:
            # The record names folders of the machine that built it.
            but = " but the record of the build" if self.rebuilt else ""
            absent = "1 file that only a rebuild needs is absent"
            if self.left_out > 1:
                absent = f"{self.left_out} files that only a rebuild needs are absent"
            more = f"; {absent}" if self.left_out else ""
            same = f"all {self.files} files{but} are the same{more}"
            return f"{self.name}, {how}: {same}"
        verb = "differs" if len(self.different) == 1 else "differ"
        lines = [f"{self.name}, {how}: {len(self.different)} of {self.files} files {verb}"]
        lines += [f"  {file} {what}" for file, what in self.different.items()]
        return "\n".join([*lines, *(f"because {reason}" for reason in self.reasons)])


def verify(
    path: str,
    *,
    manifest_only: bool,
    sources: Sequence[str] = (),
    trusted_keys: Sequence[str] = (),
    shown: str = "",
) -> list[Verified]:
    """Every library in a folder, or its served kernels; or the library whose file is given.

    Only those whose files have their hashes are built again, from `sources`: nothing is imported
    that a folder names. With keys, one of them must have signed the hashes. Errors call the folder
    `shown`.
    """
    root, places = _places(Path(path))
    keys = PublicKeys(trusted_keys) if trusted_keys else None
    found = []
    for place in places:
        called = f"{shown or root}/{place.relative_to(root).as_posix()}"
        held = _held(root, place, called, keys)
        record = place.with_name("build.json")
        if manifest_only or not held.ok:
            found.append(held)
            continue
        stamp = build_record.read(record)
        if stamp is None:
            if _package(root):
                raise NotALibrary(
                    f"{path} cannot be built again: what a wheel installed has no sources",
                    fix=f"verify the folder that was packed, or {_FILES_ONLY}",
                )
            raise NotALibrary(
                f"{record} is missing, cannot be read, or is of another version of opforge",
                fix=f"build it again, or {_FILES_ONLY}",
            )
        again = _built_again(record, stamp, sources)
        found.append(dataclasses.replace(again, signed_by=held.signed_by))
    return found


def _places(path: Path) -> tuple[Path, list[Path]]:
    """The folder of a build, and the hashes of what is in it."""
    root, names = path, ["*"]
    if path.suffix == ".so" and path.is_file():
        root, name = path.resolve().parent.parent, path.resolve().stem.removeprefix("lib")
        names = [name, name.removesuffix("_torch")]
    elif not (path / "share").exists() and (path / "kernels/share").exists():
        # The package of served kernels has them in a folder.
        root = path / "kernels"
    places = next(filter(None, (sorted(root.glob(sums_path(name))) for name in names)), [])
    if not places:
        raise NotALibrary(
            f"{path} is not part of a build: there is no {root / sums_path('NAME')}",
            fix="give the folder that `opforge build -o` wrote, or a library or wheel of it",
        )
    return root, places


def _held(root: Path, place: Path, called: str, keys: PublicKeys | None) -> Verified:
    name = place.parent.name
    try:
        content = place.read_bytes()
        signer = "" if keys is None else keys.signer(place, content, called)
        written = parse_sums(content)
    except Untrusted as error:
        # Hashes that anybody may have written say nothing.
        return Verified(name, 0, False, {}, untrusted=str(error))
    except (OSError, ValueError) as error:
        raise NotALibrary(f"{called} cannot be read: {error}", fix="build it again") from None
    there = written
    package = None if _record(place) else _package(root)
    if package is not None:
        # A library's package has the Python files of the build at its top.
        of_library = package == root
        there = {
            file.removeprefix(f"python/{name}/") if of_library else file: digest
            for file, digest in written.items()
            if (root / file).exists() or not _only_builds(file)
        }
    left_out = len(written) - len(there)
    different = build_record.changed_files(root, there) | _unlisted(root, keys)
    return Verified(name, len(there), False, different, left_out=left_out, signed_by=signer)


def _unlisted(root: Path, keys: PublicKeys | None) -> dict[str, str]:
    """What compilers, linkers, loaders and Python would find in a library's folder."""
    listed: set[str] = set()
    # A folder may have several libraries.
    for place in root.glob(sums_path("*")):
        with contextlib.suppress(OSError, ValueError, Untrusted):
            content = place.read_bytes()
            if keys is not None:
                keys.signer(place, content)
            listed |= parse_sums(content).keys()
    folders = (root / name for name in ("include", "lib", "python", "src"))
    there = (file for folder in folders for file in folder.rglob("*"))
    found = (file for file in sorted(there) if file.is_symlink() or not file.is_dir())
    why = "is not in SHA256SUMS, and would be loaded: remove it"
    return {
        name: why for file in found if (name := file.relative_to(root).as_posix()) not in listed
    }


def _record(place: Path) -> bool:
    """Whether the record of a build is beside its hashes; no wheel has one."""
    return place.with_name("build.json").exists()


def package_at(path: str) -> Path | None:
    """The Python package that a wheel has these files of a build in, if they are of a wheel."""
    root, places = _places(Path(path))
    return None if any(map(_record, places)) else _package(root)


def _package(root: Path) -> Path | None:
    """A library's package has its files in it; that of served kernels in a folder."""
    if (root / "_library.py").exists():
        return root
    above = root.parent
    return above if root.name == "kernels" and (above / "__init__.py").exists() else None


def _only_builds(file: str) -> bool:
    """Whether a file is not needed where a library is used: a wheel leaves it out."""
    return file.startswith("src/") or file.endswith((".a", "/build.json", "/__init__.py"))


def signed(path: str, key: str, password: Callable[[], str]) -> str:
    """Sign the hashes of a folder whose files have them; what was written."""
    if path.endswith(".whl"):
        raise NotALibrary(
            f"{path} is a wheel, which is signed before it is packed",
            fix="sign the folder that it was packed from, and pack that again with `opforge wheel`",
        )
    for one in verify(path, manifest_only=True):
        if one.different:
            fix = "build it again into an empty folder"
            raise NotALibrary(f"{path} is not signed: {one}", fix=fix)
    _, places = _places(Path(path))
    return "\n".join(f"wrote {place}" for place in sign(places, Path(key), password))


def to_json(found: list[Verified]) -> str:
    return json.dumps([dataclasses.asdict(one) for one in found], indent=2)


def _built_again(place: Path, stamp: Stamp, sources: Sequence[str]) -> Verified:
    root, name = place.resolve().parents[2], place.parent.name
    if not stamp.arguments:
        raise NotALibrary(
            f"{name} cannot be built again: Python built it, and its record has no command",
            fix=f"build it with `opforge build`, or {_FILES_ONLY}",
        )
    if not sources:
        raise BadOption(
            f"{name} is not built again: that imports its sources, and nothing is imported that "
            "a folder names",
            fix=f"name what it is built from: --source ops.py; or {_FILES_ONLY}",
        )
    changed = build_record.changed_files(root, stamp.read)
    with tempfile.TemporaryDirectory(prefix="opforge-verify-") as output:
        _rebuild(sources, stamp.arguments, output)
        [made] = Path(output).glob(build_record.stamp_path("*"))
        again = build_record.read(made)
    assert again is not None
    different = {
        file: "differs" if file in stamp.written and file in again.written else "is in one only"
        for file in sorted({*stamp.written, *again.written})
        if stamp.written.get(file) != again.written.get(file)
    }
    files = len({*stamp.written, *again.written})
    reasons = [f"{(root / file).resolve()} {what}" for file, what in changed.items()]
    reasons += build_record.changed_tools(stamp)
    if different and not reasons:
        reasons = [_unexplained(different, stamp.arguments.get("folder"))]
    return Verified(name, files, True, different, tuple(reasons) if different else ())


def _rebuild(sources: Sequence[str], arguments: Mapping[str, Any], output: str) -> None:
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
        if name not in _SURROUNDINGS
    }
    if not {"archs"} <= given.keys() <= BuildArguments.__dataclass_fields__.keys() - {"output"}:
        raise NotALibrary("its record does not have the arguments of a build", fix="build it again")
    if given.get("tuning"):
        # A table is data, so it may be named relative to where the command ran.
        given["tuning"] = str(Path(arguments.get("folder", ""), given["tuning"]))
    make(BuildArguments(tuple(sources), output, **given), cache=None)


def _unexplained(different: Mapping[str, str], folder: object) -> str:
    if all(file.startswith("lib/") for file in different):
        return "the C compiler differs: the sources that it compiled are the same"
    # A library names its sources relative to where the command ran.
    if folder and folder != str(Path.cwd()):
        return f"it was built in {folder}, and this is {Path.cwd()}"
    return "a tool that is not recorded differs, such as ptxas, or the build is not repeatable"
