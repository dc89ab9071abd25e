"""`share/NAME/SHA256SUMS`: the hash of every file of a build, as `sha256sum` writes and checks it.

It names no file outside the folder, so it can be shipped, and signed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\n]+)")


def sums_path(name: str) -> str:
    """Where the hashes of a library's files go, in the output folder."""
    return f"share/{name}/SHA256SUMS"


def written_sums(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items())).encode()


def read_sums(path: Path) -> dict[str, str]:
    return parse_sums(path.read_bytes())


def parse_sums(content: bytes) -> dict[str, str]:
    """Paths in the output folder, and hashes; `ValueError` where a line is not such."""
    found = {}
    for number, line in enumerate(content.decode().rstrip("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2].startswith("/") or ".." in match[2].split("/"):
            raise ValueError(f"line {number} is not a hash and a path in the folder")
        found[match[2]] = match[1]
    return found
