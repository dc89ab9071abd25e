"""Triton kernels that were built ahead, for opforge to serve.

`opforge wheel` copies this file into each wheel of such kernels, as its package.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

__all__ = ["get_folder", "serve"]


def get_folder() -> str:
    """The folder of the kernels, for `opforge serve` and OPFORGE_SERVE."""
    return str(Path(__file__).resolve().parent / "kernels")


def serve(
    *,
    strict: bool = False,
    preload: bool = False,
    tune_missing: bool = False,
    verify: bool = False,
    trusted_keys: Sequence[str | PathLike[str]] | None = None,
) -> None:
    """Serve launches of Triton kernels from here, as `opforge.serve` does."""
    try:
        import opforge  # noqa: PLC0415  # the folder can be found without
    except ModuleNotFoundError as error:
        if error.name != "opforge":
            raise
        raise ImportError(
            "kernels are served by opforge, which is not installed\n  fix: pip install opforge",
            name="opforge",
        ) from None
    opforge.serve(
        get_folder(),
        strict=strict,
        preload=preload,
        tune_missing=tune_missing,
        verify=verify,
        trusted_keys=trusted_keys,
    )
