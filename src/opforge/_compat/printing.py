"""Kernels whose source Inductor prints without something that they use.

Inductor writes a kernel and the functions it calls into a module of their own, below
`import triton` and `import triton.language as tl`. Of a kernel's other globals it carries over
constants, jitted functions and what it can import from Triton by name. A module under a name of
its own (`import triton.language.extra as tle`), a function under another name, a variable of the
function around a kernel and a few more are left out, and the compiled graph raises NameError.
Seen in torch 2.11 and 2.13.

Nothing is patched: Inductor gets a copy of such a kernel, whose text has the lines that it lacks.
They import nothing but Triton, torch and the standard library, because Inductor's workers run them:
a package that looks for a GPU when it is imported fails there. What a kernel uses of other modules
is printed, too.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import enum
import functools
import inspect
import operator
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import kernels
from .bytecode import globals_read

# What Inductor prints above every kernel, of that which kernels use.
_ABOVE = {"tl": "triton.language", "triton": "triton"}
_LITERALS = (bool, int, str, type(None))


class Unprintable(Exception):
    """Something that a kernel uses cannot be written down; says what, and what to do."""


def obstacle(kernel: Any) -> str:
    """Why Inductor cannot print a kernel; empty if it can, or can be helped."""
    if not isinstance(_base(kernel), _function_types()):
        return ""
    try:
        _Print(_base(kernel)).lines()
    except Unprintable as error:
        return str(error)
    return ""


def added(kernel: Any) -> list[str]:
    """The lines that Inductor lacks for a kernel; none for one that it cannot print."""
    try:
        return _Print(_base(kernel)).lines()
    except Unprintable:
        return []


def printable(kernel: Any) -> Any:
    """The kernel for Inductor to print: itself, or a copy of which it prints all."""
    base = _base(kernel)
    found = _Print(base)
    if not found.lacks:
        return kernel
    text = "\n".join([found.header_and_body(), *found.lines()])
    known = _copies.get(id(kernel))
    if known is None or known.text != text or not _all_same(known.functions, found.functions):
        made = _with_base(kernel, found.copied(text))
        known = _copies[id(kernel)] = _Copy(kernel, text, found.functions, made)
    return known.made


@dataclass(frozen=True)
class _Copy:
    """A kernel, kept so that no other takes its id, and the copy made of it."""

    kernel: Any
    text: str
    functions: list[Any]
    made: Any


# One copy per kernel, so that graphs which launch the same kernel share it.
_copies: dict[int, _Copy] = {}


def _base(kernel: Any) -> Any:
    return kernels.innermost(kernel)


def _with_base(kernel: Any, base: Any) -> Any:
    """An autotuner or heuristics around another function."""
    if kernel is _base(kernel):
        return base
    made = copy.copy(kernel)
    made.fn = _with_base(kernel.fn, base)
    if hasattr(made, "base_fn"):
        made.base_fn = base.fn
    return made


@dataclass
class _Print:
    """What a kernel and all that it calls use, in the one namespace that Inductor gives them."""

    base: Any
    lacks: bool = False
    # What each name stands for, and the function that uses it.
    names: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    functions: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.functions.append(self.base)
        self._take(self.base.__name__, self.base, self.base)
        self.lacks = bool(_strange_names(self.base))
        for function in self.functions:
            carried = _printed_by_inductor(function)
            for name, value in _used(function, header=function is not self.base):
                self._take(name, value, function)
                self.lacks = self.lacks or name not in carried
                if _is_function(value):
                    self._take(value.__name__, value, function)
                    if not any(value is f for f in self.functions):
                        self.functions.append(value)
            self.lacks = self.lacks or not all(carried.values())

    def _take(self, name: str, value: Any, function: Any) -> None:
        known, user = self.names.setdefault(name, (value, function))
        if not _same(known, value):
            raise Unprintable(
                f"{name!r} is one thing in {user.__name__} and another in {function.__name__}, "
                "and Inductor prints both into one module; rename one"
            )

    def lines(self) -> list[str]:
        """Imports and assignments for all names that are not functions."""
        if not self.lacks:
            return []
        self.header_and_body()
        others = [(n, v, f) for n, (v, f) in self.names.items() if not _is_function(v)]
        return [_line(name, value, function) for name, value, function in others]

    def header_and_body(self) -> str:
        """The kernel's text, with a header that needs nothing but `tl`."""
        text: str = self.base.src
        if not _strange_names(self.base):
            return text
        made = _definition(text)
        made.returns = None
        made.args = _plain_arguments(self.base, made.args)
        return ast.unparse(made)

    def copied(self, text: str) -> Any:
        """A copy of the kernel with another text, which calls copies of what it calls."""
        copies = {id(f): _copied(f) for f in self.functions}
        for function in self.functions:
            made = copies[id(function)]
            called = {n: v for n, v in _used(function, header=False) if _is_function(v)}
            names = {v.__name__ if "." in n else n: copies[id(v)] for n, v in called.items()}
            # Inductor looks names up here, and Triton in `__globals__` of the kernel itself.
            made.fn = _with_globals(function.fn, names)
            made.printed = text if function is self.base else self._with_other_names(function)
        return copies[id(self.base)]

    def _with_other_names(self, function: Any) -> str:
        """A function's text, and the other names under which it is called."""
        own = function.__name__
        others = [n for n, (v, _) in self.names.items() if v is function and n != own]
        return "\n".join([function.src, *(f"{name} = {own}" for name in others)])


def _all_same(ones: list[Any], others: list[Any]) -> bool:
    # By identity: a kernel's hash is that of its source, and takes long.
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


def _is_function(value: Any) -> bool:
    """Whether a value is a jitted function to print; Triton's own are imported."""
    return isinstance(value, _function_types()) and not _comes_from_triton(value)


@functools.cache
def _function_types() -> tuple[type[Any], ...]:
    from triton.runtime import jit

    return (jit.JITFunction, jit.ConstexprFunction)


def _used(function: Any, *, header: bool) -> Iterator[tuple[str, Any]]:
    """The names that a function takes from outside; those of its header are used where it is."""
    fn = function.fn
    names = [*globals_read(fn.__code__), *(_strange_names(function) if header else ())]
    for name in dict.fromkeys(names):
        value = fn.__globals__.get(name, _MISSING)
        if value is not _MISSING and not _is_above(name, value):
            yield from _with_attributes(function, name, value)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        value = _content(cell)
        if value is not _MISSING:
            yield from _with_attributes(function, name, value)


def _with_attributes(function: Any, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A name, and `name.attribute` for what a function uses of a module that is not imported."""
    yield name, value
    if isinstance(value, types.ModuleType) and not _can_import(value.__name__):
        for attribute in _attributes(function.src).get(name, ()):
            found = getattr(value, attribute, _MISSING)
            if found is not _MISSING:
                yield from _with_attributes(function, f"{name}.{attribute}", found)


@functools.lru_cache(maxsize=4096)
def _attributes(text: str) -> dict[str, list[str]]:
    """By dotted name, the attributes that a text takes of it: {"tle": ["program_id"]}."""
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            found.setdefault(ast.unparse(node.value), {})[node.attr] = None
    return {name: list(attributes) for name, attributes in found.items()}


def _can_import(module: str) -> bool:
    """Whether a module can be imported anywhere, a worker of Inductor's included."""
    package = module.partition(".")[0]
    return package in {"triton", "torch"} or package in sys.stdlib_module_names


_MISSING = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is bound yet
        return _MISSING


def _is_above(name: str, value: Any) -> bool:
    return isinstance(value, types.ModuleType) and value.__name__ == _ABOVE.get(name)


def _printed_by_inductor(function: Any) -> dict[str, bool]:
    """The names that Inductor prints for a function, and whether what it prints is right."""
    fn = function.fn
    found: dict[str, bool] = {}
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name, _MISSING)
        if _is_function(value):
            found[name] = value.__name__ == name
        elif _is_constexpr(value):
            found[name] = _literal(value.value) == repr(value.value)
        elif isinstance(value, (int, str)):
            found[name] = type(value) in _LITERALS
        elif isinstance(value, _function_types()):
            found[name] = False
        elif _comes_from_triton(value) and name in globals_read(fn.__code__):
            found[name] = True
    return found


def _is_constexpr(value: Any) -> bool:
    return isinstance(value, sys.modules["triton.language"].constexpr)


def _comes_from_triton(value: Any) -> bool:
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and home.startswith("triton") and _place_of(value) is not None


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if _is_constexpr(one) and _is_constexpr(other):
        one, other = one.value, other.value
    literals = type(one) is type(other) and type(one) in (*_LITERALS, float)
    return literals and bool(one == other)


def _line(name: str, value: Any, function: Any) -> str:
    """What makes a name stand for a value in another module."""
    text = _written(name, value)
    if text is None:
        raise Unprintable(
            f"Inductor prints its source without {name!r}, a {type(value).__name__} that "
            f"{function.__name__} uses; make it a tl.constexpr of a number or text"
        )
    if isinstance(_plain(value), enum.Enum) and name in _attributes(function.src):
        raise Unprintable(
            f"Inductor prints {name!r}, which {function.__name__} uses, as a number or text, and "
            "takes its attributes away; use the value alone"
        )
    return text


def _written(name: str, value: Any) -> str | None:
    plain = _plain(value)
    if (text := _literal(plain)) is not None:
        return f"{name} = tl.constexpr({text})" if _is_constexpr(value) else f"{name} = {text}"
    if _is_constexpr(value) and isinstance(plain, types.FunctionType):
        return _function_text(name, plain)
    if isinstance(value, types.ModuleType):
        if not _can_import(value.__name__):
            return f"{name} = type(triton)({name!r})"
        return f"{name} = __import__('importlib').import_module({value.__name__!r})"
    place = _place_of(value)
    if place is None or not _can_import(place[0]):
        return None
    return f"{name} = __import__('importlib').import_module({place[0]!r}).{place[1]}"


def _function_text(name: str, fn: types.FunctionType) -> str | None:
    """A function of Python under `tl.constexpr`, if it needs nothing but Triton."""
    outside = [n for n in globals_read(fn.__code__) if not hasattr(builtins, n)]
    if fn.__code__.co_freevars or any(not _is_above(n, fn.__globals__.get(n)) for n in outside):
        return None
    try:
        made = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
    except (OSError, SyntaxError):
        return None
    if not isinstance(made, ast.FunctionDef) or fn.__defaults__ or fn.__kwdefaults__:
        return None
    made.decorator_list, made.returns = [], None
    for argument in (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs):
        argument.annotation = None
    return f"{ast.unparse(made)}\n{name} = tl.constexpr({made.name})"


def _plain(value: Any) -> Any:
    return value.value if _is_constexpr(value) else value


def _literal(value: Any) -> str | None:
    if type(value) in _LITERALS:
        return repr(value)
    if isinstance(value, enum.Enum) and isinstance(value, (int, str)):
        return _literal(value.value)
    if type(value) is float:
        text = repr(value)
        return text if text[-1].isdigit() else f"float({text!r})"
    return repr(value) if type(value) is sys.modules["triton.language"].dtype else None


def _place_of(value: Any) -> tuple[str, str] | None:
    """The module that has an object, and its name there."""
    home, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str) or home == "__main__":
        return None
    module = sys.modules.get(home)
    return (home, name) if getattr(module, name, _MISSING) is value else None


def _strange_names(function: Any) -> tuple[str, ...]:
    """Names in a function's annotations and defaults that stand for nothing in Inductor's module.

    They are evaluated where the function is defined.
    """
    return _header_names(function.src)


@functools.lru_cache(maxsize=4096)
def _header_names(text: str) -> tuple[str, ...]:
    definition = _definition(text, header_only=True)
    parts = [definition.args, *([definition.returns] if definition.returns else [])]
    found = [n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]
    return tuple(n for n in dict.fromkeys(found) if n not in _ABOVE and not hasattr(builtins, n))


def _definition(text: str, *, header_only: bool = False) -> ast.FunctionDef:
    """A function's text as a tree; that of a long body takes milliseconds."""
    end = _HEADER_ENDS.search(text)
    tree = None
    if header_only and end is not None:
        with contextlib.suppress(SyntaxError):  # the line that ends so belongs to the body
            tree = ast.parse(text[: end.start()] + ": pass")
    definition = (tree or ast.parse(text)).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition


_HEADER_ENDS = re.compile(r":[ \t]*(#.*)?$", re.MULTILINE)


def _plain_arguments(kernel: Any, written: ast.arguments) -> ast.arguments:
    """Annotations and defaults as Triton understands them, without names."""
    positional = [*written.posonlyargs, *written.args]
    return ast.arguments(
        posonlyargs=[],
        args=[
            ast.arg(argument.arg, _annotation(parameter))
            for argument, parameter in zip(positional, kernel.params, strict=False)
        ],
        kwonlyargs=written.kwonlyargs,
        kw_defaults=written.kw_defaults,
        defaults=[_default(kernel, value) for value in kernel.fn.__defaults__ or ()],
    )


def _annotation(parameter: Any) -> ast.expr | None:
    if parameter.is_constexpr:
        return ast.parse("tl.constexpr", mode="eval").body
    kind = parameter.annotation_type
    return ast.Constant(kind) if kind else None


def _default(kernel: Any, value: Any) -> ast.expr:
    text = _literal(value.value if _is_constexpr(value) else value)
    if text is None:
        raise Unprintable(
            f"a default of {kernel.__name__} is a {type(value).__name__}, and Inductor prints its "
            "source without the names in it; write the value out"
        )
    return ast.parse(text, mode="eval").body


def _copied(function: Any) -> Any:
    # A kernel's key is made of its text, and the copy is the same kernel; this keeps it.
    function.cache_key  # noqa: B018
    made = copy.copy(function)
    kind: Any = type(function)
    made.__class__ = _printing_type(kind)
    return made


@functools.cache
def _printing_type(cls: Any) -> type[Any]:
    """A kind of jitted function that shows Inductor one text and Triton another."""
    return type(cls.__name__, (cls,), {"src": property(lambda self: self.printed)})


def _with_globals(fn: types.FunctionType, names: dict[str, Any]) -> types.FunctionType:
    # Inductor looks for nothing but these; a variable of the function around is not among them.
    read = tuple(dict.fromkeys((*fn.__code__.co_names, *names)))
    code = fn.__code__.replace(co_names=read)
    made = types.FunctionType(code, names, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(made, fn)
    return made
