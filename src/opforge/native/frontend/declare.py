"""`native.declare`: what callers of an op's C function may pass.

A declaration is checked against the op's flat signature and kept with its registry entry. The body
is neither read nor run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import torch

from ...errors import BadDeclaration, BadOption, BadSignature, OpforgeError, WrongArgument
from ...model import MISSING, Leaf, Lowered, Node, Record, fits_int64, leaves_of, lowered_name
from ...notebook import counted
from ...registry import Entry, registry
from ..ir.dtypes import DTYPES, named
from ..ir.wording import one_of, spell
from .declaration import (
    SPECS,
    Choices,
    ChoiceSpec,
    Declaration,
    LeafDeclaration,
    Nothing,
    OptionalSpec,
    Scalars,
    ScalarSpec,
    Tensors,
    TensorSpec,
    caller,
    choices,
    declarations_of,
    is_reloaded,
    keep_declarations,
    located,
)
from .dims import (
    about,
    did_you_mean,
    is_loose,
    name_of,
    parse,
    read_bounds,
    read_ranks,
    shared_lengths,
    shared_name,
)
from .expand import check_together


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


def _keep(entry: Entry, lowered: Lowered, new: Declaration) -> None:
    kept = [old for old in declarations_of(entry) if not is_reloaded(old, new)]
    if new not in kept:
        kept.append(new)
    asked_backward(kept)
    check_together(lowered, kept)
    keep_declarations(entry, kept)


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
    # Words of `declare` may be the op's parameters, too; dims may still be a table of bounds.
    if "dims" in reader.nodes and not isinstance(dims, (Mapping, type(None))):
        specs["dims"], dims = dims, None
    if "returns" in reader.nodes and returns is not None:
        specs["returns"], returns = returns, None
    if "backward" in reader.nodes and backward is not None:
        specs["backward"], backward = backward, None
    if backward is not None and not isinstance(backward, bool):
        raise WrongArgument(
            "backward= says whether the library has the op's backward",
            found=repr(backward),
            fix="backward=True, backward=False, or leave it out",
        )
    reader.take(specs)
    for parameter in parameters:
        reader.read(parameter.node, parameter.default)
    reader.refuse_missing()
    leaves = reader.leaves
    tensors = {n: d for n, d in leaves.items() if isinstance(d, Tensors)}
    lengths = shared_lengths((reader.nodes[n].path, d.parts, d.ranks) for n, d in tensors.items())
    numbers = [n for n, d in leaves.items() if isinstance(d, Scalars) and d.dtype[0] in "iu"]
    sizes = _sizes(reader, tensors, lengths)
    if isinstance(dims, Mapping):
        dims = _by_schema(dims, {n: c for n, c in renamed.items() if n not in sizes})
    fixed, bounds = read_bounds({} if dims is None else dims, sizes, numbers)
    _refuse_unused(reader.variables, tensors)
    outputs = read_returns(lowered, returns, reader.variables, list(lengths))
    return Declaration(
        leaves=tuple((name, leaves.get(name, Nothing())) for name in reader.flat_names()),
        types=tuple(reader.variables.items()),
        lengths=tuple(lengths.items()),
        fixed=tuple(fixed.items()),
        bounds=tuple(bounds.values()),
        returns=outputs,
        backward=backward,
    )


def _by_schema(given: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """With the names of `schema=`, which C has too, where the function's were given."""
    own: dict[str, Any] = {}
    for name, value in given.items():
        _set_once(own, renamed.get(name, name), value)
    return own


def _set_once(table: dict[str, Any], name: str, value: Any, path: str = "") -> None:
    if name in table:
        raise WrongArgument(
            "declared twice in one call",
            parameter=path or name,
            found=f"{table[name]!r} and {value!r}",
            fix="keep one of them",
        )
    table[name] = value


def _sizes(reader: _Reader, tensors: Mapping[str, Tensors], shared: Mapping[str, Any]) -> list[str]:
    """Refuse a size name that means two things."""
    named = [(name, part) for name, leaf in tensors.items() for part in leaf.parts if name_of(part)]
    for name, part in named:
        is_shared = part in shared
        if is_shared or isinstance(reader.leaves.get(name_of(part)), Scalars):
            other = f"*{part}" if is_shared else "a scalar parameter"
            raise BadDeclaration(
                f"{name_of(part)!r} names a size here and is also {other}",
                parameter=reader.nodes[name].path,
                fix="give the size another name",
            )
    return list(dict.fromkeys(name_of(part) for _, part in named))


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

    def flat_names(self) -> Iterator[str]:
        """Of all leaves, and of the flags of optional records."""
        for node in self.nodes.values():
            if isinstance(node, Leaf):
                yield node.name
            elif node.optional:
                yield lowered_name(node.present_path)

    def take(self, specs: Mapping[str, Any]) -> None:
        """Sort what was given into type variables and parameters."""
        for name, value in specs.items():
            node = self.nodes.get(name)
            if node is not None:
                self._assign(node, value)
            elif is_variable(name) and not isinstance(value, SPECS):
                self.variables[name] = read_dtypes(value)[1]
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
        _set_once(self.given, name, value, node.path)

    def _unknown(self, name: str, known: list[str], record: Record | None = None) -> OpforgeError:
        what = "parameter" if record is None else "field"
        hint = did_you_mean(name.rpartition(".")[2], known)
        fix = f"{hint}it has {', '.join(known) or 'none'}"
        return WrongArgument(f"the op has no {what} {name!r}", fix=fix)

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
        else:
            self.missing.append(node)

    def _read_fields(self, node: Record, default: Any) -> None:
        for item in node.fields:
            self.read(item.node, _part(node, item.name, default, item.default))

    def _read_leaf(self, leaf: Leaf, default: Any) -> None:
        with about(leaf.path):
            if leaf.name in self.given:
                self.leaves[leaf.name] = fit(leaf, self.given[leaf.name], self.variables)
            elif default is not MISSING:
                self.leaves[leaf.name] = choices([as_seen(leaf, default)])
            elif leaf.is_tensor and leaf.container:
                raise no_list(leaf)
            else:
                self.missing.append(leaf)

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


# `returns=`: what is said of an op's outputs.

_EXAMPLE = "native.tensor('m n', dtype='fp16', layout='strided')"


def read_returns(
    lowered: Lowered, given: Any, variables: Mapping[str, tuple[str, ...]], shared: Sequence[str]
) -> tuple[Tensors | None, ...]:
    """One entry per output, None where nothing is said; empty if nothing is said of any.

    `shared` are the `*s` of the parameters.
    """
    if given is None:
        return ()
    # Under the names that the user writes here.
    several = len(lowered.returns) > 1
    leaves = [
        replace(leaf, path=f"returns[{i}]" if several else "returns")
        for i, leaf in enumerate(lowered.returns)
    ]
    listed = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(listed) != len(leaves):
        each = ", ".join([_EXAMPLE, *["None"] * (len(leaves) - 1)])
        fix = f"returns={_EXAMPLE}" if leaves else "leave returns= out"
        if several:
            fix = f"returns=({each}), with None for an output that is as the body makes it"
        has = counted(len(leaves), "output")
        what = f"returns= describes {len(listed)}, and the op has {has}"
        raise WrongArgument(what, found=repr(given), fix=fix)
    outputs = []
    for leaf, spec in zip(leaves, listed, strict=True):
        with about(leaf.path):
            outputs.append(None if spec is None else _output(leaf, spec, variables, shared))
    return tuple(outputs)


def _output(
    leaf: Leaf, spec: Any, variables: Mapping[str, tuple[str, ...]], shared: Sequence[str]
) -> Tensors:
    if not isinstance(spec, TensorSpec):
        raise _bad_spec(leaf, spec, "an output is declared with native.tensor", _EXAMPLE)
    # First what an output cannot have: `fit` would advise it as for a parameter.
    for part in filter(is_loose, parse(spec.dims)):
        what = fix = ""
        if part == "...":
            what = 'an output cannot have "...", which is one parameter\'s own'
            fix = 'write "*s" there and here; '
            fix += "a name that no parameter has stands for a size that the body computes"
        elif name_of(part) not in shared:
            what = f"no parameter has {part}"
            fix = "use the *s of a parameter, or name the sizes"
        if what:
            raise BadDeclaration(what, found=repr(spec), fix=fix)
    decided = spec.ranks is not None or spec.broadcast
    declared = None if decided else fit(leaf, spec, variables)
    if not isinstance(declared, Tensors) or (declared.dtypes[1:] and not declared.variable):
        what = "the parameters decide the dtype, the ranks and the broadcast shape of an output"
        fix = "one dtype or a type variable, and neither ranks= nor broadcast="
        raise _bad_spec(leaf, spec, what, fix)
    return declared


# What was declared for a parameter, checked against the parameter's type.


_INTS = tuple(d.name for d in DTYPES.values() if d.code in {0, 1})
_FLOATS = ("fp16", "bf16", "fp32", "fp64")


class _Base(NamedTuple):
    """What a leaf's schema type takes: Python's types, and dtypes as a scalar of C."""

    word: str
    types: tuple[type[Any], ...]
    scalars: tuple[str, ...] = ()
    example: str = "a value, which fixes it"


_INT = _Base("int", (int,), _INTS, "native.scalar('i64')")
_NUMBER = _Base("number", (int, float), (*_FLOATS, *_INTS), "native.scalar('fp32')")
_TEXTS = "native.choice('one', 'other'), since C gets a number per value"
_DTYPES = "native.choice(torch.float16, torch.float32)"
# By schema type, as annotations and torch's parser name it.
_BASES = {
    "SymInt": _INT,
    "int": _INT,
    "float": _Base("float", (float, int), _FLOATS, "native.scalar('fp32')"),
    "Scalar": _NUMBER,
    "number": _NUMBER,
    "bool": _Base("bool", (bool,), (), "native.scalar('bool')"),
    "str": _Base("str", (str,), (), _TEXTS),
    "ScalarType": _Base("torch.dtype", (torch.dtype,), (), _DTYPES),
    "Device": _Base("torch.device", (torch.device, str)),
    "Layout": _Base("Layout", (torch.layout,)),
    "MemoryFormat": _Base("MemoryFormat", (torch.memory_format,)),
}


def _base(leaf: Leaf) -> _Base:
    return _BASES.get(leaf.base, _Base(leaf.base, ()))


def fit(leaf: Leaf, given: Any, variables: Mapping[str, tuple[str, ...]]) -> LeafDeclaration:
    """What a spec, or a plain value that fixes the leaf, means for it."""
    if isinstance(given, (TensorSpec, OptionalSpec)):
        return _tensors(leaf, given, variables)
    if leaf.is_tensor and leaf.container and given is not None:
        raise no_list(leaf, repr(given))
    if isinstance(given, ScalarSpec):
        return _scalars(leaf, given)
    if isinstance(given, ChoiceSpec):
        return _choices(leaf, given)
    if leaf.is_tensor and given is not None:
        raise _bad_spec(leaf, given, "a tensor parameter is declared with native.tensor")
    return choices([check_value(leaf, given)])


def _bad_spec(leaf: Leaf, given: Any, what: str, fix: str | None = None) -> WrongArgument:
    return WrongArgument(what, found=repr(given), fix=fix or example(leaf))


def _tensors(
    leaf: Leaf, given: TensorSpec | OptionalSpec, variables: Mapping[str, tuple[str, ...]]
) -> Tensors:
    optional = isinstance(given, OptionalSpec)
    spec = given.inner if isinstance(given, OptionalSpec) else given
    if not isinstance(spec, TensorSpec):
        fix = "native.optional(native.tensor(...)); for other values native.choice(None, ...)"
        raise _bad_spec(leaf, given, "native.optional takes a tensor", fix)
    if not leaf.is_tensor:
        raise _bad_spec(leaf, given, f"a tensor is declared for a parameter of type {word(leaf)}")
    if leaf.container:
        raise no_list(leaf, repr(given))
    if optional and not leaf.optional:
        fix = f"{leaf.path}: Tensor | None in the op, or {spec!r} without native.optional"
        what = "declared as optional, but the op's annotation has no None"
        raise _bad_spec(leaf, given, what, fix)
    if spec.layout not in {"contiguous", "strided"}:
        raise WrongArgument(
            f"layout {spec.layout!r} is unknown",
            fix="layout='contiguous' (compact, the default) or layout='strided' (any strides)",
        )
    parts = parse(spec.dims)
    variable, dtypes = read_dtypes(spec.dtype, variables)
    ranks = read_ranks(parts, spec.ranks)
    strided = spec.layout == "strided"
    if spec.broadcast and not (strided and len(parts) == 1 and shared_name(parts)):
        what = 'only a strided tensor with dims "*s" can be broadcast'
        fix = 'native.tensor("*s", ..., layout="strided", broadcast=True)'
        raise _bad_spec(leaf, spec, what, fix)
    return Tensors(parts, dtypes, variable, strided, ranks, optional, bool(spec.broadcast))


def no_list(leaf: Leaf, found: str | None = None) -> BadSignature:
    return BadSignature(
        f"a {leaf.container} of tensors has no place in a C function",
        found=found,
        fix="list the tensors one by one in the op's signature, or in a dataclass or a tuple of "
        "fixed length; a parameter with a default can be left out and is fixed at the default",
    )


def read_dtypes(
    given: Any, variables: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[str, tuple[str, ...]]:
    """`"T"` -> ("T", its types), `("fp16", "float32")` -> ("", ("fp16", "fp32"))."""
    if isinstance(given, str) and is_variable(given):
        if variables is None or given not in variables:
            raise BadDeclaration(
                f"type variable {given!r} has no types",
                fix=f'give declare {given}=("fp16", "bf16") beside the parameters; a letter that '
                "names a parameter of the op cannot be a type variable",
            )
        return given, variables[given]
    listed = given if isinstance(given, (list, tuple)) else (given,)
    if not listed or None in listed:
        raise BadDeclaration("no dtype is given", fix=_DTYPE_FIX)
    return "", tuple(dict.fromkeys(_dtype(g) for g in listed))


def is_variable(name: str) -> bool:
    return len(name) == 1 and name.isalpha()


# i1 is another name for bool.
_THE_DTYPES = f"the dtypes are {', '.join(name for name in DTYPES if name != 'i1')} and bool"
_DTYPE_FIX = f"a name such as dtype='fp16', or several; {_THE_DTYPES}"


def _dtype(given: Any) -> str:
    known = named(given) if isinstance(given, str) else None
    # torch also has aliases, such as "half" and "double".
    torchs = given if isinstance(given, torch.dtype) else getattr(torch, str(given), None)
    if known is None and isinstance(torchs, torch.dtype):
        name = str(torchs).removeprefix("torch.")
        known = named(name)
        if known is None:
            raise BadDeclaration(
                f"{name!r} is a torch dtype that Triton cannot store",
                fix=_THE_DTYPES
                + ("; pass a complex tensor as its real view" if torchs.is_complex else ""),
            )
    if known is not None:
        return known.name
    hint = did_you_mean(str(given), [*DTYPES, "bool"])
    what = f"{given!r} is not an element type"
    raise BadDeclaration(what, fix=f"{hint}{_THE_DTYPES}")


def _scalars(leaf: Leaf, spec: ScalarSpec) -> LeafDeclaration:
    # A string, an enum or a dtype has no C scalar, and a bool is a choice of two.
    base = "" if leaf.container or leaf.codec is not None else leaf.base
    if base == "bool" and (spec.type is None or _dtype(spec.type) == "i1"):
        return choices([False, True], asked=True)
    allowed = _base(leaf).scalars
    if not base or not allowed:
        raise _bad_spec(leaf, spec, f"a scalar is declared for a parameter of type {word(leaf)}")
    if spec.type is None:
        return Scalars("i64" if allowed == _INTS else "fp32")
    dtype = _dtype(spec.type)
    if dtype not in allowed:
        what = f"type {dtype} is declared for a parameter of type {word(leaf)}"
        raise _bad_spec(leaf, spec, what, f"native.scalar of {one_of(allowed)}")
    return Scalars(dtype)


def _choices(leaf: Leaf, spec: ChoiceSpec) -> Choices:
    if leaf.is_tensor:
        raise _bad_spec(leaf, spec, "native.choice is not for tensors")
    if not spec.values:
        raise WrongArgument("native.choice has no values", fix=example(leaf))
    return choices([check_value(leaf, v) for v in spec.values], asked=True)


def check_value(leaf: Leaf, value: Any) -> Any:
    """A value as the body sees it: an enum's member for its value, a float for an int."""
    if value is None:
        if leaf.optional:
            return None
        raise _wrong_value(leaf, value)
    if not leaf.container:
        return _check_one(leaf, value)
    if not isinstance(value, (list, tuple)):
        raise _wrong_value(leaf, value)
    return tuple(
        None if v is None and leaf.element_optional else _check_one(leaf, v) for v in value
    )


def as_seen(leaf: Leaf, default: Any) -> Any:
    """A default as the body sees it; it was validated at decoration."""
    if default is None or (leaf.codec is None and not leaf.container):
        return default
    listed = default if leaf.container else [default]
    seen = [v if v is None or leaf.codec is None else _check_member(leaf, v) for v in listed]
    return tuple(seen) if leaf.container else seen[0]


def _check_one(leaf: Leaf, value: Any) -> Any:
    if isinstance(value, SPECS):
        raise WrongArgument("found a spec where a value is expected", found=repr(value))
    text = value.value if isinstance(value, Enum) else value
    # C ends a text at NUL, and would take another text for it; a lone surrogate is in no UTF-8.
    if isinstance(text, str) and ("\0" in text or any("\ud800" <= c <= "\udfff" for c in text)):
        what = "a text with a NUL character or a lone surrogate cannot be a value in C"
        fix = "leave the value out, or give it another text in the op"
        raise WrongArgument(what, found=repr(value), fix=fix)
    if leaf.codec is not None:
        return _check_member(leaf, value)
    kinds = _base(leaf).types
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _wrong_value(leaf, value)
    if leaf.base == "Device":
        return torch.device(value)
    if leaf.base == "float":
        return float(value)
    if isinstance(value, int) and not fits_int64(value):
        raise _wrong_value(leaf, value)
    return value


def _check_member(leaf: Leaf, value: Any) -> Any:
    codec = leaf.codec
    assert codec is not None
    by_value = codec.cls is not None and not isinstance(value, codec.cls)
    for known in codec.values:
        meant = known.value if by_value else known
        if type(meant) is type(value) and meant == value:
            return known
    raise BadOption(
        f"{spell(value)} is not one of the parameter's values",
        fix=f"one of {', '.join(map(spell, codec.values))}",
    )


def _wrong_value(leaf: Leaf, value: Any) -> WrongArgument:
    fix = example(leaf)
    if value is None:
        fix = f"annotate it as {word(leaf)} | None in the op, or {fix}"
    return WrongArgument(
        f"{value!r} is not a {word(leaf)}", found=f"a value of type {type(value).__name__}", fix=fix
    )


def word(leaf: Leaf) -> str:
    """A leaf's type as its annotation has it."""
    base = _base(leaf).word
    if leaf.codec is not None:
        values = ", ".join(map(repr, leaf.codec.values))
        base = f"Literal[{values}]" if leaf.codec.cls is None else leaf.codec.cls.__name__
    return f"{leaf.container}[{base}]" if leaf.container else base


def example(leaf: Leaf) -> str:
    """How a leaf of this type is declared."""
    name = leaf.name
    if leaf.is_tensor:
        wrapped = "native.tensor('m n', dtype='fp16')"
        return f"{name}={f'native.optional({wrapped})' if leaf.optional else wrapped}"
    if leaf.codec is not None:
        return f"{name}=native.choice({', '.join(map(spell, leaf.codec.values))})"
    if leaf.container:
        return f"{name}=native.choice(({'0.5, 2.0' if leaf.base == 'float' else '1, 2'}))"
    return f"{name}={_base(leaf).example}"
