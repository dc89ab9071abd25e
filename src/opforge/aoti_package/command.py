"""What `opforge package` does around packaging: the model, --dynamic, and --cpp."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Any

import torch

from .. import _compat
from ..cli_targets import users_own
from ..errors import BadOption, BadSignature
from ..registry import registry
from .package_record import Package, PackagedInput, PackagedOp


def read_model(value: Any, target: str) -> Any:
    """A model or an op; a class or function without parameters is called to make the model."""
    is_op = registry.find(value) is not None or _compat.aoti.overload_behind(value) is not None
    if isinstance(value, torch.nn.Module) or is_op:
        return value
    with users_own(f"{target}()"):
        model = value() if callable(value) else None
    if isinstance(model, torch.nn.Module):
        return model
    raise BadSignature(
        f"{target} is neither a model nor an operator",
        found=f"a {type(value).__name__}",
        fix="name a torch.nn.Module, an op, or a class or function that makes a module when called",
    )


_DIMENSION = re.compile(r"(.+):(\d+)=([^:]+)(?::(\d+):(\d+))?")


def read_dynamic_texts(texts: tuple[str, ...]) -> dict[str, dict[int, Any]]:
    """`x:0=batch`, `x:0=batch:1:1024` -> `{"x": {0: ("batch", 1, 1024)}}`."""
    dynamic: dict[str, dict[int, Any]] = {}
    for text in texts:
        match = _DIMENSION.fullmatch(text)
        if match is None:
            raise BadOption(
                f"--dynamic {text} does not name a dimension",
                fix="x:0=batch, or with a range: x:0=batch:1:1024",
            )
        path, index, name, least, most = match.groups()
        dim = name if least is None else (name, int(least), int(most))
        dynamic.setdefault(path, {})[int(index)] = dim
    return dynamic


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


def render_cpp(package: Package) -> dict[str, str]:
    """The program's files, by name."""
    path = package.path.absolute()
    values: dict[str, Any] = {
        "package": path.name,
        "path": path.as_posix(),
        "target": re.sub(r"\W", "_", f"run_{path.stem}"),
        "needed": cpp_needs(package),
        "inputs": "\n".join(f"      {_tensor(value)}" for value in package.inputs),
    }
    return {
        name: Template((TEMPLATES / f"{name}.in").read_text()).substitute(values)
        for name in ("CMakeLists.txt", "main.cpp")
    }


def write_cpp(package: Package, directory: Any) -> tuple[Path, ...]:
    """Write the program; files that would not change are left alone."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / name: text for name, text in render_cpp(package).items()}
    for file, text in files.items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    return tuple(files)


def cpp_needs(package: Package) -> str:
    """The ops that the program must register before it loads the package."""
    if not package.needed:
        return "It needs only torch's own operators at run time."
    return " ".join(_need(op) for op in package.needed)


def _need(op: PackagedOp) -> str:
    if op.module:
        return (
            f"It needs {op.name} at run time, which {op.file} defines in Python: without Python, "
            "register it with TORCH_LIBRARY in C++."
        )
    return f"It needs {op.name} at run time: link or dlopen the library that defines it."


def _tensor(value: PackagedInput) -> str:
    maker = "randn" if value.dtype in _DRAWN else "zeros"
    sizes = ", ".join(map(str, value.shape))
    # "cuda:0" -> "cuda": whoever runs the program chooses the GPU.
    device = value.device.partition(":")[0]
    scalar = _SCALARS.get(value.dtype, value.dtype.capitalize())
    options = f"torch::dtype(torch::k{scalar}).device(torch::k{device.upper()})"
    return f"torch::{maker}({{{sizes}}}, {options}),  // {value.name}"
