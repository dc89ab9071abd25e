"""The name of a library, which prefixes its C functions and names its files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import BadOption
from ..registry import Entry

# Headers that C and CUDA programs include, and libraries that they link.
_SYSTEM = frozenset(
    {
        "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits",
        "locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbool",
        "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings", "tgmath",
        "threads", "time", "uchar", "unistd", "wchar", "wctype", "dlfcn", "fcntl", "memory",
        "pthread", "sched",
        "c", "dl", "gcc", "m", "rt", "util",
        "cuda", "cudart", "cublas", "cudnn", "cufft", "nvrtc",
    }
)  # fmt: skip

# File systems allow 255 bytes, and files have endings and prefixes.
_LONGEST = 200


def common_namespace(entries: Sequence[Entry]) -> str:
    """The operators' common namespace."""
    found = sorted({e.name.partition("::")[0] for e in entries})
    if len(found) > 1:
        raise BadOption(
            f"the operators have {len(found)} namespaces, so the library has no default name",
            found=", ".join(found),
            fix="give one: --name NAME",
        )
    return found[0]


def check_name(name: str) -> None:
    """Refuse a name that cannot prefix C functions or name files."""
    if name in _SYSTEM:
        raise BadOption(
            f"{name!r} is a system name: programs that include <{name}.h> or link "
            f"-l{name} would pick up this library",
            fix=f"choose another name: --name {name}_ops",
        )
    _refuse_long(name, "the library's name", "--name NAME")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise BadOption(
            f"{name!r} cannot prefix the name of a C function",
            fix="use letters, digits and underscores, starting with a letter: --name NAME",
        )


def _refuse_long(name: str, what: str, fix: str, found: str | None = None) -> None:
    if len(name) > _LONGEST:
        raise BadOption(
            f"{what} has {len(name)} characters, and no file could be named after it: "
            f"{name[:20]}...",
            found=found,
            fix=f"choose one of at most {_LONGEST}: {fix}",
        )


def refuse_namesakes(entries: Sequence[Entry]) -> None:
    seen: dict[str, Entry] = {}
    for entry in entries:
        short = entry.own_name
        if "." in short:
            raise BadOption(
                f"{entry.name} has an overload's name, which no C function can have",
                found=entry.location,
                fix="register it under a name of its own",
            )
        _refuse_long(short, "an operator's name", "register it under another", entry.location)
        other = seen.setdefault(short, entry)
        if other is not entry:
            raise BadOption(
                f"two operators would become the C function {short}",
                found=f"{other.name} ({other.location}), {entry.name} ({entry.location})",
                fix="rename one of them, or build two libraries",
            )
