"""A hash of a jitted function and of everything that the code compiled from it depends on.

Triton's own `cache_key` leaves out attributes of modules (`config.FACTOR`), what an alias stands
for (`exp = tl.exp`), dtypes and default values; it has line numbers; and it depends on which
kernels were hashed before. Seen in 3.7.1.

The hash here is over a text: the source of the function and of every function that it reaches,
each with the values of the globals, closure variables and attributes that it names.
"""

from __future__ import annotations

import ast
import copy
import dis
import enum
import functools
import hashlib
import os
import secrets
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import triton.language as tl
from triton import knobs
from triton.runtime.jit import ConstexprFunction, JITCallable

from .kernel_names import Names, names_in
from .value_text import FOREIGN, PLAIN, TRITON, NoText, Texts, is_of

__all__ = [
    "KernelHash",
    "NoText",
    "Watched",
    "digest",
    "digest_or_unique",
    "files",
    "identity",
    "kernel_hash",
    "uses",
]


class Watched(NamedTuple):
    """What a program may set anew: a name in a dict or of an object, and its value.

    `told` says which that is: "the global FACTOR".
    """

    holder: Any
    name: str
    value: Any
    told: str


class KernelHash(NamedTuple):
    """`digest` is the hash.

    `places` are the `file:line`s of the functions that it went through, which are not in it, and
    `files` all files that it has read values from.
    """

    digest: str
    places: tuple[str, ...]
    files: frozenset[str]
    watched: tuple[Watched, ...]


def kernel_hash(fn: Any) -> KernelHash:
    """The hash of a jitted function, from the values that its names have now; raises `NoText`."""
    found = _Reached()
    lines = found.lines(fn)
    return KernelHash(
        hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        tuple(sorted(found.places)),
        frozenset({*found.modules, *(place.rpartition(":")[0] for place in found.places)}),
        tuple(found.watched.values()),
    )


def digest(fn: Any) -> str:
    """The hash as text; raises `NoText`."""
    return kernel_hash(fn).digest


def uses(fn: Any) -> str:
    """A hash of all that a function uses, without its own source; raises `NoText`."""
    # The first line is the source.
    _, *lines = _Reached().lines(fn)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digest_or_unique(fn: Any) -> str:
    """The hash, or where there is none, something that nothing was ever stored under."""
    return identity(fn)[0]


def identity(fn: Any) -> tuple[str, tuple[str, ...]]:
    """`digest_or_unique`, and the places of the functions that a hash went through."""
    try:
        found = kernel_hash(fn)
    except NoText:
        return secrets.token_hex(32), ()
    return found.digest, found.places


def files(fn: Any) -> frozenset[str]:
    """The files of a function and of what it uses, as far as they are known."""
    try:
        return kernel_hash(fn).files
    except NoText:
        return frozenset()


class _Reached(Texts):
    """The functions that one leads to, numbered as they are met."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.modules: set[str] = set()
        self.watched: dict[tuple[int, str], Watched] = {}
        self._functions: list[Any] = []
        self._numbers: dict[int, int] = {}

    def refer(self, function: Any) -> str:
        """The number of a function, whose text comes later: functions may call each other."""
        if id(function) not in self._numbers:
            self._numbers[id(function)] = len(self._functions)
            self._functions.append(function)
        return f"function {self._numbers[id(function)]}"

    def lines(self, fn: Any) -> list[str]:
        """The text of a function, followed by those of all that it reaches."""
        self.refer(fn)
        try:
            return [*self._texts()]
        except RecursionError:
            raise NoText("a value that is nested too deeply", fn) from None

    def _texts(self) -> Iterator[str]:
        # It grows meanwhile.
        for function in self._functions:
            if isinstance(function, JITCallable):
                yield from self._jitted(function)
            else:
                yield from self._plain(function)

    def _jitted(self, fn: Any) -> Iterator[str]:
        function = fn.fn
        self._at(function)
        self._watch(vars(fn), "_src", fn._src, f"the source of {function.__name__}")
        yield f"jitted {type(fn).__name__} {_source(fn)}"
        yield f"noinline={bool(getattr(fn, 'noinline', None))} debug={getattr(fn, 'debug', None)}"
        for param in getattr(fn, "params", ()):
            yield (
                f"{param.name}: {param.annotation} {param.do_not_specialize} "
                f"{param.do_not_specialize_on_alignment}"
            )
        for param in fn.signature.parameters.values():
            if param.default is not param.empty:
                yield f"{param.name}={self.text(param.default, param.name)}"
        names = _names(_source(fn))
        for module in names.imported:
            self._import(module, fn)
        space = _Space(function, is_python=isinstance(fn, ConstexprFunction))
        for chain in names.read:
            text = self._named(space, chain, is_assigned=chain[0] in names.assigned)
            if text is not None:
                yield f"{'.'.join(chain)}: {text}"

    @staticmethod
    def _import(module: str, function: Any) -> None:
        if module.partition(".")[0] not in FOREIGN:
            raise NoText(f"{module}, which {function.__name__} imports", sys)

    def _named(self, space: _Space, chain: tuple[str, ...], *, is_assigned: bool) -> str | None:
        """What a name stands for; None for a local variable and for one of Python's own."""
        root, *attributes = chain
        if not space.has(root):
            return None
        start = space[root]
        # Triton looks a name up among globals as long as the function has not set it.
        is_local = is_assigned and (space.is_python or isinstance(start, ModuleType))
        if is_local or (is_assigned and not _is_usable(start)):
            return None
        value = self._followed(start, attributes)
        shown = ".".join(chain)
        if isinstance(value, ModuleType) and not is_of(value, TRITON):
            # Anything could be taken of it, with `getattr`.
            raise NoText(shown, value)
        try:
            text = self.text(value, shown)
        except NoText:
            allows_all = space.is_python or knobs.compilation.allow_non_constexpr_globals
            if allows_all or _is_usable(start):
                raise
            # Triton raises where a kernel uses such a global, so it is not in the code.
            return f"a {type(value).__qualname__}"
        self._watch(space.holder(root), root, start)
        return text

    def _followed(self, value: Any, attributes: list[str]) -> Any:
        """A value's attribute of an attribute, as far as the text of the value does not have it."""
        for attribute in attributes:
            if isinstance(value, tl.constexpr) and attribute not in {"value", "type"}:
                value = value.value
            if type(value) in PLAIN or isinstance(value, (JITCallable, tl.dtype)):
                break
            try:
                found = getattr(value, attribute)
            except AttributeError:
                # Triton raises, unless nothing leads there.
                return f"no {attribute}"
            except Exception as error:
                raise NoText(attribute, value) from error
            holder = None if is_of(value, FOREIGN) else value
            if isinstance(holder, ModuleType):
                holder = vars(holder) if attribute in vars(holder) else None
                if holder is not None:
                    self.modules.add(str(getattr(value, "__file__", "")))
            value = found
            self._watch(holder, attribute, value)
        return value

    def _watch(self, holder: Any, name: str, value: Any, told: str = "") -> None:
        """Note what a program may set anew; functions and modules, as Triton does, are left out.

        So are objects of others, whose `==` may be anything.
        """
        told = told or f"the global {name}"
        if isinstance(value, tl.constexpr):
            self._watch(vars(value), "value", value.value, told)
        if holder is None or not (type(value) in PLAIN or isinstance(value, _COMPARED)):
            return
        # Containers may be changed in place.
        kept = _copied(value) if isinstance(value, (list, dict, set)) else value
        self.watched[id(holder), name] = Watched(holder, name, kept, told)

    def _plain(self, function: FunctionType) -> Iterator[str]:
        """A Python function that runs while Triton compiles, such as one that makes an operation.

        By its code: what names it takes of modules is not told apart from other names.
        """
        self._at(function)
        for module in _imported(function.__code__):
            self._import(module, function)
        yield f"python {function.__qualname__} {self.code(function.__code__)}"
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items())
        yield f"defaults {self.text(defaults, function.__qualname__)}"
        space = _Space(function, is_python=True)
        names = sorted({*_all_names(function.__code__), *function.__code__.co_freevars})
        for name in names:
            if name in vars(function):
                yield f".{name}: {self.text(vars(function)[name], name)}"
            if not space.has(name):
                continue
            value = space[name]
            if not isinstance(value, ModuleType):
                yield f"{name}: {self.text(value, name)}"
                continue
            yield f"{name}: module {value.__name__}"
            if not is_of(value, FOREIGN) or value is os:
                own = _ENVIRONMENT if value is os else vars(value)
                for attribute in [n for n in names if n in own]:
                    shown = f"{name}.{attribute}"
                    yield f"{shown}: {self.text(vars(value)[attribute], shown)}"

    def _at(self, function: FunctionType) -> None:
        code = function.__code__
        self.places.add(f"{code.co_filename}:{code.co_firstlineno}")


# Of `os`: another in every process.
_ENVIRONMENT = frozenset({"environ", "getenv"})
_COMPARED = (tl.constexpr, tl.dtype, enum.Enum, tuple, list, dict, set, frozenset)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except TypeError:  # a jitted function has a lock, which cannot be copied
        return copy.copy(value)


class _Space:
    """Where a function looks up names: in its closure before its globals, as Triton does."""

    def __init__(self, function: FunctionType, *, is_python: bool) -> None:
        self.is_python = is_python
        self._globals = function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._closure = {name: cell for name, cell in cells if _is_set(cell)}

    def has(self, name: str) -> bool:
        return name in self._closure or name in self._globals

    def __getitem__(self, name: str) -> Any:
        cell = self._closure.get(name)
        return self._globals[name] if cell is None else cell.cell_contents

    def holder(self, name: str) -> dict[str, Any] | None:
        """The dict of a global; a closure's variable is in none."""
        return None if name in self._closure else self._globals


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_usable(value: Any) -> bool:
    """Whether a kernel may use a global, in the words of Triton's code generator."""
    return (
        value is None
        or isinstance(value, (ModuleType, JITCallable, tl.constexpr, tl.dtype))
        or getattr(value, "__triton_builtin__", False)
        or getattr(value, "__triton_aggregate__", False)
        or str(getattr(value, "__module__", "")).startswith(
            ("triton.language", "triton.experimental.gluon.language")
        )
        or (isinstance(value, tuple) and hasattr(value, "_fields"))
    )


def _source(fn: Any) -> str:
    """What Triton parses; `src` may be what Inductor is to print."""
    return str(fn._src)


@functools.lru_cache(maxsize=4096)
def _names(source: str) -> Names:
    return names_in(ast.parse(source))


def _imported(code: CodeType) -> Iterator[str]:
    """The modules that code imports, as an import statement names them."""
    made = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    for at, instruction in enumerate(made):
        if instruction.opname == "IMPORT_NAME":
            # How many dots it begins with is loaded before the names that are taken of it.
            yield f"{'.' * made[at - 2].argval}{instruction.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported(constant)


def _all_names(code: Any) -> set[str]:
    """All names that code mentions, those of the functions in it included."""
    found = {*code.co_names}
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _all_names(constant)
    return found
