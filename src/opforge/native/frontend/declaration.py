"""What a user writes about a parameter, what it means after validation, and what is kept of it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import CodeType
from typing import Any

from ...errors import OpforgeError
from ...registry import Entry, Event, registry, running_pass
from ..ir.cases import Bound
from ..ir.wording import spell
from .dims import Part, shared_name


@dataclass(frozen=True, repr=False)
class TensorSpec:
    """`native.tensor(...)`, as written."""

    dims: Any
    dtype: Any
    layout: Any = "contiguous"
    ranks: Any = None
    broadcast: Any = False

    def __repr__(self) -> str:
        held = [(f.name, getattr(self, f.name), f.default) for f in fields(self)[1:]]
        more = "".join(f", {name}={value!r}" for name, value, usual in held if value is not usual)
        return f"native.tensor({self.dims!r}{more})"


@dataclass(frozen=True, repr=False)
class ScalarSpec:
    """`native.scalar(...)`, as written."""

    type: Any

    def __repr__(self) -> str:
        return f"native.scalar({'' if self.type is None else repr(self.type)})"


@dataclass(frozen=True, repr=False)
class ChoiceSpec:
    """`native.choice(...)`, as written."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"native.choice({', '.join(map(repr, self.values))})"


@dataclass(frozen=True, repr=False)
class OptionalSpec:
    """`native.optional(...)`, as written."""

    inner: Any

    def __repr__(self) -> str:
        return f"native.optional({self.inner!r})"


SPECS = (TensorSpec, ScalarSpec, ChoiceSpec, OptionalSpec)


def tensor(
    dims: str,
    dtype: Any = None,
    *,
    layout: str = "contiguous",
    ranks: Any = None,
    broadcast: bool = False,
) -> TensorSpec:
    """A tensor parameter: its sizes, its element types and its layout.

        native.tensor("m k", dtype=("fp16", "bf16"), layout="strided")
        native.tensor("... hidden", dtype="T", ranks=(2, 3))

    Equal names are equal sizes and integers are fixed ones. `...` stands for any sizes and `*s` for
    sizes that several parameters share; `ranks` then lists how many dimensions the tensor may have
    in all. A single letter as dtype is a type variable, given to `declare` as a keyword. With
    `broadcast`, callers may pass fewer dimensions of `*s`, or sizes of 1, as in torch.
    """
    return TensorSpec(dims, dtype, layout, ranks, broadcast)


def scalar(type: str | None = None) -> ScalarSpec:  # noqa: A002  # reads well where it is called
    """A number that C passes by value: `native.scalar("fp32")`, `native.scalar("i64")`.

    The default type is fp32 for a float and i64 for an int. A bool has two values, so
    `native.scalar("bool")` is `native.choice(False, True)`.
    """
    return ScalarSpec(type)


def choice(*values: Any) -> ChoiceSpec:
    """One of a few values, each built on its own: `native.choice("relu", "silu", None)`."""
    return ChoiceSpec(values)


def optional(spec: TensorSpec) -> OptionalSpec:
    """A tensor or None, NULL in C: `native.optional(native.tensor("hidden", dtype="T"))`."""
    return OptionalSpec(spec)


@dataclass(frozen=True)
class Tensors:
    """Tensors of these dtypes, or of the type variable's; `ranks` is empty where `*s` sets them."""

    parts: tuple[Part, ...]
    dtypes: tuple[str, ...]
    variable: str = ""
    strided: bool = False
    ranks: tuple[int, ...] = ()
    optional: bool = False
    broadcast: bool = False

    @property
    def shared(self) -> str:
        """The name of its `*s`, or empty."""
        return shared_name(self.parts)


@dataclass(frozen=True)
class Scalars:
    """Any number of a type."""

    dtype: str


@dataclass(frozen=True)
class Choices:
    """A list of values; `asked` if the user listed them, in which case C has a parameter.

    Compared by spelling, because 1, 1.0 and True are equal in Python.
    """

    values: tuple[Any, ...] = field(compare=False)
    asked: bool = False
    written: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nothing:
    """A leaf below a record that is None, which no case has."""


LeafDeclaration = Tensors | Scalars | Choices | Nothing


def choices(values: Iterable[Any], *, asked: bool = False) -> Choices:
    distinct = {spell(value): value for value in values}
    return Choices(tuple(distinct.values()), asked, tuple(distinct))


@dataclass(frozen=True)
class Declaration:
    """One `declare` call. Calls that declare the same are equal, wherever they are.

    `running` is the code object of the module that made the call during its import; it
    distinguishes an import from a later reload.
    """

    # By the leaf's flat name, in the order of the signature.
    leaves: tuple[tuple[str, LeafDeclaration], ...]
    # `types` by type variable; `lengths` by `*s`, how many dimensions it may stand for.
    types: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lengths: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    # By output, where `returns` was given.
    returns: tuple[Tensors | None, ...] = ()
    # Whether the library must have the op's backward, or must not; None if it may.
    backward: bool | None = None
    location: str = field(default="", compare=False)
    file: str = field(default="", compare=False)
    running: CodeType | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Alternatives:
    """One `implementations` call: the ops in the order in which they are tried."""

    entries: tuple[Entry, ...]
    location: str = field(default="", compare=False)
    file: str = field(default="", compare=False)
    running: CodeType | None = field(default=None, compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)


_declarations: dict[Entry, tuple[Declaration, ...]] = {}
_alternatives: dict[Entry, Alternatives] = {}


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


def is_reloaded(old: Declaration | Alternatives, new: Declaration | Alternatives) -> bool:
    """Whether `new` replaces `old` because its file was reloaded."""
    return (
        old.file == new.file
        and None not in (old.running, new.running)
        and old.running is not new.running
    )


def declarations_of(entry: Entry) -> tuple[Declaration, ...]:
    return _declarations.get(entry, ())


def keep_declarations(entry: Entry, declarations: Iterable[Declaration]) -> None:
    """Replace what was declared of an op."""
    _declarations[entry] = tuple(declarations)


def alternatives_of(entry: Entry) -> Alternatives | None:
    return _alternatives.get(entry)


def keep_alternatives(entry: Entry, alternatives: Alternatives) -> None:
    _alternatives[entry] = alternatives


def _drop(event: Event, entry: Entry) -> None:
    if event == "removed":
        _declarations.pop(entry, None)
        _alternatives.pop(entry, None)


registry.watchers.append(_drop)
