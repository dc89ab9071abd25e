"""torch.export, one way or both, with the reasons kept."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import BareKernel, ExportFailed
from .bare import bare_launches_refused
from .dynamic import DynamicDim, shapes_collection
from .failure import Failure, explain_failure
from .subject import Subject

_DECORATE = "put the launch into a function decorated with @opforge.op"


@dataclass(frozen=True)
class Exported:
    """A program, which way it was had, and why other ways failed."""

    program: Any
    strict: bool
    seconds: float
    failures: tuple[Failure, ...] = ()


def export(subject: Subject, dims: tuple[DynamicDim, ...], *, strict: bool | None) -> Exported:
    """Non-strict, then strict; `strict` chooses one of them."""
    failures: list[Failure] = []
    for way in (False, True) if strict is None else (strict,):
        started = time.perf_counter()
        try:
            program = _export(subject, dims, strict=way)
        except Exception as error:  # noqa: BLE001  # torch raises what it likes; kept and told
            failures.append(explain_failure(error, strict=way))
        else:
            _refuse_constants(subject, program)
            return Exported(program, way, time.perf_counter() - started, tuple(failures))
    raise _refusal(subject, failures) from failures[-1].cause


def _export(subject: Subject, dims: tuple[DynamicDim, ...], *, strict: bool) -> Any:
    # Strict export takes launches out of the bytecode, and never makes them.
    guarded = contextlib.nullcontext() if strict else bare_launches_refused()
    with torch.no_grad(), warnings.catch_warnings(), guarded:
        # torch deprecates its own calls here, which the user can do nothing about.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.export.export(
            subject.module,
            subject.args,
            dict(subject.kwargs),
            dynamic_shapes=shapes_collection(dims, subject),
            strict=strict,
        )


def _refuse_constants(subject: Subject, program: Any) -> None:
    """Packages return tensors, sizes and None; over the rest AOTInductor trips late, and oddly."""
    odd = [
        v for v in _compat.aoti.constant_outputs(program) if v is not None and type(v) is not int
    ]
    if odd:
        raise ExportFailed(
            f"{subject.title} returns a value that a package cannot",
            found=", ".join(f"{v!r}, a {type(v).__name__}" for v in odd),
            fix="return tensors, whole numbers and None, and handle the rest outside of the model",
            location=_forward(subject),
        )


def _refusal(subject: Subject, failures: list[Failure]) -> ExportFailed:
    if len(failures) == 1:
        return _refusal_of_one(subject, failures[0])
    bare = next((f for f in failures if f.kernel), None)
    kind = BareKernel if bare else ExportFailed
    chosen = bare or failures[0]
    return kind(
        f"{subject.title} cannot be exported, neither non-strict nor strict",
        found="\n         ".join(map(str, failures)),
        fix=_DECORATE if bare else chosen.fix,
        location=chosen.location or failures[-1].location or _forward(subject),
    )


def _forward(subject: Subject) -> str:
    """Where the model is called, for an error that names no line."""
    code = getattr(subject.module.forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _refusal_of_one(subject: Subject, failure: Failure) -> ExportFailed:
    if failure.kernel:
        return BareKernel(
            f"{subject.title} cannot be exported {failure.way}: {failure.what}",
            found=failure.line,
            fix=failure.fix,
            location=failure.location,
        )
    line = f"{failure.line}\n         " if failure.line else ""
    return ExportFailed(
        f"{subject.title} cannot be exported {failure.way}",
        found=f"{line}{failure.what}",
        fix=failure.fix,
        location=failure.location or _forward(subject),
    )
