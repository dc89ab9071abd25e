"""Puts a service behind each operator of a library, and keeps it there while ops come and go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BadRegistration, StaleLibrary, warn
from ..native.library.manifest_reader import ManifestOp
from ..native.library.shared_library import SharedLibrary
from ..registry import Entry, registry
from .adapter import Adapter
from .calls import Caller
from .define import define
from .first_call import PlainOp
from .op_backend import Service

# By the op's name, whoever serves it; guarded by the registry's lock.
_services: dict[str, Service] = {}


def serve(
    library: SharedLibrary,
    adapter: Adapter | None,
    key: str,
    plain: Mapping[str, PlainOp],
    *,
    strict: bool,
) -> dict[str, Service]:
    """Services for a library's operators, by their names in it; `plain` are those that run now."""
    operators = [op for op in library.contents.ops if op.schema]
    with registry.lock:
        if _follow not in registry.watchers:
            registry.watchers.append(_follow)
        services = {}
        for op in operators:
            call = Caller(library, op, host_memory=key == "CPU")
            own = adapter if adapter is not None and op.torch_name in adapter.operators else None
            services[op.name] = Service(op.op, call, library, own, key=key, strict=strict)
        try:
            _refuse_served(services)
            for op in operators:
                _start(services[op.name], op, plain.get(op.torch_name))
        except BaseException:
            withdraw(services)
            for each in plain.values():
                each.give_up()
            raise
    return services


def withdraw(services: Mapping[str, Service]) -> None:
    """Take the implementations out of torch, and the operators that have no source."""
    with registry.lock:
        for service in services.values():
            if _services.get(service.op.torch_name) is service:
                del _services[service.op.torch_name]
            entry = service.entry
            service.detach()
            if entry is not None and entry.stands_in:
                registry.remove(entry, "defined by a library that was closed")


def _refuse_served(services: Mapping[str, Service]) -> None:
    for service in services.values():
        other = _services.get(service.op.torch_name)
        if other is not None:
            raise BadRegistration(
                f"{service.op.torch_name} is already served by another library",
                found=f"first {other.file}, now {service.file}",
                fix="close the first: opforge.load(...).close()",
            )


def _start(service: Service, described: ManifestOp, plain: PlainOp | None) -> None:
    entry = registry.find(service.op.torch_name)
    if entry is None:
        fake = _fake(described)
        defined = None if plain is None else plain.hand_over()
        entry = define(service.op, service.run, fake, str(service.file), defined)
    if not _keeps_own_kernel(entry, service):
        service.attach(entry)
    _services[service.op.torch_name] = service
    if plain is not None:
        plain.step_aside()


def _fake(described: ManifestOp) -> Callable[..., Any]:
    @functools.cache
    def shapes() -> Callable[..., Any]:
        from .fake import Shapes  # noqa: PLC0415 - only traces need it

        return Shapes(described.op, described.cases)

    def fake(*args: Any, **kwargs: Any) -> Any:
        return shapes()(*args, **kwargs)

    return fake


def _keeps_own_kernel(entry: Entry, service: Service) -> bool:
    """Whether the user registered a kernel for the library's device, which then stays."""
    own = service.key in entry.registration.kernel_keys
    if own:
        warn(
            f"{entry.name} keeps the {service.key} kernel that was registered for it, so "
            f"{service.file.name} does not serve it"
        )
    return own


def _follow(event: str, entry: Entry) -> None:
    """Follow a served op: its source was imported, reloaded or unregistered."""
    service = _services.get(entry.name)
    if service is None:
        return
    if event == "replaced":
        service.refuse_if_running()
    elif event in {"removed", "amending"} and service.entry is entry:
        service.detach()
    elif event in {"added", "amended"} and (service.entry is None or service.entry.stands_in):
        if _keeps_own_kernel(entry, service):
            return
        try:
            service.attach(entry, complete=False)
        except StaleLibrary as error:
            # The op works without the library.
            text = f"{error}\n{entry.name} is not served by {service.file.name}"
            warn(text)
