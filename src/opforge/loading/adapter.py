"""The torch adapter of a library, `libNAME_torch.so`, and operators before their first call.

Which implementation a thread wants, the adapter knows, too: a call need not ask Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import opforge

from .. import _compat
from ..deferred import run_deferred
from ..locks import fork_safe_lock
from ..native.ir.abi import ADAPTER_ABI
from ..native.library.manifest_reader import ManifestOp
from ..native.library.shared_library import SharedLibrary, rebuild

# The numbers that adapters have for them.
AUTO, NATIVE, JIT = range(3)
_NAMES = {"auto": AUTO, "native": NATIVE, "jit": JIT}


class _Wanted(threading.local):
    value = AUTO


_wanted = _Wanted()
# Adapters keep a flag of their own per thread, so that a call need not ask Python.
_adapters: list[Callable[[int], object]] = []


def wanted() -> int:
    return _wanted.value


def follow(set_backend: Callable[[int], object]) -> None:
    """Tell an adapter now, and whenever it changes."""
    _adapters.append(set_backend)
    set_backend(_wanted.value)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Choose how loaded operators run, in this thread and inside the `with`.

        with opforge.backend("jit"):
            silu(x)

    "native": only the library; a call that it does not cover raises. "jit": only the source,
    compiled by Triton. "auto", the default: the library where it covers the call, otherwise the
    JIT, with one warning per op.
    """
    if name not in _NAMES:
        known = ", ".join(map(repr, _NAMES))
        raise opforge.errors.BadOption(f"there is no backend {name!r}", fix=f"one of {known}")
    before = _wanted.value
    _set(_NAMES[name])
    try:
        yield
    finally:
        _set(before)


def _set(value: int) -> None:
    _wanted.value = value
    for set_backend in _adapters:
        set_backend(value)


_HAS_JIT, _STRICT, _UNSEEN = 1, 2, 8
_Prepare = ctypes.CFUNCTYPE(ctypes.c_int)
_opening = fork_safe_lock()


def adapter_file(library: Path) -> Path:
    return library.with_name(f"{library.name.partition('.so')[0]}_torch.so")


class Adapter:
    """Puts C++ kernels of a library's operators into torch's dispatcher, and takes them out."""

    def __init__(self, library: SharedLibrary) -> None:
        self._prefix = f"{library.name}_torch"
        self.file = adapter_file(library.file)
        self._c = self._open(library)
        self._check(library)
        self.operators = frozenset(self._text("operators")().decode().split())
        # Held for as long as the adapter may call it.
        self._prepare = _Prepare()
        follow(self._function("set_backend"))

    def attach(self, op: str, key: str) -> None:
        if self._function("attach")(op.encode(), key.encode()) != 0:
            what = f"{self.file} cannot register {op} for {key}: {self.reason()}"
            raise opforge.errors.NotALibrary(what)

    def detach(self, op: str) -> None:
        self._function("detach")(op.encode())

    def configure(self, op: str, *, has_jit: bool, strict: bool, unseen: bool, advice: str) -> None:
        """`unseen`: the next call goes to the fallback for autograd, which compares the source."""
        chosen = ((_HAS_JIT, has_jit), (_STRICT, strict), (_UNSEEN, unseen))
        flags = sum(flag for flag, is_set in chosen if is_set)
        self._function("configure")(op.encode(), flags, advice.encode())

    def prepare_fallbacks(self, prepare: Callable[[], None]) -> None:
        """Run `prepare` before a call goes to a fallback operator, which it has to register."""

        def prepared() -> int:
            try:
                prepare()
            except BaseException as error:  # noqa: BLE001 - C cannot raise it
                self._say(error)
                return 1
            return 0

        self._prepare = _Prepare(prepared)
        self._function("set_prepare")(self._prepare)

    def has_fallbacks(self) -> None:
        """End that: all fallback operators are registered, or nothing needs them."""
        self._function("set_prepare")(None)

    def reason(self) -> str:
        """Why this thread's last call was not covered."""
        return str(self._text("reason")().decode())

    def telling(self, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the adapter calls through torch, which loses the text of errors."""

        @functools.wraps(fallback)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return fallback(*args, **kwargs)
            except Exception as error:
                self._say(error)
                raise

        return told

    def _say(self, error: BaseException) -> None:
        self._function("say")(f"{type(error).__name__}: {error}".encode())

    def _open(self, library: SharedLibrary) -> ctypes.CDLL:
        """By itself an adapter defines its operators when it is opened, as a C++ program needs."""
        deferred = library.torch_deferred
        if deferred is None:
            raise _stale(library, f"{self.file} was built by an earlier opforge")
        with library.checked(self.file) as place, _opening:
            deferred.value = 1
            try:
                return ctypes.CDLL(place)
            except OSError as error:
                if f"undefined symbol: {library.name}_" in str(error):
                    what = f"{self.file} was built for a different build of {library.file.name}"
                    raise _stale(library, what, str(error)) from error
                what = f"{self.file} cannot be loaded: {error}"
                raise opforge.errors.NotALibrary(what) from error
            finally:
                deferred.value = 0

    def _check(self, library: SharedLibrary) -> None:
        try:
            version = self._function("abi_version")()
        except AttributeError as error:
            what = f"{self.file} is not a torch adapter of {library.file}: {error}"
            raise opforge.errors.NotALibrary(what, fix=_build_both(library)) from None
        if version != ADAPTER_ABI:
            what = f"{self.file} has adapter ABI {version}, and this opforge has {ADAPTER_ABI}"
            raise _stale(library, what)
        ours = hashlib.sha256(library.contents.text).hexdigest()
        theirs = self._text("manifest_hash")().decode()
        if ours != theirs:
            what = f"{self.file} was built for a different build of {library.file.name}"
            found = f"manifest {theirs[:12]} in the adapter, {ours[:12]} in the library"
            raise _stale(library, what, found)
        if not self._function("fits")():
            raise opforge.errors.NotALibrary(
                f"{self.file} is bound to a different {library.file.name}, "
                "whose symbols are global in this process",
                fix="open that one without RTLD_GLOBAL and do not link it, "
                "or build this one with another --name",
            )

    def _function(self, ending: str) -> Any:
        return getattr(self._c, f"{self._prefix}_{ending}")

    def _text(self, ending: str) -> Any:
        function = self._function(ending)
        function.restype = ctypes.c_char_p
        return function


def _stale(library: SharedLibrary, what: str, found: str | None = None) -> Exception:
    return opforge.errors.StaleLibrary(what, found=found, fix=_build_both(library))


def _build_both(library: SharedLibrary) -> str:
    return f"build both again: {rebuild(library.file, torch=True)}"


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
    """An operator that torch can run before the rest of opforge is imported.

        schema, C++ kernel                   as ever
        Autograd                             falls through: the kernel sees what requires grad
        tracing, transforms, other devices   run the deferred work, and call the operator again

    Most programs call loaded operators with plain tensors, and wait for the first call. Fakes,
    autograd and `opforge.info` need more, which is imported when one of them is first used; nothing
    of this class is left in torch then. Its kernels are at other dispatch keys than those of
    `registration.register`, so a call always meets the one or the other. It is handed over to a
    service, which it then makes way for, or given up.
    """

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
