"""Operators of a library that torch can run before the rest of opforge is imported.

    schema, C++ kernel                   as ever
    Autograd                             falls through: the kernel sees what requires grad
    tracing, transforms, other devices   run the deferred work, and call the operator again

Most programs call loaded operators with plain tensors, and wait for the first call. Fakes, autograd
and `opforge.info` need more, which is imported when one of them is first used; nothing of this
module is left in torch then. Its kernels are at other dispatch keys than those of
`registration.register`, so a call always meets the one or the other.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _compat
from ..deferred import run_deferred
from ..native.library.manifest_reader import ManifestOp
from .adapter import Adapter

# Whatever else takes part in a call has a key that comes before those of tensors and of autograd:
# the dispatcher that is written in Python, tracers, torch.func, and modes and classes of tensors.
_ABOVE = (
    "PythonDispatcher", "PreDispatch", "FuncTorchDynamicLayerFrontMode", "PythonTLSSnapshot",
    "Python",
)  # fmt: skip
# Comes before CompositeExplicitAutograd, where the op's body will be.
_OTHER_DEVICES = "CompositeExplicitAutogradNonFunctional"
# A key that it serves, whatever else is registered.
_ANY_OTHER_DEVICE = "XPU"
_AUTOGRAD = ("AutogradCPU", "AutogradCUDA")


class PlainOp:
    """One operator: handed over to a service, which it then makes way for, or given up."""

    def __init__(self, described: ManifestOp, adapter: Adapter) -> None:
        self.name = described.torch_name
        schema = described.schema
        # A mutation and a backward both need kernels in Python in front of the library's.
        self._is_simple = "!" not in schema and not described.has_backward
        self._short = self.name.partition("::")[2]
        defined = _compat.define(self.name, schema.removeprefix(self.name))
        self._defined, self._overload = defined.with_other_kernels(), defined.overload
        self._above = torch.library.Library(self.name.partition("::")[0], "FRAGMENT")
        self._adapter = adapter
        self._is_over = self._is_kept = False

    def start(self, key: str, *, strict: bool, advice: str) -> None:
        adapter = self._adapter
        is_served = self._is_simple and self.name in adapter.operators
        deferring = (*_ABOVE, _OTHER_DEVICES, *(() if is_served else _AUTOGRAD))
        for dispatch_key in deferring:
            self._above.impl(self._short, self._again, dispatch_key)
        if is_served:
            # In its final place: another library's Autograd kernel may replace it from now on.
            self._defined.kernels.impl(self._short, torch.library.fallthrough_kernel, "Autograd")
            adapter.configure(self.name, has_jit=False, strict=strict, unseen=False, advice=advice)
            adapter.attach(self.name, key)

    def hand_over(self) -> _compat.DefinedOp:
        """The op with a kernel that falls through; it stays as it is."""
        self._keep_running()
        return self._defined

    def step_aside(self) -> None:
        """Leave all calls to the kernels that are there by now."""
        self._is_over = True
        _compat.destroy(self._above)
        _compat.forget_dispatch(self._overload)

    def give_up(self) -> None:
        """Take everything out of torch, unless a service has taken over."""
        if self._is_over:
            return
        self._keep_running()
        self._adapter.detach(self.name)
        self.step_aside()
        self._defined.destroy()

    def _keep_running(self) -> None:
        """One of the kernels may have asked for all this, and still has to return."""
        if not self._is_kept:
            self._is_kept = True
            _compat.keep_kernels(self.name, (*_ABOVE, *_AUTOGRAD, _ANY_OTHER_DEVICE))

    def _again(self, *args: Any, **kwargs: Any) -> Any:
        run_deferred()
        return self._overload(*args, **kwargs)


def advice_without_source(op: str, location: str, rebuild: str) -> str:
    return (
        "pass CUDA tensors that the library was built for; "
        f"import the module that defines {op} ({location}), whose kernels can then be compiled; "
        f"or declare such calls with native.declare and build the library again: {rebuild}"
    )
