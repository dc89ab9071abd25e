"""`opforge.load`: a built library as torch operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import opforge

from ..deferred import defer, run_deferred
from ..locks import fork_safe_lock
from ..native.artifacts.hashes import VerifiedFiles
from ..native.library.shared_library import (
    SharedLibrary,
    find_library,
    library_name,
    rebuild,
    refuse_changed,
    shortened,
)
from .adapter import Adapter, PlainOp, adapter_file, advice_without_source

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ..registry import Entry
    from .attach import Service

_lock = fork_safe_lock()
_loaded: dict[Path, Loaded] = {}


def load(
    path: str | Path,
    *,
    strict: bool | None = None,
    adapter: bool | None = None,
    host_memory: bool = False,
    verify: bool = False,
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
) -> Loaded:
    """Register a built library's operators with torch; needs neither Triton nor their source.

        ops = opforge.load("dist/lib/libmylib.so")
        torch.ops.mylib.silu(x)

    An op that is registered from its source keeps its schema, fake and backward, and its calls
    with CUDA tensors go to the library; any other is defined from the manifest. A call that the
    library does not cover is compiled by Triton if the source is registered, with one warning;
    with `strict` it raises. Loading a library again returns the same object; `strict` then changes
    only if it is given.

    `adapter` says whether to use `libNAME_torch.so` (`opforge build --torch`); the default is to
    use it if it exists. With `host_memory`, CPU tensors are passed as memory of device 0: for GPUs
    that reach it, and for tests without a driver.

    A file that is cut short, or that `share/NAME/SHA256SUMS` does not list, is not opened. With
    `verify`, a file must also have the hash that is listed there, which takes about 1 ms per MB.
    With `trusted_keys`, public keys of minisign or files with them, one of them must have signed
    those hashes (`opforge sign`), too. What is opened then is a copy of the bytes that were
    compared.
    """
    given = {"strict": strict, "adapter": adapter, "host_memory": host_memory, "verify": verify}
    for name, value in given.items():
        if value is not None and not isinstance(value, bool):
            what = f"{name} must be True or False, got {value!r}"
            raise opforge.errors.BadOption(what, fix=f"{name}=True")
    file = find_library(Path(path)).resolve()
    verified = None
    if verify or trusted_keys is not None:
        verified = VerifiedFiles(file.parent.parent, library_name(file), trusted_keys)
    with _lock:
        refuse_changed(file)
        known = _loaded.get(file)
        if known is None:
            library = SharedLibrary(file, verified)
            known = Loaded(library, strict=bool(strict), adapter=adapter, host_memory=host_memory)
            _loaded[file] = known
        elif verified is not None:
            known.compare(verified)
        known.check_options(adapter=adapter, host_memory=host_memory)
        if strict is not None and known.strict != strict:
            known.strict = strict
        return known


class LoadedOp:
    """An operator of a loaded library: call it, or print it to see what runs it."""

    # The registry takes it for its overload.
    stands_for_overload = True

    def __init__(self, service: Service) -> None:
        self._service = service
        self.name = service.op.torch_name
        self.schema = service.op.schema
        self.__name__ = service.op.name
        self.__doc__ = service.op.doc or self.schema

    @property
    def has_source(self) -> bool:
        """Whether the op is registered from its source, so that it can also be compiled."""
        return self._service.jit is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._entry().handle(*args, **kwargs)

    @property
    def overload(self) -> Any:
        return self._entry().overload

    def _entry(self) -> Entry:
        entry = self._service.entry
        if entry is None:
            what = f"{self.name} has been unregistered, or its library closed"
            fix = "load the library again, or import the op's source"
            raise opforge.errors.NotALibrary(what, fix=fix)
        return entry

    @property
    def how(self) -> str:
        """What runs it, for people."""
        return "not registered" if self._service.entry is None else f"native {self._service.how}"

    def __repr__(self) -> str:
        return f"<loaded operator {self.schema}: {self.how}>"

    def _repr_html_(self) -> str:
        from ..notebook import html_table

        return html_table(self.name, (), [("schema", self.schema), ("runs", self.how)])


class Loaded:
    """What `load` returns: an attribute per operator; `close` takes them out of torch again."""

    def __init__(
        self, library: SharedLibrary, *, strict: bool, adapter: bool | None, host_memory: bool
    ) -> None:
        self._library = library
        self.file = library.file
        self.manifest = library.manifest
        self._strict = strict
        self._is_closed = False
        self._key = "CPU" if host_memory else "CUDA"
        try:
            self._check_archs()
            self._adapter = self._find_adapter(wanted=adapter)
        except BaseException:
            self._library.abandon()
            raise
        # By the op's name, what runs it before there is a service.
        self._plain: dict[str, PlainOp] = {}
        self._served: dict[str, Service] | None = None
        try:
            is_deferred = self._adapter is not None and defer(self._start_plain, self._finisher)
        except RuntimeError:
            # If another library has an operator of that name, this is refused below.
            is_deferred = False
        if not is_deferred:
            self._finisher()()

    @property
    def strict(self) -> bool:
        """Whether a call that is not covered raises, even if it could be compiled."""
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self._strict = value
        for service in self._services.values():
            service.strict = value
            service.configure()

    def check_options(self, *, adapter: bool | None, host_memory: bool) -> None:
        """Refuse options that a loaded library cannot change."""
        found = (self._adapter is not None, self._key == "CPU")
        if found != (found[0] if adapter is None else adapter, host_memory):
            raise opforge.errors.BadOption(
                f"{self.file} is already loaded, with adapter={found[0]}, host_memory={found[1]}",
                fix="load it with the same options, or close it first: opforge.load(...).close()",
            )

    def compare(self, verified: VerifiedFiles) -> None:
        """Compare the files of a library that is open already; it has not changed since."""
        verified.read(self.file)
        if self._adapter is not None:
            verified.read(self._adapter.file)

    def preload(self, device: int = 0) -> None:
        """Load every kernel onto a device now: before CUDA graphs, or for an even first call."""
        self._library.load(device)

    def unload(self, device: int = 0) -> None:
        """Free what the library holds on a device; no call may be under way."""
        self._library.unload(device)

    def close(self) -> None:
        """Take the implementations out of torch, and the operators that have no source.

        No call of one may be under way in another thread: torch frees what it reads.
        """
        from .attach import withdraw

        services = self._services
        with _lock:
            withdraw(services)
            self._is_closed = True
            _loaded.pop(self.file, None)

    def __getattr__(self, name: str) -> LoadedOp:
        # Copying and unpickling ask an object that has no attributes yet.
        services = self._services if "_served" in self.__dict__ else {}
        if name not in services:
            held = ", ".join(services) or "none"
            raise AttributeError(f"{self.file.name} has no torch operator {name!r}; it has {held}")
        return LoadedOp(services[name])

    def __iter__(self) -> Iterator[LoadedOp]:
        return iter([LoadedOp(service) for service in self._services.values()])

    def __len__(self) -> int:
        return len(self._services)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._services})

    def __repr__(self) -> str:
        names = [op.name for op in self._library.contents.ops if op.schema]
        return f"<library {self._title()}: {shortened(names)}>"

    def __str__(self) -> str:
        return "\n".join([f"{self._title()}:", *(f"  {op.schema}: {op.how}" for op in self)])

    def _repr_html_(self) -> str:
        from ..notebook import html_table

        return html_table(self._title(), ("operator", "runs"), [(op.schema, op.how) for op in self])

    def _title(self) -> str:
        closed = ", closed" if self._is_closed else ""
        return f"{self.file} for {', '.join(self._library.contents.archs)}{closed}"

    @property
    def _services(self) -> dict[str, Service]:
        run_deferred()
        return self._served or {}

    def _start_plain(self) -> None:
        """Let torch run the operators before the rest of opforge is imported."""
        assert self._adapter is not None
        self._adapter.prepare_fallbacks(run_deferred)
        command = rebuild(self.file, archs=self._library.contents.archs, torch=True)
        try:
            for op in self._library.contents.ops:
                if op.schema:
                    plain = PlainOp(op, self._adapter)
                    self._plain[plain.name] = plain
                    advice = advice_without_source(plain.name, op.location, command)
                    plain.start(self._key, strict=self._strict, advice=advice)
        except BaseException:
            for plain in self._plain.values():
                plain.give_up()
            self._plain.clear()
            self._adapter.has_fallbacks()
            raise

    def _finisher(self) -> Callable[[], None]:
        from .attach import serve

        def finish() -> None:
            plain, self._plain = self._plain, {}
            try:
                self._served = serve(
                    self._library, self._adapter, self._key, plain, strict=self._strict
                )
            except BaseException:
                _loaded.pop(self.file, None)
                raise
            finally:
                if self._adapter is not None:
                    self._adapter.has_fallbacks()

        return finish

    def _find_adapter(self, *, wanted: bool | None) -> Adapter | None:
        file = adapter_file(self.file)
        if wanted is False or (wanted is None and not file.is_file()):
            return None
        command = rebuild(self.file, archs=self._library.contents.archs, torch=True)
        if not file.is_file():
            raise opforge.errors.NotALibrary(f"there is no torch adapter: {file}", fix=command)
        return Adapter(self._library)

    def _check_archs(self) -> None:
        # Asking for GPUs would start CUDA, which a process may want to leave to its children.
        if self._key != "CUDA" or not torch.cuda.is_initialized():
            return
        from .._compat.device import device_arch

        here = {device_arch(i) for i in range(torch.cuda.device_count())}
        if any(map(self._library.contents.runs_on, here)):
            return
        gpus = ", ".join(map(str, sorted(here)))
        built = self._library.contents.archs
        command = rebuild(self.file, archs=sorted({*built, *gpus.split(", ")}))
        raise opforge.errors.NotALibrary(
            f"{self.file} was built for {', '.join(built)}, which no GPU in this machine can run",
            found=gpus,
            fix=f"build it for them: {command}",
        )
