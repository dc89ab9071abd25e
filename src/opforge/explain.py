"""What opforge decided about an op, as text for a person."""

from __future__ import annotations

from dataclasses import dataclass

from .model import MISSING, Decision, KernelRef, Leaf, Lowered, Node, OpInfo, Parameter
from .tuning.use import rows_of

_PATHS = {
    "direct": "direct: calls go to the OpOverload itself",
    "lowered": "lowered: calls go to the OpOverload itself, whose schema is wider than the types",
    "flattened": "flattened: a generated callable takes arguments apart and calls the OpOverload",
}


@dataclass(frozen=True)
class Explanation:
    """An op's info with what `OpInfo` has no field for."""

    info: OpInfo
    lowered: Lowered
    decision: Decision
    fake: str
    backward: str = ""
    vmap: str = ""
    autocast: str = ""


def render(explanation: Explanation) -> str:
    info, lowered = explanation.info, explanation.lowered
    rows = [
        ("schema", info.schema),
        ("path", _PATHS[info.path]),
        *([("native", info.native)] if info.native else []),
        *_mode(info, explanation.decision),
        ("fake", explanation.fake),
        ("backward", explanation.backward or "none: going backward through the op raises"),
        ("vmap", explanation.vmap or _without_vmap(lowered)),
    ]
    if explanation.autocast:
        rows.append(("autocast", explanation.autocast))
    if lowered.mutated:
        rows.append(("mutates", ", ".join(a.path for a in lowered.mutated)))
    rows += _found(info)
    if info.compute_sensitive or info.subgraph_boundary:
        flags = [n for n in ("compute_sensitive", "subgraph_boundary") if getattr(info, n)]
        rows.append(("flags", ", ".join(flags)))
    rows += [("note", note) for note in info.notes]
    lines = _lines(info, rows)
    lines.append("  parameters")
    lines += [f"    {line}" for p in lowered.signature.parameters for line in _parameter(p)]
    return "\n".join(lines)


def render_plain(info: OpInfo, decision: Decision) -> str:
    """For a function that stays what it is."""
    return "\n".join(_lines(info, [*_mode(info, decision), *_found(info)]))


def _lines(info: OpInfo, rows: list[tuple[str, str]]) -> list[str]:
    return [f"{info.name}  ({info.location})", *(f"  {title:<9} {text}" for title, text in rows)]


def _mode(info: OpInfo, decision: Decision) -> list[tuple[str, str]]:
    rows = [("mode", f"{info.mode}: {info.reason}")]
    if decision.cell:
        rows.append(("body has", decision.cell))
    if decision.change:
        rows.append(("change", decision.change))
    return rows


def _found(info: OpInfo) -> list[tuple[str, str]]:
    rows = [("kernel", _kernel(ref)) for ref in info.kernels]
    rows += [("kernel", f"{_kernel(ref)}, in the backward") for ref in info.backward_kernels]
    rows += [("tuning", line) for ref in info.kernels for line in _tuning(ref)]
    rows += [("calls", f"{op} at {op.location}") for op in info.nested_ops]
    rows += [("unread", f"{u.name} at {u.location}: {u.why}") for u in info.unresolved]
    return rows


def _kernel(ref: KernelRef) -> str:
    return f"{ref.name} ({ref.location}), found via {ref.found_via}"


def _tuning(ref: KernelRef) -> list[str]:
    count = len(rows_of(ref.kernel))
    return [f"{ref.name} has {count} rows in the table in use"] if count else []


def _without_vmap(lowered: Lowered) -> str:
    lists = any(a.is_tensor_list for a in lowered.arguments) or any(
        leaf.container for leaf in lowered.returns
    )
    if lists or lowered.mutated:
        return "none, and torch has no fallback for lists or mutation; vmap='sequential' gives one"
    return "none: torch's own fallback calls the op per slice"


def _parameter(parameter: Parameter) -> list[str]:
    default = "" if parameter.default is MISSING else f" = {parameter.default!r}"
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
        lines += [f"  {line}" for line in _node(item.node)]
    return lines
