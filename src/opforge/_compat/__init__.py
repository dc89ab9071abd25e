"""The only door to private torch and Triton APIs; version differences end here.

`_compat.NAME` is a module of this package, or something that `dispatcher` defines. Neither is
imported before it is used: processes that compile kernels import `compiling`, and have no torch.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (  # noqa: F401
        aoti,
        autotuning,
        checking,
        compiling,
        driver,
        graphs,
        kernels,
        launches,
        operators,
    )
    from .dispatcher import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        home = importlib.import_module(f"{__name__}.dispatcher")
        found = getattr(home, name)
        # All names at once, so that code that is traced later finds each as if it were imported.
        globals().update({n: v for n, v in vars(home).items() if not n.startswith("_")})
        return found
