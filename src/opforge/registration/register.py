"""Defines an op with torch and gives it its kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat
from ..errors import AliasedOutput, BadSchema, DuplicateOp, UnregisteredOp, WrongReturn
from ..lowering.codegen import emit_wrapper
from ..model import Leaf, Lowered
from .autocast import make_autocast_kernel
from .autograd import make_recorder
from .dispatch import PlainKeysets
from .fake import FakeRule
from .generated import Generated, kernel_writer, write_autograd, write_inplace
from .pytree import register_records
from .unrecorded import Unrecorded, make_refuse_tangents, make_unrecord
from .vmap import make_vmap_kernel


@dataclass(frozen=True)
class Definition:
    """Everything that is to be registered under one name."""

    name: str
    location: str
    fn: Callable[..., Any]
    lowered: Lowered
    fake: FakeRule
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

    def undo(self, why: str) -> None:
        """Remove the op; handles that are still held raise instead of reaching freed memory."""
        name, location = self.definition.name, self.definition.location

        def raise_dead() -> None:
            raise UnregisteredOp(
                f"this handle is of an op that was {why}",
                fix="use the new handle",
                op=name,
                location=location,
            )

        _compat.disable_overload(self.overload, raise_dead)
        self.generated.namespace["_of_call"] = _compat.raw_call(self.overload)
        _compat.destroy(self.library)
        self.generated.forget()


def register(definition: Definition) -> Registration:
    """Define the op; on any failure nothing of it stays behind."""
    name, lowered = definition.name, definition.lowered
    try:
        library, overload = _compat.define(
            name, lowered.schema, (*definition.tags, _compat.pt2_tag())
        )
    except RuntimeError as error:
        raise _not_defined(name, lowered.schema, error) from error
    generated = Generated(name, definition.location, lowered)
    try:
        _install(definition, generated, library, overload)
        handle = _handle(definition, generated, overload)
    except BaseException:
        _compat.destroy(library)
        generated.forget()
        raise
    for parameter in lowered.signature.parameters:
        register_records(parameter.node)
    return Registration(definition, library, overload, generated, handle)


def _install(definition: Definition, generated: Generated, library: Any, overload: Any) -> None:
    name, location, lowered = definition.name, definition.location, definition.lowered
    op = name.partition("::")[2]
    names = generated.namespace
    guarded, verified = definition.backward is None, definition.fake.verifiable
    write_kernel = kernel_writer(guarded=guarded, verified=verified, views=definition.views)
    kernel = generated.later("_of_kernel", write_kernel)
    names.update(
        _of_fn=definition.fn,
        _of_Tensor=torch.Tensor,
        _of_unrecord=make_unrecord(name, location),
        _of_refuse_tangents=make_refuse_tangents(name, location),
        _of_aliased=_aliased(definition),
        _of_wrong_return=_wrong_return(definition),
        _of_check_return=_check_return(definition),
        _of_check_outputs=_check_outputs(definition, names),
        _of_pending=definition.fake.pending,
        _of_verify=definition.fake.verify,
        _of_redispatch=overload.redispatch,
        _of_listed=f"{name.replace('::', '/')}/CompositeExplicitAutograd",
        _of_after_autograd=_compat.after_autograd,
        _of_after_inplace=_compat.after_inplace_or_view,
    )
    library.impl(op, kernel, "CompositeExplicitAutograd")
    if definition.backward is not None:
        names["_of_plain"] = PlainKeysets(name, _compat.after_autograd)
        names["_of_record"] = make_recorder(
            name,
            location,
            generated,
            overload,
            backward=definition.backward,
            setup_context=definition.setup_context,
        )
        library.impl(
            op, generated.later("_of_autograd", write_autograd), "Autograd", with_keyset=True
        )
    if lowered.mutated:
        names["_of_plain"] = PlainKeysets(name, _compat.after_inplace_or_view)
        library.impl(
            op, generated.later("_of_inplace", write_inplace), "ADInplaceOrView", with_keyset=True
        )
    if definition.backward is None and lowered.tensors:
        unrecorded = Unrecorded(name, location, lowered)
        names["_of_unrecorded"] = unrecorded.eager(kernel)
        library.impl(op, torch.library.fallthrough_kernel, "Autograd")
        _compat.register_functional_rule(library, op, unrecorded.traced)
        _compat.around_functorch(library, name, unrecorded.transformed)
    _install_fake(definition, generated, library)
    if definition.vmap is not None:
        batched = make_vmap_kernel(generated, overload, definition.vmap)
        library.impl(op, batched, "FuncTorchBatched", with_keyset=True)
    for device_type, dtype in definition.autocast.items():
        key = _compat.autocast_key(device_type)
        cast = make_autocast_kernel(overload, device_type, dtype)
        _compat.python_kernel(overload, key, cast)
        library.impl(op, cast, key)


def _install_fake(definition: Definition, generated: Generated, library: Any) -> None:
    fake = definition.fake
    if definition.fake.given is not None:
        fake.call = functools.partial(_late, generated, definition.fake.given)
    else:
        fake.call = _body_on_fakes(definition, generated)
    _compat.register_fake(library, definition.name, fake, definition.location)


def _late(generated: Generated, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return generated.bind(fn)(*args, **kwargs)


def _body_on_fakes(definition: Definition, generated: Generated) -> Callable[..., Any]:
    aliased = _aliased(definition)
    single = len(definition.lowered.returns) == 1
    names = [a.name for a in definition.lowered.arguments]

    def on_fakes(*args: Any, **kwargs: Any) -> Any:
        out = generated.bind(definition.fn)(*args, **kwargs)
        outputs = (out,) if single else out
        if outputs and not definition.views:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            inputs = tuple(given.get(a.name) for a in definition.lowered.tensors)
            if _compat.any_aliases(inputs, {}, outputs):
                aliased(inputs, outputs)
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


def _aliased(definition: Definition) -> Callable[[Any, Any], None]:
    def aliased(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        names = [a.path for a in definition.lowered.tensors]
        among_outputs = _compat.any_aliases((), {}, outputs)
        guilty = [
            name
            for name, value in zip(names, inputs, strict=True)
            if not among_outputs and _compat.any_aliases((value,), {}, outputs)
        ]
        raise AliasedOutput(
            "an output shares memory with an input or with another output",
            parameter=guilty[0] if guilty else None,
            fix="return a copy (x.clone()); to change an input in place, name it in mutates_args "
            "and do not return it",
            op=definition.name,
            location=definition.location,
        )

    return aliased


def _wrong_return(definition: Definition) -> Callable[[], None]:
    def wrong_return() -> None:
        raise WrongReturn(
            "the body returned a value, its annotation says None",
            fix="annotate what it returns, or return nothing",
            op=definition.name,
            location=definition.location,
        )

    return wrong_return


def _check_return(definition: Definition) -> Callable[[Any], None]:
    leaf = definition.lowered.returns[0] if definition.lowered.returns else None

    def check_return(value: Any) -> None:
        if isinstance(value, torch.Tensor) or (
            value is None and leaf is not None and leaf.optional
        ):
            return
        raise WrongReturn(
            f"the body returned {type(value).__name__}, its annotation says Tensor",
            fix="return a tensor, or annotate Optional[Tensor]",
            op=definition.name,
            location=definition.location,
        )

    return check_return


def _check_outputs(definition: Definition, names: dict[str, Any]) -> Callable[[Any], Any]:
    returns = definition.lowered.returns

    def check_outputs(out: Any) -> Any:
        outputs = out if len(returns) != 1 else (out,)
        recorded = False
        for leaf, value in zip(returns, outputs, strict=True):
            items = value if leaf.container else (value,)
            for item in items:
                if isinstance(item, torch.Tensor):
                    recorded = recorded or item.requires_grad
                if not _is_what_it_says(leaf, item):
                    raise WrongReturn(
                        f"the body returned {type(item).__name__} for {leaf.path}, "
                        f"its annotation says {leaf.schema_type()}",
                        fix="return what the annotation says",
                        op=definition.name,
                        location=definition.location,
                    )
        return names["_of_unrecord"](out) if recorded else out

    return check_outputs


def _is_what_it_says(leaf: Leaf, item: Any) -> bool:
    if item is None:
        return leaf.optional or leaf.element_optional
    if isinstance(item, bool):
        return leaf.base in ("bool", "Scalar")
    return isinstance(item, _RETURNED.get(leaf.base, object))


_RETURNED: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "SymInt": (int, torch.SymInt),
    "int": int,
    "float": (int, float, torch.SymFloat, torch.SymInt),
    "bool": (bool, torch.SymBool),
    "Scalar": (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool),
}
