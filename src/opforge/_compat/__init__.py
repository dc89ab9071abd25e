"""The only door to private torch and Triton APIs; version differences end here.

`_compat.NAME` is a module of this package, or something that `dispatcher` defines. Neither is
imported before it is used: processes that compile kernels import `compiling`, and have no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import modules_and

if TYPE_CHECKING:
    from . import (  # noqa: F401
        aoti,
        autotuning,
        checking,
        compiling,
        described,
        device,
        driver,
        fakes,
        graphs,
        guards,
        host_caches,
        inductor_kernels,
        kernel_hash,
        kernels,
        launches,
        operators,
        pointer_writes,
        printing,
        settings,
        tma,
    )
    from .dispatcher import *  # noqa: F403

__getattr__ = modules_and(__name__, "dispatcher", asks="private_apis")
