"""Operators of a library that torch can run before the rest of opforge is imported.

    schema, C++ kernel                 as ever
    Autograd                           falls through: the kernel sees itself what requires grad
    tracing, transforms, other devices settle what was put off, and call the operator again

Most programs call loaded operators with plain tensors, and wait for the first call; what fakes,
autograd and `opforge.info` take is imported when it is first needed, and from then on nothing of
this is left. Its kernels are at other dispatch keys than those of `registration.register`, so
that there is no moment at which a call meets neither.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _compat
from ..deferred import settle
from ..native.library.manifest_reader import ManifestOp
from .adapter import Adapter
from .fallback_ops import ENDINGS, Helper

# Whatever else takes part in a call, its key comes before those of tensors and of autograd: the
# dispatcher that is written in Python, tracers, torch.func, and modes and classes of tensors.
_ABOVE = (
    "PythonDispatcher", "PreDispatch", "FuncTorchDynamicLayerFrontMode", "PythonTLSSnapshot",
    "Python",
)  # fmt: skip
# Goes before CompositeExplicitAutograd, where the op's body will be.
_OTHER_DEVICES = "CompositeExplicitAutogradNonFunctional"
# A key that is served by it whatever else is registered.
_ANY_OTHER_DEVICE = "XPU"
_AUTOGRAD = ("AutogradCPU", "AutogradCUDA")


class PlainOp:
    """One operator; given up, or handed over to a service that it then steps aside for."""

    def __init__(self, described: ManifestOp, adapter: Adapter) -> None:
        self.name: str = described.torch_name
        self._schema: str = described.schema
        # Both need kernels in Python in front of the library's.
        self._is_simple = "!" not in self._schema and not described.has_backward
        self._short = self.name.partition("::")[2]
        self.helpers: dict[str, Helper] = {}
        self._library, self._overload = _compat.define(
            self.name, self._schema.removeprefix(self.name), (_compat.pt2_tag(),)
        )
        self._above = torch.library.Library(self.name.partition("::")[0], "FRAGMENT")
        self._adapter = adapter
        self._is_over = self._is_kept = False

    def start(self, key: str, *, strict: bool, advice: str) -> None:
        adapter = self._adapter
        is_served = self._is_simple and self.name in adapter.operators
        for above in (*_ABOVE, _OTHER_DEVICES):
            self._above.impl(self._short, self._again, above)
        if not is_served:
            for autograd in _AUTOGRAD:
                self._above.impl(self._short, self._again, autograd)
            return
        for ending in ENDINGS:
            self._help(ending)
        # In its final place, so that who registers an Autograd kernel of his own comes after it.
        self._library.impl(self._short, torch.library.fallthrough_kernel, "Autograd")
        adapter.configure(self.name, has_jit=False, strict=strict, unseen=False, advice=advice)
        adapter.attach(self.name, key)

    def hand_over(self) -> tuple[Any, Any]:
        """The torch library that defines the op, and the op's overload; they stay as they are."""
        self._keep_running()
        return self._library, self._overload

    def step_aside(self) -> None:
        """Leave all calls to the kernels that are there by now."""
        self._is_over = True
        _compat.destroy(self._above)
        _compat.forget_dispatch(self._overload)

    def give_up(self) -> None:
        """Take everything out of torch, unless it is a service's by now."""
        if self._is_over:
            return
        self._keep_running()
        self._adapter.detach(self.name)
        self.step_aside()
        for helper in self.helpers.values():
            _compat.destroy(helper.library)
        _compat.destroy(self._library)

    def _keep_running(self) -> None:
        """One of the kernels may be what asked for all this, and returns when it is gone."""
        if not self._is_kept:
            self._is_kept = True
            _compat.keep_kernels(self.name, (*_ABOVE, *_AUTOGRAD, _ANY_OTHER_DEVICE))
            for helper in self.helpers.values():
                _compat.keep_kernels(helper.name, ("CPU",))

    def _again(self, *args: Any, **kwargs: Any) -> Any:
        settle()
        return self._overload(*args, **kwargs)

    def _help(self, ending: str) -> None:
        def settled(*args: Any, **kwargs: Any) -> Any:
            settle()
            return helper.target(*args, **kwargs)

        helper = Helper(self.name, self._schema, ending, self._adapter.telling(settled))
        self.helpers[ending] = helper
