"""Kernels whose source Inductor prints without something that they use.

Inductor writes a kernel and the functions it calls into a module of their own, below
`import triton` and `import triton.language as tl`. Of a kernel's other globals it carries over
constants, jitted functions and what it can import from Triton by name. A module under a name of
its own (`import triton.language.extra as tle`; torch 2.15 prints that), a function under another
name, a variable of the function around a kernel and a few more are left out, and the compiled
graph raises NameError. Seen in torch 2.11 to 2.15.

Nothing is patched: Inductor gets a copy of such a kernel, whose text has all that it uses. It
imports nothing of the user's, because Inductor's workers run it: a package that looks for a GPU
when it is imported fails there. What a kernel uses of such modules is printed, too.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import enum
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .bytecode import NAMES, chains, names_read
from .kernels import innermost, unwrap_constexpr
from .reach import ABSENT, contents, is_foreign_name

# What Inductor prints above every kernel, of that which kernels use.
_ABOVE = {"tl": "triton.language", "triton": "triton"}
_IMPORTED = "__import__('importlib').import_module({!r})"


class Unprintable(Exception):
    """Something that a kernel uses cannot be written down; says what, and what to do."""


def obstacle(kernel: Any) -> str:
    """Why Inductor cannot print a kernel; empty if it can, or can be helped."""
    try:
        _whole_text(innermost(kernel))
    except Unprintable as error:
        return str(error)
    return ""


def added(kernel: Any) -> list[str]:
    """The lines that Inductor gets for a kernel in place of its own; none if these will do."""
    try:
        return _whole_text(innermost(kernel)).splitlines()
    except Unprintable:
        return []


def printable(kernel: Any) -> Any:
    """The kernel for Inductor to print: itself, or a copy of which it prints all."""
    base = innermost(kernel)
    text = _whole_text(base)
    if not text:
        return kernel
    _, known_text, known = _copies.get(id(kernel), (None, "", None))
    if known_text != text:
        known = _with_base(kernel, base, _copied(base, text))
        _copies[id(kernel)] = kernel, text, known
    return known


# By id, the kernel, kept so that no other takes it, its text, and the copy. One copy per kernel, so
# that graphs which launch the same kernel share it.
_copies: dict[int, tuple[Any, str, Any]] = {}


def _with_base(kernel: Any, base: Any, new: Any) -> Any:
    """An autotuner or heuristics around another function."""
    if kernel is base:
        return new
    made = copy.copy(kernel)
    made.fn = _with_base(kernel.fn, base, new)
    if hasattr(made, "base_fn"):
        made.base_fn = new.fn
    return made


def _copied(base: Any, text: str) -> Any:
    """A copy of a jitted function that shows Inductor a text, and Triton its own."""
    # A kernel's key is made of its text, and the copy is the same kernel; this keeps it.
    base.cache_key  # noqa: B018
    kind: Any = type(base)
    made, fn = copy.copy(base), base.fn
    made.__class__ = _printing_type(kind)
    made.printed = text
    # Inductor prints what it finds in these globals, and Triton has `__globals__` of the kernel.
    made.fn = types.FunctionType(fn.__code__, {}, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(made.fn, fn)
    return made


@functools.cache
def _printing_type(cls: Any) -> type[Any]:
    return type(cls.__name__, (cls,), {"src": property(lambda self: self.printed)})


def _whole_text(base: Any) -> str:
    """A kernel, all that it calls and all that these use, in the one namespace that Inductor gives
    them; empty if what Inductor prints lacks nothing.
    """
    functions = _functions(base) if isinstance(base, _function_types()) else []
    # What each name stands for, and the function that uses it.
    names: dict[str, tuple[Any, Any]] = {}
    for function in functions:
        for name, value in [(function.__name__, function), *_used(function.fn)]:
            known, user = names.setdefault(name, (value, function))
            if not _are_same(known, value):
                raise Unprintable(
                    f"{name!r} is one thing in {user.__name__} and another in "
                    f"{function.__name__}, and Inductor prints both into one module; rename one"
                )
    if not any(map(_lacks, functions)):
        return ""
    lines = []
    for function in functions:
        kind = "jit" if isinstance(function, _function_types()[0]) else "constexpr_function"
        text = str(function.src)
        if _needs_names(text):
            text = _with_plain_header(text, function.fn, getattr(function, "params", ()))
        # Inductor writes the kernel's own decorator.
        lines.append(text if function is base else f"@triton.{kind}\n{text}")
    for name, (value, user) in names.items():
        if not _is_function(value):
            lines.append(_line(name, value, user))
        elif name != value.__name__:
            lines.append(f"{name} = {value.__name__}")
    return "\n".join(lines)


def _functions(base: Any) -> list[Any]:
    """A kernel and the jitted functions that it leads to."""
    functions = [base]
    for function in functions:
        for _, value in _used(function.fn):
            # By identity: a kernel's hash is that of its source, and takes long.
            if _is_function(value) and not any(value is known for known in functions):
                functions.append(value)
    return functions


def _lacks(function: Any) -> bool:
    """Whether Inductor prints something that a function uses wrongly, or not at all."""
    scope = function.fn.__globals__
    names = function.fn.__code__.co_names
    printed = {name: _is_printed(name, scope[name]) for name in names if name in scope}
    is_wrong = False in printed.values() or _needs_names(function.src)
    return is_wrong or not all(printed.get(name) for name, _ in _used(function.fn))


def _are_same(value: Any, other: Any) -> bool:
    return value is other or _expression(value) == _expression(other) is not None


def _is_function(value: Any) -> bool:
    """Whether a value is a jitted function to print; Triton's own are imported."""
    return isinstance(value, _function_types()) and _expression(value) is None


@functools.cache
def _function_types() -> tuple[type[Any], ...]:
    from triton.runtime import jit

    return (jit.JITFunction, jit.ConstexprFunction)


def _used(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that a function takes from outside."""
    values = {name: fn.__globals__.get(name, ABSENT) for name in names_read(fn.__code__)}
    values.update(zip(fn.__code__.co_freevars, map(contents, fn.__closure__ or ()), strict=False))
    for name, value in values.items():
        is_module = isinstance(value, types.ModuleType)
        if value is not ABSENT and not (is_module and value.__name__ == _ABOVE.get(name)):
            yield name, value
            if is_module:
                yield from _attributes(fn.__code__, name, value)


def _attributes(code: types.CodeType, name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """`name.attribute`, for what code uses of a module that is not imported."""
    for root, *attributes in chains(code, NAMES):
        path, value = name, module if root == name else ABSENT
        for attribute in attributes:
            if not isinstance(value, types.ModuleType) or is_foreign_name(value.__name__):
                break
            path, value = f"{path}.{attribute}", getattr(value, attribute, ABSENT)
            if value is not ABSENT:
                yield path, value


def _is_printed(name: str, value: Any) -> bool | None:
    """Whether what Inductor prints for a global name is right; None if it prints nothing."""
    if isinstance(value, _function_types()):
        return _is_function(value) and value.__name__ == name
    plain = unwrap_constexpr(value)
    if plain is not value or isinstance(value, (int, str)):
        return _literal(plain) == repr(plain)
    home, _ = _place_of(value)
    return True if home.startswith("triton") else None


def _line(name: str, value: Any, function: Any) -> str:
    """What makes a name stand for a value in another module."""
    plain = unwrap_constexpr(value)
    expression = _expression(value)
    if expression is None:
        with contextlib.suppress(OSError):  # it has no file
            # Of Python's functions, those that need nothing but Triton.
            is_function = isinstance(plain, types.FunctionType) and plain.__name__ != "<lambda>"
            if is_function and not any(_used(plain)):
                text = _with_plain_header(textwrap.dedent(inspect.getsource(plain)), plain)
                return f"{text}\n{name} = tl.constexpr({plain.__name__})"
        raise Unprintable(
            f"Inductor prints its source without {name!r}, a {type(value).__name__} that "
            f"{function.__name__} uses; make it a tl.constexpr of a number or text"
        )
    paths = (".".join(chain) for chain in chains(function.fn.__code__, NAMES))
    if isinstance(plain, enum.Enum) and any(path.startswith(f"{name}.") for path in paths):
        raise Unprintable(
            f"Inductor prints {name!r}, which {function.__name__} uses, as a number or text, and "
            "takes its attributes away; use the value alone"
        )
    return f"{name} = {expression}"


def _expression(value: Any) -> str | None:
    """What gives a value in any module and process, a worker of Inductor's included; or None."""
    plain = unwrap_constexpr(value)
    if (literal := _literal(plain)) is not None:
        return literal if plain is value else f"tl.constexpr({literal})"
    if isinstance(value, types.ModuleType):
        is_imported = is_foreign_name(value.__name__)
        return _IMPORTED.format(value.__name__) if is_imported else "type(triton)('module')"
    home, name = _place_of(value)
    return f"{_IMPORTED.format(home)}.{name}" if is_foreign_name(home) else None


def _literal(value: Any) -> str | None:
    if type(value) in (bool, int, str, type(None), sys.modules["triton.language"].dtype):
        return repr(value)
    if isinstance(value, enum.Enum) and isinstance(value, (int, str)):
        return _literal(value.value)
    if type(value) is float:
        text = repr(value)
        return text if text[-1].isdigit() else f"float({text!r})"
    return None


def _place_of(value: Any) -> tuple[str, str]:
    """The module that has an object, and its name there; or empty."""
    home, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if isinstance(home, str) and isinstance(name, str):
        is_there = getattr(sys.modules.get(home), name, ABSENT) is value
        return (home, name) if is_there else ("", "")
    return "", ""


@functools.lru_cache(maxsize=4096)
def _needs_names(text: str) -> bool:
    """Whether a function's header has names that stand for nothing in Inductor's module."""
    try:
        # A long body takes milliseconds.
        definition: Any = ast.parse(text.partition(":\n")[0] + ": pass").body[0]
    except SyntaxError:
        definition = ast.parse(text).body[0]
    parts = filter(None, (definition.args, definition.returns))
    names = {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)}
    return bool(names - _ABOVE.keys() - vars(builtins).keys())


def _with_plain_header(text: str, fn: types.FunctionType, params: Sequence[Any] = ()) -> str:
    """A function's text without decorators, with annotations as Triton reads them."""
    made: Any = ast.parse(text).body[0]
    made.decorator_list, made.returns = [], None
    # `ast.unparse` writes a name as it is.
    kinds = {
        p.name: "tl.constexpr" if p.is_constexpr else repr(p.annotation_type or None)
        for p in params
    }
    for argument in [node for node in ast.walk(made.args) if isinstance(node, ast.arg)]:
        argument.annotation = ast.Name(kinds.get(argument.arg, "None"))
    made.args.defaults.clear()
    for value in fn.__defaults__ or ():
        default = _expression(unwrap_constexpr(value))
        if default is None:
            raise Unprintable(
                f"a default of {fn.__name__} is a {type(value).__name__}, and Inductor prints its "
                "source without the names in it; write the value out"
            )
        made.args.defaults.append(ast.Name(default))
    return ast.unparse(made)
