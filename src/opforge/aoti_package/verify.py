"""Makes calls in eager and compares a package with them, in a fresh process, which may crash."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import _compat, environment
from ..comparison import MANY_STEPS, Tolerance, copy_of, difference, largest_error
from ..errors import BadRegistration, BuildFailed, OpforgeError, WrongResult, first_line
from ..libstdcxx import to_preload
from .export import DynamicDim, Exportable, indented
from .package_record import PackagedOp

SCRIPT = Path(__file__).with_name("fresh.py")


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
    for number, args in enumerate(also):
        leaves = _compat.aoti.flatten((args, dict(exportable.kwargs)))
        wanted.append((f"also[{number}]", leaves))
    if state:
        wanted.append((f"{wanted[0][0]}, again", exportable.leaves))
    with restored(state.values()):
        return [_run(exportable, label, leaves) for label, leaves in wanted]


def _run(exportable: Exportable, label: str, leaves: list[Any]) -> EagerCall:
    own = [copy_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
    try:
        args, kwargs = _compat.aoti.refill((exportable.args, dict(exportable.kwargs)), own)
        with torch.no_grad():
            values = _compat.aoti.flatten(exportable.module(*args, **kwargs))
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
    tolerance: Tolerance = None,
    training: bool = False,
) -> Verification:
    """Load the package, make every call, and raise if a result differs from eager's."""
    result = in_fresh_process(package, calls, needed, package.parent)
    errors, wrong = [], []
    for call, own in zip(calls, result["results"], strict=True):
        texts = (
            difference(own["outputs"], call.outputs, "output", tolerance, MANY_STEPS),
            difference(own["after"], call.after, "input after the call", tolerance, MANY_STEPS),
        )
        text = next(filter(None, texts), "")
        wrong += [f"{call.label}: {text}"] if text else []
        if not wrong:
            found, expected = own["outputs"] + own["after"], call.outputs + call.after
            errors.append((call.label, largest_error(found, expected)))
    if wrong:
        fix = "to accept the difference, pass rtol=... and atol=..."
        if training:
            fix = f"if the model has dropout, which is random, call model.eval() first; {fix}"
        raise WrongResult(
            f"{package.name} disagrees with eager, so it was not kept",
            found=indented(wrong),
            fix=fix,
        )
    return Verification(
        load_seconds=result["load_seconds"],
        calls=tuple(errors),
        without_opforge=not result["opforge"],
        preload=result["preload"],
    )


def in_fresh_process(
    package: Path,
    calls: Sequence[EagerCall],
    needed: Sequence[PackagedOp],
    folder: Path,
    *,
    trace: Path | None = None,
    repeat: int = 10,
) -> dict[str, Any]:
    """Load and call the package in a fresh process, with its files in `folder`."""
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
    torch.save([call.inputs for call in calls], folder / "calls.pt")
    spec: dict[str, Any] = {
        "sys_path": sys.path,
        "loader": _compat.aoti.LOADER,
        "package": str(package.absolute()),
        "calls": str(folder / "calls.pt"),
        "results": str(folder / "results.pt"),
        "modules": [{"module": m, "file": f} for m, f in modules],
        "libraries": sorted(map(str, torch.ops.loaded_libraries)) if foreign else (),
        "trace": str(trace.absolute()) if trace else "",
        "repeat": repeat,
    }
    result = run_fresh(spec, folder)
    if "error" not in result:
        return {**result, "results": torch.load(spec["results"], weights_only=True)}
    if result["stage"] == "import" or "Could not find schema" in result["error"]:
        names = ", ".join(f"{op.name} ({op.location or 'not defined in Python'})" for op in needed)
        raise BadRegistration(
            f"a fresh process cannot import the ops that the package calls: {names or 'unknown'}",
            found=indented(result["traceback"].strip().splitlines()),
            fix="define them in a module that can be imported on its own, without arguments or "
            "this process's state, and not under `if __name__ == ...`",
        )
    raise BuildFailed(
        f"the package fails in a fresh process, at stage {result['stage']}",
        found=indented(result["error"].strip().splitlines()),
        fix="if a size is refused, narrow the range in dynamic",
    )


def run_fresh(spec: Mapping[str, Any], folder: Path, script: Path = SCRIPT) -> dict[str, Any]:
    """Run the script on a spec, with the system's libstdc++ where packages bring another."""
    file, result, preload = folder / "spec.json", folder / "result.json", to_preload()
    file.write_text(json.dumps({**spec, "result": str(result)}))
    variables = dict(os.environ)
    if preload:
        variables["LD_PRELOAD"] = f"{preload}:{environment.LD_PRELOAD.get()}".rstrip(":")
    try:
        subprocess.run(  # noqa: S603  # this interpreter and opforge's own script
            [sys.executable, str(script), str(file)],
            capture_output=True,
            text=True,
            check=True,
            env=variables,
        )
    except subprocess.CalledProcessError as error:
        code = error.returncode
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        raise BuildFailed(
            f"the process that loads the package died ({ended})",
            found=indented(error.stderr.strip().splitlines()[-6:]) or "nothing on stderr",
            fix="import the modules of the operators in a Python of their own; if that works, "
            "`opforge doctor` says what is wrong with this machine's torch",
        ) from None
    return {**json.loads(result.read_text()), "preload": preload}


def refuse_while_verifying(what: str) -> None:
    """Raise in the script's own process, where a module that packages itself would never end."""
    if getattr(sys.modules["__main__"], "__file__", None) == str(SCRIPT):
        raise BuildFailed(
            f"{what} was called by a module that is only imported to verify a package",
            fix='put the call under `if __name__ == "__main__":`, '
            "so that an import defines the operators and does nothing else",
        )
