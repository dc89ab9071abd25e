"""Serves a folder in a process whose environment names it, when the process imports Triton."""

from __future__ import annotations

from pathlib import Path

from ..after_triton import after_triton


def start(folder: str, *, strict: bool, tune_missing: bool, counts: str = "") -> None:
    """Serve a folder from Triton's import on; `counts` is a folder for what was served."""

    def then() -> None:
        from .serve import serve

        serve(folder, strict=strict, tune_missing=tune_missing)
        if counts:
            from .counts import keep

            keep(Path(counts))

    after_triton(then)
