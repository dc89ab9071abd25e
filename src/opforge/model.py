"""The frozen records that pass between the stages."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .notebook import counted, html_table


class Missing(enum.Enum):
    """Stands for "no default", because `None` is a default."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing.MISSING


@dataclass(frozen=True)
class Codec:
    """Values that the schema carries as str, int or bool: a `Literal` or an `Enum`.

    `by` is "value" where the schema carries the value itself and "name" where it carries the
    member's name, because the values are neither all str nor all int. It is "given" where a value
    reaches the body as a value and a member as a member: the schema carries the value itself, or
    the member's name after a mark.
    """

    values: tuple[Any, ...]
    cls: type[enum.Enum] | None = None
    by: str = "value"

    @property
    def passes_through(self) -> bool:
        """Whether what the user passes is already what the schema takes."""
        if self.cls is None:
            return True
        if self.by != "value" or not all(isinstance(v, (int, str)) for v in self.values):
            return False
        # A mixin's `__new__` can give a member a different int or text than its value.
        return all(plain(v) == plain(v.value) for v in self.values)

    @property
    def mark(self) -> str:
        """What precedes a member's name in the schema; no value begins with it."""
        assert self.cls is not None
        mark = f"{self.cls.__name__}."
        while any(v.value.startswith(mark) for v in self.values):
            mark = f".{mark}"
        return mark

    def encode(self, value: Any) -> Any:
        """The schema's value for one of the user's: a member, or its raw value."""
        if self.cls is None:
            return value
        if self.by == "given":
            return self.mark + value.name if isinstance(value, self.cls) else plain(value)
        member = value if isinstance(value, self.cls) else self.cls(value)
        return member.name if self.by == "name" else plain(member.value)


def plain(value: Any) -> Any:
    """An int or str without its subclass, such as an IntEnum used as an Enum's value."""
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


@dataclass(frozen=True)
class Leaf:
    """One schema argument.

    `list[Tensor | None]` is base Tensor, container "list", element_optional.
    """

    path: str
    base: str
    optional: bool = False
    container: str = ""
    element_optional: bool = False
    codec: Codec | None = None

    @property
    def name(self) -> str:
        return lowered_name(self.path)

    @property
    def is_tensor(self) -> bool:
        return self.base == "Tensor"

    def schema_type(self, *, optional: bool = False, alias: str = "") -> str:
        """`Tensor(a0!)?`, `SymInt[]`; `optional` where the record around it may be absent."""
        text = self.base + alias
        if self.container:
            text += "?[]" if self.element_optional else "[]"
        return text + "?" if self.optional or optional else text


@dataclass(frozen=True)
class Field:
    """One part of a record."""

    name: str
    node: Node
    default: Any = MISSING


@dataclass(frozen=True)
class Record:
    """Something that is flattened: a frozen dataclass, NamedTuple or tuple of fixed length.

    `duck`: callers may pass anything with the fields' attributes.
    """

    path: str
    kind: str
    cls: type[Any]
    fields: tuple[Field, ...]
    optional: bool = False
    duck: bool = False

    @property
    def present_path(self) -> str:
        return f"{self.path}.present"

    def holding(self, parts: Sequence[Any]) -> Any:
        """An instance with these as its fields, made as ops make them: without `__init__`."""
        if self.kind == "tuple":
            return tuple(parts)
        if self.kind == "namedtuple":
            return tuple.__new__(self.cls, parts)
        # A class's __init__ may do more than store its fields.
        made = object.__new__(self.cls)
        for item, part in zip(self.fields, parts, strict=True):
            object.__setattr__(made, item.name, part)
        return made


Node = Leaf | Record


@dataclass(frozen=True)
class Parameter:
    """One parameter of the user's function; `kind` in the words of `inspect`."""

    name: str
    kind: str
    node: Node
    default: Any = MISSING

    @property
    def keyword_only(self) -> bool:
        return self.kind == "keyword-only"

    @property
    def positional_only(self) -> bool:
        return self.kind == "positional-only"


@dataclass(frozen=True)
class Signature:
    """A function as its annotations describe it. `returns` is None for `-> None`."""

    parameters: tuple[Parameter, ...]
    returns: Node | None


@dataclass(frozen=True)
class FlatArgument:
    """One argument of the lowered signature, in schema order."""

    name: str
    path: str
    type: str
    leaf: Leaf | None
    default: Any = MISSING
    default_text: str = ""
    keyword_only: bool = False
    mutated: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.leaf is not None and self.leaf.is_tensor

    @property
    def is_optional(self) -> bool:
        return self.type.endswith("?")

    @property
    def is_tensor_list(self) -> bool:
        return self.leaf is not None and self.leaf.is_tensor and bool(self.leaf.container)


@dataclass(frozen=True)
class Lowered:
    """A flat signature: what the dispatcher sees, and how calls get there.

    `returned` names the mutated arguments that the op returns, if its tag says that it does.
    """

    signature: Signature
    arguments: tuple[FlatArgument, ...]
    returns: tuple[Leaf, ...]
    schema: str
    path: str
    notes: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def mutated(self) -> tuple[FlatArgument, ...]:
        return tuple(a for a in self.arguments if a.mutated)

    @property
    def tensors(self) -> tuple[FlatArgument, ...]:
        return tuple(a for a in self.arguments if a.is_tensor)

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name; the dispatcher omits those that equal their default."""
        given = dict(zip((a.name for a in self.arguments), args, strict=False))
        return {a.name: a.default for a in self.arguments} | given | dict(kwargs)

    def itself(self, out: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call's result; the arguments themselves if the op returns those that it mutates."""
        if not self.returned:
            return out
        given = self.by_name(args, kwargs)
        outputs = tuple(given[name] for name in self.returned)
        return outputs if len(outputs) > 1 else outputs[0]


SEEN_WHILE_TRACING = "seen while tracing"

# What is known of a kernel: the text launches it, the text names it or leads to it, or, though the
# text does not launch it, a trace did.
Grade = Literal["launched", "mentioned", "traced"]
LAUNCHED: Grade = "launched"
MENTIONED: Grade = "mentioned"
TRACED: Grade = "traced"


@dataclass(frozen=True)
class KernelRef:
    """A Triton kernel that an op launches, or may launch; `grade` says which.

    `kernel` is what is launched, for example an Autotuner; `location` is where its function is
    defined; `found_via` says how the body reaches it: "scale_kernel[...] in launch (ops.py:12)",
    or "named in launch (ops.py:9), through host".
    `dropped` has the options of its launches that a graph cannot hold, each with its line:
    "launch_pdl (ops.py:12)".
    """

    name: str
    kernel: Any
    location: str
    found_via: str
    grade: Grade = LAUNCHED
    dropped: tuple[str, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether the body's text launches it, or a trace did."""
        return self.grade != MENTIONED


@dataclass(frozen=True)
class Unresolved:
    """A reference that reading could not follow."""

    name: str
    location: str
    why: str


class NestedOp(str):
    """An operator that a body calls, or only names: its "ns::op" name, and where.

    `op` is the operator, or None while none of that name is registered.
    """

    __slots__ = ("called", "location", "op")
    called: bool
    location: str
    op: Any

    def __new__(cls, name: str, location: str, op: Any = None, *, called: bool = True) -> NestedOp:  # noqa: PYI034  # Self is 3.11's
        self = super().__new__(cls, name)
        self.location = location
        self.op = op
        self.called = called
        return self

    @property
    def name(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Discovery:
    """What a function leads to, read without running it; iterating gives the kernels.

    `unresolved` says where reading could not follow. `unbound` are names that functions read but
    nothing binds yet; what they will be bound to may launch kernels. `wraps` is whether kernels may
    be launched through `wrap_triton`.
    """

    kernels: tuple[KernelRef, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    nested_ops: tuple[NestedOp, ...] = ()
    unbound: tuple[Unresolved, ...] = ()
    wraps: bool = False

    def __iter__(self) -> Iterator[KernelRef]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __repr__(self) -> str:
        names = f" ({', '.join(ref.name for ref in self.kernels)})" if self.kernels else ""
        others = {
            "operator": self.nested_ops,
            "unresolved call": self.unresolved,
            "unbound name": self.unbound,
        }
        rest = [counted(len(found), noun) for noun, found in others.items() if found]
        return f"<Discovery: {', '.join([counted(len(self), 'kernel') + names, *rest])}>"

    def _repr_html_(self) -> str:
        rows = [
            ("kernel" if ref.is_certain else "kernel, maybe", ref.name, ref.location, ref.found_via)
            for ref in self.kernels
        ]
        rows += [("operator", op.name, op.location, "") for op in self.nested_ops]
        rows += [("unresolved", u.name, u.location, u.why) for u in self.unresolved]
        rows += [("unbound", u.name, u.location, u.why) for u in self.unbound]
        return html_table("Discovery", ("", "name", "location", ""), rows)


# What `mode=` takes.
Mode = Literal["auto", "triton_op", "custom_op", "none"]


@dataclass(frozen=True)
class Decision:
    """How an op is registered, and why.

    `asked` is the mode that the user gave; `cell` is what the body has, in the words of the table
    of modes; `change` says what would change the mode; `warning` is given to the user once.
    """

    mode: str
    reason: str
    asked: str = "auto"
    cell: str = ""
    change: str = ""
    warning: str = ""


@dataclass(frozen=True)
class Reading:
    """What reading a body and its backward came to.

    `nested` are kernels that nested transparent ops launch; the graph will hold them, too.
    `pending` are nested ops whose own mode is not resolved yet.
    """

    decision: Decision
    body: Discovery
    backward: Discovery
    nested: tuple[Any, ...] = ()
    pending: tuple[NestedOp, ...] = ()

    @property
    def found(self) -> tuple[KernelRef, ...]:
        """All kernels that may be launched, in the backward too."""
        return (*self.body, *self.backward)

    @property
    def is_open(self) -> bool:
        """Whether a name that is not bound yet may come to stand for something with kernels."""
        return bool(self.body.unbound or self.backward.unbound or self.pending)

    @property
    def may_be_transparent(self) -> bool:
        return bool(self.body.unbound or self.pending) or self.decision.mode == "triton_op"

    @property
    def may_launch(self) -> bool:
        found = self.body
        return any((found.kernels, found.unresolved, found.unbound, self.nested))

    @property
    def may_wrap(self) -> bool:
        """Whether the body may launch a kernel through `wrap_triton`."""
        found = self.body
        return found.wraps or bool(found.unresolved or found.unbound)

    @property
    def backward_may_launch(self) -> bool:
        found = self.backward
        return any((found.kernels, found.unresolved, found.unbound, found.nested_ops))


@dataclass(frozen=True)
class Dialect:
    """A decorator's own words for options, and whether it lets pass what `opforge.op` refuses."""

    fake: str = "fake"
    backward: str = "backward"
    lenient: bool = False


OPFORGE = Dialect()


@dataclass(frozen=True)
class OpInfo:
    """How a function was registered as an op."""

    name: str
    mode: str
    reason: str
    location: str
    schema: str = ""
    path: str = "direct"
    overload: Any = None
    fake_source: str = "undetermined"
    kernels: tuple[KernelRef, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    nested_ops: tuple[NestedOp, ...] = ()
    compute_sensitive: bool = False
    subgraph_boundary: bool = False
    notes: tuple[str, ...] = ()
    backward_kernels: tuple[KernelRef, ...] = ()
    # What a loaded library does for it; empty if none was loaded.
    native: str = ""


def lowered_name(path: str) -> str:
    """`cfg.inner.scale` -> `cfg__inner__scale`."""
    return path.replace(".", "__")


def fits_int64(value: int) -> bool:
    # Not `in range(...)`: that walks the whole range for a subclass of int.
    return -(2**63) <= value < 2**63


def leaves_of(node: Node) -> Iterator[Leaf]:
    """The leaves below a node, in schema order, without presence flags."""
    if isinstance(node, Leaf):
        yield node
        return
    for item in node.fields:
        yield from leaves_of(item.node)


def slots_of(node: Node, *, absent: bool = False) -> list[tuple[str, str, Leaf | None]]:
    """(path, schema type, leaf) per flat argument; `absent`: inside an optional record."""
    if isinstance(node, Leaf):
        return [(node.path, node.schema_type(optional=absent), node)]
    slots: list[tuple[str, str, Leaf | None]] = []
    if node.optional:
        slots.append((node.present_path, "bool?" if absent else "bool", None))
    for item in node.fields:
        slots += slots_of(item.node, absent=absent or node.optional)
    return slots


def flat_width(node: Node) -> int:
    """How many schema arguments a node takes, including presence flags."""
    if isinstance(node, Leaf):
        return 1
    return int(node.optional) + sum(flat_width(item.node) for item in node.fields)
