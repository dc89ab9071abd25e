"""What opforge decided about an op: its `OpInfo`, and text for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import _compat
from .model import (
    LAUNCHED,
    MENTIONED,
    MISSING,
    TRACED,
    Decision,
    KernelRef,
    Leaf,
    Lowered,
    Node,
    OpInfo,
    Parameter,
    Reading,
)
from .notebook import html_table
from .registration.register import Definition, Registration
from .tuning.choose import rows_of, unmeasured

_PATHS = {
    "direct": "direct: calls go to the OpOverload itself",
    "lowered": "lowered: calls go to the OpOverload itself, whose schema is wider than the types",
    "flattened": "flattened: a generated callable takes arguments apart and calls the OpOverload",
}
Rows = list[tuple[str, str]]


class Explanation(str):
    """The text of `opforge.explain`; at a prompt it is one line, and a notebook shows a table."""

    __slots__ = ("_found", "_parameters", "info")
    info: OpInfo
    _found: Rows
    _parameters: Sequence[str]

    def __new__(cls, info: OpInfo, rows: Rows, parameters: Sequence[str] = ()) -> Explanation:  # noqa: PYI034  # Self is 3.11's
        rows = [(title, text) for title, text in rows if text]
        lines = [f"{info.name}  ({info.location})", *(f"  {t:<9} {text}" for t, text in rows)]
        if parameters:
            lines += ["  parameters", *(f"    {line}" for line in parameters)]
        self = super().__new__(cls, "\n".join(lines))
        self.info = info
        self._found, self._parameters = rows, parameters
        return self

    def adding(self, rows: Rows) -> Explanation:
        return Explanation(self.info, [*self._found, *rows], self._parameters)

    def __repr__(self) -> str:
        of = f"{self.info.name} ({self.info.location})"
        return f"<Explanation of {of}: mode {self.info.mode}; print() shows all>"

    def _repr_html_(self) -> str:
        rows = [*self._found, *(("parameter", line.strip()) for line in self._parameters)]
        return html_table(f"{self.info.name} ({self.info.location})", (), rows)

    def __reduce__(self) -> Any:
        # Kernels may not pickle; the text does.
        return str, (str(self),)


def explain_op(
    info: OpInfo, definition: Definition, *, fake: str = "", backward: str = "given"
) -> Explanation:
    """For an op with a definition; `fake` and `backward` say where these come from."""
    lowered = definition.lowered
    vmap = "given" if callable(definition.vmap) else definition.vmap
    autocast = ", ".join(f"{device} to {dtype}" for device, dtype in definition.autocast.items())
    rows = [
        ("schema", info.schema),
        ("path", _PATHS[info.path]),
        ("native", info.native),
        *_mode(info, definition.transparency.decision),
        *_refused_launches(info),
        ("fake", fake or definition.fake.describe()),
        ("backward", backward if definition.backward else _NO_BACKWARD),
        ("vmap", vmap or _without_vmap(lowered)),
        ("autocast", autocast),
        ("devices", ", ".join(definition.device_types)),
        *(
            ("on " + (device or "others"), _place(fn))
            for device, fn in definition.device_kernels.items()
        ),
        ("mutates", ", ".join(a.path for a in lowered.mutated)),
        *_found(info),
        ("flags", ", ".join(flag for flag in _FLAGS if getattr(info, flag))),
        *(("note", note) for note in info.notes),
    ]
    parameters = [line for p in lowered.signature.parameters for line in _parameter(p)]
    return Explanation(info, rows, parameters)


_UNMEASURED = (
    "is not measured in Triton's interpreter: it takes the configuration of the tuning table in "
    "use, or else its first"
)
_NO_BACKWARD = "none: going backward through the op raises"
_FLAGS = ("compute_sensitive", "subgraph_boundary")


def explain_function(info: OpInfo, decision: Decision) -> Explanation:
    """For a function that mode "none" leaves as it is."""
    return Explanation(info, [*_mode(info, decision), *_found(info)])


def _mode(info: OpInfo, decision: Decision) -> Rows:
    return [
        ("mode", f"{info.mode}: {info.reason}"),
        ("body has", decision.cell),
        ("change", decision.change),
    ]


def _refused_launches(info: OpInfo) -> Rows:
    """Options of launches for which traces raise, although the op is transparent."""
    if info.mode != "triton_op":
        return []
    refs = [ref for ref in (*info.kernels, *info.backward_kernels) if ref.dropped]
    why = "which Inductor would drop; leave it out, or mode='custom_op'"
    return [
        ("traces", f"raise where they launch {ref.name} with {', '.join(ref.dropped)}, {why}")
        for ref in refs
    ]


def _found(info: OpInfo) -> Rows:
    rows = [("kernel", _kernel(ref)) for ref in info.kernels]
    rows += [("kernel", f"{_kernel(ref)}, in the backward") for ref in info.backward_kernels]
    for ref in info.kernels:
        if count := len(rows_of(ref.kernel)):
            rows.append(("tuning", f"{ref.name} has {count} rows in the tuning table"))
    rows += [
        ("tuning", f"{ref.name} {_UNMEASURED}")
        for ref in (*info.kernels, *info.backward_kernels)
        if unmeasured(ref.kernel)
    ]
    rows += [
        ("calls" if op.called else "names", f"{op} at {op.location}") for op in info.nested_ops
    ]
    rows += [("unread", f"{u.name} at {u.location}: {u.why}") for u in info.unresolved]
    return rows


def _kernel(ref: KernelRef) -> str:
    return f"{ref.name} ({ref.location}), {_GRADES[ref.grade]} {ref.found_via}"


_GRADES = {
    LAUNCHED: "launched by",
    MENTIONED: "may be launched, though no trace has launched it yet:",
    TRACED: "launched by a trace:",
}


def _place(fn: Any) -> str:
    code = getattr(fn, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{getattr(fn, '__qualname__', repr(fn))}{where} runs instead of the body"


def _without_vmap(lowered: Lowered) -> str:
    lists = any(a.is_tensor_list for a in lowered.arguments) or any(
        leaf.container for leaf in lowered.returns
    )
    if lists or lowered.mutated:
        return "none, and torch has no fallback for lists or mutation; vmap='sequential' gives one"
    return "none: torch's own fallback calls the op per slice"


def _parameter(parameter: Parameter) -> list[str]:
    default = _default(parameter.default)
    kind = "" if parameter.kind == "positional-or-keyword" else f" ({parameter.kind})"
    first, *rest = _node(parameter.node)
    return [f"{first}{default}{kind}", *(f"  {line}" for line in rest)]


def _node(node: Node) -> list[str]:
    if isinstance(node, Leaf):
        text = f"{node.path} -> {node.schema_type()} {node.name}"
        if node.codec is not None:
            text += f", one of {', '.join(repr(v) for v in node.codec.values)}"
        return [text]
    optional = f", with bool {node.present_path.replace('.', '__')}" if node.optional else ""
    lines = [f"{node.path}: {node.cls.__name__}, taken apart{optional}"]
    for item in node.fields:
        first, *rest = _node(item.node)
        lines += [f"  {line}" for line in (first + _default(item.default), *rest)]
    return lines


def _default(value: Any) -> str:
    return "" if value is MISSING else f" = {value!r}"


def info_of_reading(name: str, location: str, reading: Reading) -> OpInfo:
    """For a function that stays unknown to torch."""
    return OpInfo(
        name=name,
        mode=reading.decision.mode,
        reason=reading.decision.reason,
        location=location,
        kernels=reading.body.kernels,
        unresolved=(*reading.body.unresolved, *reading.body.unbound),
        nested_ops=reading.body.nested_ops,
    )


def info_of_definition(definition: Definition) -> OpInfo:
    """For an op that could be registered."""
    reading, lowered = definition.transparency.reading, definition.lowered
    return replace(
        info_of_reading(definition.name, definition.location, reading),
        schema=definition.name + lowered.schema,
        path=lowered.path,
        fake_source=definition.fake.source,
        kernels=definition.transparency.kernels,
        notes=lowered.notes,
        backward_kernels=definition.transparency.backward_kernels,
    )


def info_of_registration(registration: Registration) -> OpInfo:
    return replace(
        info_of_definition(registration.definition),
        schema=_compat.schema_text(registration.overload),
        overload=registration.overload,
        native="; ".join(registration.backends.values()),
    )
