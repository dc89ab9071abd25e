"""`opforge.load`: a built library, put behind torch's operators."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import (
    BadOption,
    DuplicateOp,
    NotALibrary,
    OpforgeWarning,
    StaleLibrary,
    WrongArchitecture,
)
from ..native.interface import MANIFEST_FORMAT, Op
from ..native.opened import NativeLibrary, find_library, rebuild
from ..registry import Entry, registry
from .adapter import Adapter, adapter_file
from .calls import Caller
from .define import define
from .manifest import read_op
from .service import Service, frames_to_caller

_lock = threading.RLock()
_loaded: dict[Path, Loaded] = {}
_stamps: dict[Path, tuple[int, ...]] = {}
# By the op's name, whoever serves it.
_services: dict[str, Service] = {}


def load(
    path: str | Path,
    *,
    strict: bool = False,
    adapter: bool | None = None,
    host_memory: bool = False,
) -> Loaded:
    """Make torch operators of a built library; needs neither Triton nor the operators' source.

        ops = opforge.load("dist/lib/libmylib.so")
        torch.ops.mylib.silu(x)

    An op that is registered from its source keeps its schema, fake and backward, and its calls
    with CUDA tensors go to the library; any other is defined from the manifest. A call that the
    library was not built for is compiled by Triton where the source is there, with one warning;
    with `strict` it raises.

    `adapter` says whether to use `libNAME_torch.so` (`opforge build --torch`): by default where it
    is there. With `host_memory` tensors of the CPU are passed as memory of device 0, for GPUs that
    reach it and for drivers that are none.
    """
    file = find_library(Path(path)).resolve()
    with _lock:
        _refuse_changed(file)
        known = _loaded.get(file)
        if known is None:
            known = Loaded(file, adapter=adapter, host_memory=host_memory)
            _loaded[file] = known
        known.check_options(adapter=adapter, host_memory=host_memory)
        known.strict = strict
        return known


class LoadedOp:
    """An operator of a loaded library: callable, and says what it runs on."""

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
            raise NotALibrary(what, fix="load the library again, or import the op's source")
        return entry

    def __repr__(self) -> str:
        how = "not registered" if self._service.entry is None else self._service.how
        return f"<loaded operator {self.schema}: native {how}>"


class Loaded:
    """What `load` gives: an attribute per operator, and the way to take them out again."""

    def __init__(self, file: Path, *, adapter: bool | None, host_memory: bool) -> None:
        self._library = NativeLibrary(file, host_memory=host_memory)
        self.file = file
        self.manifest = self._library.manifest
        self._strict = False
        self._key = "CPU" if host_memory else "CUDA"
        self._check_format()
        self._check_archs()
        self._adapter = self._find_adapter(wanted=adapter)
        described = [op for op in self.manifest["ops"] if op["schema"]]
        self._services = {
            op["name"]: self._service(op, host_memory=host_memory) for op in described
        }
        self._refuse_served()
        try:
            for described_op in described:
                self._start(self._services[described_op["name"]], described_op)
        except BaseException:
            self.close()
            raise

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
            raise BadOption(
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
        with _lock, registry.lock:
            for service in self._services.values():
                if _services.get(service.op.torch_name) is service:
                    del _services[service.op.torch_name]
                entry = service.entry
                service.detach()
                if entry is not None and entry.stands_in:
                    registry.remove(entry, "defined by a library that was closed")
            _loaded.pop(self.file, None)

    def __getattr__(self, name: str) -> LoadedOp:
        services = self.__dict__.get("_services", {})
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
        lines = [f"<library {self.file} for {', '.join(self.manifest['archs'])}"]
        lines += [f"  {s.op.schema}: native {s.how}" for s in self._services.values()]
        return "\n".join(lines) + ">"

    def _service(self, described: dict[str, Any], *, host_memory: bool) -> Service:
        op = read_op(described)
        function = described["function"]
        call = Caller(self._library, op, function, host_memory=host_memory)
        service = Service(op, call, key=self._key, file=self.file)
        service.archs = tuple(self.manifest["archs"])
        if self._adapter is not None and op.torch_name in self._adapter.operators:
            service.adapter = self._adapter
        return service

    def _refuse_served(self) -> None:
        for service in self._services.values():
            other = _services.get(service.op.torch_name)
            if other is not None:
                raise DuplicateOp(
                    f"{service.op.torch_name} is served by another library already",
                    found=f"first {other.file}, now {self.file}",
                    fix="close the first: opforge.load(...).close()",
                )

    def _start(self, service: Service, described: dict[str, Any]) -> None:
        with registry.lock:
            entry = registry.find(service.op.torch_name)
            if entry is None:
                entry = define(
                    service.op, service.run, _Fake(service.op, described), str(self.file)
                )
            service.attach(entry)
            _services[service.op.torch_name] = service

    def _find_adapter(self, *, wanted: bool | None) -> Adapter | None:
        file = adapter_file(self.file)
        if wanted is False or (wanted is None and not file.is_file()):
            return None
        if not file.is_file():
            fix = rebuild(self.file, archs=self.manifest["archs"], torch=True)
            raise NotALibrary(f"there is no torch adapter: {file}", fix=fix)
        return Adapter(self._library, self._library.manifest_text)

    def _check_format(self) -> None:
        found = self.manifest["format"]
        if found != MANIFEST_FORMAT:
            raise StaleLibrary(
                f"the manifest in {self.file} has format {found}, and this opforge reads "
                f"{MANIFEST_FORMAT}",
                fix=f"build it again: {rebuild(self.file, archs=self.manifest['archs'])}",
            )

    def _check_archs(self) -> None:
        # Asking for GPUs would start CUDA, which a process may want to leave to its children.
        if self._key != "CUDA" or not torch.cuda.is_initialized():
            return
        here = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
        if any(_runs_on(self.manifest, *capability) for capability in here):
            return
        gpus = ", ".join(sorted({f"sm_{major}{minor}" for major, minor in here}))
        archs = sorted({*self.manifest["archs"], *gpus.split(", ")})
        raise WrongArchitecture(
            f"{self.file} was built for {', '.join(self.manifest['archs'])}, and runs on no GPU "
            "that is here",
            found=gpus,
            fix=f"build it for them: {rebuild(self.file, archs=archs)}",
        )


class _Fake:
    """`Shapes`, made when something is first traced."""

    def __init__(self, op: Op, described: dict[str, Any]) -> None:
        self._op = op
        self._described = described

    @functools.cached_property
    def _shapes(self) -> Callable[..., Any]:
        from .cases import read_cases  # noqa: PLC0415 - calls do without
        from .shapes import Shapes  # noqa: PLC0415 - as above

        return Shapes(self._op, read_cases(self._described))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._shapes(*args, **kwargs)


def _runs_on(manifest: dict[str, Any], major: int, minor: int) -> bool:
    """A GPU runs what was built for its major version and at most its minor one, and older PTX.

    What was built for sm_90a runs on nothing else.
    """
    for kernel in manifest["kernels"]:
        for image in kernel["images"]:
            name = image["arch"].removeprefix("sm_")
            digits = name.rstrip("af")
            arch = (int(digits[:-1]), int(digits[-1]))
            if arch == (major, minor) or (name == digits and arch[0] == major and arch[1] < minor):
                return True
            if name == digits and image["ptx_sha256"] and arch <= (major, minor):
                return True
    return not manifest["kernels"]


def _refuse_changed(file: Path) -> None:
    """A process that has opened a file once gets the same from then on, also after closing it."""
    try:
        found = file.stat()
    except OSError:
        # What is wrong with it is said when it is opened.
        return
    stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if _stamps.setdefault(file, stamp) != stamp:
        raise StaleLibrary(
            f"{file} was built again since this process loaded it, and a process cannot hold both",
            fix="start a new process",
        )


def _follow(event: str, entry: Entry) -> None:
    """An op that is served comes or goes: its source was imported, reloaded or unregistered."""
    service = _services.get(entry.name)
    if service is None:
        return
    if event == "removed" and service.entry is entry:
        service.detach()
    elif event == "added" and service.entry is None:
        try:
            service.attach(entry, complete=False)
        except StaleLibrary as error:
            # The op is there and works without the library.
            text = f"{error}\n{entry.name} is not served by {service.file.name}"
            warnings.warn(text, OpforgeWarning, stacklevel=frames_to_caller())


registry.watchers.append(_follow)
