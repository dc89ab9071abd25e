"""A record of what a build read and wrote, from which the next build sees whether anything changed.

Needs neither torch nor Triton: a build with nothing to do ends before they are imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import __version__
from ...records import Codecs
from .hashes import read_sums

_FORMAT = 2
_PACKAGE = Path(__file__).parent.parent.parent
# Triton and LLVM read many; a change without effect costs one build from the cache. The others
# choose the C compiler.
_VARIABLES = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "DISABLE_", "PTXAS_OPTIONS", "ALLOW_LHS_")
_C_VARIABLES = {"CC", "CXX", "CFLAGS", "CPPFLAGS", "LDFLAGS", "AR"}
_INDIFFERENT = {"TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR"}


@dataclass(frozen=True)
class Stamp:
    """`read` and `written` map paths relative to the output folder to hashes.

    What was written is not in `build.json`, but beside it, in `SHA256SUMS`.
    """

    arguments: Mapping[str, Any]
    read: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {"format": _FORMAT, **_STAMP.write(self)}
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


_STAMP = Codecs({Stamp: "arguments read versions variables"}).of(Stamp)


def make(
    folder: str | os.PathLike[str],
    arguments: Mapping[str, Any],
    imported: Mapping[Path, str],
    files: Iterable[str | Path] = (),
) -> Stamp:
    """The record of a build into `folder`; `write_output` adds what was written.

    `arguments` is everything that decides what is built, as JSON: targets, architectures,
    options. `imported` comes from `watching_imports`; `files` are the other files that were read:
    kernels, host functions, a tuning table.
    """
    root = Path(folder).resolve()
    digests = {path: _digest_or_unknown(path) for path in {Path(f).resolve() for f in files}}
    both = {**digests, **imported}
    read = {Path(os.path.relpath(p, root)).as_posix(): digest for p, digest in both.items()}
    return Stamp(_plain(arguments), read, current_versions(), current_variables())


def read(path: Path) -> Stamp | None:
    """None if there is no record, or one of another version."""
    try:
        content = json.loads(path.read_bytes())
        found: Stamp = _STAMP.read(content)
        written = read_sums(path.with_name("SHA256SUMS"))
    except (OSError, ValueError, RecursionError):
        return None
    # The record does not have its own hash.
    written.pop(stamp_path(path.parent.name), None)
    return dataclasses.replace(found, written=written) if content.get("format") == _FORMAT else None


def find_unchanged(folder: str | os.PathLike[str], arguments: Mapping[str, Any]) -> Path | None:
    """The record in `folder` whose build would change nothing.

    Without --name the library's name is not known before the import, so all records are read.
    """
    plain = _plain(arguments)
    for path in sorted(Path(folder).glob(stamp_path("*"))):
        stamp = read(path)
        if stamp is None or stamp.arguments != plain or any(changed_tools(stamp)):
            continue
        if not changed_files(path.resolve().parents[2], {**stamp.read, **stamp.written}):
            return path
    return None


def stamp_path(name: str) -> str:
    """Where the record of a library goes, in the output folder."""
    return f"share/{name}/build.json"


def changed_tools(stamp: Stamp) -> Iterator[str]:
    """The versions and variables that are others now: `triton was 3.6.0 and is 3.7.0`."""
    for then, now in (
        (stamp.versions, current_versions()),
        (stamp.variables, current_variables()),
    ):
        for name in sorted({*then, *now}):
            if then.get(name) != now.get(name):
                yield f"{name} was {then.get(name, 'not set')} and is {now.get(name, 'not set')}"


def changed_files(root: Path, digests: Mapping[str, str]) -> dict[str, str]:
    """What became of the files that do not have their hashes any more."""
    return {
        file: what
        for file, digest in sorted(digests.items())
        if (what := _change(root / file, digest))
    }


def _change(file: Path, digest: str) -> str:
    try:
        return "" if digest_of(file) == digest else "has changed"
    except (FileNotFoundError, NotADirectoryError):
        return "is gone"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# A hash that no file has, so that a doubtful input never counts as unchanged.
_UNKNOWN = ""


def _digest_or_unknown(path: Path, since: int | None = None) -> str:
    """`since`, in nanoseconds: a file written later may not be what was read."""
    try:
        if since is not None and path.stat().st_mtime_ns > since:
            return _UNKNOWN
        return digest_of(path)
    except OSError:
        return _UNKNOWN


def unknown(files: Iterable[str | Path]) -> dict[Path, str]:
    """Files, for `make`, that the next build counts as changed whatever they are then."""
    return {Path(file).resolve(): _UNKNOWN for file in files}


def current_versions() -> dict[str, str]:
    """The versions of everything that may change the result, without importing it."""
    return {
        "opforge": f"{__version__}+{_own_digest()}",
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "triton": _installed("triton"),
    }


def current_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_VARIABLES) or name in _C_VARIABLES) and name not in _INDIFFERENT
    }


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def _own_digest() -> str:
    # The files of a checkout change without its version.
    hasher = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.is_file() and path.suffix not in {".pyc", ".so"}:
            hasher.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            hasher.update(path.read_bytes())
    return hasher.hexdigest()[:12]


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON returns it: tuples as lists, paths as strings."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(arguments), sort_keys=True, default=str))
    return plain


@contextlib.contextmanager
def watching_imports() -> Iterator[dict[Path, str]]:
    """Yield a dict that receives the hash of each of the user's files imported meanwhile.

    The user's files are all but those of the standard library, installed packages and opforge.
    """
    start, before = time.time_ns(), set(sys.modules)
    found: dict[Path, str] = {}
    try:
        yield found
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and is_users(file):
                path = Path(file).resolve()
                found[path] = _digest_or_unknown(path, start)


def is_users(file: str | os.PathLike[str]) -> bool:
    """Whether a file belongs neither to Python, nor to an installed package, nor to opforge."""
    path = Path(file).resolve()
    return path.is_file() and not any(path.is_relative_to(home) for home in _homes())


@functools.cache
def _homes() -> tuple[Path, ...]:
    named = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    named |= {*site.getsitepackages(), site.getusersitepackages(), str(_PACKAGE)}
    return tuple({Path(path).resolve() for path in named if path})
