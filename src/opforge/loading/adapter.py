"""The torch adapter of a library, `libNAME_torch.so`: found, checked and steered."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import opforge

from ..locks import fork_safe_lock
from ..native.ir.abi import ADAPTER_ABI
from ..native.library.shared_library import SharedLibrary, rebuild
from .backend import follow

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

    def is_running(self, op: str) -> bool:
        """Whether a call of the op is under way, in any thread."""
        return bool(self._function("running")(op.encode()))

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
