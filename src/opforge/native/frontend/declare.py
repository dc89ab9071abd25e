"""`native.declare`: what callers of an op's C function may pass.

A declaration is checked against the op's flat signature and kept with its registry entry. The body
is neither read nor run.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import (
    BadDeclaration,
    OpforgeError,
    WrongArgument,
)
from ...model import MISSING, Leaf, Lowered, Node, Record, leaves_of, lowered_name
from ...registry import Entry, registry, running_pass
from .c_parameters import check_together
from .declaration import Declaration, LeafDeclaration, Nothing, Scalars, Tensors, choices
from .dims import names_of, read_bounds, shared_lengths
from .returns import read_returns
from .specs import SPECS
from .store import Alternatives, declarations_of, keep_declarations
from .validate import as_seen, example, fit, is_variable, no_list, read_dtypes


def declare(
    op: Any, /, *, dims: Any = None, returns: Any = None, backward: Any = None, **specs: Any
) -> None:
    """Declare what callers of an op's C function may pass, parameter by parameter.

        native.declare(rms_norm, x=native.tensor("rows hidden", dtype="T"),
            weight=native.tensor("hidden", dtype="T"), eps=native.scalar("fp32"),
            T=("fp16", "bf16"), dims={"hidden": (1, 8192)})

    A plain value fixes a parameter; one that is left out is fixed at its default. Fields of a
    dataclass are given as `cfg__scale=...` or `cfg=dict(scale=...)`. Several calls add up. Where
    `schema=` names arguments unlike the function, either name will do, and C has the schema's.

    `returns=native.tensor("*s", dtype="T", layout="strided")` lets callers pass an output of any
    strides; several outputs are a tuple, with None for one that is as the body makes it.

    The op's backward is built where that is possible: `backward=True` makes it an error where it
    is not, and `backward=False` leaves it out.
    """
    place = caller()
    with located(op, place) as entry:
        lowered = entry.flat()
        read = _read(lowered, dims, returns, backward, specs)
        with registry.lock:
            _keep(entry, lowered, replace(read, **place))


def caller() -> dict[str, Any]:
    """Of the user's call, what a `Declaration` and `Alternatives` keep of their place."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("opforge.native"):
        frame = frame.f_back
    assert frame is not None
    file, namespace = frame.f_code.co_filename, frame.f_globals
    # Kept by file, so that a reload replaces earlier declarations; a prompt has no file.
    running = running_pass(namespace) if namespace.get("__file__") else None
    return {"location": f"{file}:{frame.f_lineno}", "file": file, "running": running}


@contextlib.contextmanager
def located(op: Any, place: Mapping[str, Any]) -> Iterator[Entry]:
    """The op's entry; errors tell the op and the place."""
    entry: Entry | None = None
    try:
        entry = registry.get(op)
        yield entry
    except OpforgeError as error:
        raise error.locate(entry.name if entry else None, place["location"]) from error.__cause__


def _keep(entry: Entry, lowered: Lowered, new: Declaration) -> None:
    kept = [old for old in declarations_of(entry) if not is_reloaded(old, new)]
    if new not in kept:
        kept.append(new)
    asked_backward(kept)
    check_together(lowered, kept)
    keep_declarations(entry, kept)


def is_reloaded(old: Declaration | Alternatives, new: Declaration | Alternatives) -> bool:
    """Whether `new` replaces `old` because its file was reloaded."""
    return (
        old.file == new.file
        and None not in (old.running, new.running)
        and old.running is not new.running
    )


def asked_backward(declarations: Iterable[Declaration]) -> bool | None:
    """Whether declarations ask for the op's backward, or for none; refuses both at once."""
    asked = {d.backward: d for d in declarations}
    if True in asked and False in asked:
        raise BadDeclaration(
            "one declaration asks for the op's backward, and one for none",
            found=f"backward=True at {asked[True].location}; "
            f"backward=False at {asked[False].location}",
            fix="keep one of them",
        )
    return True if True in asked else False if False in asked else None


def _read(
    lowered: Lowered, dims: Any, returns: Any, backward: Any, specs: dict[str, Any]
) -> Declaration:
    reader = _Reader(lowered)
    parameters = lowered.signature.parameters
    # A name that the schema has, too, is the schema's.
    renamed = {p.name: p.node.path for p in parameters if p.name not in reader.nodes}
    specs = _by_schema(specs, renamed)
    if dims is not None and not isinstance(dims, Mapping) and "dims" in reader.nodes:
        # The op has a parameter called dims, and this is not a table of bounds.
        specs, dims = {**specs, "dims": dims}, None
    if returns is not None and "returns" in reader.nodes:
        specs, returns = {**specs, "returns": returns}, None
    if backward is not None and "backward" in reader.nodes:
        specs, backward = {**specs, "backward": backward}, None
    if backward is not None and not isinstance(backward, bool):
        raise WrongArgument(
            "backward= says whether the library has the op's backward",
            found=repr(backward),
            fix="backward=True, backward=False, or leave it out",
        )
    reader.take(specs)
    for parameter in lowered.signature.parameters:
        reader.read(parameter.node, parameter.default)
    reader.refuse_missing()
    leaves = reader.leaves
    tensors = {n: d for n, d in leaves.items() if isinstance(d, Tensors)}
    lengths = shared_lengths((reader.path(n), d.parts, d.ranks) for n, d in tensors.items())
    numbers = [n for n, d in leaves.items() if isinstance(d, Scalars) and d.dtype[0] in "iu"]
    sizes = _sizes(reader, tensors, lengths)
    if isinstance(dims, Mapping):
        dims = _by_schema(dims, {n: c for n, c in renamed.items() if n not in sizes})
    fixed, bounds = read_bounds({} if dims is None else dims, sizes, numbers)
    _refuse_unused(reader.variables, tensors)
    outputs = read_returns(lowered, returns, reader.variables, list(lengths))
    return Declaration(
        leaves=tuple(leaves.items()),
        types=tuple(reader.variables.items()),
        lengths=tuple(lengths.items()),
        fixed=tuple(fixed.items()),
        bounds=tuple(bounds.values()),
        returns=outputs,
        backward=backward,
    )


def _by_schema(given: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """With the names of `schema=`, which C has too, where the function's were given."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        own = renamed.get(name, name)
        if own in made:
            raise WrongArgument(
                "declared twice in one call",
                parameter=own,
                found=f"{made[own]!r} and {value!r}",
                fix="keep one of them",
            )
        made[own] = value
    return made


def _sizes(reader: _Reader, tensors: Mapping[str, Tensors], shared: Mapping[str, Any]) -> list[str]:
    """Refuse a size name that means two things."""
    sizes: dict[str, None] = {}
    for name, leaf in tensors.items():
        for part in leaf.parts:
            for size in names_of([part]):
                both = size in shared and str(part) == size
                if both or isinstance(reader.leaves.get(size), Scalars):
                    other = f"*{size}" if both else "a scalar parameter"
                    raise BadDeclaration(
                        f"{size!r} names a size here and is also {other}",
                        parameter=reader.path(name),
                        fix="give the size another name",
                    )
                sizes[size] = None
    return list(sizes)


def _refuse_unused(variables: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> None:
    used = {d.variable for d in tensors.values()}
    for letter in variables:
        if letter not in used:
            raise BadDeclaration(
                f"type variable {letter!r} is not used by any parameter",
                fix=f'native.tensor(..., dtype="{letter}"), or leave {letter}= out',
            )


@dataclass
class _Reader:
    """Goes through a signature and gives each leaf its declaration."""

    lowered: Lowered
    nodes: dict[str, Node] = field(default_factory=dict)
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # By flat name: specs and plain values. A record is here when it is fixed as a whole.
    given: dict[str, Any] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    leaves: dict[str, LeafDeclaration] = field(default_factory=dict)
    missing: list[Leaf | Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        for parameter in self.lowered.signature.parameters:
            for node in _below(parameter.node):
                self.nodes[lowered_name(node.path)] = node

    def path(self, name: str) -> str:
        return self.nodes[name].path

    def take(self, specs: Mapping[str, Any]) -> None:
        """Sort what was given into type variables and parameters."""
        for name, value in specs.items():
            node = self.nodes.get(name)
            if node is not None:
                self._assign(node, value)
            elif is_variable(name) and not isinstance(value, SPECS):
                self.variables[name] = read_dtypes(value, None)[1]
            else:
                raise self._unknown(name, [lowered_name(n.path) for n in self.nodes.values()])

    def _assign(self, node: Node, value: Any) -> None:
        name = lowered_name(node.path)
        if isinstance(node, Record):
            fields = _fields(node, value)
            if fields is not None:
                self.opened.add(name)
                below = {item.name: item.node for item in node.fields}
                for key, each in fields.items():
                    if key not in below:
                        raise self._unknown(f"{node.path}.{key}", list(below), node)
                    self._assign(below[key], each)
                return
            if value is not None or not node.optional:
                raise _not_fields(node, value)
        if name in self.given:
            raise WrongArgument(
                "declared twice in one call",
                parameter=node.path,
                found=f"{self.given[name]!r} and {value!r}",
                fix="keep one of them",
            )
        self.given[name] = value

    def _unknown(self, name: str, known: list[str], record: Record | None = None) -> OpforgeError:
        close = difflib.get_close_matches(name.rpartition(".")[2], known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        what = f"has no parameter {name!r}" if record is None else f"has no field {name!r}"
        return WrongArgument(
            f"the op {what}",
            fix=f"{hint}it has {', '.join(known) or 'none'}",
        )

    def read(self, node: Node, default: Any) -> None:
        if isinstance(node, Leaf):
            self._read_leaf(node, default)
            return
        name = lowered_name(node.path)
        flag = lowered_name(node.present_path)
        below = [n for n in self.given if n.startswith(f"{name}__")]
        if not node.optional:
            self._read_fields(node, default)
        elif name in self.given and below:
            raise WrongArgument(
                "declared both as None and field by field",
                parameter=node.path,
                found=", ".join(below),
                fix="keep one of them, or write two declare calls with one each",
            )
        elif below or name in self.opened or _is_there(default):
            self.leaves[flag] = choices([True])
            self._read_fields(node, default)
        elif name in self.given or default is None:
            self.leaves[flag] = choices([False])
            self._leave_out(node)
        else:
            self.missing.append(node)

    def _read_fields(self, node: Record, default: Any) -> None:
        for item in node.fields:
            self.read(item.node, _part(node, item.name, default, item.default))

    def _leave_out(self, node: Node) -> None:
        if isinstance(node, Leaf):
            self.leaves[node.name] = Nothing()
            return
        for item in node.fields:
            if isinstance(item.node, Record) and item.node.optional:
                self.leaves[lowered_name(item.node.present_path)] = Nothing()
            self._leave_out(item.node)

    def _read_leaf(self, leaf: Leaf, default: Any) -> None:
        if leaf.name in self.given:
            self.leaves[leaf.name] = fit(leaf, self.given[leaf.name], self.variables)
        elif default is MISSING:
            if leaf.is_tensor and leaf.container:
                raise no_list(leaf)
            self.missing.append(leaf)
        else:
            self.leaves[leaf.name] = choices([as_seen(leaf, default)])

    def refuse_missing(self) -> None:
        if not self.missing:
            return
        names = ", ".join(repr(node.path) for node in self.missing)
        fixes = [
            example(node) if isinstance(node, Leaf) else f"{lowered_name(node.path)}=None"
            for node in self.missing
        ]
        raise WrongArgument(
            f"nothing is declared for {names}, and there is no default",
            parameter=self.missing[0].path if len(self.missing) == 1 else None,
            fix="; ".join(fixes),
        )


def _below(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Record):
        for item in node.fields:
            yield from _below(item.node)


def _is_there(default: Any) -> bool:
    return default is not MISSING and default is not None


def _part(node: Record, name: str, whole: Any, own: Any) -> Any:
    """The default of a field: the parameter's if it has one, else the class's."""
    if not _is_there(whole):
        return own
    return whole[int(name)] if node.kind == "tuple" else getattr(whole, name)


def _fields(node: Record, value: Any) -> dict[str, Any] | None:
    """What is given for a record, by field: a dict, a tuple for a tuple, or an instance."""
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items()}
    if node.kind == "tuple" and isinstance(value, (tuple, list)):
        if len(value) != len(node.fields):
            raise _not_fields(node, value)
        return {str(i): each for i, each in enumerate(value)}
    if node.kind != "tuple" and isinstance(value, node.cls):
        return {item.name: getattr(value, item.name) for item in node.fields}
    return None


def _not_fields(node: Record, value: Any) -> WrongArgument:
    names = [item.name for item in node.fields]
    if node.kind == "tuple":
        fix = f"{lowered_name(node.path)}=({', '.join('...' for _ in names)})"
        fix += ", a spec or a value per element"
    else:
        one = next((leaf for leaf in leaves_of(node)), None)
        fix = f"{lowered_name(node.path)}=dict({'=..., '.join(names)}=...)"
        fix += f", or field by field: {example(one)}" if one is not None else ""
    return WrongArgument(
        f"{node.cls.__name__} is declared field by field",
        parameter=node.path,
        found=repr(value),
        fix=fix,
    )
