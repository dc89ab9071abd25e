"""Serves a folder in a process whose environment names it, when the process imports Triton."""

from __future__ import annotations

from ..after_triton import after_triton


def start(folder: str, *, strict: bool, tune_missing: bool) -> None:
    """Serve a folder from Triton's import on."""

    def then() -> None:
        from .serve import serve

        serve(folder, strict=strict, tune_missing=tune_missing)

    after_triton(then)
