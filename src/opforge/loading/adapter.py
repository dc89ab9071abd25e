"""The torch adapter of a library, `libNAME_torch.so`: found, checked and steered."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._lazy import later
from ..native.ir.abi import ADAPTER_ABI
from ..native.library.shared_library import SharedLibrary, rebuild
from .backend import follow

if TYPE_CHECKING:
    from .. import errors
else:
    errors = later("opforge.errors")

# Set while Python loads an adapter, which else defines all its operators at once, as a C++
# program needs it.
_DEFER = "OPFORGE_TORCH_DEFER"
_HAS_JIT, _STRICT, _UNSEEN = 1, 2, 8
_loading = threading.Lock()


def adapter_file(library: Path) -> Path:
    return library.with_name(f"{library.name.partition('.so')[0]}_torch.so")


class Adapter:
    """Puts C++ kernels of a library's operators into torch's dispatcher, and takes them out."""

    def __init__(self, library: SharedLibrary) -> None:
        self._prefix = f"{library.name}_torch"
        self.file = adapter_file(library.file)
        self._open()
        self._check(library)
        served = self._text("operators")()
        self.operators = frozenset(served.decode().split())
        follow(self._function("set_backend"))

    def attach(self, op: str, key: str) -> None:
        if self._function("attach")(op.encode(), key.encode()) != 0:
            raise errors.NotALibrary(
                f"{self.file} cannot register {op} for {key}: {self._text('reason')().decode()}"
            )

    def detach(self, op: str) -> None:
        self._function("detach")(op.encode())

    def configure(self, op: str, *, has_jit: bool, strict: bool, unseen: bool, advice: str) -> None:
        """`unseen`: the next call goes to the helper for autograd, which looks at the source."""
        chosen = ((_HAS_JIT, has_jit), (_STRICT, strict), (_UNSEEN, unseen))
        flags = sum(flag for flag, is_set in chosen if is_set)
        self._function("configure")(op.encode(), flags, advice.encode())

    def reason(self) -> str:
        """Why this thread's last call was not covered."""
        return str(self._text("reason")().decode())

    def telling(self, helper: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the adapter calls through torch, which loses the text of errors."""

        @functools.wraps(helper)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return helper(*args, **kwargs)
            except Exception as error:
                self._function("say")(f"{type(error).__name__}: {error}".encode())
                raise

        return told

    def _open(self) -> None:
        with _loading:
            os.environ[_DEFER] = "1"
            try:
                self._c = ctypes.CDLL(str(self.file.resolve()))
            except OSError as error:
                raise errors.NotALibrary(f"{self.file} cannot be loaded: {error}") from error
            finally:
                del os.environ[_DEFER]

    def _check(self, library: SharedLibrary) -> None:
        fix = f"build both again: {rebuild(library.file, torch=True)}"
        try:
            version = self._function("abi_version")()
        except AttributeError as error:
            what = f"{self.file} is no torch adapter of {library.file}: {error}"
            raise errors.NotALibrary(what, fix=fix) from None
        if version != ADAPTER_ABI:
            what = f"{self.file} has adapter ABI {version}, and this opforge has {ADAPTER_ABI}"
            raise errors.StaleLibrary(what, fix=fix)
        ours = hashlib.sha256(library.contents.text).hexdigest()
        theirs = self._text("manifest_hash")().decode()
        if ours != theirs:
            raise errors.StaleLibrary(
                f"{self.file} was built for another {library.file.name}",
                found=f"manifest {theirs[:12]} in the adapter, {ours[:12]} in the library",
                fix=fix,
            )

    def _function(self, ending: str) -> Any:
        return getattr(self._c, f"{self._prefix}_{ending}")

    def _text(self, ending: str) -> Any:
        function = self._function(ending)
        function.restype = ctypes.c_char_p
        return function
