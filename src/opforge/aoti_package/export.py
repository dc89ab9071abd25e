"""Exports a model or an op, non-strict, strict or both in turn, and says why that fails."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import linecache
import re
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    keywords = dict(kwargs or {})
    if isinstance(model, torch.nn.Module):
        title, signature = type(model).__name__, inspect.signature(model.forward)
        _bind(title, signature, args, keywords)
        module, args = model, tuple(args)
    else:
        title, signature = _op_signature(model)
        bound = _bind(title, signature, args, keywords)
        # By position, so that passing an argument by keyword makes the same package.
        module, args, keywords = OpModule(model), bound.args, bound.kwargs
    names = dict(zip(_positional_names(signature, len(args)), args, strict=True))
    paths = tuple(".".join(path) for path in _compat.aoti.paths({**names, **keywords}))
    return Exportable(title, module, args, keywords, paths)


def _op_signature(op: Any) -> tuple[str, inspect.Signature]:
    entry = registry.find(op) if not isinstance(op, str) else None
    if entry is not None:
        return entry.name, entry.signature
    overload = _compat.aoti.overload_behind(op)
    if overload is None:
        raise BadSignature(
            f"{getattr(op, '__qualname__', repr(op))} is neither a module nor an operator",
            found=f"a {'class' if isinstance(op, type) else type(op).__name__}",
            fix="give a torch.nn.Module, an op made by @opforge.op, or torch.ops.ns.op.default",
        )
    parameters = []
    for a in _compat.aoti.schema_arguments(overload):
        kind = _Parameter.KEYWORD_ONLY if a.kwarg_only else _Parameter.POSITIONAL_OR_KEYWORD
        default = a.default_value if a.has_default_value() else _Parameter.empty
        parameters.append(_Parameter(a.name, kind, default=default))
    return _compat.qualified_name(overload), inspect.Signature(parameters)


def _bind(
    title: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise WrongArgument(
            f"{title} cannot be called with these arguments: {error}",
            found=f"{len(args)} positional, keywords {sorted(kwargs) or 'none'}",
            fix=f"it takes {signature}",
        ) from None


def _positional_names(signature: inspect.Signature, count: int) -> list[str]:
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{i}" for i in range(count - len(names))]
        names.append(parameter.name)
    return names[:count]


@dataclass(frozen=True)
class DynamicDim:
    """A dimension of one argument that may vary, and its label.

    `least` is the smallest size that the user asked for, if any.
    """

    path: str
    index: int
    label: str
    dim: Any
    least: int | None = None


def read_dynamic(dynamic: Dynamic | None, exportable: Exportable) -> tuple[DynamicDim, ...]:
    """Every dynamic dimension; dimensions with the same name share one `torch.export.Dim`."""
    leaves = exportable.by_path
    ranges: dict[str, tuple[int | None, int | None]] = {}
    listed: list[tuple[str, int, Any]] = []
    for path, dims in (dynamic or {}).items():
        if not isinstance(leaves.get(path), torch.Tensor):
            raise _not_a_tensor(path, exportable)
        shape = leaves[path].shape
        for index, value in dims.items():
            if not -len(shape) <= index < len(shape):
                raise BadOption(
                    f"there is no dimension {index!r}",
                    parameter=path,
                    found=f"a tensor of shape {tuple(shape)}",
                )
            if not isinstance(value, (str, tuple)):
                # A torch.export.Dim, which torch judges.
                listed.append((path, index % len(shape), value))
                continue
            name, *bounds = (value,) if isinstance(value, str) else value
            _add_range(name, bounds, path, ranges)
            _refuse_constant(shape[index], name, path)
            listed.append((path, index % len(shape), name))
    named = {n: torch.export.Dim(n, min=low, max=high) for n, (low, high) in ranges.items()}
    return tuple(_dimension(*place, named, ranges) for place in listed)


def _dimension(
    path: str, index: int, value: Any, named: Mapping[str, Any], ranges: Mapping[str, Any]
) -> DynamicDim:
    if isinstance(value, str):
        return DynamicDim(path, index, value, named[value], ranges[value][0])
    # A Dim's default `min` is 0, which nobody asked for; hints such as Dim.AUTO have no name.
    label = getattr(value, "__name__", f"{path}[{index}]")
    return DynamicDim(path, index, label, value, getattr(value, "min", None) or None)


def _not_a_tensor(path: str, exportable: Exportable) -> BadOption:
    close = difflib.get_close_matches(path, exportable.paths)
    below = [name for name in exportable.paths if name.startswith(f"{path}.")]
    names = " or ".join(close or below)
    return BadOption(
        f"dynamic names {path!r}, which is not a tensor argument of {exportable.title}",
        found=f"the arguments {', '.join(exportable.paths) or '(none)'}",
        fix=f"did you mean {names}?" if names else "name one of its arguments",
    )


def _add_range(name: str, bounds: list[Any], path: str, ranges: dict[str, Any]) -> None:
    if not name.isidentifier() or len(bounds) not in {0, 2}:
        raise BadOption(
            f"{(name, *bounds)} does not name a dimension",
            parameter=path,
            fix='"batch", ("batch", 1, 1024), or a torch.export.Dim',
        )
    if bounds and ranges.get(name, (None, None)) not in {(None, None), tuple(bounds)}:
        raise BadOption(f"{name} has two ranges", parameter=path, fix="give it one range")
    ranges[name] = tuple(bounds) or ranges.get(name, (None, None))


def _refuse_constant(size: int, name: str, path: str) -> None:
    if size < 2:
        raise BadOption(
            f"{name} has size {size}, which torch.export makes a constant",
            parameter=path,
            fix="trace with a size of 2 or more; the package will still accept 1",
        )


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
