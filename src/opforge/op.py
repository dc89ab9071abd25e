"""The decorator: orchestrates analysis, lowering and registration, and nothing else."""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import torch

from . import _compat
from .analysis.body_reader import BodyReader, given_kernels
from .analysis.mode import MODES
from .analysis.signature.annotations import user_scope
from .analysis.signature.parameter_tree import parameter_kinds, read_signature
from .analysis.signature.schema import read_schema
from .errors import BadOption, BadSchema, NotAFunction, OpforgeError
from .explain import Explanation, render, render_plain
from .lowering.given import lower_given
from .lowering.plan import lower, mutated_names
from .model import Lowered, OpInfo, Reading
from .naming import check_name, default_name
from .registration.autocast import read_autocast
from .registration.autograd import check_callbacks
from .registration.fake import FakeRule, check_fake_signature
from .registration.register import Definition, Registration, register
from .registration.sharding import register_sharding
from .registration.transparent import Transparency
from .registration.vmap import check_vmap
from .registry import Entry, definition_pass, registry

P = ParamSpec("P")
R = TypeVar("R")
Fake = Callable[..., Any] | Sequence[str] | None

log = logging.getLogger("opforge")


@dataclass(frozen=True)
class Options:
    """What the decorator was told."""

    name: str | None = None
    mutates_args: str | Iterable[str] = ()
    fake: Fake = None
    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | str | None = None
    autocast: torch.dtype | Mapping[str, torch.dtype] | None = None
    sharding: Callable[..., Any] | None = None
    schema: str | None = None
    mode: str = "auto"
    kernels: Sequence[Any] = ()
    max_depth: int = 5
    compute_sensitive: bool = False
    subgraph_boundary: bool = False
    tags: torch.Tag | Sequence[torch.Tag] = ()
    # The drop-in for MagiCompiler assumes from the start, and its fakes may rename parameters.
    assume_fake: bool = False
    fake_names_matter: bool = True


@overload
def op(target: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def op(
    target: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    mutates_args: str | Iterable[str] = ...,
    fake: Fake = ...,
    backward: Callable[..., Any] | None = ...,
    setup_context: Callable[..., Any] | None = ...,
    vmap: Callable[..., Any] | str | None = ...,
    autocast: torch.dtype | Mapping[str, torch.dtype] | None = ...,
    sharding: Callable[..., Any] | None = ...,
    schema: str | None = ...,
    mode: str = ...,
    kernels: Sequence[Any] = ...,
    max_depth: int = ...,
    compute_sensitive: bool = ...,
    subgraph_boundary: bool = ...,
    tags: torch.Tag | Sequence[torch.Tag] = ...,
) -> Callable[P, R]: ...
@overload
def op(
    target: str | None = None,
    /,
    *,
    name: str | None = ...,
    mutates_args: str | Iterable[str] = ...,
    fake: Fake = ...,
    backward: Callable[..., Any] | None = ...,
    setup_context: Callable[..., Any] | None = ...,
    vmap: Callable[..., Any] | str | None = ...,
    autocast: torch.dtype | Mapping[str, torch.dtype] | None = ...,
    sharding: Callable[..., Any] | None = ...,
    schema: str | None = ...,
    mode: str = ...,
    kernels: Sequence[Any] = ...,
    max_depth: int = ...,
    compute_sensitive: bool = ...,
    subgraph_boundary: bool = ...,
    tags: torch.Tag | Sequence[torch.Tag] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def op(target: Any = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Turn a function into a PyTorch operator.

        @opforge.op("mylib::scale", mutates_args=())
        def scale(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
            return x * factor

    Usable bare (`@opforge.op`), with options, or as a call: `opforge.op(fn, name="ns::op")`.
    Without a name the namespace is the module's file name and the op the function's.
    """
    unknown = [o for o in options if o not in _PUBLIC]
    if unknown:
        raise TypeError(f"opforge.op has no option {unknown[0]!r}; it has {', '.join(_PUBLIC)}")
    if target is not None and not isinstance(target, str):
        return make_op(target, Options(name=name, **options))
    if target is not None and name is not None:
        raise TypeError(f"opforge.op was given two names, {target!r} and {name!r}")
    chosen = Options(name=name if target is None else target, **options)
    return lambda fn: make_op(fn, chosen)


_PUBLIC = tuple(
    f for f in Options.__dataclass_fields__ if f not in ("name", "assume_fake", "fake_names_matter")
)


def make_op(fn: Any, options: Options) -> Any:
    """The op for a function; errors name it and where it stands."""
    name, location = options.name, None
    try:
        fn = _as_function(fn)
        location = location_of(fn)
        name = check_name(options.name) if options.name is not None else default_name(fn)
        return _make(fn, name, location, options)
    except OpforgeError as error:
        raise error.locate(name, location) from error.__cause__


def _make(fn: types.FunctionType, name: str, location: str, options: Options) -> Any:
    if options.mode not in MODES:
        raise BadOption(
            f"mode={options.mode!r} is unknown", fix=f"one of {', '.join(map(repr, MODES))}"
        )
    reader = _reader(fn, name, options)
    reading, waits = reader.first()
    if reading.decision.mode == "none" and not waits:
        _add_plain(fn, name, location, options, reading)
        return fn
    definition = define(fn, name, location, options, reader, reading)
    with registry.lock:
        registry.make_room(name, fn, location)
        registration = register(definition)
        if options.sharding is not None:
            _register_sharding(registration, options.sharding)
        registry.add(_entry(registration, options))
    if not waits:
        definition.transparency.resolve_mode()
    return registration.handle


def _register_sharding(registration: Registration, rule: Callable[..., Any]) -> None:
    try:
        register_sharding(registration.overload, rule, registration.definition.lowered)
    except BaseException:
        registration.undo("refused")
        raise


def _reader(fn: types.FunctionType, name: str, options: Options) -> BodyReader:
    depth = options.max_depth
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
        raise BadOption(f"max_depth={depth!r} is no number of calls to follow", fix="max_depth=5")
    lost = [
        text
        for given, text in (
            (options.backward, "its backward"),
            (options.vmap, "its vmap rule"),
            (options.mutates_args, "its mutates_args"),
            (options.name, "its name"),
            (options.autocast, "its autocast rule"),
            (options.sharding, "its sharding rule"),
            (options.schema, "its schema"),
            (options.tags, "its tags"),
        )
        if given
    ]
    callbacks = (options.backward, options.setup_context)
    return BodyReader(
        name=name,
        fn=fn,
        callbacks=tuple(fn for fn in callbacks if fn is not None),
        given=given_kernels(options.kernels),
        mode=options.mode,
        max_depth=depth,
        lost=" and ".join(lost),
        find=registry.find,
    )


def define(  # noqa: PLR0917  # one record out of all that is known
    fn: types.FunctionType,
    name: str,
    location: str,
    options: Options,
    reader: BodyReader,
    reading: Reading,
) -> Definition:
    """Everything about the op that can be known before torch hears of it."""
    lowered, views = _lower(fn, options)
    check_callbacks(lowered, options.backward, options.setup_context)
    if options.vmap is not None:
        check_vmap(options.vmap)
    autocast = read_autocast(options.autocast)
    if autocast and lowered.mutated:
        raise BadOption(
            "autocast would cast what the op mutates, and the change would be lost in the copy",
            parameter=lowered.mutated[0].path,
            fix="leave autocast out, and cast in the body",
        )
    given, listed = _read_fake(fn, options)
    tags = _read_tags(options.tags)
    return Definition(
        name=name,
        location=location,
        fn=fn,
        lowered=lowered,
        fake=FakeRule(
            name, location, lowered, given=given, listed=listed, assume=options.assume_fake
        ),
        transparency=Transparency(
            name,
            location,
            lowered,
            reader.again,
            first=reading,
            sources=(fn, *reader.callbacks),
            all_mutated=options.mutates_args == "unknown",
        ),
        backward=options.backward,
        setup_context=options.setup_context,
        vmap=options.vmap,
        autocast=autocast,
        tags=tags,
        views=views,
    )


def location_of(fn: Any) -> str:
    """`file:line` of a function."""
    code = inspect.unwrap(fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _as_function(fn: Any) -> types.FunctionType:
    if isinstance(fn, types.FunctionType):
        if inspect.isgeneratorfunction(fn):
            raise NotAFunction(f"{fn.__qualname__} is a generator", fix="return a list of tensors")
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise NotAFunction(
                f"{fn.__qualname__} is async", fix="an operator runs to its end: def"
            )
        return fn
    raise NotAFunction(
        f"@opforge.op takes a plain Python function, got {type(fn).__name__}",
        found=repr(fn),
        fix="write def f(x: torch.Tensor) -> torch.Tensor: ... around it",
    )


def _lower(fn: types.FunctionType, options: Options) -> tuple[Lowered, bool]:
    if options.schema is None:
        return lower(read_signature(fn, user_scope(fn)), options.mutates_args), False
    given = read_schema(fn, options.schema)
    lowered = lower_given(
        options.schema, parameter_kinds(fn), given.arguments, given.defaults, given.returns
    )
    if options.mutates_args:
        said = mutated_names(lowered.signature, lowered.arguments, options.mutates_args)
        written = {a.name for a in lowered.mutated}
        if said != written:
            raise BadSchema(
                "schema= and mutates_args disagree",
                found=f"schema mutates {sorted(written) or 'nothing'}, mutates_args {sorted(said)}",
                fix="make them agree, or leave mutates_args out",
            )
    return lowered, given.has_views


def _read_tags(tags: Any) -> tuple[torch.Tag, ...]:
    listed = (tags,) if isinstance(tags, torch.Tag) else tags
    if isinstance(listed, (list, tuple)) and all(isinstance(t, torch.Tag) for t in listed):
        return tuple(listed)
    raise BadOption(
        f"tags={tags!r} are no torch tags", fix="tags=[torch.Tag.needs_fixed_stride_order]"
    )


def _read_fake(fn: Any, options: Options) -> tuple[Callable[..., Any] | None, Sequence[str] | None]:
    fake = options.fake
    if fake is None:
        return None, None
    if isinstance(fake, (list, tuple)):
        return None, fake
    if isinstance(fake, str):
        raise BadOption(f"fake={fake!r} is a string", fix=f"fake=[{fake!r}]")
    check_fake_signature(fn, fake, names_matter=options.fake_names_matter)  # type: ignore[arg-type]
    return fake, None  # type: ignore[return-value]


def _entry(registration: Registration, options: Options) -> Entry:
    definition = registration.definition
    transparency = definition.transparency

    def describe() -> OpInfo:
        reading = transparency.reading
        return OpInfo(
            name=definition.name,
            mode=reading.decision.mode,
            reason=reading.decision.reason,
            schema=_compat.schema_text(registration.overload),
            path=definition.lowered.path,
            overload=registration.overload,
            location=definition.location,
            fake_source=definition.fake.source,
            kernels=transparency.kernels,
            unresolved=reading.body.unresolved,
            nested_ops=reading.body.nested_ops,
            compute_sensitive=options.compute_sensitive,
            subgraph_boundary=options.subgraph_boundary,
            notes=(*definition.lowered.notes, *transparency.notes),
            backward_kernels=reading.backward.kernels,
            native="; ".join(registration.backends.values()),
        )

    def explain() -> str:
        return render(_explanation(describe(), definition))

    return Entry(
        name=definition.name,
        handle=registration.handle,
        overload=registration.overload,
        fn=definition.fn,
        location=definition.location,
        definition_pass=definition_pass(definition.fn),  # type: ignore[arg-type]
        describe=describe,
        explain=explain,
        undo=registration.undo,
        is_open=lambda: transparency.is_open,
        lowered=definition.lowered,
        given=frozenset(n for n in _PUBLIC if getattr(options, n) != getattr(Options, n)),
        registration=registration,
    )


def _add_plain(
    fn: types.FunctionType, name: str, location: str, options: Options, reading: Reading
) -> None:
    log.info("%s (%s): mode none: %s", name, location, reading.decision.reason)

    def describe() -> OpInfo:
        return OpInfo(
            name=name,
            mode="none",
            reason=reading.decision.reason,
            schema="",
            path="direct",
            overload=None,
            location=location,
            fake_source="undetermined",
            kernels=reading.body.kernels,
            unresolved=reading.body.unresolved,
            nested_ops=reading.body.nested_ops,
            compute_sensitive=options.compute_sensitive,
            subgraph_boundary=options.subgraph_boundary,
        )

    def nothing(_why: str) -> None:
        return None

    def explain() -> str:
        return render_plain(describe(), reading.decision)

    def lower_now() -> Lowered:
        return _lower(fn, options)[0]

    made = definition_pass(fn)
    entry = Entry(name, fn, None, fn, location, made, describe, explain, nothing, lower=lower_now)
    with registry.lock:
        registry.add(entry)


def _explanation(info: OpInfo, definition: Definition) -> Explanation:
    autocast = ", ".join(f"{d} to {t}" for d, t in definition.autocast.items())
    return Explanation(
        info=info,
        lowered=definition.lowered,
        decision=definition.transparency.decision,
        fake=definition.fake.describe(),
        backward="given" if definition.backward else "",
        vmap=definition.vmap
        if isinstance(definition.vmap, str)
        else "given"
        if definition.vmap
        else "",
        autocast=autocast,
    )


def info(op: Any) -> OpInfo:
    """What opforge made of an op: its schema, call path, mode, and where its fake comes from."""
    return registry.get(op).describe()


def explain(op_or_fn: Any) -> str:
    """The same for a person. An undecorated function is explained without registering it."""
    entry = registry.find(op_or_fn)
    if entry is not None:
        return entry.explain()
    if not isinstance(op_or_fn, types.FunctionType):
        return registry.get(op_or_fn).explain()
    name, location = None, location_of(op_or_fn)
    try:
        name = default_name(op_or_fn)
        reader = _reader(op_or_fn, name, Options())
        reading, _ = reader.first()
        definition = define(op_or_fn, name, location, Options(), reader, reading)
    except OpforgeError as error:
        raise error.locate(name, location) from error.__cause__
    planned = OpInfo(
        name=name,
        mode=reading.decision.mode,
        reason=f"{reading.decision.reason} (not registered yet: what @opforge.op would do)",
        schema=name + definition.lowered.schema,
        path=definition.lowered.path,
        overload=None,
        location=location,
        fake_source="undetermined",
        kernels=reading.body.kernels,
        unresolved=reading.body.unresolved,
        nested_ops=reading.body.nested_ops,
        notes=definition.lowered.notes,
        backward_kernels=reading.backward.kernels,
    )
    return render(_explanation(planned, definition))


def is_op(value: Any) -> bool:
    """Whether a value is an op that opforge made and that is still registered."""
    return not isinstance(value, str) and registry.find(value) is not None


def unregister(op: Any) -> None:
    """Remove an op: its name is free again, and handles that are still held raise."""
    registry.remove(registry.get(op), "unregistered")
