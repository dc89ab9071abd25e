"""What an op depends on, as text: for Inductor's cache key, and for a native library.

A compiled graph is cached under what Dynamo saw, which is the op's name, and under the source of
the kernels that the op lists. What is behind the name may still change: the host function, its
helpers and constants, the configs of autotuners, heuristics, a kernel that somebody registered.
A native library carries a hash of the same, which loading compares with that of the source.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _compat
from .._compat import bytecode, reach
from ..model import LAUNCHED, KernelRef
from ..tuning.choose import rows_of

_kernels, _operators = _compat.kernels, _compat.operators
# By id, because hashing a class may run its metaclass's code.
_PLAIN = frozenset(
    map(
        id,
        (
            int, float, complex, str, bytes, bool, type(None), range,
            torch.dtype, torch.device, torch.layout, torch.memory_format,
        ),
    )
)  # fmt: skip
# What of an autotuner or of heuristics decides how a kernel is launched, besides the configs.
_CHOOSING = (
    "values", "reset_to_zero", "restore_value", "early_config_prune", "perf_model", "configs_top_k",
)  # fmt: skip


@dataclass(eq=False)
class Dependence:
    """Looks like a jitted function to torch, which puts its `src` into the key.

    `others` tells at which dispatch keys somebody else's kernel runs instead of the body.
    """

    launched: Sequence[Any]
    sources: Sequence[Any]
    others: Callable[[], Sequence[str]] = tuple
    __name__ = "dependence"
    fn = staticmethod(lambda: None)

    def entries(self) -> list[Any]:
        """What to list for the op: its kernels, and this for the rest."""
        read = [k if _torch_reads(k) else _kernels.innermost(k) for k in self.launched]
        return [*read, self] if read else []

    @property
    def src(self) -> str:
        lines = [f"kernel of others at {key}" for key in self.others()]
        for kernel in self.launched:
            lines += rows_of(kernel)
            lines.append(_compat.kernel_hash.hash_or_unique(_kernels.innermost(kernel)).digest)
            lines += _compat.printing.added(kernel)
        sources = _Sources([*self.launched, *self.sources], is_compiled=True)
        lines += sources.lines(lambda fn: bytecode.text(fn.__code__))
        return "\n".join(f"# {line!r}" for line in lines)


def _torch_reads(kernel: Any) -> bool:
    # torch takes the source of a jitted function, or of one directly below an autotuner.
    chain = _kernels.chain(kernel)
    return len(chain) == 1 or (len(chain) == 2 and not _kernels.is_heuristics(kernel))


def op_fingerprint(fn: Any, kernels: Iterable[KernelRef] = ()) -> str:
    """The hash of a function, and of the kernels that its text launches.

    It depends only on text: not on paths, line numbers, or the version of Python. Kernels that
    only a trace has launched are left out: another process may not have traced.
    """
    launched = [ref.kernel for ref in kernels if ref.grade == LAUNCHED]
    lines = _Sources([fn, *launched]).lines(_text)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Sources(reach.Walk):
    """The functions that others lead to, also through kernels, and the constants they name."""

    most_objects = sys.maxsize

    def __init__(self, roots: Sequence[Any], *, is_compiled: bool = False) -> None:
        """`is_compiled`: after the body has run, with all that a graph has of nested operators."""
        self._is_compiled = is_compiled
        self._constants: defaultdict[int, set[str]] = defaultdict(set)
        # How the function that is read leads to an object, and first led to it.
        self._path: tuple[str, ...] = ()
        self._paths: dict[tuple[int, int], str] = {}
        super().__init__(roots, max_depth=sys.maxsize)

    def lines(self, told: Callable[[types.FunctionType], str]) -> list[str]:
        """A text for each function, the same in whichever order they were met."""
        named = self._constants
        texts = {f"{told(r.value)} {_held(r.value)} {sorted(named[id(r)])}" for r in self.functions}
        return sorted(texts | named[id(None)])

    def named(self, holder: Any, name: Any, value: Any, **follow: Any) -> None:
        is_closed = type(holder) is types.CellType
        above = self._path
        self._path = (*above, self._variable(holder) if is_closed else _shown(name))
        # A closure is part of its function.
        shown = "" if is_closed else _held(value) or _shown(value)
        if shown or id(type(value)) not in _PLAIN:
            path = ".".join(self._path)
            # What several names lead to is gone through once.
            shown = shown or self._paths.setdefault((id(self._here), id(value)), path)
            if shown != path:
                self._constants[id(self._here)].add(f"{path} = {shown}")
        super().named(holder, name, value, **follow)
        self._path = above

    def _variable(self, cell: types.CellType) -> str:
        """The name of a closed-over variable; empty in a decorator of others."""
        fn = self._here.value if self._here else None
        cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False) if fn else ()
        return next((name for name, each in cells if each is cell), "")

    def _is_data(self, value: Any) -> bool:
        # Data are what an op depends on.
        del value
        return False

    def _container(self, value: Any, cost: int) -> None:
        if issubclass(type(value), (list, tuple)):
            base: Any = list if issubclass(type(value), list) else tuple
            for index, item in enumerate([*base.__iter__(value)]):
                self.named(value, index, item, cost=cost)
        else:
            super()._container(value, cost)

    def _kernel(self, kernel: Any) -> None:
        for part in _kernels.chain(kernel):
            self._constants[id(self._here)].update(map(str, getattr(part, "configs", ())))
            for name in _CHOOSING if _kernels.is_kernel(part) else ():
                if (chooses := _kernels.instance_dict(part).get(name)) is not None:
                    self.named(part, name, chooses)
        self._visit(_kernels.innermost(kernel).fn)

    def _operator(self, op: Any, value: Any) -> None:
        if self._is_compiled:
            name = str(_operators.operator_name(op))
            for entry in _compat.launches.kernels_of_ops.get(name, ()):
                for source in entry.sources if type(entry) is Dependence else ():
                    self._visit(source)
            self._visit(_operators.triton_op_body(op))
        super()._operator(op, value)

    def _object(self, value: Any, cost: int) -> None:
        # Objects of others change while a program runs, such as loggers.
        is_read = type(value) is types.SimpleNamespace or _kernels.is_kernel(value)
        if is_read or _operators.operator_name(value) or not reach.is_foreign(value):
            super()._object(value, cost)

    def _import(self, name: str, level: int) -> None:
        # A process that has only the source to compare may not have loaded the module.
        if self._is_compiled:
            super()._import(name, level)


def _held(fn: Any) -> str:
    """What a function closes over, and its defaults; nothing of another value."""
    if type(fn) is not types.FunctionType:
        return ""
    cells = [reach.contents(cell) for cell in fn.__closure__ or ()]
    return f"{fn.__qualname__} {_shown([fn.__defaults__, fn.__kwdefaults__, cells])}"


def _shown(value: Any, around: tuple[int, ...] = ()) -> str:
    """A constant, the same in every process; empty for what is none, or contains itself."""
    # Only the type is looked at: `isinstance` asks a proxy for what it stands for.
    kind = type(value)
    if id(kind) in _PLAIN or issubclass(kind, enum.Enum):
        return repr(value)
    if id(value) in around:
        return ""
    inner = functools.partial(_shown, around=(*around, id(value)))
    if issubclass(kind, dict):
        return inner([*dict.items(value)])
    if issubclass(kind, (list, tuple)):
        base: Any = list if issubclass(kind, list) else tuple
        return f"[{', '.join(map(inner, base.__iter__(value)))}]"
    if kind is set or kind is frozenset:
        return f"[{', '.join(sorted(map(inner, value)))}]"
    if _kernels.is_kernel(value):
        configs = [str(c) for part in _kernels.chain(value) for c in getattr(part, "configs", ())]
        return f"kernel {_kernels.kernel_name(value)} {configs}"
    if kind is types.BuiltinFunctionType or reach.is_foreign_function(value):
        return f"{value.__module__}.{value.__qualname__}"
    module, name = (type.__getattribute__(kind, n) for n in ("__module__", "__name__"))
    if module == "numpy" and not getattr(value, "shape", True):
        return repr(value)
    # Triton's wraps a number.
    return inner(value.value) if name == "constexpr" else ""


def _text(fn: types.FunctionType) -> str:
    try:
        return textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):
        # Typed at a prompt, or compiled by exec.
        return bytecode.text(fn.__code__)
