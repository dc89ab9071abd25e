"""A hash of what an op computes: its function, its kernels, and what they call.

A native library carries the hash of the source it was built from, and loading compares it with
the registered source. So the hash depends only on text: not on paths, line numbers, or the version
of Python.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .. import _compat
from ..model import LAUNCHED, KernelRef
from .dependence import constant_text, is_ours, named

_kernels = _compat.kernels


def op_fingerprint(fn: Any, kernels: Iterable[KernelRef] = ()) -> str:
    """The hash of a function, and of the kernels that its text launches.

    Those that only a trace has launched are left out: another process may not have traced.
    """
    found = [ref.kernel for ref in kernels if ref.grade == LAUNCHED]
    lines = [line for each in _reached([fn], found) for line in _described(each)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _reached(functions: Sequence[Any], kernels: Sequence[Any]) -> Iterator[Any]:
    """Plain functions and kernels, each once: kernels, what they call, heuristics, helpers."""
    waiting: list[Any] = [*reversed(kernels), *reversed(functions)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        kernel = _kernels.launched_kernel(value) if _kernels.triton_loaded() else None
        found = kernel if kernel is not None else _plain(value)
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if kernel is not None:
            for part in _kernels.chain(kernel)[:-1]:
                if _kernels.is_heuristics(part):
                    waiting += part.values.values()
            waiting.append(_kernels.innermost(kernel).fn)
        else:
            waiting += [v for _, v in sorted(named(found).items())]


def _plain(value: Any) -> types.FunctionType | None:
    return inspect.unwrap(value) if is_ours(value) else None


def _described(found: Any) -> Iterator[str]:
    if not isinstance(found, types.FunctionType):
        for part in _kernels.chain(found)[:-1]:
            yield from (str(config) for config in getattr(part, "configs", ()))
        return
    try:
        yield textwrap.dedent(inspect.getsource(found))
    except (OSError, TypeError):
        # Typed at a prompt, or compiled by exec.
        yield found.__code__.co_code.hex()
    for name, value in sorted(named(found).items()):
        # Triton's constexpr wraps a number.
        held = value.value if type(value).__name__ == "constexpr" else value
        text = constant_text(held)
        if text != type(held).__name__:
            yield f"{name} = {text}"
