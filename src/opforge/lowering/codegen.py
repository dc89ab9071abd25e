"""Generates the straight-line Python that flattens arguments and rebuilds them.

For `attn(q: Tensor, cfg: Cfg, mode: Literal['a', 'b'] = 'a') -> Tensor`:

    def attn(q, cfg, mode=_of_default_mode):               flatten: what the user calls
        if _of_type(cfg) is not _of_class_Cfg:
            _of_wrong_type('cfg', cfg, _of_class_Cfg)
        if _of_tracing():
            _of_flat_out = _of_overload(q, cfg.scale, cfg.causal, mode)
        else:
            try:
                _of_flat_out = _of_call(q, cfg.scale, cfg.causal, mode)
            except _of_RuntimeError as _of_error:
                _of_explain_refusal(_of_error)
                raise
        return _of_flat_out

    def call(q, cfg__scale, cfg__causal, mode='a'):        rebuild: what the dispatcher calls
        _of_at_cfg = _of_object.__new__(_of_class_Cfg)
        _of_fields = _of_at_cfg.__dict__
        _of_fields['scale'] = cfg__scale
        ...
        return _of_fn(q, _of_at_cfg, _of_values_mode[mode])

Every name that is not the user's starts with `_of_`, even builtins, because a parameter may be
called `type` or `len`. A parameter's own name must not start with `_of_`.

Literal and Enum values go through the schema as plain ones:

    Mode.FAST -> "fast" (encode, before the dispatcher) -> Mode.FAST (the table, in the kernel)

Where both reach the body as they were given, a member has a mark in the schema:

    Mode.FAST -> "Mode.FAST" -> Mode.FAST
    "fast"    -> "fast"      -> "fast"
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import BadOption
from ..model import (
    MISSING,
    Codec,
    FlatArgument,
    Leaf,
    Lowered,
    Node,
    Parameter,
    Record,
    lowered_name,
    plain,
    slots_of,
)

PREFIX = "_of_"


class FunctionSource:
    """Lines of one generated function, and the objects they refer to by name."""

    def __init__(
        self,
        namespace: dict[str, Any],
        codecs: Mapping[str, Any],
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self.lines: list[str] = []
        self.namespace = namespace
        self.codecs = codecs
        # Flat names whose default is a list, which a body might change.
        self.shared = shared
        # Whether Dynamo traces this function; it never sees kernels.
        self.traced = False
        self.depth = 0

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add a line that ends in a colon; what is added inside is indented."""
        self.add(header)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, stem: str, value: Any) -> str:
        """The name of a global for `value`; the same object with the same stem keeps its name."""
        stem = PREFIX + stem
        name, count = stem, 1
        while name in self.namespace and self.namespace[name] is not value:
            count += 1
            name = f"{stem}_{count}"
        self.namespace[name] = value
        return name

    def text(self) -> str:
        return "\n".join(self.lines)


def parameter_list(source: FunctionSource, lowered: Lowered) -> str:
    """`q, /, cfg, *, mode=_default_mode`: the user's own signature."""
    parameters = lowered.signature.parameters
    parts = _with_defaults(source, parameters, "default")
    positional_only = sum(p.positional_only for p in parameters)
    if positional_only:
        parts.insert(positional_only, "/")
    return ", ".join(parts)


def argument_list(source: FunctionSource, arguments: tuple[FlatArgument, ...]) -> str:
    """`q, cfg__scale, *, mode=_schema_mode`: as the dispatcher calls a kernel.

    It leaves out trailing arguments that equal their default, so kernels repeat the defaults.
    """
    return ", ".join(_with_defaults(source, arguments, "schema"))


def _with_defaults(
    source: FunctionSource, items: Sequence[Parameter | FlatArgument], stem: str
) -> list[str]:
    parts = [
        i.name if i.default is MISSING else f"{i.name}={source.name(f'{stem}_{i.name}', i.default)}"
        for i in items
    ]
    return starred(parts, items)


def starred(parts: list[str], items: Sequence[Parameter | FlatArgument]) -> list[str]:
    """The parts of a signature, with `*` before those that are keyword-only."""
    first = sum(not item.keyword_only for item in items)
    return [*parts[:first], "*", *parts[first:]] if first < len(parts) else parts


def pass_on(arguments: tuple[FlatArgument, ...]) -> str:
    """`q, cfg__scale, mode=mode`: one kernel's arguments passed to another."""
    return ", ".join(f"{a.name}={a.name}" if a.keyword_only else a.name for a in arguments)


def emit_flatten(source: FunctionSource, node: Node, expression: str) -> list[str]:
    """Statements that check and read a value; returns one expression per flat argument."""
    if isinstance(node, Leaf):
        return [_flatten_leaf(source, node, expression)]
    local = _as_local(source, node, expression)
    if not node.optional:
        return _flatten_record(source, node, local)
    names = [lowered_name(path) for path, _, _ in slots_of(node)][1:]
    source.add(f"if {local} is None:")
    source.add(f"    {' = '.join(names)} = None" if names else "    pass")
    with source.block("else:"):
        for name, value in zip(names, _flatten_record(source, node, local), strict=True):
            if name != value:
                source.add(f"{name} = {value}")
    return [f"{local} is not None", *names]


def emit_rebuild(source: FunctionSource, node: Node, names: list[str]) -> str:
    """Statements that rebuild a value from flat names (consumed); returns its expression."""
    if isinstance(node, Leaf):
        return _rebuild_leaf(source, node, names.pop(0))
    if not node.optional:
        return _rebuild_record(source, node, names)
    local = _local(node)
    with source.block(f"if {names.pop(0)}:"):
        value = _rebuild_record(source, node, names)
        if value != local:
            source.add(f"{local} = {value}")
    source.add("else:")
    source.add(f"    {local} = None")
    return local


def emit_arguments(source: FunctionSource, lowered: Lowered) -> str:
    """Rebuild every parameter; returns the argument text for a call of the user's function."""
    names = [a.name for a in lowered.arguments]
    parts = []
    for parameter in lowered.signature.parameters:
        value = emit_rebuild(source, parameter.node, names)
        parts.append(f"{parameter.name}={value}" if parameter.keyword_only else value)
    return ", ".join(parts)


def emit_wrapper(source: FunctionSource, lowered: Lowered, name: str) -> None:
    """The flattened callable: the user's signature in, the overload called, the result rebuilt."""
    source.traced = True
    with source.block(f"def {name}({parameter_list(source, lowered)}):"):
        values: list[str] = []
        for parameter in lowered.signature.parameters:
            values += emit_flatten(source, parameter.node, parameter.name)
        keyed = [
            f"{a.name}={value}" if a.keyword_only else value
            for a, value in zip(lowered.arguments, values, strict=True)
        ]
        out, given = f"{PREFIX}flat_out", ", ".join(keyed)
        # Dynamo supports overloads, and evaluates the condition while it traces.
        with source.block(f"if {PREFIX}tracing():"):
            source.add(f"{out} = {PREFIX}overload({given})")
        with source.block("else:"):
            source.add("try:")
            source.add(f"    {out} = {PREFIX}call({given})")
            source.add(f"except {PREFIX}RuntimeError as {PREFIX}error:")
            source.add(f"    {PREFIX}explain_refusal({PREFIX}error)")
            source.add("    raise")
        emit_result(source, lowered, out)


def emit_flat_result(source: FunctionSource, lowered: Lowered) -> str:
    """Statements that flatten the body's result; returns the expression the dispatcher takes."""
    returns, out = lowered.signature.returns, f"{PREFIX}out"
    if returns is None:
        return "None"
    if isinstance(returns, Leaf):
        return f"{PREFIX}as_list('return', {out})" if returns.container else out
    values = emit_flatten(source, returns, out)
    if returns.kind == "tuple" and values == [f"{out}[{i}]" for i in range(len(values))]:
        return f"{out}[0]" if len(values) == 1 else out
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


def emit_result(source: FunctionSource, lowered: Lowered, call: str) -> None:
    """Statements that return what the user gets, from an expression for the flat result."""
    returns = lowered.signature.returns
    if isinstance(returns, Record):
        names = [leaf.name for leaf in lowered.returns]
        source.add(f"{', '.join(names)} = {call}" if names else call)
        source.add(f"return {emit_rebuild(source, returns, names)}")
    elif isinstance(returns, Leaf) and returns.container == "tuple":
        source.add(f"return {PREFIX}tuple({call})")
    else:
        source.add(f"return {call}")


def _flatten_leaf(source: FunctionSource, leaf: Leaf, expression: str) -> str:
    if leaf.codec is None or leaf.codec.passes_through:
        # A body may return a tuple where its annotation says list, or anything else.
        listed = leaf.path.startswith("return") and leaf.container
        return f"{PREFIX}as_list({leaf.path!r}, {expression})" if listed else expression
    local = _as_local(source, leaf, expression)
    if not leaf.container:
        return _encode(source, leaf, local, optional=leaf.optional)
    encoded = _encode(source, leaf, f"{PREFIX}item", optional=leaf.element_optional)
    values = f"[{encoded} for {PREFIX}item in {local}]"
    return f"None if {local} is None else {values}" if leaf.optional else values


def _encode(source: FunctionSource, leaf: Leaf, local: str, *, optional: bool) -> str:
    codec = leaf.codec
    assert codec is not None
    assert codec.cls is not None
    cls = source.name(f"class_{codec.cls.__name__}", codec.cls)
    encoder = source.name(f"encode_{leaf.name}", source.codecs[leaf.path].encode)
    member = f"{codec.mark!r} + {local}.name" if codec.by == "given" else f"{local}.{codec.by}"
    read = f"{member} if {PREFIX}isinstance({local}, {cls}) else {encoder}({local})"
    return f"(None if {local} is None else {read})" if optional else f"({read})"


def _flatten_record(source: FunctionSource, node: Record, local: str) -> list[str]:
    if node.kind == "tuple":
        count = len(node.fields)
        sized = (
            f"{PREFIX}isinstance({local}, {PREFIX}sequences) and {PREFIX}len({local}) == {count}"
        )
        source.add(f"if not ({sized}):")
        source.add(f"    {PREFIX}wrong_length({node.path!r}, {local}, {count})")
    else:
        cls = source.name(f"class_{node.cls.__name__}", node.cls)
        wrong = f"{PREFIX}type({local}) is not {cls}"
        if node.duck:
            has = [f"{PREFIX}hasattr({local}, {item.name!r})" for item in node.fields]
            wrong += f" and not ({' and '.join(has) or True})"
        source.add(f"if {wrong}:")
        source.add(f"    {PREFIX}wrong_type({node.path!r}, {local}, {cls})")
    values: list[str] = []
    for item in node.fields:
        read = f"{local}[{item.name}]" if node.kind == "tuple" else f"{local}.{item.name}"
        values += emit_flatten(source, item.node, read)
    return values


def _rebuild_leaf(source: FunctionSource, leaf: Leaf, name: str) -> str:
    built = name
    if leaf.codec is not None:
        table = source.name(f"values_{leaf.name}", source.codecs[leaf.path])
        built = f"{table}[{name}]"
        if leaf.container:
            item = f"{table}[{PREFIX}item]"
            if leaf.element_optional:
                item = f"None if {PREFIX}item is None else {item}"
            built = f"[{item} for {PREFIX}item in {name}]"
    if leaf.container == "tuple":
        built = f"{PREFIX}tuple({built})"
    elif built in source.shared:
        built = f"{PREFIX}list({built})"
    return f"(None if {name} is None else {built})" if leaf.optional and built != name else built


def _rebuild_record(source: FunctionSource, node: Record, names: list[str]) -> str:
    values = [emit_rebuild(source, item.node, names) for item in node.fields]
    listed = f"({', '.join(values)}{',' if len(values) == 1 else ''})"
    if node.kind == "tuple":
        return listed
    cls = source.name(f"class_{node.cls.__name__}", node.cls)
    if node.kind == "namedtuple":
        # tuple.__new__ skips a __new__ that a class may define over its fields.
        return f"{PREFIX}new_tuple({cls}, {listed})"
    local = _local(node)
    source.add(f"{local} = {PREFIX}object.__new__({cls})")
    in_dict = _lives_in_dict(node.cls) and not source.traced
    if in_dict and values:
        # Takes half the time of object.__setattr__ (0.6 against 1.3 us for five fields), but Dynamo
        # only follows the latter.
        source.add(f"{PREFIX}fields = {local}.__dict__")
    for item, value in zip(node.fields, values, strict=True):
        if in_dict:
            source.add(f"{PREFIX}fields[{item.name!r}] = {value}")
        else:
            source.add(f"{PREFIX}object.__setattr__({local}, {item.name!r}, {value})")
    return local


def _lives_in_dict(cls: type[Any]) -> bool:
    return not any(vars(base).get("__slots__") for base in cls.__mro__)


def _local(node: Node) -> str:
    # `at_` avoids the helpers' names: a parameter may be called `new` or `fields`.
    return f"{PREFIX}at_{lowered_name(node.path)}"


def _as_local(source: FunctionSource, node: Node, expression: str) -> str:
    """A name for an expression that is read more than once."""
    if expression.isidentifier():
        return expression
    local = _local(node)
    source.add(f"{local} = {expression}")
    return local


class ChoiceValues(dict[Any, Any]):
    """What the schema carries -> what the body sees; other values are refused with an error."""

    def __init__(self, codec: Codec, path: str, op: str, location: str) -> None:
        super().__init__((codec.encode(value), value) for value in codec.values)
        if codec.by == "given":
            self.update((plain(member.value), plain(member.value)) for member in codec.values)
        self.codec = codec
        self.refuse = _refusal(codec, path, op, location)
        self.encode = _encoder(codec, self.refuse)

    def __missing__(self, raw: Any) -> Any:
        # `_missing_` may make an Enum accept more values than its members'.
        if self.codec.cls is not None and self.codec.by != "name":
            try:
                member = self.codec.cls(raw)
            except ValueError:
                raise self.refuse(raw) from None
            return raw if self.codec.by == "given" else member
        raise self.refuse(raw)


def _encoder(codec: Codec, refuse: Callable[[Any], BadOption]) -> Callable[[Any], Any]:
    # A plain function, because torch.compile traces through it.
    cls, by_name = codec.cls, codec.by == "name"
    mark = codec.mark if codec.by == "given" else None

    def encode(raw: Any) -> Any:
        if mark is not None and isinstance(raw, str) and raw.startswith(mark):
            raise refuse(raw)
        if not by_name:
            return raw
        assert cls is not None
        try:
            return cls(raw).name
        except ValueError:
            raise refuse(raw) from None

    return encode


def _refusal(codec: Codec, path: str, op: str, location: str) -> Callable[[Any], BadOption]:
    def refuse(raw: Any) -> BadOption:
        kind = "Literal" if codec.cls is None else codec.cls.__qualname__
        return BadOption(
            f"{raw!r} is not a value of {kind}",
            parameter=path,
            fix=f"pass one of {', '.join(repr(v) for v in codec.values)}",
            op=op,
            location=location,
        )

    return refuse
