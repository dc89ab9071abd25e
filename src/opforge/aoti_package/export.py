"""Exports a model or an op, non-strict, strict or both in turn, and says why that fails."""

from __future__ import annotations

import contextlib
import inspect
import re
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import BadOption, BadSignature, OpforgeError, UnsupportedBody, WrongArgument, warn
from ..registry import registry

_Parameter = inspect.Parameter
Dynamic = Mapping[str, Mapping[int, Any]]


class OpModule(torch.nn.Module):
    """Calls one op; torch.export accepts only modules."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)


@dataclass(frozen=True)
class Exportable:
    """A module and the arguments to trace it with; `paths` names their leaves, in flat order."""

    title: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    paths: tuple[str, ...]

    @property
    def leaves(self) -> list[Any]:
        return _compat.aoti.flatten((self.args, dict(self.kwargs)))

    @property
    def by_path(self) -> dict[str, Any]:
        return dict(zip(self.paths, self.leaves, strict=True))


def read_exportable(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Exportable:
    """The module, its arguments, and their names."""
    if not isinstance(args, (tuple, list)):
        raise WrongArgument(
            "args must be a tuple of the positional arguments",
            found=type(args).__name__,
            fix="args=(x,)",
        )
    args, keywords = tuple(args), dict(kwargs or {})
    is_module = isinstance(model, torch.nn.Module)
    if is_module:
        title, signature = type(model).__name__, inspect.signature(model.forward)
    else:
        title, signature = _op_signature(model)
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        raise WrongArgument(
            f"{title} cannot be called with these arguments: {error}",
            found=f"{len(args)} positional, keywords {sorted(keywords) or 'none'}",
            fix=f"it takes {signature}",
        ) from None
    if not is_module:
        # By position, so that passing an argument by keyword makes the same package.
        model, args, keywords = OpModule(model), bound.args, bound.kwargs
    names = signature.bind_partial(*args).arguments
    paths = tuple(".".join(path) for path in _compat.aoti.paths({**names, **keywords}))
    return Exportable(title, model, args, keywords, paths)


def is_operator(value: Any) -> bool:
    return registry.find(value) is not None or _compat.aoti.overload_behind(value) is not None


def _op_signature(op: Any) -> tuple[str, inspect.Signature]:
    entry = registry.find(op) if not isinstance(op, str) else None
    if entry is not None:
        return entry.name, entry.signature
    overload = _compat.aoti.overload_behind(op)
    if overload is None:
        raise BadSignature(
            f"{getattr(op, '__qualname__', 'this value')} is neither a module nor an operator",
            found=f"a {'class' if isinstance(op, type) else type(op).__name__}",
            fix="give a torch.nn.Module, an op made by @opforge.op, or torch.ops.ns.op.default",
        )
    parameters = []
    for a in _compat.aoti.schema_arguments(overload):
        kind = _Parameter.KEYWORD_ONLY if a.kwarg_only else _Parameter.POSITIONAL_OR_KEYWORD
        default = a.default_value if a.has_default_value() else _Parameter.empty
        parameters.append(_Parameter(a.name, kind, default=default))
    return _compat.qualified_name(overload), inspect.Signature(parameters)


@dataclass(frozen=True)
class DynamicDim:
    """A dimension of one argument that may vary, and its label.

    `least` is the smallest size to verify: 0 only if the user wrote it.
    """

    path: str
    index: int
    label: str
    dim: Any
    least: int = 1


def read_dynamic(dynamic: Dynamic | None, exportable: Exportable) -> tuple[DynamicDim, ...]:
    """Every dynamic dimension; dimensions with the same name share one `torch.export.Dim`."""
    ranges: dict[str, tuple[Any, ...]] = {}
    dims: list[tuple[str, int, Any]] = []
    for path, by_index in (dynamic or {}).items():
        tensor = exportable.by_path.get(path)
        for index, value in by_index.items():
            if not isinstance(tensor, torch.Tensor) or not -tensor.dim() <= index < tensor.dim():
                shape = ""
                if isinstance(tensor, torch.Tensor):
                    shape = f", of shape {tuple(tensor.shape)}"
                raise BadOption(
                    f"dynamic names dimension {index!r} of {path!r}, which is not a tensor "
                    f"argument of {exportable.title} that has it{shape}",
                    found=f"the arguments {', '.join(exportable.paths) or '(none)'}",
                    fix="name an argument and a dimension of it",
                )
            if isinstance(value, (str, tuple)):
                name, *bounds = (value,) if isinstance(value, str) else value
                _add_range(name, tuple(bounds), path, ranges)
                dims.append((path, index % tensor.dim(), name))
            else:
                # A torch.export.Dim, which torch judges.
                dims.append((path, index % tensor.dim(), value))
    named = {name: torch.export.Dim(name, min=r[0], max=r[1]) for name, r in ranges.items()}
    return tuple(
        DynamicDim(path, index, value, named[value], least=1 if ranges[value][0] != 0 else 0)
        if isinstance(value, str)
        # Hints such as Dim.AUTO have no name.
        else DynamicDim(path, index, getattr(value, "__name__", f"{path}[{index}]"), value)
        for path, index, value in dims
    )


def _add_range(name: str, bounds: tuple[Any, ...], path: str, ranges: dict[str, Any]) -> None:
    if not name.isidentifier() or len(bounds) not in {0, 2}:
        raise BadOption(
            f"{(name, *bounds)} does not name a dimension",
            parameter=path,
            fix='"batch", ("batch", 1, 1024), or a torch.export.Dim',
        )
    if bounds and ranges.get(name, (None, None)) not in {(None, None), bounds}:
        raise BadOption(f"{name} has two ranges", parameter=path, fix="give it one range")
    ranges[name] = bounds or ranges.get(name, (None, None))


@dataclass(frozen=True)
class Exported:
    """An exported program, how it was exported, and why other ways failed."""

    program: Any
    strict: bool
    seconds: float
    failures: tuple[str, ...] = ()


def export(
    exportable: Exportable, dims: tuple[DynamicDim, ...], *, strict: bool | None
) -> Exported:
    """Non-strict, then strict; `strict` chooses one of them."""
    failures: list[str] = []
    errors: list[Exception] = []
    for way in (False, True) if strict is None else (strict,):
        started = time.perf_counter()
        try:
            program = _export(exportable, dims, strict=way)
        except Exception as error:  # noqa: BLE001  # torch may raise anything; all of it is reported
            errors.append(error)
            failures.append(f"{'strict' if way else 'non-strict'} export failed{_reason(error)}")
        else:
            _refuse_constants(exportable, program)
            return Exported(program, way, time.perf_counter() - started, tuple(failures))
    text = "".join(failures).lower()
    raise UnsupportedBody(
        f"{exportable.title} cannot be exported",
        found=indented(failures),
        fix=getattr(errors[0], "fix", None)
        or next((fix for sign, fix in _FIXES.items() if sign in text), _IN_AN_OP),
        location=next(filter(None, map(_user_location, errors)), None) or _forward(exportable),
    ) from errors[-1]


def _export(exportable: Exportable, dims: tuple[DynamicDim, ...], *, strict: bool) -> Any:
    # torch looks tensors up by identity.
    shapes: Any = torch.export.ShapesCollection()
    for path in dict.fromkeys(dim.path for dim in dims):
        shapes[exportable.by_path[path]] = {d.index: d.dim for d in dims if d.path == path}
    # Strict export reads launches from the bytecode and never runs them.
    guarded = contextlib.nullcontext() if strict else _compat.launches.routed_to(_Refusal())
    with torch.no_grad(), _compat.aoti.quiet(), guarded:
        return torch.export.export(
            exportable.module,
            exportable.args,
            dict(exportable.kwargs),
            dynamic_shapes=shapes if dims else None,
            strict=strict,
        )


class _Refusal:
    """Routes launches outside ops; ops install their own router while their bodies run.

    A fake tensor's pointer is 0. A Triton launch with it is an illegal memory access on a GPU,
    after which the process can no longer use the GPU.
    """

    leaves_wrapped = True

    def launch(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kwargs.get("warmup"):
            return run(*args, **kwargs)
        raise _bare_launch(_compat.kernels.kernel_name(kernel), _named(kernel))

    def compiled(self, kernel: Any) -> None:
        name = _compat.launches.compiled_name(kernel)
        raise _bare_launch(name, name)

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


def _bare_launch(name: str, named: str) -> UnsupportedBody:
    return UnsupportedBody(
        f"the model launches the Triton kernel {named} itself, on tensors that have no memory "
        "while it is exported",
        fix=f"move the launch of {name} into a function decorated with @opforge.op, or export with "
        "strict=True on a machine with a GPU, which accepts bare launches",
    )


def _refuse_constants(exportable: Exportable, program: Any) -> None:
    """Packages return tensors, sizes and None; AOTInductor refuses others late and obscurely."""
    constants = _compat.aoti.constant_outputs(program)
    odd = [v for v in constants if v is not None and type(v) is not int]
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
_IN_AN_OP = (
    "does the model run in eager with these arguments? If it does, make this line run on fake "
    "tensors, or move it into an @opforge.op"
)
# What torch's message contains, and the fix for it where torch's own does not suit a package.
_FIXES = {
    "data-dependent": "the value is known only at run time: write the branch with torch.where or "
    "torch.cond, or tell torch.export what holds with torch._check",
    "constraints violated": "the code works only for this size: compute shapes from x.shape "
    "instead of writing numbers, trace with a size of at least 2, or leave the dimension out of "
    "dynamic",
    "pytree": "pass and return tensors, numbers, tuples, lists or dicts, or register the class "
    "with torch.export.register_dataclass",
}


def _reason(error: Exception) -> str:
    """Where and why, in the first lines of its message."""
    place = _user_location(error)
    text = str(error) if isinstance(error, OpforgeError) else f"{type(error).__name__}: {error}"
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("  fix")]
    return f"{f' at {place}' if place else ''}: {indented(lines[:_MOST_LINES])}"


def indented(lines: Iterable[str]) -> str:
    """Lines aligned below each other in an error's `found`."""
    return "\n         ".join(lines)


# In a traceback, and in what torch quotes of the frames that Dynamo interprets.
_SOURCE = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = Path(torch.__file__).parent
_PLACES = ("<", *(f"{p}/" for p in (_TORCH, _TORCH.parent / "triton", Path(__file__).parents[1])))
_STDLIB = f"{sysconfig.get_path('stdlib')}/"


def _user_location(error: Exception) -> str | None:
    """`file:line` of the innermost frame that is neither torch's, Triton's nor opforge's."""
    frames = _SOURCE.findall("".join(traceback.format_exception(error)))
    others = [f"{file}:{line}" for file, line in frames if not file.startswith(_PLACES)]
    third_party = [place for place in others if "-packages/" in place]
    own = [p for p in others if p not in third_party and not p.startswith(_STDLIB)]
    # Frames of third-party libraries count only if there are no others.
    return next(reversed(own or third_party), None)
