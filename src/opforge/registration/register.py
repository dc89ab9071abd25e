"""Defines an op with torch and gives it its kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat
from ..errors import BadSchema, DuplicateOp, UnregisteredOp
from ..lowering.codegen import emit_wrapper
from ..model import Lowered
from .autocast import make_autocast_kernel
from .autograd import recorder_for
from .dispatch import PlainKeysets
from .fake import FakeRule
from .generated import Generated
from .kernels import autograd_writer, kernel_writer, write_inplace
from .outputs import OutputChecks
from .pytree import register_records
from .transparent import Transparency
from .unrecorded import Unrecorded, make_refuse_tangents
from .vmap import make_vmap_kernel


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


@dataclass(frozen=True)
class Registration:
    """What torch holds for an op, and how to take it back."""

    definition: Definition
    library: Any
    overload: Any
    generated: Generated
    handle: Any
    # By dispatch key, what else runs the op: "native where covered, from libops.so".
    backends: dict[str, str] = field(default_factory=dict, compare=False)

    def runs_natively(self, key: str, what: str) -> None:
        """Calls with this key go to a native implementation of the same op.

        The compiler goes on seeing the body, whose kernels it can fuse; the fake stays as it is.
        """
        self.backends[key] = what
        self.definition.transparency.native_keys.add(key)
        self.redispatch()

    def runs_its_body(self, key: str) -> None:
        self.backends.pop(key, None)
        self.definition.transparency.native_keys.discard(key)

    def redispatch(self) -> None:
        """Forget which keysets led straight to the body; they are looked into again."""
        plain = self.generated.namespace.get("_of_plain")
        if plain is not None:
            plain.clear()

    def undo(self, why: str) -> None:
        """Remove the op; handles that are still held raise instead of reaching freed memory."""
        name, location = self.definition.name, self.definition.location

        def raise_dead() -> None:
            raise UnregisteredOp(
                f"this handle is stale: the op was {why}",
                fix="use the new handle, or register the op again",
                op=name,
                location=location,
            )

        _compat.disable_overload(self.overload, raise_dead)
        self.generated.namespace["_of_call"] = _compat.raw_call(self.overload)
        _compat.destroy(self.library)
        self.generated.forget()
        self.definition.transparency.forget()


def register(definition: Definition, defined: tuple[Any, Any] | None = None) -> Registration:
    """Define the op, or go on with the library and overload of one that has its schema only.

    On any failure nothing of it stays behind.
    """
    name, lowered = definition.name, definition.lowered
    try:
        library, overload = defined or _compat.define(
            name, lowered.schema, (*definition.tags, _compat.pt2_tag())
        )
    except RuntimeError as error:
        raise _not_defined(name, lowered.schema, error) from error
    generated = Generated(name, definition.location, lowered)
    # Of an op that torch knew already; who registered them meant them to stay.
    taken = {k for k in ("Autograd", "Meta") if defined is not None and _compat.has_kernel(name, k)}
    try:
        _install(definition, generated, library, overload, taken)
        handle = _handle(definition, generated, overload)
    except BaseException:
        _compat.destroy(library)
        generated.forget()
        raise
    for parameter in lowered.signature.parameters:
        register_records(parameter.node)
    if lowered.signature.returns is not None:
        register_records(lowered.signature.returns)
    return Registration(definition, library, overload, generated, handle)


def _install(
    definition: Definition, generated: Generated, library: Any, overload: Any, taken: set[str]
) -> None:
    op = definition.name.partition("::")[2]
    _install_kernel(definition, generated, library, overload)
    if "Meta" not in taken:
        _compat.register_fake(library, definition.name, definition.fake, definition.location)
    if definition.backward is not None:
        kernel = _recording_kernel(definition, generated, overload)
        if "Autograd" not in taken:
            library.impl(op, kernel, "Autograd", with_keyset=True)
    elif definition.lowered.tensors:
        if "Autograd" not in taken:
            library.impl(op, torch.library.fallthrough_kernel, "Autograd")
        _install_no_backward(definition, generated, library)
    if definition.backward is not None or not definition.lowered.tensors:
        _install_transparency(definition, library)
    if definition.lowered.mutated:
        below = _compat.after_inplace_or_view
        generated.namespace["_of_plain"] = PlainKeysets(definition.name, below)
        inplace = generated.later("_of_inplace", write_inplace)
        library.impl(op, inplace, "ADInplaceOrView", with_keyset=True)
    if definition.vmap is not None:
        batched = make_vmap_kernel(generated, overload, definition.vmap)
        library.impl(op, batched, "FuncTorchBatched", with_keyset=True)
    for device_type, dtype in definition.autocast.items():
        key = _compat.autocast_key(device_type)
        cast = make_autocast_kernel(overload, device_type, dtype)
        _compat.python_kernel(overload, key, cast)
        library.impl(op, cast, key)


def _install_kernel(
    definition: Definition, generated: Generated, library: Any, overload: Any
) -> None:
    """The body, behind its checks, and what the fake calls."""
    name, location, fake = definition.name, definition.location, definition.fake
    checks = OutputChecks(name, location, definition.lowered)
    generated.namespace.update(
        _of_fn=definition.fn,
        _of_Tensor=torch.Tensor,
        _of_not_none=checks.not_none,
        _of_check_one=checks.one,
        _of_check_several=checks.several,
        _of_unrecord=checks.unrecord,
        _of_aliased=checks.aliased,
        _of_refuse_tangents=make_refuse_tangents(name, location),
        _of_pending=fake.pending,
        _of_verify=fake.verify,
        _of_explain_failure=functools.partial(_explain_failure, definition),
        _of_redispatch=overload.redispatch,
        _of_listed=f"{name.replace('::', '/')}/CompositeExplicitAutograd",
        _of_after_autograd=_compat.after_autograd,
        _of_after_inplace=_compat.after_inplace_or_view,
    )
    transparency = definition.transparency
    transparency.body = functools.partial(_on_original_arguments, generated, definition.fn)
    fake.settle = generated.before_first_call = transparency.settle
    write_kernel = kernel_writer(
        guarded=definition.backward is None,
        verified=fake.verifiable,
        views=definition.views,
        launches=lambda: transparency.reading.may_launch,
    )
    kernel = generated.later("_of_kernel", write_kernel)
    library.impl(name.partition("::")[2], kernel, "CompositeExplicitAutograd")
    if fake.given is not None:
        fake.call = functools.partial(_on_original_arguments, generated, fake.given)
    else:
        fake.call = _body_on_fakes(definition, checks)


def _recording_kernel(definition: Definition, generated: Generated, overload: Any) -> Any:
    assert definition.backward is not None
    generated.namespace.update(
        _of_plain=PlainKeysets(definition.name, _compat.after_autograd),
        _of_record=recorder_for(definition.lowered)(
            definition.name,
            definition.location,
            generated,
            overload,
            backward=_traceable(definition, definition.backward),
            setup_context=_traceable(definition, definition.setup_context),
        ),
    )
    write = autograd_writer(
        verified=definition.fake.verifiable,
        views=definition.views,
        launches=lambda: definition.transparency.reading.may_launch,
    )
    return generated.later("_of_autograd", write)


def _install_no_backward(definition: Definition, generated: Generated, library: Any) -> None:
    op = definition.name.partition("::")[2]
    unrecorded = Unrecorded(
        definition.name, definition.location, definition.lowered, definition.transparency
    )
    names = generated.namespace
    names["_of_unrecorded"] = unrecorded.eager(names["_of_kernel"])
    _compat.register_functional_rule(library, op, unrecorded.traced)
    _compat.around_functorch(library, definition.name, unrecorded.transformed)


def _install_transparency(definition: Definition, library: Any) -> None:
    """Let AOTAutograd see through the op, if that is or may become its mode."""
    reading = definition.transparency.first
    if reading.may_be_transparent:
        op = definition.name.partition("::")[2]
        try:
            _compat.register_functional_rule(library, op, definition.transparency.traced)
        except (AttributeError, ImportError, RuntimeError, TypeError) as error:
            definition.transparency.fall_back(f"{type(error).__name__}: {error}")


def _traceable(definition: Definition, callback: Any) -> Any:
    if callback is not None and definition.transparency.first.backward_may_launch:
        return definition.transparency.with_capture(callback)
    return callback


def _explain_failure(definition: Definition, error: Exception, *tensors: Any) -> None:
    """Raise a better error for a body that failed, where the reason is known."""
    definition.fake.explain_leak(error)
    definition.transparency.explain_failure(error, *tensors)


def _on_original_arguments(
    generated: Generated, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return generated.bind(fn)(*args, **kwargs)


def _body_on_fakes(definition: Definition, checks: OutputChecks) -> Callable[..., Any]:
    lowered = definition.lowered
    single = len(lowered.returns) == 1
    names = [a.name for a in lowered.arguments]

    def on_fakes(*args: Any, **kwargs: Any) -> Any:
        out = definition.transparency.on_fakes(*args, **kwargs)
        outputs = (out,) if single else out
        if outputs and not definition.views:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            inputs = tuple(given.get(a.name) for a in lowered.tensors)
            if _compat.any_aliases(inputs, {}, outputs):
                checks.aliased(inputs, outputs)
        return out

    return on_fakes


def _handle(definition: Definition, generated: Generated, overload: Any) -> Any:
    """What the user calls: the overload, or a callable that takes arguments apart for it."""
    if definition.lowered.path != "flattened":
        return overload
    fn = definition.fn
    generated.namespace.update(
        _of_overload=overload,
        _of_call=_compat.raw_call(overload),
        _of_tracing=torch.compiler.is_dynamo_compiling,
    )
    # The name that tracebacks and profilers show; a lambda has none that can be written.
    name = fn.__name__ if fn.__name__.isidentifier() else "_of_wrapper"
    wrapper = generated.now(name, functools.partial(emit_wrapper, name=name))
    functools.update_wrapper(wrapper, fn)
    wrapper.__dict__["_magi_torch_registered_op"] = overload
    return wrapper


def _not_defined(name: str, schema: str, error: RuntimeError) -> Exception:
    lines = str(error).strip().splitlines()
    places = " ".join(line.strip() for line in lines if "registered at" in line)
    if places:
        return DuplicateOp(
            f"{name} is already registered, and not by opforge",
            found=places,
            fix="choose another name or namespace",
        )
    return BadSchema(
        "torch cannot parse the schema",
        found=f"{schema}: {lines[0]}",
        fix="rename parameters that are words of the schema language, or correct schema=",
    )
