"""Knows which dispatch keysets lead straight to an op's own body."""

from __future__ import annotations

from typing import Any

from .. import _compat


class PlainKeysets(dict[int, str]):
    """Raw keyset -> the name under which torch would list a kernel from elsewhere.

    A keyset is plain when below the calling key there is one dense backend and nothing else, and
    no kernel for that backend came from elsewhere (`torch.library.register_kernel`). torch lists
    the Python kernels of all ops in one set, under names such as "mylib/silu/CPU"; that the name
    is still absent is tested on every call.
    """

    def __init__(self, name: str, below: Any) -> None:
        super().__init__()
        self._name = name
        self._below = below
        self._mixed: set[int] = set()

    def clear(self) -> None:
        super().clear()
        self._mixed.clear()

    def learn(self, keyset: Any) -> bool:
        """Whether a keyset is plain; remembered when it is."""
        raw = keyset.raw_repr()
        if raw in self._mixed:
            return False
        backend = _compat.backend_of(keyset & self._below)
        if backend is None or _compat.has_kernel(self._name, backend):
            # For good: redispatching is right for every keyset, and going straight only faster.
            self._mixed.add(raw)
            return False
        self[raw] = f"{self._name.replace('::', '/')}/{backend}"
        return True
