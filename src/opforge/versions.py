"""The oldest torch and Triton, and how to install them; tests compare what cannot import this."""

from __future__ import annotations

# The first whose stable ABI the torch adapters use.
OLDEST_TORCH = "2.11"
OLDEST_TRITON = "3.6"

INSTALL_TORCH = f"pip install 'torch>={OLDEST_TORCH}'"
INSTALL_TRITON = f"pip install 'triton>={OLDEST_TRITON}'"
