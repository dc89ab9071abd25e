"""Defines an op with torch, and installs its kernels."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import _compat
from ..errors import BadDeclaration, BadRegistration, warn
from ..lowering.codegen import emit_wrapper
from ..model import OPFORGE, Dialect, Lowered
from .autograd import Unrecorded, define_raising_ops, recorder_for, with_all_inputs
from .direct import COMPOSITE, DirectCalls, PlainKeysets, listed_name
from .fake import FakeRule
from .generated import Generated, KernelWriter, may_be_direct, write_inplace
from .rules import make_autocast_kernel, make_vmap_kernel, register_records
from .transparent import Transparency

# What runs instead of the body, by device type; None for all others that the body is not for.
DeviceKernels = Mapping[str | None, Callable[..., Any]]


@dataclass(frozen=True)
class Definition:
    """Everything that is to be registered under one name."""

    name: str
    location: str
    fn: Callable[..., Any]
    lowered: Lowered
    fake: FakeRule
    transparency: Transparency
    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | str | None = None
    autocast: dict[str, torch.dtype] = field(default_factory=dict)
    tags: tuple[Any, ...] = ()
    views: bool = False
    # The device types that the body is for; none if it is for all of them.
    device_types: tuple[str, ...] = ()
    device_kernels: DeviceKernels = field(default_factory=dict)
    dialect: Dialect = OPFORGE

    @property
    def own_name(self) -> str:
        """Without the namespace."""
        return self.name.partition("::")[2]

    @property
    def body_keys(self) -> frozenset[str] | None:
        """The backends that the body is for; None if it is for all that have no other kernel."""
        if not self.device_types:
            return None
        own = (d for d in self.device_types if d not in self.device_kernels)
        return frozenset(_compat.backend_key(d) for d in own)


@dataclass(eq=False)
class Registration:
    """What torch holds for an op, and how to change and undo it."""

    definition: Definition
    defined: _compat.DefinedOp
    # Whether a library that was loaded has defined the op.
    is_from_library: bool = False
    generated: Generated = field(init=False)
    handle: Any = None
    # By device type; see `Definition.device_kernels`.
    device_kernels: dict[str | None, Generated] = field(default_factory=dict)
    # What else runs the op, by dispatch key: "native where covered, from libops.so".
    backends: dict[str, str] = field(default_factory=dict)
    # None if every call goes through the dispatcher.
    direct: DirectCalls | None = None
    _ended: bool = False

    @property
    def overload(self) -> Any:
        return self.defined.overload

    @property
    def kernel_keys(self) -> frozenset[str]:
        """The backends for which a kernel other than the body was registered here."""
        return frozenset(_compat.backend_key(d) for d in self.definition.device_kernels if d)

    @property
    def kernel(self) -> Callable[..., Any]:
        """What torch runs below autograd: the body behind its checks, over flat arguments."""
        kernel: Callable[..., Any] = self.generated.namespace["_of_kernel"]
        return kernel

    def guarded(self, run: Callable[..., Any], *, followed: bool = False) -> Callable[..., Any]:
        """`run` in place of the op's body: behind what its own kernel asks of autograd first.

        `followed`: autograd is known to follow the inputs, so going back raises.
        """
        checks, recorded = self.generated.checks, self.definition.backward is not None
        unrecorded = Unrecorded(self.definition.transparency, checks)
        run_unrecorded = unrecorded.eager(run)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if _compat.forward_ad_open():
                checks.refuse_tangents(*args, *kwargs.values())
            if followed or (not recorded and unrecorded.needs_grad(args, kwargs)):
                return run_unrecorded(*args, **kwargs)
            return run(*args, **kwargs)

        return kernel

    def runs_natively(self, key: str, what: str) -> None:
        """Send calls with this key to a native implementation of the same op.

        The compiler still sees the body, whose kernels it can fuse; the fake stays as it is.
        """
        self.backends[key] = what
        self.definition.transparency.native_keys.add(key)
        self._end_direct_calls(for_good=False)
        plain = self.generated.namespace.get("_of_plain")
        if plain is not None:
            # Which keysets lead directly to the body is asked again.
            plain.clear()

    def runs_its_body(self, key: str) -> None:
        self.backends.pop(key, None)
        self.definition.transparency.native_keys.discard(key)
        if not self.backends:
            self.begin_direct_calls()

    def ask_before_body(self, ask: Callable[..., None] | None) -> None:
        """Call `ask` with the body's arguments before each run of it, which it may refuse."""
        fn = self.definition.fn
        if ask is None:
            self.generated.namespace["_of_fn"] = fn
            return

        def asked(*args: Any, **kwargs: Any) -> Any:
            ask(*args, **kwargs)
            return fn(*args, **kwargs)

        self.generated.namespace["_of_fn"] = asked

    def begin_direct_calls(self) -> None:
        """Make calls without the dispatcher where it would do nothing."""
        allowed = not (self._ended or self.backends)
        if self.direct is not None and allowed and self.direct.begin():
            self._call_by(_compat.raw_call(self.overload))

    def _end_direct_calls(self, *, for_good: bool = True) -> None:
        if self.direct is not None:
            self.direct.end(for_good=for_good)
            if not self._ended:
                self._call_by(_compat.raw_call(self.overload))

    def undo(self, why: str) -> None:
        """Remove the op; handles that are still held raise instead of reading freed memory."""
        self._ended = True
        self._end_direct_calls()
        self._refuse_calls(why)
        self.defined.destroy()
        self.generated.forget()
        self.definition.transparency.forget()

    def _refuse_calls(self, why: str) -> None:
        name, location = self.definition.name, self.definition.location

        def raise_dead(*_args: Any, **_kwargs: Any) -> None:
            raise BadRegistration(
                f"this handle is stale: the op was {why}",
                fix="use the new handle, or register the op again",
            ).locate(name, location)

        _compat.disable_overload(self.overload, raise_dead)
        self._call_by(_compat.raw_call(self.overload))

    def fits(self, definition: Definition) -> bool:
        """Whether torch would hold the same of another definition, but for kernels."""
        ours = self.definition
        return (ours.lowered.schema, {*ours.tags}) == (
            definition.lowered.schema,
            {*definition.tags},
        )

    def hand_on(self) -> _compat.DefinedOp:
        """Take the kernels out of torch; the op itself, and handles of it, are somebody else's now.

        Calls that are under way end as they began.
        """
        self._end_direct_calls()
        self.generated.forget()
        return self._without_kernels()

    def amend(self, definition: Definition) -> None:
        """Replace everything but the schema and the handle."""
        self._end_direct_calls()
        # The overload itself waits, its C++ function would not.
        self._call_by(self.overload)
        self.defined = self._without_kernels()
        self.definition = definition
        self.install(amends=True)
        self._call_by(_compat.raw_call(self.overload))

    def install(self, *, amends: bool = False) -> None:
        """Put the op's kernels into torch; `amends`: in place of others, for the same handle."""
        definition, defined, lowered = self.definition, self.defined, self.definition.lowered
        files = self.generated.files if amends else None
        generated = Generated(definition.name, definition.location, lowered, files)
        self.generated, completes = generated, amends or self.is_from_library
        writer = KernelWriter(
            guarded=definition.backward is None,
            verified=definition.fake.given is None,
            views=definition.views,
            wraps=lambda: definition.transparency.reading.may_wrap,
        )
        try:
            self._install_kernels(writer, completes=completes)
            self._install_rules()
            self.device_kernels = {
                each: self._install_for_device(each, writer) for each in definition.device_kernels
            }
            if not completes:
                # A library that is loaded has kernels in C++, which this would slow down.
                _compat.dispatch_from_python(defined.overload)
            if not amends:
                self.handle = _handle(definition, generated, defined.overload)
        except BaseException:
            defined.destroy()
            generated.forget()
            raise
        for node in (*(p.node for p in lowered.signature.parameters), lowered.signature.returns):
            register_records(node)
        self.direct = None
        # torch itself is as quick with a kernel that its C++ finds at once.
        at_once = _compat.is_dispatched_from_python(defined.overload) and not (
            definition.backward or lowered.mutated
        )
        # Calls of a library that is loaded come to its C++.
        if not (self.is_from_library or at_once or definition.views) and may_be_direct(lowered):
            self.direct = DirectCalls(
                generated, defined.overload, writer, definition.body_keys, definition.autocast
            )
            generated.in_first_call = self.begin_direct_calls

    def _put(self, kernel: Any, key: str, *, with_keyset: bool = False) -> None:
        self.defined.kernels.impl(
            self.definition.own_name,
            kernel,
            key,
            with_keyset=with_keyset,
            # The fake is there already, and torch 2.11 refuses a second one.
            allow_override=key == "Meta",
        )

    def _put_unlisted(self, kernel: Any, key: str, *, with_keyset: bool = False) -> None:
        """Off torch's list, so that a kernel of somebody else's is noticed there."""
        self._put(kernel, key, with_keyset=with_keyset)
        _compat.unlist(self.defined.kernels, listed_name(self.definition.name, key))

    def _install_kernels(self, writer: KernelWriter, *, completes: bool) -> None:
        """The body, its fake, and what autograd asks; `completes`: beside kernels of others."""
        definition, generated, library = self.definition, self.generated, self.defined.kernels
        name, keys, lowered = definition.name, definition.body_keys, definition.lowered
        theirs = {k for k in ("Autograd", "Meta") if completes and _compat.has_kernel(name, k)}
        kernel = generated.later("_of_kernel", writer.kernel)
        self._fill_namespace()
        for key in COMPOSITE[:1] if keys is None else sorted(keys):
            self._put_unlisted(kernel, key)
        if "Meta" not in theirs:
            _compat.register_fake(library, name, definition.fake, definition.location)
        autograd: Any = None
        if definition.backward is not None:
            self._add_recorder()
            autograd = generated.later("_of_autograd", writer.autograd)
        elif lowered.tensors:
            unrecorded = Unrecorded(
                definition.transparency, generated.checks, views=definition.views
            )
            generated.namespace["_of_unrecorded"] = unrecorded.eager(kernel)
            self._let_backward_raise(unrecorded)
            autograd = torch.library.fallthrough_kernel
        if autograd is not None and "Autograd" not in theirs:
            self._put_unlisted(autograd, "Autograd", with_keyset=definition.backward is not None)
        recorded = definition.backward is not None or not lowered.tensors
        if recorded and definition.transparency.first.may_be_transparent:
            self._put_functional_rule(definition.transparency.traced)
        if lowered.mutated:
            below = _compat.after_inplace_or_view
            generated.namespace["_of_plain"] = PlainKeysets(name, below, keys)
            inplace = generated.later("_of_inplace", write_inplace)
            self._put(inplace, "ADInplaceOrView", with_keyset=True)

    def _put_functional_rule(self, rule: Callable[..., Any]) -> None:
        _compat.register_functional_rule(self.defined.kernels, self.definition.own_name, rule)

    def _fill_namespace(self) -> None:
        """Give the kernels, the trace and the fake what they call."""
        definition, generated = self.definition, self.generated
        fake, transparency = definition.fake, definition.transparency
        generated.namespace.update(
            _of_fn=definition.fn,
            _of_redispatch=self.overload.redispatch,
            _of_listed=_compat.ALWAYS_LISTED,
            _of_composite=listed_name(definition.name, COMPOSITE[0]),
            _of_composite_too=listed_name(definition.name, COMPOSITE[1]),
            _of_after_autograd=_compat.after_autograd,
            _of_after_inplace=_compat.after_inplace_or_view,
            **self._asked_by_kernels(),
        )

        def on_original_arguments(*args: Any, **kwargs: Any) -> Any:
            return generated.bind(definition.fn)(*args, **kwargs)

        transparency.body = on_original_arguments
        transparency.body_keys = definition.body_keys
        fake.resolve_mode = generated.before_first_call = transparency.resolve_mode
        fake.call = _on_fakes(definition, generated)

    def _asked_by_kernels(self) -> dict[str, Any]:
        """What the op's own kernel and those for device types call."""
        fake, transparency = self.definition.fake, self.definition.transparency

        def explain_failure(error: Exception, *tensors: Any) -> None:
            fake.explain_leak(error)
            transparency.explain_failure(error, *tensors)

        return {
            "_of_pending": fake.pending,
            "_of_verify": fake.verify,
            "_of_explain_failure": explain_failure,
        }

    def _add_recorder(self) -> None:
        definition, generated = self.definition, self.generated
        name, lowered, transparency = definition.name, definition.lowered, definition.transparency
        callbacks: list[Any] = [
            definition.backward,
            with_all_inputs(lowered.signature, definition.setup_context),
        ]
        if transparency.first.backward_may_launch:
            callbacks = [fn and transparency.with_capture(fn) for fn in callbacks]
        followed = True
        if definition.views:
            # torch's own kernel for levels of torch.func would lose writes to a view.
            refused = generated.checks.views_transformed
            _compat.around_functorch(self.defined.kernels, name, refused)
            followed = _compat.follow_views(
                self.defined.kernels, definition.own_name, self.overload
            )
        generated.namespace.update(
            _of_plain=PlainKeysets(name, _compat.after_autograd, definition.body_keys),
            _of_record=recorder_for(lowered)(
                generated,
                self.overload,
                *callbacks,
                option=definition.dialect.backward,
                followed=followed,
            ),
        )

    def _let_backward_raise(self, unrecorded: Unrecorded) -> None:
        """Make a missing backward raise in traces and in torch.func."""
        name = self.definition.name
        define_raising_ops()
        self._put_functional_rule(unrecorded.traced)
        _compat.around_functorch(self.defined.kernels, name, unrecorded.transformed)
        _compat.around_subclasses(self.defined, name, unrecorded.subclassed)

    def _install_rules(self) -> None:
        """What changes a call before it comes to a backend, autograd aside."""
        definition, overload = self.definition, self.overload
        if definition.vmap is not None:
            batched = make_vmap_kernel(self.generated, overload, definition.vmap)
            self._put(batched, "FuncTorchBatched", with_keyset=True)
        for device_type, dtype in definition.autocast.items():
            key = _compat.autocast_key(device_type)
            cast = make_autocast_kernel(overload, device_type, dtype)
            _compat.python_kernel(overload, key, cast)
            self._put(cast, key)
        by_device = definition.device_types or definition.device_kernels
        if by_device and not definition.lowered.tensors:
            self._put(_to_device(overload, definition.lowered), "BackendSelect", with_keyset=True)

    def _install_for_device(self, device_type: str | None, writer: KernelWriter) -> Generated:
        """A kernel for one device type, or for the others, behind the same checks as the body."""
        definition = self.definition
        fn = definition.device_kernels[device_type]
        beside = self.generated.beside(f"the kernel for {device_type or 'other devices'}", fn)
        kernel = beside.later("_of_kernel", replace(writer, wraps=lambda: True).kernel)
        beside.namespace.update(
            _of_fn=fn,
            _of_unrecorded=Unrecorded(definition.transparency, beside.checks).eager(kernel),
            **self._asked_by_kernels(),
        )
        beside.before_first_call = definition.transparency.resolve_mode
        if device_type is None:
            self._put_unlisted(kernel, COMPOSITE[0])
        else:
            self._put(kernel, _compat.backend_key(device_type))
        return beside

    def choose_kernel(self, device_type: str, *, own: bool) -> None:
        """Let a device's own kernel run, if it has one, or the op's body in its place."""
        kernel, definition = self.device_kernels.get(device_type), self.definition
        if kernel is not None:
            own_fn = definition.device_kernels[device_type]
            kernel.namespace["_of_fn"] = own_fn if own else definition.fn
            kernel.checks.returner = kernel.checks.own if own else kernel.checks.body

    def _without_kernels(self) -> _compat.DefinedOp:
        _compat.keep_kernels(self.definition.name, _KEYS)
        _compat.destroy(self.defined.kernels)
        _compat.forget_dispatch(self.overload)
        self.definition.transparency.forget()
        return self.defined.with_other_kernels()

    def _call_by(self, call: Callable[..., Any]) -> None:
        """Let a handle that takes arguments apart call the op like this."""
        if self.handle is not self.overload:
            self.handle.__globals__["_of_call"] = call


# All that `install` may have kernels at; a backend's stands for CompositeExplicitAutograd.
_KEYS = (
    "XPU", "CPU", "CUDA", "Meta", "AutogradCPU", "AutogradCUDA", "ADInplaceOrView", "AutocastCPU",
    "AutocastCUDA", "BackendSelect", "FuncTorchBatched", "FuncTorchDynamicLayerBackMode", "Python",
)  # fmt: skip


def register(definition: Definition, known: _compat.DefinedOp | None = None) -> Registration:
    """Define the op, or complete one of which torch already knows the schema.

    A failure leaves nothing behind.
    """
    if not definition.lowered.returns and not definition.lowered.mutated:
        warn(_dropped(definition))
    try:
        defined = known or _define(definition)
    except (RuntimeError, ValueError) as error:
        raise _not_defined(definition.name, definition.lowered.schema, error) from error
    registration = Registration(definition, defined, is_from_library=known is not None)
    registration.install()
    return registration


def _dropped(definition: Definition) -> str:
    tensor = next((a.path for a in definition.lowered.tensors), None)
    written = f'name what the body changes, mutates_args=["{tensor}"], or ' if tensor else ""
    return (
        f"{definition.name} ({definition.location}) returns nothing and declares no writes, so "
        f"torch.compile and torch.export drop its calls\n"
        f"  fix: {written}return a tensor that the caller uses"
    )


def _define(definition: Definition) -> _compat.DefinedOp:
    # The kernels are kept apart from the schema, because they may change and it may not.
    defined = _compat.define(definition.name, definition.lowered.schema, definition.tags)
    return defined.with_other_kernels()


def _to_device(overload: Any, lowered: Lowered) -> Callable[..., Any]:
    """The kernel that sends a call without tensors to the backend of its device."""
    name = next(a.name for a in lowered.arguments if a.type in ("Device", "Device?"))

    def kernel(_keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        device = lowered.by_name(args, kwargs)[name] or torch.get_default_device()
        key = _compat.backend_key(torch.device(device).type)
        return _compat.to_key(overload, key)(*args, **kwargs)

    return kernel


def _on_fakes(definition: Definition, generated: Generated) -> Callable[..., Any]:
    """The given fake, or the body on fake tensors, over flat arguments; the result is checked."""
    given, views = definition.fake.given, definition.views

    @functools.cache
    def beside(fake: Callable[..., Any]) -> Generated:
        # Made on first use: most calls of most ops ask no fake.
        return generated.beside("the fake", fake)

    def call(*args: Any, **kwargs: Any) -> Any:
        if given is None:
            used, out = generated, definition.transparency.on_fakes(*args, **kwargs)
        else:
            used = beside(given)
            out = used.bind(given)(*args, **kwargs)
        return used.checks.traced(out, definition.lowered.by_name(args, kwargs), views=views)

    return call


def _handle(definition: Definition, generated: Generated, overload: Any) -> Any:
    """What the user calls: the overload, or a callable that flattens arguments for it."""
    fn = definition.fn
    if definition.lowered.path != "flattened":
        # Its names stay torch's, which graphs are serialized by, and it gets no `__wrapped__`,
        # because torch unwraps what it traces.
        overload.__doc__, overload.__signature__ = fn.__doc__, _signature(fn, definition.lowered)
        return overload
    generated.namespace.update(
        _of_overload=overload,
        _of_call=_compat.raw_call(overload),
        _of_tracing=torch.compiler.is_dynamo_compiling,
    )
    # The name that tracebacks and profilers show; a lambda's is not an identifier.
    name = fn.__name__ if fn.__name__.isidentifier() else "_of_wrapper"
    wrapper = generated.now(name, functools.partial(emit_wrapper, name=name))
    functools.update_wrapper(wrapper, fn)
    setattr(wrapper, _compat.operators.MARK, overload)
    return wrapper


def _signature(fn: Callable[..., Any], lowered: Lowered) -> inspect.Signature:
    """The function's signature, with the names that a given schema has for its parameters."""
    signature = inspect.signature(fn)
    given = {a.path: a.name for a in lowered.arguments}
    renamed = [p.replace(name=given.get(n, n)) for n, p in signature.parameters.items()]
    return signature.replace(parameters=renamed)


# By the file's name, as it tells torch; `lib` and `_torch` are not part of the library's.
_ADAPTER = re.compile(r"(?<=Original registration: registered at )lib(\w+)_torch\.so(?=:0)")


def _not_defined(name: str, schema: str, error: Exception) -> Exception:
    lines = str(error).strip().splitlines()
    places = " ".join(line.strip() for line in lines if "registered at" in line)
    adapter = _ADAPTER.search(places)
    if adapter:
        return BadRegistration(
            f"{name} is already registered: this process has loaded {adapter[0]}, which defines it",
            found=", ".join(f for f in torch.ops.loaded_libraries if f.endswith(f"/{adapter[0]}"))
            or places,
            fix=f"in a new process, leave out what loads it: `import {adapter[1]}`, if its wheel "
            "is installed, or torch.ops.load_library",
        )
    if places:
        return BadRegistration(
            f"{name} is already registered, and not by opforge",
            found=places,
            fix="choose another name or namespace",
        )
    # torch's message has half of a character, which some Pythons refuse to read; others, like
    # 3.11.2, read no message at all.
    if isinstance(error, UnicodeError) or not (lines or schema.isascii()):
        return BadDeclaration(
            "torch cannot parse the schema",
            found=f"{schema}: a name in it is not ASCII",
            fix="rename the parameter, or correct schema=",
        )
    if isinstance(error, ValueError):
        return BadDeclaration(
            "the schema does not fit the op's tags",
            found=lines[0],
            fix="correct schema=, or remove the tag",
        )
    return BadDeclaration(
        "torch cannot parse the schema",
        found=f"{schema}: {lines[0] if lines else 'torch does not say why'}",
        fix="rename parameters that are keywords of the schema language, or correct schema=",
    )
