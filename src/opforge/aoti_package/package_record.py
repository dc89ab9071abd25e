"""The record of a package: what is in it, how it was verified, and a C++ program that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any

from .. import _compat
from ..errors import BuildFailed
from ..libstdcxx import preloaded
from ..notebook import counted, html_table
from ..registry import registry


@dataclass(frozen=True)
class PackagedOp:
    """An operator that torch itself does not define.

    `module` and `file` say what to import before a package can call it; they are empty for an op
    that is not defined in Python. `local` is set for an op defined inside a function.
    """

    name: str
    seen_through: bool
    why: str
    location: str = ""
    module: str = ""
    file: str = ""
    local: bool = False

    def __str__(self) -> str:
        where = f" ({self.location})" if self.location else ""
        how = "seen through" if self.seen_through else "opaque"
        # `explain` gives the reason as a whole sentence, whose start would repeat `how`.
        why = self.why.removeprefix("opaque to the compiler, because ")
        return f"{self.name}{where}, {how}: {why.removeprefix('the compiler sees through it: ')}"


@dataclass(frozen=True)
class PackagedKernel:
    """A Triton kernel compiled into a package, and the op that launches it, if any."""

    name: str
    location: str
    op: str = ""


@dataclass(frozen=True)
class PackagedInput:
    """A tensor input of a package, as it was when the model was traced."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str


@dataclass(frozen=True)
class ReportRow:
    """One row of the report: a value for programs, and its text for people."""

    name: str
    value: float | str
    text: str


@dataclass(frozen=True)
class Package:
    """An AOTInductor package that agrees with eager.

    `strict` says how it was exported, and `reasons` what failed or was missing on the way.
    """

    path: Path
    title: str
    strict: bool
    reasons: tuple[str, ...]
    report: tuple[ReportRow, ...]
    ops: tuple[PackagedOp, ...]
    kernels: tuple[PackagedKernel, ...]
    inputs: tuple[PackagedInput, ...]
    # A library that a process on this machine must preload to load the package; usually none.
    preload: str = ""
    profiler: Callable[[Package, Path, int], tuple[Path, Path]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def needed(self) -> tuple[PackagedOp, ...]:
        """Ops that a process must have before it can load the package."""
        return needed_at_run_time(self.ops)

    def load(self) -> Any:
        """Load the package into this process; call the result like the model."""
        if self.preload and not preloaded():
            raise BuildFailed(
                f"loading {self.path} would crash this process, as it did the one that verified it",
                found="g++ links libstdc++ statically on this machine",
                fix=f"start Python with LD_PRELOAD={self.preload}",
            )
        return _compat.aoti.load_package(self.path)

    def profile(self, directory: Any, *, repeat: int = 10) -> tuple[Path, Path]:
        """Write Chrome traces of `torch.compile(model)` and the package, and return both files."""
        assert self.profiler is not None
        return self.profiler(self, Path(directory), repeat)

    def to_json(self) -> str:
        """Everything that `str` shows, as JSON."""
        content = asdict(replace(self, profiler=None))
        del content["profiler"]
        content["needed_at_run_time"] = [op.name for op in self.needed]
        return json.dumps(content, indent=2, default=str)

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {text}".replace("\n", "\n    ") for name, text in rows]
        return "\n".join([f"{self.path}  ({self.title})", *lines])

    def __repr__(self) -> str:
        holds = f"{counted(len(self.ops), 'operator')}, {counted(len(self.kernels), 'kernel')}"
        return f"<Package {self.path} ({self.title}): {holds}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.path} ({self.title})", (), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(row.name, row.text) for row in self.report]
        rows += [("op", str(op)) for op in self.ops]
        for kernel in self.kernels:
            owner = f"of {kernel.op}" if kernel.op else "launched by the model itself"
            rows.append(("kernel", f"{kernel.name} ({kernel.location}), {owner}"))
        for op in self.needed:
            how = f"import {op.module} ({op.file})" if op.module else "load its library"
            rows.append(("needed", f"{op.name} at run time: {how}"))
        if not self.needed:
            rows.append(("needed", "nothing but torch at run time"))
        return rows + [("note", reason) for reason in self.reasons]


def needed_at_run_time(ops: tuple[PackagedOp, ...]) -> tuple[PackagedOp, ...]:
    return tuple(op for op in ops if not op.seen_through)


def ops_of(program: Any, package: Path) -> tuple[PackagedOp, ...]:
    """The operators of the exported program, and those that the package still calls."""
    called = _compat.aoti.operators_called_by(package)
    exported = [name for name, _ in _compat.aoti.operator_nodes(program)]
    return tuple(
        _describe(name, seen_through=name not in called)
        for name in dict.fromkeys([*exported, *called])
        if name.partition("::")[0] not in _compat.operators.BUILT_IN
    )


def _describe(name: str, *, seen_through: bool) -> PackagedOp:
    entry = registry.find(name)
    if entry is not None:
        fn, why = entry.fn, entry.describe().reason
    else:
        fn = _compat.operators.body_of(_compat.operators.definition(name))
        why = "defined with torch.library"
    if fn is None:
        return PackagedOp(name, seen_through, "defined by neither opforge nor torch.library")
    code = fn.__code__
    return PackagedOp(
        name,
        seen_through,
        why,
        location=f"{code.co_filename}:{code.co_firstlineno}",
        module=fn.__module__,
        file=code.co_filename,
        local="<locals>" in fn.__qualname__,
    )


def kernels_of(program: Any, package: Path) -> tuple[PackagedKernel, ...]:
    """Kernels of transparent ops, and those that the model launches itself.

    Only kernels named in the package's source: an op may launch none for the traced arguments.
    """
    source, names = _compat.aoti.source_of(package), _compat.kernels
    kernels: dict[PackagedKernel, None] = {}
    for name, node in _compat.aoti.operator_nodes(program):
        bare, entry = _compat.aoti.bare_kernel(node), registry.find(name)
        if bare is not None:
            kernels[PackagedKernel(names.kernel_name(bare), names.kernel_location(bare))] = None
        elif entry is not None and entry.describe().mode == "triton_op":
            refs = entry.describe().kernels
            kernels.update({PackagedKernel(k.name, k.location, name): None for k in refs})
    return tuple(kernel for kernel in kernels if not source or kernel.name in source)


TEMPLATES = Path(__file__).parent / "templates"

# Where `torch::k` is not followed by the dtype's own name.
_SCALARS = {
    "bfloat16": "BFloat16",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
}
# Other dtypes are zero, a valid index into any tensor that is not empty.
_DRAWN = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")


def write_cpp(package: Package, directory: Any) -> tuple[Path, ...]:
    """Write the program and return its files."""
    path, folder = package.path.absolute(), Path(directory)
    values: dict[str, Any] = {
        "package": path.name,
        "path": path.as_posix(),
        "target": re.sub(r"\W", "_", f"run_{path.stem}"),
        "needed": cpp_needs(package),
        "inputs": "\n".join(f"      {_tensor(value)}" for value in package.inputs),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "CMakeLists.txt", folder / "main.cpp"
    for file in files:
        template = Template((TEMPLATES / f"{file.name}.in").read_text())
        file.write_text(template.substitute(values))
    return files


def cpp_needs(package: Package) -> str:
    """The ops that the program must register before it loads the package."""
    needs = [
        f"It needs {op.name} at run time, which {op.file} defines in Python: without Python, "
        "register it with TORCH_LIBRARY in C++."
        if op.module
        else f"It needs {op.name} at run time: link or dlopen the library that defines it."
        for op in package.needed
    ]
    return " ".join(needs) or "It needs only torch's own operators at run time."


def _tensor(value: PackagedInput) -> str:
    maker = "randn" if value.dtype in _DRAWN else "zeros"
    sizes = ", ".join(map(str, value.shape))
    # "cuda:0" -> "cuda": whoever runs the program chooses the GPU.
    device = value.device.partition(":")[0]
    scalar = _SCALARS.get(value.dtype, value.dtype.capitalize())
    options = f"torch::dtype(torch::k{scalar}).device(torch::k{device.upper()})"
    return f"torch::{maker}({{{sizes}}}, {options}),  // {value.name}"
