"""What compiled code depends on, as text for Inductor's cache key.

A compiled graph is cached under what Dynamo saw, which is the op's name, and under the source of
the kernels that the op lists. What is behind the name may still change: the host function, its
helpers and constants, the configs of autotuners, heuristics, a kernel that somebody registered.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _compat
from ..tuning.use import rows_of

_kernels = _compat.kernels

# Code of these is in torch's and Triton's own keys, or does not need to be in any.
_FOREIGN = {*sys.stdlib_module_names, "torch", "triton", "numpy", "opforge"}
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def cache_entries(
    name: str,
    launched: Sequence[Any],
    sources: Sequence[Any],
    others: Callable[[], Sequence[str]] = tuple,
) -> list[Any]:
    """What to list for an op: its kernels, and an object that stands for the rest.

    `others` tells at which dispatch keys somebody else's kernel runs instead of the body.
    """
    jitted = [k for k in launched if not _kernels.is_interpreted(k)]
    if not jitted:
        return []
    entries = [k if _torch_reads(k) else _kernels.innermost(k) for k in jitted]
    return [*entries, Dependence(name, jitted, sources, others)]


def _torch_reads(kernel: Any) -> bool:
    # torch takes the source of a jitted function, or of one directly below an autotuner.
    chain = _kernels.chain(kernel)
    return len(chain) == 1 or (len(chain) == 2 and not _kernels.is_heuristics(kernel))


class Dependence:
    """Looks like a jitted function to torch, which puts its `src` into the key."""

    def __init__(
        self,
        name: str,
        launched: Sequence[Any],
        sources: Sequence[Any],
        others: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.__name__ = name
        self.fn = lambda: None
        self._launched = launched
        self._sources = sources
        self._others = others

    @property
    def src(self) -> str:
        lines = [f"kernel of others at {key}" for key in self._others()]
        functions = list(self._sources)
        for kernel in self._launched:
            for part in _kernels.chain(kernel):
                lines += [str(config) for config in getattr(part, "configs", ())]
                if _kernels.is_heuristics(part):
                    lines += list(part.values)
                    functions += part.values.values()
            lines += rows_of(kernel)
            lines.append(_compat.kernel_hash.hash_or_unique(_kernels.innermost(kernel)).digest)
            lines += _compat.printing.added(kernel)
        lines += [_text(fn) for fn in _reached(functions)]
        return "\n".join(f"# {line}" for line in lines)


def _reached(functions: Sequence[Any]) -> Iterator[types.FunctionType]:
    """The functions, and those that they use outside of torch and the like, each once."""
    waiting, seen = list(reversed(functions)), set()
    while waiting:
        fn = inspect.unwrap(waiting.pop())
        if not isinstance(fn, types.FunctionType) or id(fn) in seen:
            continue
        seen.add(id(fn))
        yield fn
        for value in named(fn).values():
            waiting += [f for f in (value, *_methods(value, fn)) if is_ours(f)]


def named(fn: types.FunctionType) -> dict[str, Any]:
    """What a function's names refer to: globals, closure, and attributes of modules."""
    names = sorted({n for code in _codes(fn.__code__) for n in code.co_names})
    found = {n: fn.__globals__[n] for n in names if n in fn.__globals__}
    for module in [v for v in found.values() if isinstance(v, types.ModuleType)]:
        if module.__name__.partition(".")[0] not in _FOREIGN:
            found.update({f"{module.__name__}.{n}": vars(module).get(n) for n in names})
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    found.update({name: _held(cell) for name, cell in cells})
    for name, value in [*found.items(), *_defaults(fn)]:
        if not isinstance(value, (*_PLAIN, types.ModuleType, types.FunctionType)):
            found.update({f"{name}.{n}": v for n, v in _attributes(value, names)})
    return found


def _defaults(fn: types.FunctionType) -> list[tuple[str, Any]]:
    values = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    return [(f"default {i}", value) for i, value in enumerate(values)]


def _attributes(value: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What a class or an object holds under names that a function reads."""
    cls = value if isinstance(value, type) else type(value)
    if _is_foreign(cls) and not isinstance(value, tuple):
        return
    own = _kernels.instance_dict(value)
    fields = getattr(cls, "_fields", ())
    for name in names:
        if name in own:
            yield name, own[name]
        elif isinstance(value, tuple) and name in fields:
            yield name, tuple.__getitem__(value, fields.index(name))
        else:
            stored = next((vars(b)[name] for b in cls.__mro__ if name in vars(b)), None)
            yield name, stored.value if isinstance(stored, enum.Enum) else stored


def _is_foreign(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _FOREIGN


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _methods(value: Any, fn: types.FunctionType) -> list[Any]:
    """Methods of a class, or of an object's class, that a function names."""
    cls = value if isinstance(value, type) else type(value)
    if _is_foreign(cls):
        return []
    names = {n for code in _codes(fn.__code__) for n in (*code.co_names, "__call__", "forward")}
    found = [vars(base).get(n) for base in cls.__mro__ for n in sorted(names)]
    return [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in found if m is not None]


def is_ours(value: Any) -> bool:
    value = inspect.unwrap(value) if callable(value) else value
    return isinstance(value, types.FunctionType) and not _is_foreign(value)


def _text(fn: types.FunctionType) -> str:
    """What a function does, the same in every process: `f 9700... [128] {'BLOCK': 128}`."""
    held = named(fn).items()
    constants = {n: text for n, v in held if (text := constant_text(v)) != type(v).__name__}
    defaults = [constant_text(v) for v in fn.__defaults__ or ()]
    keywords = {n: constant_text(v) for n, v in (fn.__kwdefaults__ or {}).items()}
    return f"{_code(fn.__code__)} {defaults} {keywords} {constants!r}"


def _code(code: types.CodeType) -> str:
    constants = [constant_text(c) for c in code.co_consts]
    return f"{code.co_name} {code.co_code.hex()} {constants} {code.co_names}"


def constant_text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    if isinstance(value, frozenset):
        return repr(sorted(map(repr, value)))
    if isinstance(value, (tuple, list)):
        return repr([constant_text(v) for v in value])
    if isinstance(value, dict):
        return repr([(constant_text(k), constant_text(v)) for k, v in value.items()])
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
