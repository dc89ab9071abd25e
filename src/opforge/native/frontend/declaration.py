"""What may be passed for one leaf of a signature, once it is checked; and whole declarations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..ir.program import Bound
from ..ir.wording import one_of, spell
from .dims import Part

__all__ = [
    "Choices",
    "Declaration",
    "LeafDeclaration",
    "Nothing",
    "Scalars",
    "Tensors",
    "choices",
    "one_of",
    "spell",
]


@dataclass(frozen=True)
class Tensors:
    """Tensors of some dtypes, or of the type variable's; `ranks` is empty where `*s` decides."""

    parts: tuple[Part, ...]
    dtypes: tuple[str, ...]
    variable: str = ""
    strided: bool = False
    ranks: tuple[int, ...] = ()
    optional: bool = False
    broadcast: bool = False


@dataclass(frozen=True)
class Scalars:
    """Any number of a type."""

    dtype: str


@dataclass(frozen=True)
class Choices:
    """Some values; `asked` where the user listed them, and then C has a parameter for them.

    Compared by how the values are written, because Python holds 1, 1.0 and True for equal.
    """

    values: tuple[Any, ...] = field(compare=False)
    asked: bool = False
    written: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nothing:
    """A leaf below a record that is None, so that nobody asks for it."""


LeafDeclaration = Tensors | Scalars | Choices | Nothing


def choices(values: Iterable[Any], *, asked: bool = False) -> Choices:
    distinct = {spell(value): value for value in values}
    return Choices(tuple(distinct.values()), asked, tuple(distinct))


@dataclass(frozen=True)
class Declaration:
    """One `declare` call. Two that say the same are equal, wherever they stand.

    `running` is the code of the module that made the call while it was imported, and tells an
    import from the reload after it.
    """

    # By the leaf's flat name, in the order of the signature.
    leaves: tuple[tuple[str, LeafDeclaration], ...]
    # By type variable; by name of a `*s`, how many sizes it may stand for.
    types: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lengths: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    location: str = field(default="", compare=False)
    file: str = field(default="", compare=False)
    running: CodeType | None = field(default=None, compare=False, repr=False)
