"""Knows which dispatch keysets lead straight to an op's own body."""

from __future__ import annotations

from typing import Any

from .. import _compat

# Keys at which a kernel is for every backend that has none of its own.
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def listed_name(name: str, key: str) -> str:
    """How torch lists a Python kernel; that of the op's own body is taken off its list."""
    return f"{name.replace('::', '/')}/{key}"


def is_overridden(name: str) -> bool:
    """Whether somebody registered a kernel for every backend, in place of the body."""
    return any(listed_name(name, key) in _compat.python_impls for key in COMPOSITE)


class PlainKeysets(dict[int, str]):
    """Raw keyset -> the name under which torch would list somebody else's kernel.

    A keyset is plain if there is exactly one dense backend below the calling key, and nobody else
    registered a kernel for that backend (`torch.library.register_kernel`). torch lists the Python
    kernels of all ops in one set, under names such as "mylib/silu/CPU"; every call tests that the
    name is still absent.

    `only`: the backends that the body is for, and is registered at; None if it is for all.
    """

    def __init__(self, name: str, below: Any, only: frozenset[str] | None = None) -> None:
        super().__init__()
        self._name = name
        self._below = below
        self._only = only
        self._mixed: set[int] = set()

    def clear(self) -> None:
        super().clear()
        self._mixed.clear()

    def learn(self, keyset: Any) -> bool:
        """Whether a keyset is plain, which is remembered."""
        raw = keyset.raw_repr()
        if raw in self._mixed:
            return False
        backend = _compat.backend_of(keyset & self._below)
        if backend is None or not self._runs_body(backend) or is_overridden(self._name):
            # For good: redispatching is always right, and calling the body directly only faster.
            self._mixed.add(raw)
            return False
        self[raw] = listed_name(self._name, backend)
        return True

    def _runs_body(self, backend: str) -> bool:
        if self._only is None:
            return not _compat.has_kernel(self._name, backend)
        return backend in self._only and (
            listed_name(self._name, backend) not in _compat.python_impls
        )
