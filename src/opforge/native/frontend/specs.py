"""What a user writes about one parameter; `declare` checks it against the op."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


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
