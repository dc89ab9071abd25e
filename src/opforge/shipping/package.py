"""The Python package of a wheel: functions with types and docstrings, from the operators.

def silu(x: Tensor, scale: float = 1.0) -> Tensor:
    return _op_silu(x, scale)
"""

from __future__ import annotations

import ast
import inspect
import keyword
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path

from ..native.codegen.templates import with_constants
from ..native.ir.interface import Flat, Op, SchemaArgument
from .built import BuiltLibrary
from .rules import copied_files, no_gradient

_TYPES = {
    "Tensor": "Tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool",
    "str": "str", "ScalarType": "dtype",
}  # fmt: skip
_HANDED_ON = ("get_cmake_dir", "get_include", "get_library")
# What the module and its stub import, and the types that they write.
_USED = frozenset({
    "Literal", "NamedTuple", "TYPE_CHECKING", "Tensor", "annotations", "bool", "dtype", "float",
    "int", "str", "tuple",
})  # fmt: skip
_HEAD = """
from __future__ import annotations

from typing import TYPE_CHECKING

from . import _library
from ._library import get_cmake_dir, get_include, get_library

if TYPE_CHECKING:
    from typing import Literal

    from torch import Tensor, dtype
"""
_STUB_HEAD = """
from typing import Literal

from torch import Tensor, dtype
"""


def package_files(library: BuiltLibrary, version: str) -> dict[str, bytes]:
    """The package's Python files, by name."""
    texts = {
        "__init__.py": _module(library, version),
        "__init__.pyi": _stub(library),
        "_library.py": _loader(library),
        "py.typed": "",
    }
    return {name: text.encode() for name, text in texts.items()} | copied_files()


def callable_ops(library: BuiltLibrary) -> list[Op]:
    """The operators that are functions of the package; torch.ops has them all."""
    # A module of the package would take the place of a function.
    modules = {file.removesuffix(".py") for file in library.files if "/" not in file}
    free = [op for op in library.ops if op.name not in modules]
    return [op for op in free if _is_free(op.name) and _is_writable(op)]


def result_classes(library: BuiltLibrary) -> dict[str, str]:
    """By operator, the class that its function returns, with the fields that the source's has."""
    ops = callable_ops(library)
    functions = {op.name for op in ops}
    made: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    found: dict[str, str] = {}
    for op in ops:
        if not op.result or len(op.result) != len(op.returns) + 1:
            continue
        name, *fields = op.result
        fits = all(_is_name(field) and field[0] != "_" for field in fields)
        if _is_free(name) and name not in functions and fits:
            content = (op.result, op.returns)
            if made.setdefault(name, content) == content:
                found[op.name] = name
    return found


def _class(op: Op) -> str:
    name, *fields = op.result
    pairs = zip(fields, op.returns, strict=True)
    return "\n".join([f"class {name}(NamedTuple):", *(f"    {n}: {_type(t)}" for n, t in pairs)])


def _classes(library: BuiltLibrary) -> list[str]:
    """Their texts, each once."""
    named = result_classes(library)
    texts = {named[op.name]: _class(op) for op in library.ops if op.name in named}
    return list(texts.values())


def _is_free(name: str) -> bool:
    taken = name in _HANDED_ON or name in _USED
    return _is_name(name) and not taken and name[0] != "_"


def _is_writable(op: Op) -> bool:
    """Whether a Python function can have its arguments: schemas allow more."""
    names = [argument.name for argument in op.arguments]
    if f"_op_{op.name}" in names or not all(map(_is_name, names)):
        return False
    try:
        ast.parse(f"{_signature(op)} ...")
    except SyntaxError:
        return False
    return True


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _module(library: BuiltLibrary, version: str) -> str:
    ops, results = callable_ops(library), result_classes(library)
    names = sorted({*_HANDED_ON, *(op.name for op in ops), *results.values()})
    parts = [f'"""{_summary(library)}"""', _with_imports(_HEAD, results)]
    parts.append(f"__version__ = {version!r}\n__all__ = {names!r}\n")
    parts += [f"_op_{op.name} = _library.operator({op.torch_name!r})" for op in ops]
    parts += [f"\n\n{text}" for text in _classes(library)]
    return "\n".join([*parts, *(_function(op, results.get(op.name, "")) for op in ops)]) + "\n"


def _with_imports(head: str, results: Mapping[str, str]) -> str:
    return (
        head.replace("import TYPE_CHECKING", "import TYPE_CHECKING, NamedTuple").replace(
            "\nfrom typing import Literal", "\nfrom typing import Literal, NamedTuple"
        )
        if results
        else head
    )


def _stub(library: BuiltLibrary) -> str:
    results = result_classes(library)
    head = _with_imports(_STUB_HEAD, results)
    parts = [f'"""{_summary(library)}"""', head, "__version__: str\n", *_classes(library)]
    parts += [f"def {name}() -> str: ..." for name in _HANDED_ON]
    parts += [
        f"{_signature(op, results.get(op.name, ''), stub=True)}\n{_docstring(op)}\n    ..."
        for op in callable_ops(library)
    ]
    return "\n".join(parts) + "\n"


def _loader(library: BuiltLibrary) -> str:
    text = Path(__file__).with_name("shipped.py").read_text(encoding="utf-8")
    return with_constants(
        text,
        LIBRARY=library.name,
        MACHINE=library.platform.machine,
        OPERATORS=" ".join(op.torch_name for op in library.ops),
        DIFFERENTIABLE=" ".join(
            op.torch_name for op in library.ops if not no_gradient(op, library.ops)
        ),
    )


def _summary(library: BuiltLibrary) -> str:
    return f"The operators of lib{library.name}.so, for {library.built_for}."


def _function(op: Op, result: str) -> str:
    passed = [f"{a.name}={a.name}" if a.keyword_only else a.name for a in op.arguments]
    call = f"_op_{op.name}({', '.join(passed)})"
    returned = f"    return {result}(*{call})" if result else f"    return {call}"
    return "\n".join(["", "", _signature(op, result), _docstring(op), returned])


def _signature(op: Op, result: str = "", *, stub: bool = False) -> str:
    parts: list[str] = []
    for argument in op.arguments:
        if argument.keyword_only and "*" not in parts:
            parts.append("*")
        given = f" = {_default(argument, stub=stub)}" if argument.default else ""
        parts.append(f"{argument.name}: {_annotation(argument)}{given}")
    returned = [_type(kind) for kind in op.returns]
    several = f"tuple[{', '.join(returned)}]" if returned else "None"
    result = result or (returned[0] if len(returned) == 1 else several)
    return f"def {op.name}({', '.join(parts)}) -> {result}:"


def _annotation(argument: SchemaArgument) -> str:
    """A choice of texts, whole numbers or bools is a Literal of what the library was built for."""
    kind = argument.type.removesuffix("?")
    if argument.values and kind in {"str", "int", "SymInt", "bool"}:
        make = bool if kind == "bool" else lambda value: value
        shown = ["None" if v is None else repr(make(v)) for v in argument.values]
        return f"Literal[{', '.join(shown)}]"
    return _type(argument.type)


def _type(kind: str) -> str:
    plain = _TYPES[kind.removesuffix("?")]
    return f"{plain} | None" if kind.endswith("?") else plain


def _default(argument: SchemaArgument, *, stub: bool) -> str:
    (value,) = argument.default
    kind = argument.type.removesuffix("?")
    if isinstance(value, tuple):
        return "..." if stub else f"_library.dtype({value[1]!r})"
    if value is None or isinstance(value, str):
        return repr(value)
    return _number(value, kind)


def _number(value: Flat, kind: str) -> str:
    assert isinstance(value, (int, float))
    if kind == "bool":
        return repr(bool(value))
    if kind != "float":
        return repr(value)
    return repr(float(value)) if math.isfinite(value) else f'float("{value}")'


def _docstring(op: Op) -> str:
    said = inspect.cleandoc(op.doc)
    text = "\n\n".join(filter(None, [said, f"As a torch operator: {op.schema}"]))
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    closing = '\n"""' if "\n" in escaped else '"""'
    return textwrap.indent(f'"""{escaped}{closing}', "    ", lambda line: bool(line.strip()))
