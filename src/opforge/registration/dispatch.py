"""Knows which dispatch keysets lead straight to an op's own body."""

from __future__ import annotations

from typing import Any

from .. import _compat


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
        if backend is None or not self._runs_body(backend):
            # For good: redispatching is always right, and calling the body directly only faster.
            self._mixed.add(raw)
            return False
        self[raw] = f"{self._name.replace('::', '/')}/{backend}" if self._only is None else ""
        return True

    def _runs_body(self, backend: str) -> bool:
        if self._only is None:
            return not _compat.has_kernel(self._name, backend)
        return backend in self._only
