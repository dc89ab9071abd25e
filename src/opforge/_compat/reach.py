"""What a function can lead to: one walk over names, which runs nothing of the user's.

It follows globals, closures, defaults, attributes that the text names, members of classes,
containers, partials, decorators, modules that are imported inside functions, and operators. It
ends at foreign code: torch, Triton, opforge, the standard library. A name stands for more than the
text uses of it: what the walk comes upon is what a function may lead to.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import enum
import functools
import importlib.util
import logging
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import bytecode, kernels, operators
from .kernels import instance_dict

# Those that need no torch lie there.
ABSENT, contents, with_nested = bytecode.ABSENT, bytecode.contents, bytecode.with_nested
cached_by_identity, is_foreign_name = bytecode.cached_by_identity, bytecode.is_foreign_name
FOREIGN = bytecode.FOREIGN
# A longer container is a table of data.
_MOST_INSIDE = 1000
_BUILTINS = vars(builtins)


class Reached(NamedTuple):
    """An object that a walk came upon, and the function that names it.

    Of a function, `owner` is the object or class that it is a method of. `depth` counts calls.
    """

    value: Any
    caller: Reached | None
    depth: int = 0
    owner: Any = None

    @property
    def path(self) -> list[types.FunctionType]:
        """The functions that lead to it, the outermost first."""
        return [] if self.caller is None else [*self.caller.path, self.caller.value]


class Unfollowed(NamedTuple):
    """A name that a walk could not follow, where it is, and why."""

    name: str
    location: str
    why: str


class Walk:
    """What one object leads to: kernels by id, operators by name, functions; and what it lacks.

    `unbound` are names that nothing is bound to yet. `wraps`: a kernel may be launched through
    torch's `wrap_triton`, or a wrapper of somebody else's.
    """

    # A walk that meets more says so and ends.
    most_objects = 20_000

    def __init__(self, root: Any, *, max_depth: int) -> None:
        self.max_depth = max_depth
        self.kernels: dict[int, list[Reached]] = {}
        self.ops: dict[str, list[Reached]] = {}
        self.functions: list[Reached] = []
        self.unbound: dict[str, Unfollowed] = {}
        self.gaps: list[Unfollowed] = []
        self.wraps = False
        self._seen: dict[tuple[int, int], Any] = {}
        # By id, because hashing a class may run its metaclass's code; with the class.
        self._bases: dict[int, tuple[type[Any], list[Any]]] = {}
        self._data: dict[int, tuple[Any, bool]] = {}
        self._tables: dict[int, tuple[Any, list[Any]]] = {}
        self._waiting: collections.deque[Reached] = collections.deque()
        self._here: Reached | None = None
        self._names: dict[str, None] = {}
        owner = _class_of(root) if type(root) is types.FunctionType else None
        self._visit(root, cost=0, owner=owner)
        while self._waiting:
            self._read(self._waiting.popleft())
            if len(self._seen) > self.most_objects:
                named = root if type(root) is types.FunctionType else type(root)
                name = str(named.__qualname__)
                self.gaps.append(Unfollowed(name, place_of(root), "it leads to too much"))
                break

    def _read(self, reached: Reached) -> None:
        """Go through what a function names."""
        fn = reached.value
        said = mentions(fn.__code__)
        self.functions.append(reached)
        self._here, self._names = reached, said.names
        self.wraps |= not kernels.WRAP_TRITON.isdisjoint(said.names)
        self._closure(fn)
        for name, is_certain in said.globals_read:
            value = fn.__globals__.get(name, ABSENT)
            if value is not ABSENT:
                self.named(fn.__globals__, name, value)
            elif is_certain and name not in _BUILTINS:
                self._miss(name, f"the global name is read in {fn.__qualname__} and not bound yet")
        for name, level in said.imports:
            self._import(name, level)
        # `globals()["name"]`, `sys.modules["name"]`
        for table in said.tables:
            held = fn.__globals__ if table == "globals" else sys.modules
            for name in [n for n in said.strings if n in held]:
                self.named(held, name, held[name])
        for value in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            if value is not None:
                self._visit(value)
        if reached.owner is not None:
            self._own(reached.owner)
        self._operators(fn, said)

    def _closure(self, fn: types.FunctionType) -> None:
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            value = contents(cell)
            if name == "__class__":
                # `super()`; the methods that it finds are members of the owner.
                pass
            elif value is ABSENT:
                self._miss(name, f"the closure name is read in {fn.__qualname__} and not bound yet")
            else:
                # What a decorator's function calls in place of what it decorates adds no depth.
                self.named(cell, "cell_contents", value, cost=0)

    def _operators(self, fn: types.FunctionType, said: Mentions) -> None:
        """`torch.ops.ns.op`, which looking it up as Python does would register."""
        for root, attributes in said.operators:
            # `from torch import ops` in the body binds no global.
            space = fn.__globals__.get(root, torch if ("torch", 0) in said.imports else None)
            if space is not torch and not operators.is_root(space):
                continue
            names = attributes[1:2] or (said.strings if "getattr" in said.names else ())
            for each in names:
                name = f"{attributes[0]}::{each}"
                op = operators.find(".".join([name, *attributes[2:3]])) or operators.find(name)
                if op is not None:
                    self._operator(op, op)
                elif attributes[1:] and not operators.is_built_in(name):
                    self.ops.setdefault(name, []).append(Reached(None, self._here))

    def _miss(self, name: str, why: str) -> None:
        assert self._here is not None
        code = self._here.value.__code__
        place = f"{code.co_filename}:{_line_reading(code, name)}"
        self.unbound.setdefault(name, Unfollowed(name, place, why))

    def _import(self, name: str, level: int) -> None:
        assert self._here is not None
        fn = self._here.value
        module = absolute_name(fn, name, level)
        if module in sys.modules:
            self._visit(sys.modules[module])
            self._visit(sys.modules.get(module.partition(".")[0]))
        elif module and not is_foreign_name(module) and _is_installed(module.partition(".")[0]):
            why = f"the module is imported in {fn.__qualname__} and not loaded yet"
            self.unbound.setdefault(module, Unfollowed(module, place_of(fn), why))

    def named(
        self, holder: Any, name: Any, value: Any, *, cost: int = 1, owner: Any = None
    ) -> None:
        """Go on to what a cell, a class or a dict holds under a name that is read here.

        Visitors override it.
        """
        del holder, name
        self._visit(value, cost=cost, owner=owner)

    def _visit(self, value: Any, *, cost: int = 1, owner: Any = None) -> None:
        """Note an object that is named here, and go on to what it leads to."""
        kind = type(value)
        if kind is types.FunctionType:
            if (id(value), id(owner)) not in self._seen:
                self._function(value, owner, cost)
            return
        kind_id = id(kind)
        is_module = kind is types.ModuleType
        if kind_id in _DEAD_ENDS or (is_module and is_foreign_name(str(vars(value)["__name__"]))):
            return
        key = self._key(value)
        if key in self._seen or self._is_data(value):
            return
        self._seen[key] = value, self._names
        if issubclass(kind, types.ModuleType):
            self._module(value)
        elif kind_id in _CONTAINERS:
            self._container(value, cost)
        elif kind_id in PARTS:
            owner = value.__self__ if kind is types.MethodType else owner
            for part in PARTS[kind_id]:
                self._visit(getattr(value, part, None), cost=cost, owner=owner)
        elif issubclass(kind, type):
            self._members(value, value)
        else:
            self._object(value, cost)

    def _key(self, value: Any) -> tuple[int, int]:
        """What of an object is named differs from function to function."""
        return id(value), id(self._names)

    def _function(self, fn: types.FunctionType, owner: Any, cost: int) -> None:
        above = self._here
        key = (id(fn), id(owner))
        if operators.MARK in fn.__dict__:
            self._operator(fn.__dict__[operators.MARK], fn)
        elif (bound := kernels.grid_bound_kernel(fn)) is not None:
            self._kernel(bound)
        elif is_foreign_file(fn.__code__.co_filename):
            self._seen[key] = fn, owner
            self.wraps |= kernels.is_wrap_triton(fn)
            # Of a decorator of others, only what it decorates counts.
            for cell in fn.__closure__ or ():
                self.named(cell, "cell_contents", contents(cell), cost=cost, owner=owner)
            self._visit(fn.__dict__.get("__wrapped__"), cost=cost, owner=owner)
        else:
            depth = 0 if above is None else above.depth + cost
            if depth > self.max_depth:
                why = f"{fn.__qualname__} lies deeper than max_depth={self.max_depth}"
                self.gaps.append(Unfollowed(fn.__qualname__, place_of(fn), why))
                return
            self._seen[key] = fn, owner
            reached = Reached(fn, above, depth, owner)
            (self._waiting.append if cost else self._waiting.appendleft)(reached)

    def _kernel(self, kernel: Any) -> None:
        below = kernels.chain(kernel)[1:] if "fn" in self._names else ()
        for each in (kernel, *below):
            self.kernels.setdefault(id(each), []).append(Reached(each, self._here))

    def _operator(self, op: Any, value: Any) -> None:
        name = operators.operator_name(op)
        if name is not None and not operators.is_built_in(name):
            self.ops.setdefault(name, []).append(Reached(value, self._here))

    def _module(self, module: Any) -> None:
        """What is named of a module: `module.kernel`, `package.module.kernel`."""
        space = operators.namespace_name(module)
        if space is not None and not operators.is_built_in(space + "::"):
            for name in self._names:
                if (op := operators.find(f"{space}::{name}")) is not None:
                    self._operator(op, op)
        if is_foreign(module):
            return
        self._read_table(instance_dict(module))

    def _read_table(self, held: dict[str, Any], *, cost: int = 1) -> None:
        for name in self._named_in(held):
            self.named(held, name, held[name], cost=cost)
        if "getattr" in self._names:
            if id(held) not in self._tables:
                self._tables[id(held)] = held, [*_launchers_among(held)]
            for value in self._tables[id(held)][1]:
                self._visit(value)

    def _named_in(self, held: Mapping[str, Any]) -> list[str]:
        names = self._names
        # Most tables have none of them.
        return [] if names.keys().isdisjoint(held) else [name for name in names if name in held]

    def _is_data(self, value: Any) -> bool:
        """Whether a table leads nowhere; each function that names one comes upon it anew."""
        kind = type(value)
        if id(kind) not in _TABLES:
            return False
        if id(value) not in self._data:
            # It may contain itself.
            self._data[id(value)] = value, False
            inside = [*(value.values() if kind is dict else value)]
            is_data = all(id(type(each)) in _DEAD_ENDS or self._is_data(each) for each in inside)
            self._data[id(value)] = value, is_data
        return self._data[id(value)][1]

    def _container(self, value: Any, cost: int) -> None:
        # Past the methods of a class that is derived from one of these.
        kind: Any = next((base for base in _BASES if issubclass(type(value), base)), type(value))
        if kind.__len__(value) > _MOST_INSIDE:
            return
        if kind in _LISTS:
            for item in [*kind.__iter__(value)]:
                self._visit(item, cost=cost)
        else:
            for key, item in [*kind.items(value)]:
                self.named(value, key, item, cost=cost)

    def _object(self, value: Any, cost: int) -> None:
        cls = type(value)
        held = instance_dict(value)
        op = held.get(operators.MARK, value)
        if operators.operator_name(op) is not None:
            self._operator(op, value)
            return
        kernel = kernels.launched_kernel(value) if kernels.triton_loaded() else None
        if kernel is not None:
            self._kernel(kernel)
        if kernel is value:
            return
        self.wraps |= kernel is not None
        for name in _INNER:
            if name in held:
                self._visit(held[name], cost=0)
        self._read_table(held, cost=cost)
        if issubclass(cls, torch.nn.Module):
            self._visit(held.get("_modules"), cost=cost)
        elif issubclass(cls, _BASES):
            self._container(value, cost)
        self._members(cls, value)

    def _own(self, owner: Any) -> None:
        """What a method names of its object or class; of these, Python calls nothing else."""
        is_class = issubclass(type(owner), type)
        held = {} if is_class else instance_dict(owner)
        modules = held.get("_modules") if issubclass(type(owner), torch.nn.Module) else None
        for table in filter(None, (held, modules)):
            self._read_table(table, cost=0)
        if modules and not _ALL_MODULES.isdisjoint(self._names):
            self._visit(modules, cost=0)
        self._members(owner if is_class else type(owner), owner, is_used=False)
        if is_class:
            # What it makes is in no object yet.
            self._visit(class_attribute(owner, "__init__"), owner=owner)

    def _members(self, cls: type[Any], owner: Any, *, is_used: bool = True) -> None:
        """Members of a class that the text names, and if it is used those that are called then."""
        names, by_unknown = self._names, "getattr" in self._names
        if issubclass(type(cls), enum.EnumMeta) and not is_foreign(cls):
            # A table, `Backend[name]`.
            self._visit(class_dict(cls).get("_member_map_"))
        for base, methods, called, launchers in self._own_bases(cls):
            members = class_dict(base)
            chosen = self._named_in(members)
            if by_unknown or is_used:
                unnamed = methods if by_unknown else called
                chosen += [name for name in unnamed if name not in names]
            for name in chosen:
                member = members[name]
                if type(member) is types.MemberDescriptorType:
                    with contextlib.suppress(AttributeError, TypeError):
                        self.named(owner, name, member.__get__(owner))
                # Most are functions of whose owner another method was read.
                elif (id(member), id(owner)) not in self._seen:
                    self.named(base, name, member, owner=owner)
            for value in launchers if by_unknown else ():
                self._visit(value)

    def _own_bases(self, cls: type[Any]) -> list[tuple[Any, list[str], list[str], list[Any]]]:
        """A class and its bases, without foreign ones; asked for at every method that is read.

        Each with its methods, those that are called without a name, and what launches a kernel.
        """
        if id(cls) not in self._bases:
            own = []
            for base in mro(cls):
                if base is not object and not is_foreign(base):
                    methods = [n for n, m in class_dict(base).items() if id(type(m)) in METHODS]
                    called = [n for n in methods if n[:2] == "__" or n in CALLED]
                    own.append((base, methods, called, [*_launchers_among(class_dict(base))]))
            self._bases[id(cls)] = cls, own
        return self._bases[id(cls)][1]


def _launchers_among(held: Mapping[str, Any]) -> Iterator[Any]:
    """What launches a kernel, by names that a text does not show."""
    for value in [*held.values()] if kernels.triton_loaded() else ():
        is_data = id(type(value)) in _DEAD_ENDS
        if not is_data and kernels.launched_kernel(value) is not None:
            yield value


class Mentions(NamedTuple):
    """What a function and those inside it name.

    A global name is read for certain, or only if a class's body does not bind it. An import is a
    name and its leading dots; an operator, the root and the attributes after `ops`. In `tables`,
    texts name what is looked up: "globals", "modules".
    """

    # In the order of the text, which is the same in every process.
    names: dict[str, None]
    globals_read: tuple[tuple[str, bool], ...]
    imports: tuple[tuple[str, int], ...]
    strings: dict[str, None]
    operators: tuple[tuple[str, tuple[str, ...]], ...]
    tables: list[str]


@cached_by_identity
def mentions(code: types.CodeType) -> Mentions:
    """What a function names."""
    every = [*with_nested(code)]
    names = dict.fromkeys(name for inner in every for name in inner.co_names)
    constants = (value for inner in every for value in inner.co_consts)
    strings = dict.fromkeys(value for value in constants if type(value) is str)
    read: dict[str, bool] = {}
    for name, is_certain in [
        each for inner in every for each in bytecode.names_read(inner).items()
    ]:
        # pytest puts "@py_builtins" into a module for the asserts that it writes anew.
        if not name.startswith("@"):
            read[name] = is_certain or read.get(name, False)
    imported = [each for inner in every for each in bytecode.imports(inner)]
    if names.keys() & _IMPORTS:
        texts = (text for text in strings if text.replace(".", "").isidentifier())
        imported += ((bare := text.lstrip("."), len(text) - len(bare)) for text in texts)
    named = (chain for inner in every for chain in _operators_in(inner)) if "ops" in names else ()
    return Mentions(
        {**names, **strings} if names.keys() & _BY_TEXT else names,
        tuple(read.items()),
        tuple(imported),
        strings,
        tuple(dict.fromkeys(named)),
        [table for table in ("globals", "modules") if table in names],
    )


def _operators_in(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Chains of attributes such as `torch.ops.ns.op`: `("torch", ("ns", "op"))`."""
    for root, *attributes in bytecode.chains(code, bytecode.NAMES):
        if attributes and (root == "ops" or attributes[0] == "ops"):
            found = attributes[attributes[0] == "ops" :]
            if found:
                yield root, tuple(found)


def _line_reading(code: types.CodeType, name: str) -> int:
    for inner in with_nested(code):
        for step in bytecode.steps(inner):
            if step[0] in bytecode.OUTSIDE and bytecode.operand(inner, step) == name:
                return bytecode.line(inner, step[2])
    return code.co_firstlineno


def _class_of(fn: types.FunctionType) -> Any:
    """The class that a function is a method of, by its name; or None."""
    cls = fn.__globals__.get(fn.__qualname__.rpartition(".")[0])
    if not issubclass(type(cls), type):
        return None
    stored = class_dict(cls).get(fn.__name__)
    is_wrapped = type(stored) is staticmethod or type(stored) is classmethod
    return cls if (stored.__func__ if is_wrapped else stored) is fn else None


def absolute_name(fn: types.FunctionType, name: str, level: int) -> str:
    if level <= 0:
        return name
    above = (fn.__globals__.get("__package__") or "").split(".")
    return ".".join([*above[: len(above) + 1 - level], *([name] if name else [])])


def place_of(value: Any) -> str:
    """`file:line` of a function."""
    code = value.__code__ if type(value) is types.FunctionType else None
    return "unknown" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def class_attribute(cls: type[Any], name: str) -> Any:
    """A class's entry for a name as stored, or ABSENT."""
    found = (class_dict(base).get(name, ABSENT) for base in mro(cls))
    return next((value for value in found if value is not ABSENT), ABSENT)


# As `type` itself reads them, past any metaclass.
mro = type.__dict__["__mro__"].__get__
class_dict = type.__dict__["__dict__"].__get__
# What torch calls of an object; Python calls what begins with two underscores.
CALLED = frozenset({"forward", "backward", "setup_context"})
_ALL_MODULES = frozenset({"_modules", "children", "modules", "named_children", "named_modules"})
# With these, a text is the name of an attribute, or of a module.
_BY_TEXT = frozenset({"getattr", "attrgetter", "methodcaller", "vars", "__dict__"})
_IMPORTS = frozenset({"import_module", "__import__"})
_BASES = (tuple, list, dict)
# Where wrappers, a UserDict, a ChainMap and a member of an enum hold what they are about.
_INNER = ("__wrapped__", "fn", "func", "data", "maps", "_value_")
_LISTS = (list, tuple, set, frozenset, collections.deque)


def _ids(*kinds: type[Any]) -> frozenset[int]:
    """Classes by id, because hashing a class may run its metaclass's code."""
    return frozenset(map(id, kinds))


_TABLES = _ids(dict, *_LISTS)
METHODS = _ids(types.FunctionType, staticmethod, classmethod, property)
_DEAD_ENDS = _ids(
    str, bytes, int, float, bool, complex, type(None), type(...), object, range, slice,
    torch.dtype, torch.device, torch.Tensor, torch.nn.Parameter, types.CodeType, logging.Logger,
    types.GetSetDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType,
)  # fmt: skip
_CONTAINERS = _ids(
    *_LISTS, dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType,
    weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
)  # fmt: skip
PARTS: dict[int, tuple[str, ...]] = {
    id(types.MethodType): ("__func__", "__self__"),
    # `Function.apply`, since torch 2.15.
    id(types.BuiltinFunctionType): ("__self__",),
    id(functools.partial): ("func", "args", "keywords"),
    id(functools.partialmethod): ("func", "args", "keywords"),
    id(type(functools.cache(print))): ("__wrapped__",),
    id(functools.cached_property): ("func",),
    id(functools.singledispatchmethod): ("dispatcher",),
    id(staticmethod): ("__func__",),
    id(classmethod): ("__func__",),
    id(property): ("fget",),
}

_INSTALLED = ("/site-packages/", "/dist-packages/")


def is_foreign(value: Any) -> bool:
    """Whether a module, a class, or the class of an object is foreign."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        name = instance_dict(value).get("__name__")
    else:
        name = type.__getattribute__(value if issubclass(kind, type) else kind, "__module__")
    return not isinstance(name, str) or is_foreign_name(name)


def is_foreign_function(value: Any) -> bool:
    return type(value) is types.FunctionType and is_foreign_file(value.__code__.co_filename)


@functools.cache
def is_foreign_file(file: str) -> bool:
    """Whether the code of a file is foreign."""
    if file.startswith("<frozen"):
        return True
    file = file.replace("\\", "/")
    for mark in _INSTALLED:
        _, installed, path = file.rpartition(mark)
        if installed:
            return path.partition("/")[0].removesuffix(".py") in FOREIGN
    return file.startswith(_folders(len(sys.modules)))


@functools.lru_cache(maxsize=1)
def _folders(_loaded: int) -> tuple[str, ...]:
    """Of the standard library, and of foreign packages that are installed for development."""
    specs = [getattr(sys.modules.get(name), "__spec__", None) for name in FOREIGN]
    files = [spec.origin for spec in specs if spec is not None and spec.has_location]
    packages = [Path(file).parent for file in files if Path(file).name == "__init__.py"]
    paths = sysconfig.get_paths()
    return tuple(f"{folder}/" for folder in {*packages, paths["stdlib"], paths["platstdlib"]})


@functools.cache
def _is_installed(top: str) -> bool:
    """Whether a package can be imported; finding a top-level one imports nothing."""
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False
