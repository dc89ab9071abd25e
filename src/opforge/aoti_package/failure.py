"""From an error of torch.export to the user's line, and what to change there."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from .. import _compat
from ..errors import OpforgeError

_SOURCE = re.compile(r'File "([^"]+)", line (\d+)')
_THIRD_PARTY = ("site-packages", "dist-packages")
_TORCH = Path(torch.__file__).parent
_TRITON = _TORCH.parent / "triton"
_PLACES = (_TORCH, _TRITON, Path(__file__).parent.parent)

MOVE_LAUNCH = "move the launch into a function decorated with @opforge.op"


@dataclass(frozen=True)
class Failure:
    """Why one way of exporting failed, and where in the user's code.

    `kernel` describes the Triton kernel that the model launched during the export, if any.
    """

    way: str
    what: str
    location: str | None
    fix: str
    cause: BaseException
    kernel: str = ""

    @property
    def line(self) -> str:
        """The user's line of source code."""
        file, _, number = (self.location or ":0").rpartition(":")
        return linecache.getline(file, int(number)).strip()

    def __str__(self) -> str:
        where = f" at {self.location} ({self.line})" if self.location else ""
        return f"{self.way} export failed{where}: {self.what}"


def explain_failure(error: BaseException, *, strict: bool) -> Failure:
    """The failure in terms of the user's code."""
    way = "strict" if strict else "non-strict"
    location = _user_location(error)
    kernel = _launched(error)
    if kernel is not None and not strict:
        name = _compat.kernels.kernel_name(kernel)
        described = f"{name} ({_compat.kernels.kernel_location(kernel)})"
        what = (
            f"the model launches the Triton kernel {described} itself; non-strict export runs the "
            "model's Python on tensors without memory, so a bare launch fails"
        )
        fix = (
            f"move the launch of {name} into a function decorated with @opforge.op, or export with "
            "strict=True on a machine with a GPU, which accepts bare launches"
        )
        return Failure(way, what, location, fix, error, described)
    if strict and not torch.cuda.is_available() and _stops_in_triton(error):
        what = "the model launches a Triton kernel itself, which Dynamo accepts only with a GPU"
        return Failure(way, what, location, MOVE_LAUNCH, error)
    return Failure(way, _what(error), location, _fix(error, strict=strict), error)


def _what(error: BaseException) -> str:
    if isinstance(error, OpforgeError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "(no message)"
    said = [
        line for line in lines[1:] if line.startswith(("Explanation:", "- You marked", "- Not all"))
    ]
    return " ".join([f"{type(error).__name__}: {_cut(first)}", *map(_cut, said[:1])])


def _cut(line: str) -> str:
    for aside in _ASIDES:
        line = line.partition(aside)[0]
    return line.removeprefix("- ")


_REGISTER = "or register the class with torch.export.register_dataclass"
_DOES_IT_RUN = (
    "this line itself raises the error: does the model run in eager with these arguments? "
    "If it does, make the line run on fake tensors, or move it into an @opforge.op"
)
_NOT_TRACED = "use strict=False, which runs the Python, or move this code into an @opforge.op"
# What torch's message contains, and the fix for it; the first match wins.
_FIXES = {
    "not all values of": "narrow the range in dynamic",
    "data-dependent": "the value is known only at run time: write the branch with torch.where or "
    "torch.cond, or tell torch.export what holds with torch._check",
    "constraints violated": "the code works only for this size: compute shapes from x.shape "
    "instead of writing numbers, or leave the dimension out of dynamic",
    "register a pytree": f"return tensors, tuples, lists or dicts, {_REGISTER}",
    "unrecognized type": f"return tensors, tuples, lists or dicts, {_REGISTER}",
    "unsupported input type": f"pass tensors, numbers, tuples, lists or dicts, {_REGISTER}",
    ".numpy()": "non-strict export cannot trace NumPy: use torch functions, or strict=True",
    "observed exception": _DOES_IT_RUN,
    "marked as skipped": _NOT_TRACED,
    "failed to trace builtin": _NOT_TRACED,
    "cannot access data pointer": "code that reads memory must be an operator: move it into a "
    "function decorated with @opforge.op",
}
# Here torch's message turns from what happened to how to debug it.
_ASIDES = (" For more information", " See https://", " If you're using mark_dynamic")


def _fix(error: BaseException, *, strict: bool) -> str:
    if isinstance(error, OpforgeError) and error.fix:
        return error.fix
    text = str(error)
    suggested = text.partition("Suggested fixes:\n")[2].strip().partition("\n")[0]
    for sign, fix in _FIXES.items():
        if sign in text.lower():
            return f"{fix}: torch suggests {suggested}" if "range" in fix else fix
    hints = [line.strip() for line in text.splitlines() if line.strip().startswith("Hint:")]
    if hints:
        return hints[0].removeprefix("Hint:").strip()
    if strict:
        return _NOT_TRACED
    frames = _frames(error.__traceback__)
    if frames and _is_user(frames[-1][0]):
        return _DOES_IT_RUN
    return "change this line so that it runs on fake tensors, or move it into an @opforge.op"


def indented(lines: Iterable[str]) -> str:
    """Lines aligned below each other in an error's `found`."""
    return "\n         ".join(lines)


def _launched(error: BaseException) -> Any:
    kernels = (_compat.aoti.launch_in(each.__traceback__) for each in _chain(error))
    return next((kernel for kernel in kernels if kernel is not None), None)


def _stops_in_triton(error: BaseException) -> bool:
    stack = [f.filename for f in getattr(error, "real_stack", None) or ()]
    return any(file.startswith(str(_TRITON)) for file in stack)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _user_location(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither torch's, Triton's nor opforge's."""
    frames: list[tuple[str, int]] = []
    for each in _chain(error):
        # Dynamo interprets the model, so its frames are not in the traceback but in the error.
        frames += [(f.filename, f.lineno or 0) for f in getattr(each, "real_stack", None) or ()]
        frames += _frames(each.__traceback__)
        frames += [(file, int(line)) for file, line in _SOURCE.findall(str(each))]
    users = [frame for frame in frames if _is_user(frame[0])]
    # Frames of third-party libraries count only if there are no others.
    own = [f for f in users if not any(part in f[0] for part in _THIRD_PARTY)]
    chosen = (own or users)[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else None


def _frames(found: TracebackType | None) -> list[tuple[str, int]]:
    return [(f.filename, f.lineno or 0) for f in traceback.extract_tb(found)]


def _is_user(file: str) -> bool:
    if file.startswith("<") or any(file.startswith(f"{place}/") for place in _PLACES):
        return False
    third_party = any(part in file for part in _THIRD_PARTY)
    return third_party or not file.startswith(f"{sysconfig.get_path('stdlib')}/")
