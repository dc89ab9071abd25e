"""`opforge.load`: a built library, put behind torch's operators."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._lazy import later
from ..deferred import put_off, settle
from ..native.ir.abi import MANIFEST_FORMAT
from ..native.library.shared_library import SharedLibrary, find_library, rebuild
from .adapter import Adapter, adapter_file
from .fallback_ops import advice_without_source
from .first_call import PlainOp

if TYPE_CHECKING:
    from .. import errors
    from ..registry import Entry
    from .op_backend import Service
else:
    errors = later("opforge.errors")

_lock = threading.RLock()
_loaded: dict[Path, Loaded] = {}
_stamps: dict[Path, tuple[int, ...]] = {}


def load(
    path: str | Path,
    *,
    strict: bool | None = None,
    adapter: bool | None = None,
    host_memory: bool = False,
) -> Loaded:
    """Make torch operators of a built library; needs neither Triton nor the operators' source.

        ops = opforge.load("dist/lib/libmylib.so")
        torch.ops.mylib.silu(x)

    An op that is registered from its source keeps its schema, fake and backward, and its calls
    with CUDA tensors go to the library; any other is defined from the manifest. A call that the
    library was not built for is compiled by Triton where the source is there, with one warning;
    with `strict` it raises. Loading again gives the same object, and changes `strict` only where
    it is given.

    `adapter` says whether to use `libNAME_torch.so` (`opforge build --torch`): by default where it
    is there. With `host_memory` tensors of the CPU are passed as memory of device 0, for GPUs that
    reach it and for drivers that are none.
    """
    for name, value in (("strict", strict), ("adapter", adapter), ("host_memory", host_memory)):
        if value is not None and not isinstance(value, bool):
            raise errors.BadOption(
                f"{name}={value!r} is neither True nor False", fix=f"{name}=True"
            )
    file = find_library(Path(path)).resolve()
    with _lock:
        _refuse_changed(file)
        known = _loaded.get(file)
        if known is None:
            known = Loaded(file, strict=bool(strict), adapter=adapter, host_memory=host_memory)
            _loaded[file] = known
        known.check_options(adapter=adapter, host_memory=host_memory)
        if strict is not None and known.strict != strict:
            known.strict = strict
        return known


class LoadedOp:
    """An operator of a loaded library: callable, and says what it runs on."""

    # The registry takes it for its overload.
    stands_for_overload = True

    def __init__(self, service: Service) -> None:
        self._service = service
        self.__name__ = service.op.name
        self.__doc__ = service.op.doc or service.op.schema

    @property
    def name(self) -> str:
        return self._service.op.torch_name

    @property
    def schema(self) -> str:
        return self._service.op.schema

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
            raise errors.NotALibrary(what, fix="load the library again, or import the op's source")
        return entry

    def __repr__(self) -> str:
        how = "not registered" if self._service.entry is None else self._service.how
        return f"<loaded operator {self.schema}: native {how}>"


class Loaded:
    """What `load` gives: an attribute per operator, and the way to take them out again."""

    def __init__(
        self, file: Path, *, strict: bool, adapter: bool | None, host_memory: bool
    ) -> None:
        self._library = SharedLibrary(file)
        self.file = file
        self.manifest = self._library.manifest
        self._strict = strict
        self._key = "CPU" if host_memory else "CUDA"
        self._check_format()
        self._check_archs()
        self._adapter = self._find_adapter(wanted=adapter)
        # By the op's name, what runs before there is a service.
        self._plain: dict[str, PlainOp] = {}
        self._served: dict[str, Service] | None = None
        refusal = ""
        try:
            is_put_off = self._put_off()
        except RuntimeError as error:
            # An operator of that name that somebody else has is refused below.
            is_put_off, refusal = False, str(error)
        if not is_put_off:
            self._finisher()()
        if refusal:
            text = f"{file.name} is loaded whole, and its first call not faster for it: {refusal}"
            warnings.warn(text, errors.OpforgeWarning, stacklevel=3)

    @property
    def strict(self) -> bool:
        """Whether calls that are not covered raise, although they could be compiled."""
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self._strict = value
        for service in self._services.values():
            service.strict = value
            service.configure()

    def check_options(self, *, adapter: bool | None, host_memory: bool) -> None:
        """Refuse what a library that is loaded already cannot be given any more."""
        found = (self._adapter is not None, self._key == "CPU")
        if found != (found[0] if adapter is None else adapter, host_memory):
            raise errors.BadOption(
                f"{self.file} is loaded already, with adapter={found[0]}, host_memory={found[1]}",
                fix="load it with the same, or close it first: opforge.load(...).close()",
            )

    def preload(self, device: int = 0) -> None:
        """Load every kernel for a device now: for CUDA graphs, and for a steady first call."""
        self._library.load(device)

    def unload(self, device: int = 0) -> None:
        """Give back what the library holds on a device; no call may be under way."""
        self._library.unload(device)

    def close(self) -> None:
        """Take the implementations out of torch, and the operators that have no source."""
        from .attach import withdraw  # noqa: PLC0415 - first calls do without

        with _lock:
            withdraw(self._services)
            _loaded.pop(self.file, None)

    def __getattr__(self, name: str) -> LoadedOp:
        # Copying and unpickling ask an object that has nothing yet.
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
        lines = [f"<library {self.file} for {', '.join(self._library.contents.archs)}"]
        lines += [f"  {s.op.schema}: native {s.how}" for s in self._services.values()]
        return "\n".join(lines) + ">"

    @property
    def _services(self) -> dict[str, Service]:
        settle()
        return self._served or {}

    def _put_off(self) -> bool:
        """Let torch run the operators now, and leave all else until somebody needs it."""
        return self._adapter is not None and put_off(self._start_plain, self._finisher)

    def _start_plain(self) -> None:
        assert self._adapter is not None
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
            raise

    def _finisher(self) -> Callable[[], None]:
        from .attach import serve  # noqa: PLC0415 - first calls do without

        def finish() -> None:
            plain, self._plain = self._plain, {}
            try:
                self._served = serve(
                    self._library, self._adapter, self._key, plain, strict=self._strict
                )
            except BaseException:
                _loaded.pop(self.file, None)
                raise

        return finish

    def _find_adapter(self, *, wanted: bool | None) -> Adapter | None:
        file = adapter_file(self.file)
        if wanted is False or (wanted is None and not file.is_file()):
            return None
        if not file.is_file():
            fix = rebuild(self.file, archs=self._library.contents.archs, torch=True)
            raise errors.NotALibrary(f"there is no torch adapter: {file}", fix=fix)
        return Adapter(self._library)

    def _check_format(self) -> None:
        found = self._library.contents.format
        if found != MANIFEST_FORMAT:
            raise errors.StaleLibrary(
                f"the manifest in {self.file} has format {found}, and this opforge reads "
                f"{MANIFEST_FORMAT}",
                fix=f"build it again: {rebuild(self.file, archs=self._library.contents.archs)}",
            )

    def _check_archs(self) -> None:
        # Asking for GPUs would start CUDA, which a process may want to leave to its children.
        if self._key != "CUDA" or not torch.cuda.is_initialized():
            return
        here = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
        if any(self._library.contents.runs_on(*capability) for capability in here):
            return
        gpus = ", ".join(sorted({f"sm_{major}{minor}" for major, minor in here}))
        built = self._library.contents.archs
        command = rebuild(self.file, archs=sorted({*built, *gpus.split(", ")}))
        raise errors.WrongArchitecture(
            f"{self.file} was built for {', '.join(built)}, which no GPU of this machine runs",
            found=gpus,
            fix=f"build it for them: {command}",
        )


def _refuse_changed(file: Path) -> None:
    """A process that has opened a file once gets the same from then on, also after closing it."""
    try:
        found = file.stat()
    except OSError:
        # What is wrong with it is said when it is opened.
        return
    stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if _stamps.setdefault(file, stamp) != stamp:
        raise errors.StaleLibrary(
            f"{file} was built again since this process loaded it, and a process cannot hold both",
            fix="start a new process",
        )
