"""The cases of an operator: what a call may be, the paths through the body, and their steps.

silu, x: "..." of rank 1 and 2, fp16 and fp32:  4 cases, by dtype and rank
each case                                       paths, by guards on sizes: numel == 0, the rest
each path                                       outputs, steps: allocate, fill, launch
each launch                                     variants, by alignment, divisibility, width
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...records import Codecs, JsonCodec, field
from .expr import Expr, Term, from_json, text, to_json
from .places import Place

# Instead of a type: the value is 1 and compiled in.
ONE = "1"


@dataclass(frozen=True)
class TensorCase:
    """What one case accepts for a tensor parameter; `present` is False for an optional's NULL.

    `shape` has a Var per symbolic size and an int per fixed one. `strides` has a Var per symbolic
    stride and is None for a compact tensor (NULL strides, or the ones that sizes imply).
    """

    param: str
    present: bool = True
    dtype: str = ""
    shape: tuple[Term, ...] = ()
    strides: tuple[Term, ...] | None = None


@dataclass(frozen=True)
class Bound:
    """A declared range of a variable, both ends included; None is open."""

    var: str
    low: int = 0
    high: int | None = None
    # Where not empty: the only values that were declared.
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Guard:
    """A condition under which a path was traced, and the host code that asked for it."""

    condition: Term
    location: Place = ""


@dataclass(frozen=True)
class Output:
    """An output the caller allocates, with the strides that the body gives it.

    Where it is `strided`, those are only what `NAME_OP_outputs` says; callers may have others.
    """

    dtype: str
    shape: tuple[Term, ...]
    strides: tuple[Term, ...]
    strided: bool = False


@dataclass(frozen=True)
class Allocate:
    """Workspace of a path, freed on the stream after its last step."""

    buffer: str
    bytes: Term


@dataclass(frozen=True)
class Fill:
    """Set `count` elements of `width` bytes to `pattern` (their bits as an unsigned number)."""

    buffer: str
    offset: Term
    count: Term
    width: int
    pattern: int


@dataclass(frozen=True)
class Pointer:
    """A kernel's pointer: the buffer's address plus `offset` bytes.

    `buffer` is a tensor parameter, an output ("out", "out0", ...) or an `Allocate`'s name.
    """

    name: str
    buffer: str
    offset: Term
    dtype: str


@dataclass(frozen=True)
class Descriptor(Pointer):
    """A tensor descriptor: the address of its tensor, whose sizes and strides follow.

    Its `2 * rank` numbers are the next arguments of the launch. Elements outside of the tensor are
    read as NaN or as 0.
    """

    rank: int
    is_nan: bool = False
    is_tf32: bool = False


@dataclass(frozen=True)
class ScalarValue:
    """A kernel's run-time number; a variant says as which type it is passed."""

    name: str
    value: Term


Argument = Pointer | Descriptor | ScalarValue


@dataclass(frozen=True)
class Variant:
    """One compiled form of a launch's kernel, and what must hold for it.

    `types` are Triton's, one per argument: "*fp16", "i32", "i64", "fp32", "u1". `aligned` lists
    the arguments whose addresses, `divisible` those whose values, must be multiples of 16; a value
    passed as i32 must fit into it. A value whose type is ONE must be 1 and is not passed: the
    kernel has it as a constant. Of a launch's variants the first that holds is taken.
    """

    kernel: str
    types: tuple[str, ...]
    aligned: tuple[int, ...] = ()
    divisible: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """A kernel launch; no dimension of the grid is launched with zero programs."""

    kernel_name: str
    kernel_location: Place
    grid: tuple[Term, Term, Term]
    arguments: tuple[Argument, ...]
    variants: tuple[Variant, ...]
    # The constexprs as Python spells them, for comments and messages.
    constants: tuple[tuple[str, str], ...] = ()
    location: Place = ""


Step = Allocate | Fill | Launch


@dataclass(frozen=True)
class Path:
    """One way through the body; `refused` says why it was not built, and then it has no steps.

    `outputs` has one entry per output of the op, None where this path returns None. An output's
    buffer is named as in `Op.outputs`.
    """

    guards: tuple[Guard, ...]
    outputs: tuple[Output | None, ...] = ()
    steps: tuple[Step, ...] = ()
    refused: str = ""
    # The line that raises, where the body itself refuses such inputs.
    refused_at: Place = ""

    @property
    def why(self) -> str:
        """Why it was not built, with the line: `the body raises ValueError: odd (ops.py:7)`."""
        return f"{self.refused} ({self.refused_at})" if self.refused_at else self.refused


@dataclass(frozen=True)
class Case:
    """What is fixed before any size is known: dtypes, ranks, choices, present optionals."""

    tensors: tuple[TensorCase, ...]
    # By parameter name, the index of the chosen value.
    choices: tuple[tuple[str, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    paths: tuple[Path, ...] = ()
    # The index of the implementation that it belongs to.
    implementation: int = 0
    # The outputs that were declared. The strides of one are variables of the case; its sizes are
    # those of the inputs, or names for what the body computes.
    returns: tuple[TensorCase, ...] = ()


def chosen(cases: Iterable[Case], name: str) -> set[int]:
    """The indices of a choice's values that some case has; an Enum has members that none has."""
    return {index for case in cases for choice, index in case.choices if choice == name}


# How the cases of an operator stand in the manifest.


def _write_term(term: Term) -> Any:
    """Twice: `{"text": "(n + 127) // 128", "term": ["//", ["+", "n", 127], 128]}`."""
    if isinstance(term, Expr):
        return {"text": text(term), "term": to_json(term)}
    return to_json(term)


def _read_term(content: Any) -> Term:
    return from_json(field(content, "term", Any) if isinstance(content, dict) else content)


CASE = Codecs(
    {
        Case: "implementation tensors returns? choices bounds paths",
        TensorCase: "param dtype shape strides | param present",
        Bound: "var low high values",
        Path: "guards outputs steps | guards refused refused_at?",
        Guard: "condition location",
        Output: "dtype shape strides strided?",
        Allocate: "allocate=buffer bytes",
        Fill: "fill=buffer offset count width pattern",
        Launch: "launch=kernel_name kernel_location location grid constants arguments variants",
        Pointer: "name buffer offset dtype",
        Descriptor: "name buffer offset dtype rank is_nan is_tf32",
        ScalarValue: "name value",
        Variant: "kernel types aligned divisible",
    },
    {Term: JsonCodec(_write_term, _read_term)},
).of(Case)
