"""A hash of a jitted function and of everything that the code compiled from it depends on.

Triton's own `cache_key` leaves out attributes of modules (`config.FACTOR`), what an alias stands
for (`exp = tl.exp`), dtypes and default values; it has line numbers; and it depends on which
kernels were hashed before. Seen in 3.7.1.

The hash here is over a text: the source of the function and of every function and class that it
reaches, each with the values that its names stand for.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import enum
import functools
import hashlib
import inspect
import os
import secrets
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import triton.language as tl
from triton.runtime.jit import BoundConstexprFunction, ConstexprFunction, JITCallable

from . import bytecode


class NoText(Exception):
    """A value that has no text of its own; `str()` says which, and of which type."""

    def __init__(self, name: str, value: Any) -> None:
        kind = type(value)
        shown = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        super().__init__(
            f"it uses {name}, a {shown}, which cannot be compared with that of another process"
        )


class Watched(NamedTuple):
    """What a program may set anew, in a dict or of an object; `told` is "the global FACTOR"."""

    holder: Any
    name: str
    value: Any
    told: str


class KernelHash(NamedTuple):
    """`digest` is the hash; `uses` is one without the function's own source.

    `places` are the `file:line`s of the functions that it went through, which are not in it, and
    `files` all files that it has read values from.
    """

    digest: str
    uses: str
    places: tuple[str, ...]
    files: frozenset[str]
    watched: tuple[Watched, ...]


def kernel_hash(fn: Any) -> KernelHash:
    """The hash of a jitted function, from the values that its names have now; raises `NoText`."""
    text = _Text()
    source, *uses = text.lines(fn)
    return KernelHash(
        _sha256([source, *uses]),
        _sha256(uses),
        tuple(sorted(text.places)),
        frozenset(text.files),
        tuple(text.watched.values()),
    )


def digest(fn: Any) -> str:
    """The hash as text; raises `NoText`."""
    return kernel_hash(fn).digest


def hash_or_unique(fn: Any) -> KernelHash:
    """The hash, or where there is none, something that nothing was ever stored under."""
    try:
        return kernel_hash(fn)
    except NoText:
        return KernelHash(secrets.token_hex(32), "", (), frozenset(), ())


def _sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Text:
    """What a function leads to, as text.

    Functions and classes may lead to each other. So a value that holds one has its number, and its
    lines come later.
    """

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.files: set[str] = set()
        self.watched: dict[tuple[int, str], Watched] = {}
        self._numbered: list[Any] = []
        self._numbers: dict[int, int] = {}

    def lines(self, fn: Any) -> list[str]:
        """The lines of a function, followed by those of all that it reaches."""
        self._number(fn)
        try:
            # The list grows meanwhile.
            return [line for value in self._numbered for line in self._lines(value)]
        except RecursionError:
            raise NoText("a value that is nested too deeply", fn) from None

    def _number(self, value: Any) -> str:
        number = self._numbers.setdefault(id(value), len(self._numbered))
        if number == len(self._numbered):
            self._numbered.append(value)
        return f"#{number}"

    def _lines(self, value: Any) -> Iterator[str]:
        # Triton calls Python functions once, and does not look again at what they used.
        self._is_watching = isinstance(value, JITCallable)
        if self._is_watching:
            yield from self._jitted(value)
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            yield f"python {value.__qualname__} {bytecode.text(value.__code__)}"
            yield self._text((value.__defaults__, value.__kwdefaults__), "a default value")
            yield from self._names(value, value.__code__)

    def _jitted(self, fn: Any) -> Iterator[str]:
        source = str(fn._src)  # it may be what Inductor is to print
        yield f"jitted {type(fn).__name__} {source}"
        self._watch(vars(fn), "_src", fn._src, f"the source of {fn.fn.__name__}")
        yield f"noinline={bool(getattr(fn, 'noinline', None))} debug={getattr(fn, 'debug', None)}"
        for param in getattr(fn, "params", ()):
            unspecialized = (param.do_not_specialize, param.do_not_specialize_on_alignment)
            yield f"{param.name}: {param.annotation} {unspecialized}"
        yield self._text([p.default for p in fn.signature.parameters.values()], "a default value")
        is_kernel = not isinstance(fn, ConstexprFunction)
        yield from self._names(fn.fn, _compiled(source) if is_kernel else fn.fn.__code__)

    def _class(self, cls: type[Any]) -> Iterator[str]:
        own = {name: value for name, value in vars(cls).items() if name not in _NOTED}
        if getattr(cls, "__triton_aggregate__", False):
            # Triton copies methods out of the class as written, and keeps it for its fields.
            own = {"aggregate": inspect.getclosurevars(own["__setattr__"]).nonlocals["cls"]}
        elif issubclass(cls, enum.Enum):
            # What else there is serves the look-up of members.
            own = {n: v for n, v in own.items() if isinstance(v, FunctionType)} | cls.__members__
        yield f"class {cls.__qualname__} {self._text(cls.__bases__, cls.__qualname__)}"
        for name in sorted(own):
            yield f"{name}={self._text(own[name], f'{cls.__qualname__}.{name}')}"

    def _names(self, function: FunctionType, code: CodeType) -> Iterator[str]:
        """What the names stand for that code takes from outside of its function."""
        own = function.__code__
        self.places.add(f"{own.co_filename}:{own.co_firstlineno}")
        self.files.add(own.co_filename)
        chains, assigned, imports = _names_in(code)
        for module, level in imports:
            if level or not bytecode.is_foreign_name(module):
                raise NoText(f"{'.' * level}{module}, which {own.co_name} imports", bytecode)
        cells = zip(own.co_freevars, function.__closure__ or (), strict=True)
        closure = {n: v for n, c in cells if (v := bytecode.contents(c)) is not bytecode.ABSENT}
        # As Triton looks names up; those that a kernel sets, among globals as long as it has not.
        scope = function.__globals__ | closure
        if code is not own:
            chains = chains + [c for c in assigned if isinstance(scope.get(c[0]), _USABLE)]
        for chain in chains:
            if chain[0] in scope:
                holder = None if chain[0] in closure else function.__globals__
                shown, value = ".".join(chain), self._followed(chain, scope[chain[0]], holder)
                yield f"{shown}: {self._text(value, shown)}"

    def _followed(self, chain: tuple[str, ...], value: Any, holder: Any) -> Any:
        """A name's value, or its attribute of an attribute."""
        name, *attributes = chain
        self._watch(holder, name, value)
        for name in attributes:
            if isinstance(value, tl.constexpr) and name not in {"value", "type"}:
                value = value.value
            if type(value) in _PLAIN or isinstance(value, (JITCallable, tl.dtype)):
                break
            try:
                part = getattr(value, name)
            except AttributeError:  # Triton raises, unless nothing leads there
                return f"no {name}"
            except Exception as error:
                raise NoText(".".join(chain), value) from error
            holder = None if _is_foreign(value) else value
            if isinstance(value, ModuleType):
                if holder is None and not (type(part) in _DATA or id(part) in _ENVIRONMENT):
                    return f"{value.__name__}.{name}"
                if holder is not None:
                    self.files.add(str(getattr(value, "__file__", "")))
                    holder = vars(value) if name in vars(value) else None
            self._watch(holder, name, part)
            value = part
        if isinstance(value, ModuleType) and not _is_foreign(value):
            # Anything could be taken of it, with `getattr`.
            raise NoText(".".join(chain), value)
        return value

    def _watch(self, holder: Any, name: str, value: Any, told: str = "") -> None:
        """Note what a program may set anew, except functions and what has a `==` of its own."""
        told = told or f"the global {name}"
        if isinstance(value, tl.constexpr):
            self._watch(vars(value), "value", value.value, told)
        is_compared = type(value) in _PLAIN or isinstance(value, _COMPARED)
        if self._is_watching and holder is not None and is_compared:
            kept = value
            if isinstance(value, (list, dict, set)):  # they may be changed in place
                kept = copy.copy(value)
                with contextlib.suppress(TypeError):  # a jitted function in it has a lock
                    kept = copy.deepcopy(value)
            self.watched[id(holder), name] = Watched(holder, name, kept, told)

    def _text(self, value: Any, name: str) -> str:
        """A value as text; raises `NoText` with the name."""
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, (FunctionType, type, JITCallable)) and kind not in _PARTS:
            if not _is_foreign(value):
                return self._number(value)
            if id(value) not in _ENVIRONMENT:
                return f"{value.__module__}:{value.__qualname__}"
        texts = [self._text(part, name) for part in _parts(value, name)]
        if isinstance(value, (set, frozenset)):
            texts.sort()
        return f"{kind.__qualname__}[{', '.join(texts)}]"


@functools.lru_cache(maxsize=4096)
def _compiled(source: str) -> Any:
    """The code of the one function in a source; what it closes over is global there."""
    name = source.partition("(")[0].split()[1]
    module = compile(source, "<source>", "exec", dont_inherit=True, optimize=0)
    return next(code for code in module.co_consts if getattr(code, "co_name", None) == name)


@bytecode.cached_by_identity
def _names_in(code: CodeType) -> tuple[list[Any], list[Any], list[tuple[str, int]]]:
    """("x",) and ("config", "FACTOR") of `x * config.FACTOR`; names that code sets; imports."""
    every = [*bytecode.with_nested(code)]
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inside = {name for inner in every for name in inner.co_cellvars}
    chains = {chain for inner in every for chain in bytecode.chains(inner, bytecode.OUTSIDE)}
    assigned = {*code.co_varnames, *inside}.difference(parameters)
    imports = [each for inner in every for each in bytecode.imports(inner)]
    read = sorted(chain for chain in chains if chain[0] not in inside)
    return read, [(name,) for name in sorted(assigned)], imports


def _is_foreign(value: Any) -> bool:
    """Whether what a module, a class, a function or an object is follows from a version."""
    name = str(getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None))
    # opforge and torch make jitted functions as a program runs, so of these only Triton's own are.
    is_made = isinstance(value, JITCallable) and name.partition(".")[0] != "triton"
    return not is_made and bytecode.is_foreign_name(name)


def _parts(value: Any, name: str) -> Any:
    """What makes up a value; raises `NoText`.

    Of an object it is what pickling would keep, which is all that it is. What has hidden state,
    such as a lock or a generator, cannot be pickled. The environment and tensors are as good as
    never the same in two processes.
    """
    if type(value) in _PARTS:
        return _PARTS[type(value)](value)
    if isinstance(value, tl.dtype):
        return [str(value)]
    if isinstance(value, enum.Enum):
        return value.name, value.value
    if id(value) in _ENVIRONMENT or hasattr(value, "data_ptr"):
        raise NoText(name, value)
    try:
        reduced = value.__reduce_ex__(2)
    except Exception as error:  # it runs code of the class
        raise NoText(name, value) from error
    if isinstance(reduced, str):  # its name, such as that of a function in C
        return getattr(value, "__module__", None), reduced
    made, arguments, *state = reduced
    return made, arguments, *state[:1], *([*items] for items in state[1:] if items is not None)


_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
# What may differ from process to process, of a module whose version makes all else what it is.
_DATA = _PLAIN | {ModuleType, tl.constexpr}
_ENVIRONMENT = {id(os.environ), id(os.getenv)}  # another in every process
_COMPARED = (tl.constexpr, tl.dtype, enum.Enum, tuple, list, dict, set, frozenset)
# What a kernel may use of globals, besides modules.
_USABLE = (FunctionType, JITCallable, type, tuple, tl.constexpr, tl.dtype)
_Cached = type(functools.cache(len))
_PARTS: dict[type[Any], Callable[[Any], Any]] = {
    **dict.fromkeys((tuple, list, set, frozenset), iter),
    **dict.fromkeys((dict, MappingProxyType), lambda mapping: mapping.items()),
    **dict.fromkeys((staticmethod, classmethod, _Cached), lambda wrapper: [wrapper.__wrapped__]),
    **dict.fromkeys((MethodType, BoundConstexprFunction), attrgetter("__func__", "__self__")),
    property: attrgetter("fget", "fset"),
    tl.constexpr: lambda constant: [constant.value],
    ModuleType: lambda module: [module.__name__],
}

# Of a class: what Python notes about its definition.
_NOTED = {*vars(abc.ABCMeta("", (), {})), "__qualname__", "__firstlineno__"}
_NOTED |= {"__static_attributes__", "__annotations_cache__"}
