"""Rows that export the op: both ways, saved and loaded, and as an AOTInductor package."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import torch

from ... import _compat
from ...aoti_package.package_record import needed_at_run_time, ops_of
from ...aoti_package.verify import EagerCall, tensors_of, verify
from ...comparison import tensors_in
from ...doctor import examine
from ...errors import BadRegistration, WrongResult
from ...notebook import size
from ..report import Row, failed, passed, reason_of, skipped
from ..subject import Batches, CallResult, OpCall, Subject
from .graph import ON_FAKES

_checking = _compat.checking


class _Module(torch.nn.Module):
    """The op as a module whose inputs are the arguments with tensors in them; others are fixed.

    torch.export takes no dtypes or devices as inputs, and no dynamic shapes for `**kwargs`.
    """

    def __init__(self, handle: Any, call: OpCall) -> None:
        super().__init__()
        self.handle = handle
        self.args = [None if _moves(v) else (v,) for v in call.args]
        self.kwargs = {n: None if _moves(v) else (v,) for n, v in call.kwargs.items()}

    def forward(self, *inputs: Any) -> Any:
        rest = list(inputs)
        args = [rest.pop(0) if fixed is None else fixed[0] for fixed in self.args]
        kwargs = {n: rest.pop(0) if f is None else f[0] for n, f in self.kwargs.items()}
        return self.handle(*args, **kwargs)


def _moves(value: Any) -> bool:
    return bool(tensors_in(value, ""))


def _inputs(call: OpCall) -> tuple[Any, ...]:
    return tuple(v for v in (*call.args, *call.kwargs.values()) if _moves(v))


def export(subject: Subject, *, strict: bool = False) -> Row:
    """Export with a dynamic batch, run at a second size."""
    program = exported(subject, strict=strict)
    text = _not_kept(subject, program)
    if text:
        return failed(text, _KEPT)
    batches = subject.batches
    said, note = "with fixed sizes", f"no dynamic batch: {batches}"
    if isinstance(batches, Batches):
        said, note = f"dynamic batch, {batches.sizes[0]} and {batches.sizes[1]}", ""
    if subject.needs_gpu:
        return passed(f"{said}, {ON_FAKES}", note)
    text = _runs_differ(subject, program.module())
    return failed(text, "see row fake: export relies on the fake") if text else passed(said, note)


export_strict = functools.partial(export, strict=True)
_KEPT = "return a tensor: of an op that returns only numbers, export keeps just the numbers"


def save_and_load(subject: Subject) -> Row:
    """Whether the exported program survives a file."""
    try:
        program = exported(subject, strict=False)
    except Exception:  # noqa: BLE001  # row export says it
        return skipped("there is no exported program (row export)")
    file = io.BytesIO()
    with _checking.without_example_inputs(program):
        torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    weight = size(len(file.getvalue()))
    text = _not_kept(subject, loaded)
    if not text and not subject.needs_gpu:
        text = _runs_differ(subject, loaded.module())
    return failed(f"loaded again: {text}") if text else passed(weight)


def package(subject: Subject) -> Row:
    """Whether AOTInductor makes a package of the exported program that runs."""
    compiler = next(finding for finding in examine() if finding.name == "torch.compile")
    if compiler.status != "ok":
        return skipped(compiler.detail, compiler.fix)
    try:
        program = exported(subject, strict=False)
    except Exception:  # noqa: BLE001  # row export says it
        return skipped("there is no exported program (row export)")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "op.pt2"
        _compat.aoti.compile_package(program, built, {})
        weight = size(built.stat().st_size)
        # In a process of its own: where g++ links libstdc++ statically, loading a package dies.
        needed = needed_at_run_time(ops_of(program, built))
        try:
            verification = verify(built, _cases(subject), needed)
        except BadRegistration as error:
            return skipped(*reason_of(error))
        except WrongResult as error:
            return failed(f"packaged: {error.what}", error.fix or "")
    return passed(weight, *verification.notes)


def _cases(subject: Subject) -> list[EagerCall]:
    """Calls in eager, tensors only, for the process that runs the package."""
    made = []
    for index, call in enumerate(subject.calls):
        own, given = call.cloned(), call.cloned()
        with torch.no_grad():
            out = _Module(subject.entry.handle, own)(*_inputs(own))
        flat = [tensors_of(_compat.aoti.flatten(v)) for v in (_inputs(given), out, _inputs(own))]
        made.append(EagerCall(f"call {index}", *flat))
    return made


def exported(subject: Subject, *, strict: bool) -> Any:
    """The exported program, with a dynamic batch where there is one; made once."""
    key = "export strict" if strict else "export"
    if key not in subject.cached:
        subject.cached[key] = _export(subject, strict=strict)
    return subject.cached[key]


def _export(subject: Subject, *, strict: bool) -> Any:
    batches, call = subject.batches, subject.calls[0]
    varying = batches.paths if isinstance(batches, Batches) else frozenset()
    with subject.targeting() if subject.needs_gpu else contextlib.nullcontext():
        call = subject.fakes(call)[1] if subject.needs_gpu else call.cloned()
        shapes: Any = torch.export.ShapesCollection()
        for path, tensor in call.tensors():
            if path in varying:
                shapes[tensor] = {0: torch.export.Dim.DYNAMIC}
        module = _Module(subject.entry.handle, call)
        return torch.export.export(module, _inputs(call), dynamic_shapes=shapes, strict=strict)


def _not_kept(subject: Subject, program: Any) -> str:
    if not subject.registered:
        return ""
    kept = any(node.target is subject.entry.overload for node in program.graph.nodes)
    return "" if kept else "the op is not in the exported graph"


def _runs_differ(subject: Subject, runner: Any) -> str:
    for call in subject.calls:
        own = call.cloned()
        with torch.no_grad():
            found = CallResult(runner(*_inputs(own)), own)
        text = subject.mismatch(found, subject.expected(call))
        if text:
            return text
    return ""
