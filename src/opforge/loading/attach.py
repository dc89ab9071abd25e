"""Puts a service behind each operator of a library, and keeps it there while ops come and go.

Calls with CUDA tensors go to the library: through the adapter if there is one, otherwise by ctypes.
If the op's source is registered, only its CUDA kernel is replaced; if not, the op is defined from
the manifest.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import _compat
from ..errors import (
    BadRegistration,
    NativeCallFailed,
    StaleLibrary,
    Uncovered,
    WrongArgument,
    warn,
)
from ..explain import explain_op, info_of_registration
from ..lowering.plan import lower_given
from ..model import Decision, Discovery, Lowered, OpInfo, Reading
from ..native.ir.abi import MAX_RANK
from ..native.ir.interface import Op
from ..native.library.ctypes_ops import (
    CPU,
    CUDA,
    OperatorCall,
    OpforgeTensor,
    Sizes,
    current_stream,
    torch_gpu_type,
)
from ..native.library.manifest_reader import ManifestOp
from ..native.library.shared_library import SharedLibrary, rebuild
from ..registration.fake import FakeRule
from ..registration.register import Definition, Registration, register
from ..registration.transparent import Transparency
from ..registry import Entry, registry
from .adapter import JIT, NATIVE, Adapter, PlainOp, advice_without_source, wanted
from .rules import DTYPE_OF, CallBinding, Formula, Shapes, uncovered, unflat

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
        entry = _define(service.op, service.run, fake, str(service.file), defined)
    if not _keeps_own_kernel(entry, service):
        service.attach(entry)
    _services[service.op.torch_name] = service
    if plain is not None:
        plain.step_aside()


def _fake(described: ManifestOp) -> Callable[..., Any]:
    @functools.cache
    def shapes() -> Callable[..., Any]:
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
    if event in {"removed", "amending"} and service.entry is entry:
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
        try:
            return self.call(*args, **kwargs)
        except Uncovered as error:
            if self.jit is None or self.strict or wanted() == NATIVE:
                error.fix = self._advice()
                raise error.locate(None, None) from None
            self._warn(str(error))
            return self.jit(*args, **kwargs)

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
        from ..native.frontend.implementations import source_hash  # noqa: PLC0415 - needs a source

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


# Statuses of calls that the library was not built for; with others something is broken.
NOT_COVERED = frozenset({"UNCOVERED", "INVALID_ARGUMENT"})


class Caller:
    """One operator over its flat arguments; raises `Uncovered` where the library does not serve."""

    def __init__(self, library: SharedLibrary, described: ManifestOp, *, host_memory: bool) -> None:
        self._bind = CallBinding(described.op)
        self._names = [param.name for param in described.op.params]
        self._call = OperatorCall(library, described, _describe, host_memory=host_memory)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._bind(args, kwargs)
        values = [given[name] for name in self._names]
        try:
            return self._call(values, stream=current_stream(values))
        except WrongArgument as error:
            raise uncovered(f"{error.op}: {error.parameter} {error.what}") from None
        except NativeCallFailed as error:
            if error.status in NOT_COVERED:
                raise uncovered(str(error), error.status) from None
            raise


def _describe(tensor: torch.Tensor, _stream: int) -> OpforgeTensor:
    dtype = DTYPE_OF.get(tensor.dtype)
    rank = tensor.dim()
    if dtype is None or rank > MAX_RANK:
        what = f"dtype {tensor.dtype}" if dtype is None else f"{rank} dimensions"
        raise WrongArgument(f"has {what}, which no library is built for")
    place = (torch_gpu_type() or CUDA, tensor.get_device()) if tensor.is_cuda else (CPU, 0)
    return OpforgeTensor(
        tensor.data_ptr(), *place, rank, dtype.code, dtype.bits, 1,
        Sizes(*tensor.shape), Sizes(*tensor.stride()), 0,
    )  # fmt: skip


def _define(
    op: Op,
    body: Callable[..., Any],
    fake: Callable[..., Any],
    file: str,
    defined: _compat.DefinedOp | None = None,
) -> Entry:
    """Register an op that is opaque to the compiler, and that its source may take over.

    `defined`: torch already knows the schema.
    """
    lowered = _lowered(op)
    decision = Decision("custom_op", f"it was defined from {file}, without its source")
    reading = Reading(decision, Discovery(), Discovery())
    formula = Formula(op) if op.formula else None
    fake_fn = _function(op, fake, f"<fake of {op.torch_name} in {file}>")
    definition = Definition(
        name=op.torch_name,
        location=file,
        fn=_function(op, body, f"<{op.torch_name} in {file}>"),
        lowered=lowered,
        fake=FakeRule(op.torch_name, file, lowered, given=fake_fn),
        transparency=Transparency(op.torch_name, file, lowered, lambda: reading, first=reading),
        backward=formula.backward if formula else None,
        setup_context=formula.save if formula else None,
    )
    with registry.lock:
        entry = _entry(register(definition, defined))
        registry.add(entry)
    return entry


def _lowered(op: Op) -> Lowered:
    schema = op.schema.removeprefix(op.torch_name)
    parsed = _compat.parse_schema(op.schema)
    kinds = {
        a.name: "keyword-only" if a.keyword_only else "positional-or-keyword" for a in op.arguments
    }
    # As kernels get them: torch parses a dtype to a number.
    defaults = {a.name: unflat(a.default[0]) for a in op.arguments if a.default}
    returns = [kind for kind, _ in _compat.parsed_returns(parsed)]
    arguments = _compat.parsed_arguments(parsed)
    return lower_given(schema, kinds, arguments, defaults, returns)


def _function(op: Op, target: Callable[..., Any], filename: str) -> Any:
    """A function with the operator's parameters and defaults, which passes them to `target`."""
    namespace: dict[str, Any] = {"_of_target": target}
    parameters, passed = [], []
    for argument in op.arguments:
        if argument.keyword_only and "*" not in parameters:
            parameters.append("*")
        default = ""
        if argument.default:
            namespace[f"_of_default_{argument.name}"] = unflat(argument.default[0])
            default = f"=_of_default_{argument.name}"
        parameters.append(f"{argument.name}{default}")
        by_name = f"{argument.name}=" if argument.keyword_only else ""
        passed.append(f"{by_name}{argument.name}")
    head, call = f"def _of_operator({', '.join(parameters)}):", f"_of_target({', '.join(passed)})"
    text = f"{head}\n    return {call}\n"
    exec(compile(text, filename, "exec"), namespace)  # noqa: S102 - our own text
    made = namespace["_of_operator"]
    made.__doc__ = op.doc or op.schema
    return made


def _entry(registration: Registration) -> Entry:
    definition = registration.definition

    def describe() -> OpInfo:
        return info_of_registration(registration)

    def explain() -> str:
        fake = f"from the manifest of {definition.location}"
        backward = f"carried by {definition.location}"
        return explain_op(describe(), definition, fake=fake, backward=backward)

    return Entry.of(
        registration,
        definition_pass=None,
        describe=describe,
        explain=explain,
        stands_in=True,
    )
