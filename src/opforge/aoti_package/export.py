"""Exports non-strict, strict or both in turn, and keeps the reasons for failures."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from ..errors import UnsupportedBody
from .bare_launches import bare_launches_refused
from .dynamic import DynamicDim, shapes_collection
from .exportable import Exportable
from .failure import MOVE_LAUNCH, Failure, explain_failure, indented


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
        started = time.perf_counter()
        try:
            program = _export(exportable, dims, strict=way)
        except Exception as error:  # noqa: BLE001  # torch may raise anything; all of it is reported
            failures.append(explain_failure(error, strict=way))
        else:
            _refuse_constants(exportable, program)
            return Exported(program, way, time.perf_counter() - started, tuple(failures))
    raise _refusal(exportable, failures) from failures[-1].cause


def _export(exportable: Exportable, dims: tuple[DynamicDim, ...], *, strict: bool) -> Any:
    # Strict export reads launches from the bytecode and never runs them.
    guarded = contextlib.nullcontext() if strict else bare_launches_refused()
    with torch.no_grad(), warnings.catch_warnings(), guarded:
        # torch warns about its own deprecated calls, which the user cannot change.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.export.export(
            exportable.module,
            exportable.args,
            dict(exportable.kwargs),
            dynamic_shapes=shapes_collection(dims, exportable),
            strict=strict,
        )


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


def _refusal(exportable: Exportable, failures: list[Failure]) -> UnsupportedBody:
    bare = next((f for f in failures if f.kernel), None)
    chosen = bare or failures[0]
    what, fix = f"{exportable.title} cannot be exported {chosen.way}", chosen.fix
    found = indented(text for text in (chosen.line, chosen.what) if text)
    if len(failures) > 1:
        what = f"{exportable.title} cannot be exported, neither non-strict nor strict"
        found = indented(map(str, failures))
        fix = MOVE_LAUNCH if bare else fix
    elif bare:
        what, found = f"{what}: {bare.what}", bare.line
    return UnsupportedBody(
        what,
        found=found,
        fix=fix,
        location=chosen.location or failures[-1].location or _forward(exportable),
    )


def _forward(exportable: Exportable) -> str:
    """Where the model's forward is defined, for an error that names no line."""
    code = getattr(exportable.module.forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
