"""The torch and Triton that opforge works with, and how to install them."""

from __future__ import annotations

import sys
from typing import Any

# The first whose stable ABI the torch adapters use.
OLDEST_TORCH = "2.11"
OLDEST_TRITON = "3.6"
# The releases of torch that were tested, each with the Triton that its wheel asks for.
TESTED = {"2.11": "3.6", "2.12": "3.7", "2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}

INSTALL_TORCH = f"pip install 'torch>={OLDEST_TORCH}'"
INSTALL_TRITON = f"pip install 'triton>={OLDEST_TRITON}'"
# The first release that was not tested.
_UNTESTED = "2.16"
INSTALL_TESTED = f"pip install 'torch<{_UNTESTED}'"


def is_tested() -> bool:
    """Whether the torch and the Triton of this process, as far as it has them, were tested."""
    torch, triton = (release(_version(name)) for name in ("torch", "triton"))
    return (not torch or torch in TESTED) and (not triton or triton in TESTED.values())


def release(version: str) -> str:
    """`2.15.0+cu132` -> "2.15"."""
    return ".".join(version.split(".")[:2])


def loaded() -> str:
    """`torch 2.15.0 and Triton 3.9.0`, as far as this process has them."""
    told = (("torch", _version("torch")), ("Triton", _version("triton")))
    return " and ".join(f"{name} {version}" for name, version in told if version)


def _version(name: str) -> str:
    module: Any = sys.modules.get(name)
    return str(getattr(module, "__version__", ""))
