"""Makes calls in eager and compares a package with them, in a fresh process, which may crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat, environment
from ..errors import (
    BadRegistration,
    BuildFailed,
    NeedsGpu,
    OpforgeError,
    WrongArgument,
    WrongResult,
    first_line,
)
from ..libstdcxx import to_preload
from .export import DynamicDim, Exportable, indented
from .package_record import PackagedOp

SCRIPT = Path(__file__).with_name("fresh.py")

# How far a result may be off, relative to its own size plus its tensor's mean size. About twice the
# rounding error of adding a thousand products in another order; integers must be equal.
TOLERANCES = {
    "torch.float64": 1e-9,
    "torch.complex128": 1e-9,
    "torch.float32": 1e-4,
    "torch.complex64": 1e-4,
    "torch.float16": 4e-3,
    "torch.bfloat16": 2e-2,
    "torch.float8_e4m3fn": 0.13,
    "torch.float8_e4m3fnuz": 0.13,
    "torch.float8_e5m2": 0.26,
    "torch.float8_e5m2fnuz": 0.26,
}


@dataclass(frozen=True)
class EagerCall:
    """One call in eager: its inputs, its outputs, and the inputs after the call."""

    label: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    after: list[torch.Tensor]


@dataclass(frozen=True)
class Symbol:
    """A size that the exported program leaves open, with its traced value and its range."""

    symbol: Any
    label: str
    traced: int
    least: int
    most: int | None


def eager_calls(
    program: Any,
    exportable: Exportable,
    symbols: Sequence[Symbol],
    also: Sequence[Any],
    state: Mapping[str, torch.Tensor],
) -> list[EagerCall]:
    """The given call, other sizes, and further arguments; the given call again if state changes."""
    traced = ", ".join(f"{s.label}={s.traced}" for s in symbols)
    wanted = [(f"{traced} (traced)" if traced else "as given", exportable.leaves)]
    for sizes in other_sizes(symbols):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wanted.append((label, resized(program, exportable, symbols, sizes)))
    wanted += [(f"also[{i}]", _leaves_of(exportable, i, args)) for i, args in enumerate(also)]
    if state:
        wanted.append((f"{wanted[0][0]}, again", exportable.leaves))
    with restored(state.values()):
        return [_run(exportable, label, leaves) for label, leaves in wanted]


def _leaves_of(exportable: Exportable, index: int, args: Any) -> list[Any]:
    leaves = _compat.aoti.flatten((args, dict(exportable.kwargs)))
    if not isinstance(args, (tuple, list)) or len(leaves) != len(exportable.leaves):
        raise WrongArgument(
            f"also[{index}] is not a tuple of positional arguments as args is",
            found=f"{len(leaves)} values instead of {len(exportable.leaves)}",
        )
    return leaves


def _run(exportable: Exportable, label: str, leaves: list[Any]) -> EagerCall:
    own = [copy_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
    args, kwargs = _compat.aoti.refill((exportable.args, dict(exportable.kwargs)), own)
    try:
        with torch.no_grad():
            values = _compat.aoti.flatten(exportable.module(*args, **kwargs))
    except NeedsGpu as error:
        raise NeedsGpu(
            f"{exportable.title} was exported, but compiling and verifying it needs a GPU",
            found=error.what,
            fix="run this with CUDA tensors on a machine with the GPU that the package is for",
            op=error.op,
            location=error.location,
        ) from error
    except OpforgeError:
        raise
    except Exception as error:
        raise BuildFailed(
            f"{exportable.title} itself fails in eager for {label}",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="narrow the range in dynamic, or correct the model",
        ) from error
    # A package returns an integer, such as a size, as a tensor.
    outputs = tensors_of([torch.tensor(v) if type(v) is int else v for v in values])
    inputs = [copy_of(tensor) for tensor in tensors_of(leaves)]
    # Copied, because an output may be a buffer that the next call changes.
    return EagerCall(label, inputs, [copy_of(t) for t in outputs], tensors_of(own))


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [v.detach() for v in values if isinstance(v, torch.Tensor)]


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps."""
    plain = tensor.detach()
    if type(plain) is not torch.Tensor or plain.layout is not torch.strided or not plain.numel():
        return plain.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
    memory = plain.as_strided((extent,), (1,), plain.storage_offset()).clone()
    return memory.as_strided(plain.shape, plain.stride())


def mutated_state(program: Any, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers and parameters that a call may change."""
    state = dict(module.named_buffers(remove_duplicate=False))
    state.update(module.named_parameters(remove_duplicate=False))
    return {name: state[name] for name in _compat.aoti.written_state(program)}


@contextlib.contextmanager
def restored(state: Iterable[torch.Tensor]) -> Iterator[None]:
    """Undo what the block changes in the user's model."""
    saved = [(t, t.detach().clone()) for t in state]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in saved:
                tensor.copy_(before)


def open_sizes(
    program: Any, exportable: Exportable, dims: tuple[DynamicDim, ...]
) -> tuple[Symbol, ...]:
    """The symbols in the shapes of the program's inputs."""
    named = {(d.path, d.index): d for d in dims}
    symbols: dict[Any, Symbol] = {}
    for path, fake in _fakes(program, exportable).items():
        for index, size in enumerate(fake.shape):
            expression = size.node.expr if isinstance(size, torch.SymInt) else None
            # A derived size such as 2*batch follows from the one that is a symbol by itself.
            if getattr(expression, "is_Symbol", False) and expression not in symbols:
                dim = named.get((path, index), DynamicDim(path, index, f"{path}[{index}]", None))
                bounds = program.range_constraints[expression]
                # torch writes "no bound" as infinity, or as the largest int.
                most = int(bounds.upper) if bounds.upper < 2**62 else None
                symbols[expression] = Symbol(
                    expression,
                    dim.label,
                    exportable.by_path[path].shape[index],
                    max(int(bounds.lower), dim.least),
                    most,
                )
    return tuple(symbols.values())


def other_sizes(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """The smallest of each range, then larger sizes; none that are all as traced."""
    smallest = {s.label: s.least for s in symbols}
    # Each a little larger than the last, so that a mix-up of two dimensions shows.
    wished = [(s, 2 * s.traced + 1 + 2 * i) for i, s in enumerate(symbols)]
    larger = {s.label: min(size, s.most or size) for s, size in wished}
    traced = {s.label: s.traced for s in symbols}
    return [sizes for sizes in (smallest, larger) if sizes != traced]


def resized(
    program: Any, exportable: Exportable, symbols: Sequence[Symbol], sizes: Mapping[str, int]
) -> list[Any]:
    """The leaves at these sizes; their values are drawn from the given leaves."""
    values = {s.symbol: sizes[s.label] for s in symbols}
    generator = torch.Generator().manual_seed(0)

    def number(size: Any) -> int:
        return int(size.node.expr.subs(values) if isinstance(size, torch.SymInt) else size)

    leaves = exportable.by_path
    for path, fake in _fakes(program, exportable).items():
        shape, strides = list(map(number, fake.shape)), list(map(number, fake.stride()))
        leaves[path] = _strided(_drawn(leaves[path].detach(), shape, generator), strides)
    return list(leaves.values())


def _fakes(program: Any, exportable: Exportable) -> dict[str, Any]:
    """By path, the traced fake of each tensor argument."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = zip(exportable.by_path.items(), program.graph_signature.user_inputs, strict=True)
    return {
        path: nodes[name].meta["val"]
        for (path, leaf), name in inputs
        if isinstance(leaf, torch.Tensor)
    }


def _drawn(values: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    if not values.numel():
        return values.new_zeros(shape)
    if values.dtype.is_floating_point or values.dtype.is_complex:
        index = torch.randint(values.numel(), shape, generator=generator)
        return values.reshape(-1)[index.to(values.device)]
    # Integers are often indices or offsets: kept in order, and repeated to fill the size.
    repeats = [math.ceil(size / n) for size, n in zip(shape, values.shape, strict=True)]
    return values.repeat(repeats)[tuple(map(slice, shape))]


def _strided(values: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The values at these strides; along a stride of 0, from expand, all elements are one."""
    first = [1 if d == 0 and n else n for n, d in zip(values.shape, strides, strict=True)]
    memory = torch.empty_strided(first, strides, dtype=values.dtype, device=values.device)
    return memory.copy_(values[tuple(map(slice, first))]).expand(values.shape)


@dataclass(frozen=True)
class Verification:
    """What the fresh process found: the largest error of each call, by its label.

    `preload` is the library that it needed in LD_PRELOAD, if any.
    """

    load_seconds: float
    calls: tuple[tuple[str, float], ...]
    without_opforge: bool
    preload: str

    @property
    def notes(self) -> tuple[str, ...]:
        note = (
            f"g++ links libstdc++ statically on this machine, so every process that loads this "
            f"package needs LD_PRELOAD={self.preload}"
        )
        return (note,) if self.preload else ()


def verify(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    training: bool = False,
) -> Verification:
    """Load the package, make every call, and raise if a result differs from eager's.

    Where neither `rtol` nor `atol` is given, the tolerance follows from the dtype.
    """
    result = in_fresh_process(package, calls, needed, package.parent, rtol=rtol, atol=atol)
    compared = result["calls"]
    if any(c["wrong"] for c in compared):
        fix = "to accept the difference, pass rtol=... and atol=..."
        if training:
            fix = f"if the model has dropout, which is random, call model.eval() first; {fix}"
        raise WrongResult(
            f"{package.name} disagrees with eager, so it was not kept",
            found=indented(f"{c['label']}: {c['wrong'] or 'agrees'}" for c in compared),
            fix=fix,
        )
    return Verification(
        load_seconds=result["load_seconds"],
        calls=tuple((c["label"], c["error"]) for c in compared),
        without_opforge=not result["opforge"],
        preload=result["preload"],
    )


def in_fresh_process(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    folder: Path,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    trace: Path | None = None,
    repeat: int = 10,
) -> dict[str, Any]:
    """Load and call the package in a fresh process, with its input files in `folder`."""
    for op in needed:
        if op.local:
            raise BadRegistration(
                f"the package calls {op.name}, which no other process can import: it is defined "
                "inside a function",
                found=op.why,
                fix="define the op at the top level of a module",
                location=op.location,
            )
    modules = {(op.module, op.file): None for op in needed if op.module}
    # An op that is not defined in Python came with a library, but nothing says with which one.
    foreign = any(not op.module for op in needed)
    saved = folder / "calls.pt"
    torch.save([vars(call) for call in calls], saved)
    spec: dict[str, Any] = {
        "sys_path": sys.path,
        "loader": _compat.aoti.LOADER,
        "package": str(package.absolute()),
        "calls": str(saved),
        "modules": [{"module": m, "file": f} for m, f in modules],
        "libraries": sorted(map(str, torch.ops.loaded_libraries)) if foreign else (),
        "tolerances": TOLERANCES,
        "rtol": rtol,
        "atol": atol,
        "trace": str(trace.absolute()) if trace else "",
        "repeat": repeat,
    }
    result = run_fresh(spec, folder)
    if "error" not in result:
        return result
    if result["stage"] == "import" or "Could not find schema" in result["error"]:
        names = ", ".join(f"{op.name} ({op.location or 'not defined in Python'})" for op in needed)
        raise BadRegistration(
            f"a fresh process cannot import the ops that the package calls: {names or 'unknown'}",
            found=indented(result["traceback"].strip().splitlines()),
            fix="define them in a module that can be imported on its own, without arguments or "
            "this process's state, and not under `if __name__ == ...`",
        )
    doing = {"load": "loaded", "run": "called", "trace": "traced"}[result["stage"]]
    raise BuildFailed(
        f"the package cannot be {doing} in a fresh process",
        found=indented(result["error"].strip().splitlines()),
        fix="if a size is refused, narrow the range in dynamic" if doing == "called" else None,
    )


def run_fresh(spec: Mapping[str, Any], folder: Path, script: Path = SCRIPT) -> dict[str, Any]:
    """Run the script on a spec, with the system's libstdc++ where packages bring another."""
    file, result, preload = folder / "spec.json", folder / "result.json", to_preload()
    file.write_text(json.dumps({**spec, "result": str(result)}))
    command, variables = [sys.executable, str(script), str(file)], dict(os.environ)
    if preload:
        variables["LD_PRELOAD"] = f"{preload}:{environment.LD_PRELOAD.get()}".rstrip(":")
    process = subprocess.run(  # noqa: S603  # this interpreter and opforge's own script
        command, capture_output=True, text=True, check=False, env=variables
    )
    if process.returncode:
        status = process.returncode
        ended = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"exited with status {status}"
        )
        before = f"LD_PRELOAD={preload} " if preload else ""
        raise BuildFailed(
            f"the process that loads the package {ended}",
            found=indented(process.stderr.strip().splitlines()[-6:]) or "nothing on stderr",
            fix=f"to reproduce it: {before}{shlex.join(command)}",
        )
    return {**json.loads(result.read_text()), "preload": preload}


def refuse_while_verifying(what: str) -> None:
    """Raise in the script's own process, where a module that packages itself would never end."""
    if getattr(sys.modules["__main__"], "__file__", None) == str(SCRIPT):
        raise BuildFailed(
            f"{what} was called by a module that is only imported to verify a package",
            fix='put the call under `if __name__ == "__main__":`, '
            "so that an import defines the operators and does nothing else",
        )


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A temporary folder; kept where the error names a command that needs it."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="opforge-package-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            yield folder
        except BuildFailed as error:
            if str(folder) in str(error):
                stack.pop_all()
            raise
