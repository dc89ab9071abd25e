"""One operator of a loaded library, and how torch comes to call it.

Calls with CUDA tensors go to the library: through the adapter if there is one, otherwise through
`run`. If the op's source is registered, only its CUDA kernel is replaced; if not, the op is defined
from the manifest.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import StaleLibrary, Uncovered, warn
from ..native.ir.interface import Op
from ..native.library.shared_library import SharedLibrary, rebuild
from ..registration.register import Registration
from ..registry import Entry
from .adapter import Adapter
from .backend import JIT, NATIVE, wanted
from .first_call import advice_without_source

_HASH_SHOWN = 12


@dataclass(eq=False, repr=False)
class Service:
    """Serves one operator; `entry` is the op that it serves now, if any."""

    op: Op
    call: Callable[..., Any]
    library: SharedLibrary
    adapter: Adapter | None
    key: str
    strict: bool
    entry: Entry | None = None
    jit: Callable[..., Any] | None = None
    _libraries: list[Any] = field(default_factory=list)
    # What the adapter's fallback for autograd runs.
    _unrecorded: Callable[..., Any] | None = None
    # An item per call that ctypes makes now.
    _under_way: list[None] = field(default_factory=list)
    _warned: bool = False
    # Whether the source is still to be compared with the library's.
    _unseen: bool = False
    _looking: threading.RLock = field(default_factory=threading.RLock)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    @property
    def file(self) -> Path:
        return self.library.file

    @property
    def how(self) -> str:
        """For people: `where covered, from libops.so (C++), else the JIT`."""
        means = "C++" if self.adapter is not None else "by ctypes"
        otherwise = "else the JIT" if self.jit is not None and not self.strict else "else an error"
        return f"where covered, from {self.file.name} ({means}), {otherwise}"

    def attach(self, entry: Entry, *, complete: bool = True) -> None:
        """Take over the calls of an op, or follow it to its source, which has the same schema.

        While the module that defines it is still being imported, its source is not `complete`:
        the body may call what is not bound yet. It is then compared at the first call.
        """
        registration: Registration = entry.registration
        self._refuse_other_schema(entry)
        self.entry = entry
        self._unseen = not entry.stands_in
        if complete:
            self._look()
        self.jit = None if entry.stands_in else registration.kernel
        if self.adapter is not None:
            to_key = _compat.to_key(registration.overload, self.key)
            self._unrecorded = registration.guarded(to_key, followed=True)
            if not self._libraries:
                self._add_fallbacks(self.adapter)
            self.adapter.attach(self.op.torch_name, self.key)
        elif not entry.stands_in:
            # The body of an op that was defined from the manifest is `run` already.
            name = self.op.torch_name.partition("::")[2]
            self._fragment().impl(name, registration.guarded(self.run), self.key)
        if not entry.stands_in:
            registration.ask_before_body(self._refuse_silent_body)
        self.configure()

    def detach(self) -> None:
        """Give the calls back."""
        if self.entry is None:
            return
        if self.adapter is not None:
            self.adapter.detach(self.op.torch_name)
        for library in self._libraries:
            _compat.destroy(library)
        self._libraries.clear()
        self.entry.registration.runs_its_body(self.key)
        if not self.entry.stands_in:
            self.entry.registration.ask_before_body(None)
        self.entry = self.jit = None

    def refuse_if_running(self) -> None:
        """Torch would free the schema that a call still reads."""
        if self.entry is None or not self.is_running():
            return
        what = f"{self.op.torch_name} cannot be replaced by its source while it runs"
        raise StaleLibrary(
            f"{what}: {self.file} was built for a different signature, or the source has tags",
            found=self.op.schema,
            fix=f"import the source before the op is called, or build it again: {self._rebuild()}",
        )

    def is_running(self) -> bool:
        """Whether a call is under way, in any thread."""
        if self.adapter is not None:
            return self.adapter.is_running(self.op.torch_name)
        return bool(self._under_way)

    def configure(self) -> None:
        """Tell the adapter, and people, what happens to calls that are not covered."""
        if self.entry is None:
            return
        if self.adapter is not None:
            # The adapter must not hear last what was read first: that the source is still unseen,
            # when no call will look at it again, would send every call to the fallback and back.
            with self._telling:
                self.adapter.configure(
                    self.op.torch_name,
                    has_jit=self.jit is not None,
                    strict=self.strict,
                    unseen=self._unseen,
                    advice=self._advice(),
                )
        self.entry.registration.runs_natively(self.key, self.how)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator on flat arguments, below autograd."""
        self._look()
        if wanted() == JIT:
            return self._compile(*args, **kwargs)
        self._under_way.append(None)
        try:
            return self.call(*args, **kwargs)
        except Uncovered as error:
            if self.jit is None or self.strict or wanted() == NATIVE:
                error.fix = self._advice()
                raise error.locate(None, None) from None
            self._warn(str(error))
            return self.jit(*args, **kwargs)
        finally:
            self._under_way.pop()

    def _refuse_silent_body(self, *args: Any, **kwargs: Any) -> None:
        """Calls with tensors of other devices reach the source's body without meeting the library.

        Those that meet it are refused before.
        """
        if wanted() == JIT or not (self.strict or wanted() == NATIVE):
            return
        assert self.entry is not None
        given = inspect.signature(self.entry.fn).bind(*args, **kwargs).arguments
        at = {name: device for name, value in given.items() for device in _devices(value)}
        found = ", ".join(
            f"{name} is on {'the CPU' if d == 'cpu' else d}" for name, d in at.items()
        )
        runs_on = "CUDA" if self.key == "CUDA" else "host memory"
        text = f"{found or 'no tensor is given'}; the library runs on {runs_on}"
        raise Uncovered(text, fix=self._advice()).locate(self.op.torch_name, None)

    def _compile(self, *args: Any, **kwargs: Any) -> Any:
        if self.jit is None:
            raise Uncovered(
                "the backend is 'jit', but there is no source to compile",
                fix=self._advice(),
                op=self.op.torch_name,
            )
        return self.jit(*args, **kwargs)

    def _add_fallbacks(self, adapter: Adapter) -> None:
        """`op__jit` and `op__grad`, which the adapter calls where it does not serve a call.

        They stay when the source takes over: one may be what imports it.
        """

        def grad(*args: Any, **kwargs: Any) -> Any:
            # A thread that passed before the adapter heard of it would come back here.
            with self._looking:
                if self._unseen:
                    try:
                        self._look()
                    finally:
                        self.configure()
            assert self._unrecorded is not None
            return self._unrecorded(*args, **kwargs)

        def jit(*args: Any, **kwargs: Any) -> Any:
            if wanted() != JIT:
                self._warn(adapter.reason())
            return self._compile(*args, **kwargs)

        name = self.op.torch_name.partition("::")[2]
        signature = self.op.schema.removeprefix(self.op.torch_name)
        for fallback in (jit, grad):
            library = self._fragment()
            own_name = f"{name}__{fallback.__name__}"
            library.define(own_name + signature)
            library.impl(own_name, adapter.telling(fallback), "CompositeExplicitAutograd")
            library.impl(own_name, torch.library.fallthrough_kernel, "Autograd")

    def _fragment(self) -> Any:
        """A torch library that lives until the calls are given back."""
        made = torch.library.Library(self.op.torch_name.partition("::")[0], "FRAGMENT")
        self._libraries.append(made)
        return made

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            text = (
                f"{self.op.torch_name}: {self.file.name} does not cover this call; Triton compiles "
                f"it, and further such calls, instead: {reason}"
            )
            warn(text)

    def _advice(self) -> str:
        if self.jit is None:
            return advice_without_source(self.op.torch_name, self.op.location, self._rebuild())
        return (
            "pass what the library was built for; "
            "declare such calls with native.declare and build the library again: "
            f"{self._rebuild(self.entry)}; or let them be compiled: "
            "opforge.backend('auto'), strict=False"
        )

    def _rebuild(self, entry: Entry | None = None) -> str:
        source = "" if entry is None else entry.location.rpartition(":")[0]
        archs = self.library.contents.archs
        return rebuild(self.file, source, archs, torch=self.adapter is not None)

    def _refuse_other_schema(self, entry: Entry) -> None:
        """Such a library would misread the arguments."""
        assert entry.lowered is not None
        schema = f"{entry.name}{entry.lowered.schema}"
        if schema != self.op.schema:
            raise StaleLibrary(
                f"{self.file} was built for a different signature of {entry.name}",
                found=f"{self.op.schema} in the library, {schema} at {entry.location}",
                fix=f"build it again: {self._rebuild(entry)}",
            )

    def _look(self) -> None:
        """Compare the source with the library's, once."""
        entry = self.entry
        if not self._unseen or entry is None:
            return
        self._unseen = False
        from ..native.frontend.source_hash import source_hash  # noqa: PLC0415 - needs a source

        found = source_hash(entry)
        if found == self.op.source_hash:
            return
        warn(
            f"{entry.name} ({entry.location}) is not the source that {self.file} was built from: "
            f"its hash is {found[:_HASH_SHOWN]}, the library's {self.op.source_hash[:_HASH_SHOWN]} "
            f"({self.op.location}); calls still go to the library. Build it again: "
            f"{self._rebuild(entry)}"
        )


def _devices(value: Any) -> set[str]:
    """Of the tensors in an argument, which may be a record or a list."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    if dataclasses.is_dataclass(value):
        value = list(vars(value).values())
    found = map(_devices, value) if isinstance(value, (list, tuple)) else ()
    return set().union(*found)
