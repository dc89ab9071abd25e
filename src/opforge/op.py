"""The decorator: names an operator, and orchestrates analysis, lowering and registration."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import keyword
import logging
import os
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch

from . import _compat
from .after_triton import after_import
from .analysis.body_reader import BodyReader, given_kernels
from .analysis.mode import MODES
from .analysis.signature import parameter_kinds, read_schema, read_signature, user_scope
from .errors import (
    BadDeclaration,
    BadOption,
    BadSignature,
    ModeRefused,
    OpforgeError,
    WrongArgument,
)
from .explain import (
    Explanation,
    explain_function,
    explain_op,
    info_of_definition,
    info_of_reading,
    info_of_registration,
)
from .lowering.plan import lenient, lower, lower_given, mutated_names, return_mutated
from .model import OPFORGE, Dialect, Discovery, Lowered, Mode, OpInfo, Reading
from .registration.autograd import check_callbacks
from .registration.fake import FakeRule, check_fake_signature
from .registration.register import Definition, DeviceKernels, Registration, register
from .registration.rules import (
    check_call,
    check_device_types,
    check_vmap,
    names_of,
    read_autocast,
    read_device_types,
    register_sharding,
)
from .registration.transparent import Transparency
from .registry import Entry, registry, running_pass
from .typed import Typed

Given = ParamSpec("Given")
Fake = Callable[..., Any] | Sequence[str] | None

log = logging.getLogger("opforge")


def _mend_interpreter() -> None:
    _compat.interpreter.mend()


after_import("triton.runtime.interpreter", _mend_interpreter)


@dataclass(frozen=True)
class Options:
    """What the decorator was told; the fields and defaults are the options of `op`."""

    name: str | None = None
    mutates_args: str | Iterable[str] = ()
    fake: Fake = None
    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None
    vmap: Callable[..., Any] | str | None = None
    autocast: torch.dtype | Mapping[str, torch.dtype] | None = None
    sharding: Callable[..., Any] | None = None
    device_types: str | Sequence[str] | None = None
    schema: str | None = None
    tags: torch.Tag | Sequence[torch.Tag] = ()
    mode: Mode = "auto"
    kernels: Sequence[Any] = ()
    max_depth: int = 8
    compute_sensitive: bool = False
    subgraph_boundary: bool = False

    @property
    def given(self) -> frozenset[str]:
        """The options that differ from their defaults, the name aside."""
        names = (field.name for field in dataclasses.fields(self) if field.name != "name")
        return frozenset(n for n in names if getattr(self, n) != getattr(Options, n))


def _checking_names(function: Any) -> Any:
    known = [field.name for field in dataclasses.fields(Options)]

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name in [n for n in given if n not in known]:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise WrongArgument(
                f"opforge.op has no option {name!r}", fix=f"{hint}options: {', '.join(known)}"
            )
        return function(*args, **given)

    return checked


if TYPE_CHECKING:

    def _typed(function: Callable[Concatenate[Any, Given], Any]) -> Typed[Given]: ...

else:
    # Apart, because jedi knows no ParamSpec, but follows what functools.wraps wraps.
    _typed = _checking_names


@_typed
def op(
    target: Any = None,
    /,
    *,
    name: str | None = None,
    mutates_args: str | Iterable[str] = (),
    fake: Fake = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | str | None = None,
    autocast: torch.dtype | Mapping[str, torch.dtype] | None = None,
    sharding: Callable[..., Any] | None = None,
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: torch.Tag | Sequence[torch.Tag] = (),
    mode: Mode = "auto",
    kernels: Sequence[Any] = (),
    max_depth: int = 8,
    compute_sensitive: bool = False,
    subgraph_boundary: bool = False,
) -> Any:
    """Turn a function into a PyTorch operator.

        @opforge.op("mylib::scale")
        def scale(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
            return x * factor

    Works bare (`@opforge.op`), with options (`@opforge.op("ns::op", mode="custom_op")`) and as a
    call (`opforge.op(fn, name="ns::op")`).

    Args:
        target: The function, or the operator's name when `op` is used as a decorator.
        name: The operator's name, `"ns::op"`. By default the namespace is the name of the
            module's file and the operator has the function's name.
        mutates_args: What the body changes in place: names of parameters, of records (every
            tensor inside), or of single leaves, as `"cfg.weight"` or `"cfg__weight"`;
            `"unknown"` means every tensor. In mode `"triton_op"` a write that is not declared
            raises when the op is traced. In other modes nothing notices it at run time, but
            `torch.library.opcheck` does.
        fake: Describes the outputs without computing them, for torch.compile and torch.export:
            a function with the op's signature that returns empty tensors, or a list such as
            `["x", "cfg.weight"]` that names, for each output, the tensor it looks like. By
            default the body itself runs on fake tensors.
        backward: `backward(ctx, *grads)` takes one gradient per returned tensor and returns one
            per parameter. The gradient of a record may be an instance of its class or a dict of
            some of its fields. Without `backward`, going backward through the op raises.
        setup_context: `setup_context(ctx, inputs, output)` saves what `backward` needs; `inputs`
            has one entry per parameter, as the caller passed it.
        vmap: `"sequential"` calls the op once per slice. A function is a rule as for
            `torch.library.register_vmap`: `rule(info, in_dims, *args) -> (output, out_dims)`.
            It receives the op's own parameters, and `in_dims` has their structure: for
            `cfg: Cfg`, an instance of `Cfg` that holds dimensions.
        autocast: The dtype that floating-point inputs are cast to under autocast, for CUDA and
            CPU or per device: `{"cuda": torch.bfloat16}`. The op then runs with autocast
            disabled. Without this option the body runs under autocast in eager, as any code
            does, but is traced without autocast when compiled.
        sharding: A rule for DTensor, as `torch.distributed.tensor.experimental.register_sharding`
            takes it.
        device_types: The device types that the body is for, `"cpu"` or `["cpu", "cuda"]`; all by
            default. `op.register_kernel("cuda")` adds a kernel for another.
        schema: Your own schema, `"(Tensor x, float eps=1e-5) -> Tensor"`, for what annotations
            cannot express. Its arguments stand for the function's parameters by position; defaults
            must match.
        tags: One `torch.Tag` or several.
        mode: `"triton_op"` lets the compiler see through the op to the kernels it launches,
            `"custom_op"` keeps the op opaque, and `"none"` leaves the function as it is, unknown
            to PyTorch. `"auto"` chooses by what the body calls; `opforge.explain` says why.
        kernels: Triton kernels that the body launches and that reading it cannot find.
        max_depth: How many calls deep the body is read for kernels.
        compute_sensitive: `opforge.checkpoint_policy` keeps the op's outputs for the backward
            instead of computing them again.
        subgraph_boundary: `opforge.piecewise` splits graphs at the op.

    Returns:
        The operator, which is called like the function; a decorator if `target` is not a
        function.

    Raises:
        OpforgeError: The function cannot become an operator. Each mistake has a class of its own
            in `opforge.errors`, which is also a `TypeError` (annotations), a `ValueError` (names
            and options) or a `RuntimeError` (duplicates).
    """
    # The parameters, which are the fields of `Options`.
    given = {key: value for key, value in locals().items() if key != "target"}
    if isinstance(target, str):
        if name is not None:
            raise TypeError(f"opforge.op was given two names, {target!r} and {name!r}")
        given["name"] = target
    options = Options(**given)
    if target is None or isinstance(target, str):
        return lambda fn: make_op(fn, options)
    return make_op(target, options)


@dataclass(frozen=True)
class _Asked:
    """A function that is to become an op, and how."""

    fn: types.FunctionType
    name: str
    location: str
    options: Options = Options()
    dialect: Dialect = OPFORGE
    # What was given after the decoration: names of options, and kernels by device type.
    late: frozenset[str] = frozenset()
    device_kernels: DeviceKernels = field(default_factory=dict)


def make_op(fn: Any, options: Options, dialect: Dialect = OPFORGE) -> Any:
    """The op for a function; errors name the op and its `file:line`."""
    name, location = options.name, None
    try:
        fn = _as_function(fn)
        location = location_of(fn)
        name = check_name(options.name) if options.name is not None else default_name(fn)
        return _make(_Asked(fn, name, location, options, dialect))
    except OpforgeError as error:
        raise error.locate(name, location) from error.__cause__


def _make(asked: _Asked) -> Any:
    options = asked.options
    if options.mode not in MODES:
        raise BadOption(
            f"mode={options.mode!r} is unknown", fix=f"one of {', '.join(map(repr, MODES))}"
        )
    reader = _reader(asked)
    reading, waits = reader.first()
    if reading.decision.mode == "none" and not waits:
        _add_plain(asked, reading)
        return asked.fn
    definition = _define(asked, reader, reading)
    with registry.lock, registry.room_for(definition) as known:
        registration = register(definition, known)
        if options.sharding is not None:
            try:
                register_sharding(registration.overload, options.sharding, definition.lowered)
            except BaseException:
                registration.undo("refused")
                raise
        registry.add(_entry(registration, LateRules(asked, registration)))
    if not waits:
        definition.transparency.resolve_mode()
    return registration.handle


class LateRules:
    """Rules that an op gets after its decoration, by the methods of `custom_op`'s object.

        @scale.register_kernel("cpu")
        def _(x, factor=2.0):
            return torch.from_numpy(x.numpy() * factor)

    Every rule has the signature of the op's own function, whatever its schema is.
    """

    def __init__(self, asked: _Asked, registration: Registration) -> None:
        # What was asked of the op by now.
        self.asked = asked
        self._registration = registration
        self._disabled: set[str] = set()
        for name in _METHODS:
            setattr(registration.handle, name, getattr(self, name))

    def register_kernel(
        self,
        device_types: str | Sequence[str] | None,
        fn: Callable[..., Any] | None = None,
        /,
    ) -> Any:
        """Run a function instead of the body on these device types; works as a decorator.

        `None` stands for all that an op with `device_types=` has no kernel for.
        """

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            with self._located():
                if not callable(fn):
                    raise BadOption(f"register_kernel got {fn!r}", fix="give a function")
                check_call("kernel", fn, *names_of(self._registration.definition.fn))
            kernels = self._registration.definition.device_kernels
            self._amend(device_kernels={**kernels, **dict.fromkeys(names, fn)})
            for name in self._disabled:
                self._registration.choose_kernel(name, own=False)
            return fn

        with self._located():
            names = _read_for_kernel(device_types, self._registration.definition)
        return register if fn is None else register(fn)

    def register_fake(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        """The option `fake`; the names of its parameters do not matter here."""
        self._amend(fake=fn)
        return fn

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """The options `backward` and `setup_context`."""
        self._amend(backward=backward, setup_context=setup_context)

    def register_vmap(self, func: Callable[..., Any] | str | None = None) -> Any:
        """The option `vmap`; works as a decorator."""

        def register(func: Callable[..., Any] | str) -> Any:
            self._amend(vmap=func)
            return func

        return register if func is None else register(func)

    def register_autocast(self, device_type: str, cast_inputs: torch.dtype) -> None:
        """The option `autocast`, for one device type."""
        known = self._registration.definition.autocast
        self._amend(autocast={**known, device_type: cast_inputs})

    @contextlib.contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002  # as in torch
        """Run the body instead of a kernel that was registered for a device type, or not."""
        before = device_type in self._disabled
        self._set_disabled(device_type, disabled=not enabled)
        try:
            yield
        finally:
            self._set_disabled(device_type, disabled=before)

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        """Let errors name the op and its line."""
        definition = self._registration.definition
        try:
            yield
        except BadOption as error:
            raise error.locate(definition.name, definition.location) from None

    def _set_disabled(self, device_type: str, *, disabled: bool) -> None:
        (self._disabled.add if disabled else self._disabled.discard)(device_type)
        self._registration.choose_kernel(device_type, own=not disabled)

    def _amend(self, *, device_kernels: DeviceKernels | None = None, **options: Any) -> None:
        """Register the op as if it had been decorated with these options, too."""
        before = self.asked
        asked = dataclasses.replace(
            before,
            options=dataclasses.replace(before.options, **options),
            late=before.late | options.keys(),
            device_kernels=before.device_kernels if device_kernels is None else device_kernels,
        )
        with registry.lock:
            entry = registry.find(self._registration.overload)
            if entry is None:
                # It raises, and says why.
                self._registration.overload()
                return
            try:
                reader = _reader(asked)
                reading, waits = reader.first()
                registry.amend(entry, _define(asked, reader, reading))
            except OpforgeError as error:
                raise error.locate(asked.name, asked.location) from error.__cause__
            self.asked = asked
        if not waits:
            self._registration.definition.transparency.resolve_mode()


_METHODS = (
    "register_kernel", "register_fake", "register_autograd", "register_vmap", "register_autocast",
    "set_kernel_enabled",
)  # fmt: skip


@dataclass(frozen=True)
class _Refusal:
    """Stands for a method on a function that mode "none" leaves as it is."""

    method: str
    name: str
    location: str
    fix: str

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ModeRefused(
            f"{self.method} has nothing to add to: in mode 'none' the op is the function itself, "
            "which torch does not know",
            fix=self.fix,
        ).locate(self.name, self.location)


def attach_refusals(fn: Callable[..., Any], name: str, location: str, fix: str) -> None:
    """Give a function in mode "none" the same methods; each raises, and says what helps."""
    detach_refusals(fn)
    for method in _METHODS:
        vars(fn).setdefault(method, _Refusal(method, name, location, fix))


def detach_refusals(fn: Callable[..., Any]) -> None:
    for method in _METHODS:
        if isinstance(vars(fn).get(method), _Refusal):
            del vars(fn)[method]


def _read_for_kernel(device_types: Any, definition: Definition) -> tuple[str | None, ...]:
    if device_types is None and definition.device_types:
        return (None,)
    names = read_device_types(device_types)
    if not names:
        raise BadOption(
            "register_kernel needs a device type: the body already serves all the others",
            fix='register_kernel("cpu"), or say what the body is for: device_types="cuda"',
        )
    check_device_types(names, definition.lowered)
    return names


# What mode "none" would lose.
_LOST = {
    "backward": "its backward",
    "vmap": "its vmap rule",
    "mutates_args": "its mutates_args",
    "name": "its name",
    "autocast": "its autocast rule",
    "sharding": "its sharding rule",
    "schema": "its schema",
    "tags": "its tags",
    "device_types": "its device_types",
}


def _reader(asked: _Asked) -> BodyReader:
    options = asked.options
    depth = options.max_depth
    if not isinstance(depth, int) or isinstance(depth, bool):
        raise BadOption(f"max_depth must be an integer, got {depth!r}", fix="max_depth=8")
    if depth < 0:
        raise BadOption(f"max_depth must not be negative, got {depth}", fix="max_depth=8")
    callbacks = (options.backward, options.setup_context)
    return BodyReader(
        name=asked.name,
        fn=asked.fn,
        callbacks=tuple(fn for fn in callbacks if fn is not None),
        given=given_kernels(options.kernels),
        mode=options.mode,
        max_depth=depth,
        lost=" and ".join(text for name, text in _LOST.items() if getattr(options, name)),
        find=registry.find,
    )


def _define(asked: _Asked, reader: BodyReader, reading: Reading) -> Definition:
    """Everything about the op that is known before it is registered with torch."""
    fn, name, location, options = asked.fn, asked.name, asked.location, asked.options
    lowered, views = _lower(asked)
    check_callbacks(lowered, options.backward, options.setup_context)
    if options.vmap is not None:
        check_vmap(options.vmap, fn, lowered)
    device_types = read_device_types(options.device_types)
    check_device_types(device_types, lowered)
    autocast = read_autocast(options.autocast)
    if autocast and lowered.mutated:
        raise BadOption(
            "autocast would cast a mutated argument, and the op would change the copy instead",
            parameter=lowered.mutated[0].path,
            fix="remove autocast, and cast in the body",
        )
    return Definition(
        name=name,
        location=location,
        fn=fn,
        lowered=lowered,
        fake=_fake_rule(asked, lowered),
        transparency=Transparency(
            name,
            location,
            lowered,
            reader.again,
            first=reading,
            sources=(fn, *reader.callbacks),
        ),
        backward=options.backward,
        setup_context=options.setup_context,
        vmap=options.vmap,
        autocast=autocast,
        tags=_read_tags(options.tags),
        views=views,
        device_types=device_types,
        device_kernels=asked.device_kernels,
        dialect=asked.dialect,
    )


def _fake_rule(asked: _Asked, lowered: Lowered) -> FakeRule:
    fake: Any = asked.options.fake
    option = asked.dialect.fake
    if isinstance(fake, str):
        raise BadOption(
            f"{option} must be a function or a list, got {fake!r}", fix=f"{option}=[{fake!r}]"
        )
    make = functools.partial(FakeRule, asked.name, asked.location, lowered, dialect=asked.dialect)
    if fake is None or isinstance(fake, (list, tuple)):
        return make(listed=fake)
    by_name = not asked.dialect.lenient and "fake" not in asked.late
    check_fake_signature(asked.fn, fake, option, by_name=by_name)
    return make(given=fake)


def location_of(fn: Any) -> str:
    """`file:line` of a function."""
    code = inspect.unwrap(fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _as_function(fn: Any) -> types.FunctionType:
    if _is_method(fn):
        raise BadSignature(
            f"{fn.__qualname__} is a method, and methods cannot be ops: a schema has no type for "
            "the object it belongs to",
            fix="make a function outside the class, with a parameter for each value that it reads "
            "of the object, and call it in the method",
        )
    if isinstance(fn, types.FunctionType):
        if inspect.isgeneratorfunction(fn):
            raise BadSignature(f"{fn.__qualname__} is a generator", fix="return a list of tensors")
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise BadSignature(
                f"{fn.__qualname__} is async", fix="use def: an operator cannot be suspended"
            )
        return fn
    raise BadSignature(
        f"@opforge.op takes a plain Python function, got {type(fn).__name__}",
        found=repr(fn),
        fix="wrap it: def f(x: torch.Tensor) -> torch.Tensor: ...",
    )


def _is_method(fn: Any) -> bool:
    if isinstance(fn, (types.MethodType, classmethod)):
        return True
    if not isinstance(fn, types.FunctionType):
        return False
    owner = fn.__qualname__.rpartition(".")[0]
    in_class = bool(owner) and not owner.endswith("<locals>")
    return in_class and fn.__code__.co_varnames[:1] in (("self",), ("cls",))


# Namespaces that torch itself defines ops in.
RESERVED = frozenset(
    """
    _ _c10d_functional _c10d_functional_autograd _dtensor _native _quantized aten c10d
    c10d_functional cuda debug_mode_ops debugprims dtensor functorch higher_order inductor
    inductor_prims mkl mkldnn mkldnn_prepacked onednn opforge prepacked prim prims profiler
    quantization quantized quantized_decomposed rngprims sparse static_runtime streams symm_mem
    torch xnnpack
    """.split()  # noqa: SIM905  # one a line would fill a page
)

# What `torch.ops`, `torch.ops.ns` and `torch.ops.ns.op` have for themselves, but for `__init__` and
# the like: an operator, or its namespace, of that name could not be reached.
_TAKEN = (
    frozenset({"import_module", "load_library", "loaded_libraries", "_dir"}),
    frozenset({"name", "_dir"}),
    frozenset(
        """
        op overloads op_overloads _schemas _op _dir _qualified_op_name _overload_names
        _has_torchbind_op_overload
        """.split()  # noqa: SIM905  # as above
    ),
)


def check_name(name: str) -> str:
    """`name` itself, or BadDeclaration with the right form shown."""
    namespace, separator, op = name.partition("::")
    if not separator:
        raise _bad(name, "it has no namespace", f"mylib::{_identifier(name)}")
    base, dot, overload = op.partition(".")
    parts = (namespace, base, *([overload] if dot else ()))
    for part in parts:
        if not _usable(part):
            named = f".{_identifier(overload)}" if overload else ""
            right = f"{_identifier(namespace)}::{_identifier(base)}{named}"
            raise _bad(name, f"{part!r} is not an identifier", right)
    for part, taken in zip(parts, _TAKEN, strict=False):
        if part in taken or (part.startswith("__") and part.endswith("__")):
            right = name.replace(part, f"my_{part.strip('_')}")
            raise _bad(name, f"{part!r} is an attribute of torch.ops", right)
    if overload == "default":
        raise _bad(name, "an op without an overload name is the default", f"{namespace}::{base}")
    if namespace in RESERVED:
        raise _bad(name, f"namespace {namespace!r} belongs to PyTorch", f"mylib::{op}")
    return name


def default_name(fn: types.FunctionType) -> str:
    """Namespace from the module's file name, op from the function's."""
    return check_name(f"{_namespace(fn)}::{_identifier(fn.__name__)}")


def _namespace(fn: types.FunctionType) -> str:
    module = sys.modules.get(fn.__module__)
    file = getattr(module, "__file__", None) or fn.__globals__.get("__file__")
    if not file:
        # A notebook or an interactive session: its file names change with every cell.
        return _identifier(fn.__module__.rpartition(".")[2].strip("_") or "main")
    path = pathlib.Path(file)
    return _identifier(path.parent.name if path.stem == "__init__" else path.stem)


def _usable(part: str) -> bool:
    return part.isascii() and part.isidentifier() and not keyword.iskeyword(part)


def _identifier(text: str) -> str:
    made = re.sub(r"\W", "_", text, flags=re.ASCII) or "op"
    made = f"_{made}" if made[0].isdigit() else made
    return f"{made}_" if keyword.iskeyword(made) else made


def _bad(name: str, why: str, right: str) -> BadDeclaration:
    return BadDeclaration(f"{name!r} is not an operator name: {why}", fix=f"use the form {right!r}")


def _lower(asked: _Asked) -> tuple[Lowered, bool]:
    fn, options = asked.fn, asked.options
    tag = _returning_tag(_read_tags(options.tags))
    if options.schema is None:
        signature = read_signature(fn, user_scope(fn))
        if asked.dialect.lenient:
            signature = lenient(signature)
        lowered = lower(signature, options.mutates_args)
        return (return_mutated(lowered, tag), True) if tag else (lowered, False)
    given = read_schema(fn, options.schema)
    lowered = lower_given(
        options.schema, parameter_kinds(fn), given.arguments, given.defaults, given.returns
    )
    if options.mutates_args:
        said = mutated_names(lowered.signature, lowered.arguments, options.mutates_args)
        written = {a.name for a in lowered.mutated}
        if said != written:
            raise BadDeclaration(
                "schema= and mutates_args disagree",
                found=f"schema mutates {sorted(written) or 'nothing'}, mutates_args {sorted(said)}",
                fix="make them agree, or remove mutates_args",
            )
    if tag:
        lowered = return_mutated(lowered, tag, is_given=True)
    return lowered, given.has_views


def _returning_tag(tags: Sequence[torch.Tag]) -> str:
    """The tag that makes an op return what it mutates, if it has one: "inplace" or "out"."""
    # By name: torch 2.11 does not have them.
    found = [tag.name for tag in tags if tag.name in {"inplace", "out"}]
    if len(found) > 1:
        raise BadOption("torch.Tag.inplace and torch.Tag.out exclude each other", fix="remove one")
    return found[0] if found else ""


def _read_tags(tags: Any) -> tuple[torch.Tag, ...]:
    listed = (tags,) if isinstance(tags, torch.Tag) else tags
    if isinstance(listed, (list, tuple)) and all(isinstance(t, torch.Tag) for t in listed):
        # Every op gets torch.Tag.pt2_compliant_tag.
        return tuple(t for t in dict.fromkeys(listed) if t != torch.Tag.pt2_compliant_tag)
    raise BadOption(
        f"tags must be torch.Tag values, got {tags!r}",
        fix="tags=[torch.Tag.needs_fixed_stride_order]",
    )


def _entry(registration: Registration, rules: LateRules) -> Entry:
    def describe() -> OpInfo:
        return _flagged(info_of_registration(registration), rules.asked.options)

    return Entry.of(
        registration,
        definition_pass=running_pass(registration.definition.fn.__globals__),
        describe=describe,
        explain=lambda: explain_op(describe(), registration.definition),
        is_open=lambda: registration.definition.transparency.is_open,
        given=lambda: rules.asked.options.given,
    )


def _add_plain(asked: _Asked, reading: Reading) -> None:
    fn, name, location, options = asked.fn, asked.name, asked.location, asked.options
    log.info("%s (%s): mode none: %s", name, location, reading.decision.reason)

    def describe() -> OpInfo:
        return _flagged(info_of_reading(name, location, reading), options)

    entry = Entry(
        name=name,
        handle=fn,
        overload=None,
        fn=fn,
        location=location,
        definition_pass=running_pass(fn.__globals__),
        describe=describe,
        explain=lambda: explain_function(describe(), reading.decision),
        undo=lambda _why: detach_refusals(fn),
        lower=lambda: _lower(asked)[0],
    )
    named = f'give it a name, as "{name}", which registers it'
    fix = "leave mode='none' out" if options.mode == "none" else named
    with registry.lock:
        registry.add(entry)
        attach_refusals(fn, name, location, fix)


def _flagged(info: OpInfo, options: Options) -> OpInfo:
    return dataclasses.replace(
        info,
        compute_sensitive=options.compute_sensitive,
        subgraph_boundary=options.subgraph_boundary,
    )


def info(op: Any) -> OpInfo:
    """How an op was registered: its schema, call path, mode, kernels and source of its fake."""
    return registry.get(op).describe()


def explain(op_or_fn: Any, *, tuning: str | os.PathLike[str] | None = None) -> str:
    """How an op was registered and why, for a person to read.

        print(opforge.explain(silu))

    A function that is not an op yet is explained without registering it. `tuning` is the table that
    `native.build` would get; without it, those of `opforge.use_tuning` count.
    """
    if not isinstance(op_or_fn, types.FunctionType) or is_op(op_or_fn):
        entry = registry.get(op_or_fn)
        return _with_native(entry, entry.explain(), tuning)
    name, location = None, location_of(op_or_fn)
    try:
        name = default_name(op_or_fn)
        asked = _Asked(op_or_fn, name, location)
        reader = _reader(asked)
        definition = _define(asked, reader, reader.first()[0])
    except OpforgeError as error:
        raise error.locate(name, location) from error.__cause__
    planned = info_of_definition(definition)
    reason = f"{planned.reason} (not registered yet: what @opforge.op would do)"
    return explain_op(dataclasses.replace(planned, reason=reason), definition)


def _with_native(entry: Entry, said: str, tuning: str | os.PathLike[str] | None) -> str:
    """An explanation, with the kernels that a native library has for the op's torch calls."""
    # Where nothing imported it, nothing is declared.
    if "opforge.native" not in sys.modules or not isinstance(said, Explanation):
        return said
    from .native.plan import told_of  # noqa: PLC0415  # it brings Triton

    return said.adding([("native", line) for line in told_of(entry, tuning)])


def find_kernels(fn: Any, max_depth: int = 8) -> Discovery:
    """The Triton kernels and the operators that a function may launch, without running it.

        @triton.jit
        def scale_kernel(x, out, n, BLOCK: tl.constexpr): ...

        def scale(x):
            out = torch.empty_like(x)
            scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
            return out

        [k.name for k in find_kernels(scale)]  # ['scale_kernel']

    Whatever its names lead to is read too, `max_depth` calls deep: helpers, classes, tables, what
    a decorator wraps. A kernel's `grade` is "launched" where a text launches it
    (`kernel[grid](...)`) and "mentioned" where one only names it; `found_via` says where.
    `nested_ops` has the operators, `unresolved` what could not be followed, and `unbound` the names
    that are not bound yet. For an op, the function behind it is read.
    """
    from .analysis.find import find_kernels as read  # noqa: PLC0415  # as elsewhere

    # A function that is an op in mode "none" is read as it is.
    is_operator = _compat.operators.operator_name(fn) is not None
    entry = registry.find(fn) if is_operator else None
    return read(fn if entry is None else entry.fn, max_depth)


def is_op(value: Any) -> bool:
    """Whether a value is an op that opforge made and that is still registered."""
    return registry.is_op(value)


def unregister(op: Any) -> None:
    """Remove an op: its name is free again, and its old handles raise when called.

    No other thread may be in a call of it: torch frees what such a call reads.
    """
    with registry.lock:
        registry.remove(registry.get(op), "unregistered")
