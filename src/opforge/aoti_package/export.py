"""Exports a model non-strict, strict or both in turn, and says where and why that fails."""

from __future__ import annotations

import contextlib
import linecache
import re
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import OpforgeError, UnsupportedBody, warn
from .exportable import DynamicDim, Exportable


@dataclass(frozen=True)
class Failure:
    """Why one way of exporting failed, and where in the user's code."""

    way: str
    what: str
    location: str | None
    fix: str
    cause: BaseException

    def __str__(self) -> str:
        file, _, number = (self.location or ":0").rpartition(":")
        line = linecache.getline(file, int(number)).strip()
        where = f" at {self.location} ({line})" if self.location else ""
        return f"{self.way} export failed{where}: {self.what}"


@dataclass(frozen=True)
class Exported:
    """An exported program, how it was exported, and why other ways failed."""

    program: Any
    strict: bool
    seconds: float
    failures: tuple[Failure, ...] = ()


def export(
    exportable: Exportable, dims: tuple[DynamicDim, ...], *, strict: bool | None
) -> Exported:
    """Non-strict, then strict; `strict` chooses one of them."""
    failures: list[Failure] = []
    for way in (False, True) if strict is None else (strict,):
        started, refusal = time.perf_counter(), Refusal()
        try:
            program = _export(exportable, dims, refusal, strict=way)
        except Exception as error:  # noqa: BLE001  # torch may raise anything; all of it is reported
            failures.append(_failure(error, refusal.kernel, strict=way))
        else:
            _refuse_constants(exportable, program)
            return Exported(program, way, time.perf_counter() - started, tuple(failures))
    first = failures[0]
    raise UnsupportedBody(
        f"{exportable.title} cannot be exported, {' and '.join(f.way for f in failures)}",
        found=indented(map(str, failures)),
        fix=first.fix,
        location=first.location or failures[-1].location or _forward(exportable),
    ) from failures[-1].cause


def _export(
    exportable: Exportable, dims: tuple[DynamicDim, ...], refusal: Refusal, *, strict: bool
) -> Any:
    # torch looks tensors up by identity.
    shapes: Any = torch.export.ShapesCollection()
    for path in dict.fromkeys(dim.path for dim in dims):
        shapes[exportable.by_path[path]] = {d.index: d.dim for d in dims if d.path == path}
    # Strict export reads launches from the bytecode and never runs them.
    guarded = contextlib.nullcontext() if strict else _compat.launches.routed_to(refusal)
    with torch.no_grad(), warnings.catch_warnings(), guarded:
        # torch warns about its own deprecated calls, which the user cannot change.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.export.export(
            exportable.module,
            exportable.args,
            dict(exportable.kwargs),
            dynamic_shapes=shapes if dims else None,
            strict=strict,
        )


class Refusal:
    """Routes launches outside ops; ops install their own router while their bodies run.

    A fake tensor's pointer is 0. A Triton launch with it is an illegal memory access on a GPU,
    after which the process can no longer use the GPU.
    """

    leaves_wrapped = True
    # The kernel whose launch was refused.
    kernel: Any = None

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.get("warmup"):
            return run(*args, **kwargs)
        self.kernel = kernel
        raise UnsupportedBody(f"a bare launch of {_compat.kernels.kernel_name(kernel)}")

    def compiled(self, kernel: Any) -> None:
        raise UnsupportedBody(f"a bare launch of {_compat.launches.compiled_name(kernel)}")

    def written(
        self,
        kernel: Any,
        names: list[str],
        tensors: list[str],  # noqa: ARG002  # the protocol's
        failure: BaseException | None,
    ) -> list[str]:
        """What torch's analysis found; a failure becomes a warning instead of torch's log line."""
        if failure is not None:
            warn(
                f"cannot analyse what kernel {_named(kernel)} writes ({type(failure).__name__}: "
                f"{failure}); assuming that it writes every tensor it is given"
            )
        return names


def _named(kernel: Any) -> str:
    return f"{_compat.kernels.kernel_name(kernel)} ({_compat.kernels.kernel_location(kernel)})"


def _refuse_constants(exportable: Exportable, program: Any) -> None:
    """Packages return tensors, sizes and None; AOTInductor refuses others late and obscurely."""
    odd = [
        v for v in _compat.aoti.constant_outputs(program) if v is not None and type(v) is not int
    ]
    if odd:
        raise UnsupportedBody(
            f"{exportable.title} returns a value that a package cannot return",
            found=", ".join(f"{v!r}, a {type(v).__name__}" for v in odd),
            fix="return tensors, whole numbers and None, and handle the rest outside of the model",
            location=_forward(exportable),
        )


def _forward(exportable: Exportable) -> str:
    """Where the model's forward is defined, for an error that names no line."""
    code = getattr(exportable.module.forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


# torch's messages go on with how to debug it.
_MOST_LINES = 5


def _failure(error: BaseException, kernel: Any, *, strict: bool) -> Failure:
    """The failure in terms of the user's code."""
    way, location = "strict" if strict else "non-strict", _user_location(error)
    if kernel is not None:
        what = (
            f"the model launches the Triton kernel {_named(kernel)} itself; non-strict export runs "
            "the model's Python on tensors without memory, so a bare launch fails"
        )
        name = _compat.kernels.kernel_name(kernel)
        fix = (
            f"move the launch of {name} into a function decorated with @opforge.op, or export with "
            "strict=True on a machine with a GPU, which accepts bare launches"
        )
        return Failure(way, what, location, fix, error)
    if isinstance(error, OpforgeError):
        return Failure(way, str(error), location, error.fix or _IN_AN_OP, error)
    text = f"{type(error).__name__}: {error}"
    lines = [line for line in text.splitlines() if line.strip()]
    default = _NOT_TRACED if strict else _IN_AN_OP
    fix = next((fix for sign, fix in _FIXES.items() if sign in text.lower()), default)
    return Failure(way, indented(lines[:_MOST_LINES]), location, fix, error)


_IN_AN_OP = (
    "does the model run in eager with these arguments? If it does, make this line run on fake "
    "tensors, or move it into an @opforge.op"
)
_NOT_TRACED = "use strict=False, which runs the Python, or move this code into an @opforge.op"
_PYTREE = (
    "pass and return tensors, numbers, tuples, lists or dicts, or register the class with "
    "torch.export.register_dataclass"
)
# What torch's message contains, and the fix for it; the first match wins.
_FIXES = {
    "not all values of": "narrow the range in dynamic",
    "not in range": "widen the range in dynamic, or trace with another size",
    "data-dependent": "the value is known only at run time: write the branch with torch.where or "
    "torch.cond, or tell torch.export what holds with torch._check",
    "constraints violated": "the code works only for this size: compute shapes from x.shape "
    "instead of writing numbers, or leave the dimension out of dynamic",
    "register a pytree": _PYTREE,
    "unrecognized type": _PYTREE,
    "unsupported input type": _PYTREE,
    ".numpy()": "non-strict export cannot trace NumPy: use torch functions, or strict=True",
    "observed exception": _IN_AN_OP,
}


def indented(lines: Iterable[str]) -> str:
    """Lines aligned below each other in an error's `found`."""
    return "\n         ".join(lines)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_SOURCE = re.compile(r'File "([^"]+)", line (\d+)')
_THIRD_PARTY = ("site-packages", "dist-packages")
_TORCH = Path(torch.__file__).parent
_PLACES = (_TORCH, _TORCH.parent / "triton", Path(__file__).parent.parent)


def _user_location(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither torch's, Triton's nor opforge's."""
    frames: list[tuple[str, int]] = []
    for each in _chain(error):
        # Dynamo interprets the model, so its frames are not in the traceback but in the error.
        stack = [
            *(getattr(each, "real_stack", None) or ()),
            *traceback.extract_tb(each.__traceback__),
        ]
        frames += [(frame.filename, frame.lineno or 0) for frame in stack]
        frames += [(file, int(line)) for file, line in _SOURCE.findall(str(each))]
    users = [frame for frame in frames if _is_user(frame[0])]
    # Frames of third-party libraries count only if there are no others.
    own = [f for f in users if not any(part in f[0] for part in _THIRD_PARTY)]
    chosen = (own or users)[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else None


def _is_user(file: str) -> bool:
    if file.startswith("<") or any(file.startswith(f"{place}/") for place in _PLACES):
        return False
    third_party = any(part in file for part in _THIRD_PARTY)
    return third_party or not file.startswith(f"{sysconfig.get_path('stdlib')}/")
