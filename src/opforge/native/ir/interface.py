"""What callers see of an operator of a native library: parameters, outputs, and torch's schema.

A module of its own, because loading a library needs this and nothing of how it is built: a record
takes half a millisecond to define.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...records import BadField, Codecs, JsonCodec, shown
from .places import Place

if TYPE_CHECKING:
    from .cases import Case


@dataclass(frozen=True)
class TensorParam:
    """A tensor of the C function; `written` ones are not const, `optional` ones may be NULL.

    Tensors of one `group`, numbered from 1, have one shape; `broadcast` ones are expanded to it.
    """

    kind: ClassVar = "tensor"
    name: str
    written: bool = False
    optional: bool = False
    doc: str = ""
    broadcast: bool = False
    group: int = 0


@dataclass(frozen=True)
class ScalarParam:
    """A number passed by value; `dtype` is Triton's name for it: fp32, i64, u8, ..."""

    kind: ClassVar = "scalar"
    name: str
    dtype: str
    doc: str = ""


@dataclass(frozen=True)
class ChoiceParam:
    """One of a few values, a generated enum in C: `labels` end C identifiers.

    activation: native.choice("relu", None) -> labels ("RELU", "NONE"), values ("'relu'", "None")

    `enum` names the Python Enum whose members the values are, all of them and in its order, so that
    all parameters of that type share one enum; None may follow them.
    """

    kind: ClassVar = "choice"
    name: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    doc: str = ""
    enum: str = ""


Param = TensorParam | ScalarParam | ChoiceParam


# A number, text, None, a torch.dtype as ("dtype", "float16"), or several as ("list", a, b).
Flat = int | float | str | tuple["Flat", ...] | None


@dataclass(frozen=True)
class SchemaArgument:
    """An argument of the torch operator, and what the library makes of it.

    If C has it as a parameter, the two share the name; for a choice, `values` are what the schema
    carries for each of its values. If C does not have it, it is `fixed`, and `values` holds the
    one value that the library was built for. `default` is empty if the schema has none.
    """

    name: str
    type: str
    values: tuple[Flat, ...] = ()
    fixed: bool = False
    keyword_only: bool = False
    default: tuple[Flat, ...] = ()


@dataclass(frozen=True)
class Implementation:
    """An op that implements an operator, alone or as one of several."""

    name: str
    torch_name: str
    location: Place
    doc: str = ""
    source_hash: str = ""
    schema: str = ""
    # By tensor: its declaration, if known.
    takes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Op:
    """An operator of the library: `NAME_silu(x, out, stream)`.

    Its cases are in the order of its implementations, and the first that takes a call is chosen.
    """

    name: str
    torch_name: str
    location: Place
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...] = ()
    doc: str = ""
    # Of the host function and everything it calls; `load` compares it with the source it finds.
    source_hash: str = ""
    # The whole schema; empty if it is not a torch operator.
    schema: str = ""
    arguments: tuple[SchemaArgument, ...] = ()
    returns: tuple[str, ...] = ()
    # The class of a NamedTuple or dataclass that the function returns, and its fields.
    result: tuple[str, ...] = ()
    # One term per argument, as `formula` reads them; empty if the library has no backward.
    formula: tuple[Flat, ...] = ()
    # Empty if the op is its only implementation.
    implementations: tuple[Implementation, ...] = ()

    @property
    def served_by(self) -> tuple[Implementation, ...]:
        """Its implementations, in the order in which they are tried; never empty."""
        own = (self.name, self.torch_name, self.location, self.doc, self.source_hash, self.schema)
        return self.implementations or (Implementation(*own),)


# How an operator stands in the manifest, apart from its cases.


def _write_flat(value: Flat) -> Any:
    """`("dtype", "float16")` -> `["dtype", "float16"]`, nan -> `["float", "nan"]`."""
    if isinstance(value, tuple):
        return [_write_flat(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ["float", str(value)]
    return value


def _read_flat(content: Any) -> Flat:
    if not isinstance(content, list):
        flat: Flat = content
        return flat
    try:
        kind, *rest = content
        return float(rest[0]) if kind == "float" else (kind, *map(_read_flat, rest))
    except (LookupError, TypeError, ValueError):
        raise BadField(f"is {shown(content)}, expected a value or a list") from None


# Docs of parameters, and what was declared of them, are in the header only.
OP = Codecs(
    {
        Op: "name torch_name schema arguments returns result? formula location source_hash doc "
        "params outputs implementations",
        SchemaArgument: "name type values fixed keyword_only default",
        TensorParam: "name kind written optional broadcast? group?",
        ScalarParam: "name kind dtype",
        ChoiceParam: "name kind labels values",
        Implementation: "name torch_name schema location source_hash doc",
    },
    {Flat: JsonCodec(_write_flat, _read_flat)},
).of(Op)
