"""What one leaf of a signature accepts, and whole declarations, after validation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..ir.cases import Bound
from ..ir.wording import spell
from .dims import Part, shared_name


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
