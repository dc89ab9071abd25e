"""What a native library is made of, between tracing and C.

Tracing fills a `Path` for every way through an op's body; compiling gives each kernel variant its
images; everything that is written out (sources, header, manifest) is made from this alone, so
that the same program always gives the same files. Plain data: it can be pickled and printed.

    silu, x: "..." of rank 1 and 2, fp16 and fp32:  4 cases, by dtype and rank
    each case                                       paths, by guards on sizes: numel == 0, the rest
    each path                                       outputs, steps: allocate, fill, launch
    each launch                                     variants, by alignment, divisibility, width
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .expr import Term

# Shapes have at most this many dimensions; callers give `_outputs` arrays of this length.
MAX_RANK = 8
# In place of a type: the value is 1, and compiled in.
ONE = "1"


@dataclass(frozen=True)
class TensorParam:
    """A tensor of the C function; `written` ones are not const, `optional` ones may be NULL.

    Tensors of one `group`, from 1 on, have one shape, to which `broadcast` ones are brought.
    """

    name: str
    written: bool = False
    optional: bool = False
    doc: str = ""
    broadcast: bool = False
    group: int = 0


@dataclass(frozen=True)
class ScalarParam:
    """A number passed by value; `dtype` is Triton's name for it: fp32, i64, u8, ..."""

    name: str
    dtype: str
    doc: str = ""


@dataclass(frozen=True)
class ChoiceParam:
    """One of a few values, a generated enum in C: `labels` are C identifiers' ends.

    activation: native.choice("relu", None) -> labels ("RELU", "NONE"), values ("'relu'", "None")
    """

    name: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    doc: str = ""


Param = TensorParam | ScalarParam | ChoiceParam


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
    location: str = ""


@dataclass(frozen=True)
class Output:
    """An output the caller allocates, compact or with the strides given."""

    dtype: str
    shape: tuple[Term, ...]
    strides: tuple[Term, ...]


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
class Value:
    """A kernel's run-time number; a variant says in which type it is passed."""

    name: str
    value: Term


Argument = Pointer | Value


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
    kernel_location: str
    grid: tuple[Term, Term, Term]
    arguments: tuple[Argument, ...]
    variants: tuple[Variant, ...]
    # The constexprs, as Python wrote them, for comments and messages.
    constants: tuple[tuple[str, str], ...] = ()
    location: str = ""


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


@dataclass(frozen=True)
class Case:
    """What is settled before sizes are looked at: dtypes, ranks, choices, which optionals."""

    tensors: tuple[TensorCase, ...]
    # By parameter name, the index of the chosen value.
    choices: tuple[tuple[str, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    paths: tuple[Path, ...] = ()
    # By index, which of the operator's implementations it belongs to.
    implementation: int = 0


@dataclass(frozen=True)
class Implementation:
    """An op that implements an operator, alone or as one of several."""

    name: str
    torch_name: str
    location: str
    doc: str = ""
    source_hash: str = ""
    schema: str = ""
    # By tensor: what was declared of it, where that is known.
    takes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Op:
    """An operator of the library: `NAME_silu(x, out, stream)`.

    Its cases are in the order of its implementations, and the first that takes a call is chosen.
    """

    name: str
    torch_name: str
    location: str
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...]
    doc: str = ""
    # Of the host function and everything it calls; a loader compares it with its own source.
    source_hash: str = ""
    schema: str = ""
    # Empty where the op is its own only one.
    implementations: tuple[Implementation, ...] = ()

    @property
    def served_by(self) -> tuple[Implementation, ...]:
        """Its implementations, in the order in which they are tried; never empty."""
        own = (self.name, self.torch_name, self.location, self.doc, self.source_hash, self.schema)
        return self.implementations or (Implementation(*own),)


@dataclass(frozen=True)
class Image:
    """A kernel variant compiled for one architecture, and what a launch of it needs."""

    arch: int
    cubin: bytes
    function: str
    num_warps: int
    shared: int = 0
    ptx: str = ""
    global_scratch_size: int = 0
    global_scratch_align: int = 1
    profile_scratch_size: int = 0
    num_ctas: int = 1
    cooperative: bool = False
    registers: int = 0
    spills: int = 0
    # Programmatic dependent launch, Triton's `launch_pdl`.
    pdl: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel variant: `key` names it among the library's, and in `Variant.kernel`.

    `types` holds one entry per run-time parameter in order, as in the variants that use it;
    `images` holds one per architecture it is needed on.
    """

    key: str
    name: str
    location: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, str], ...]
    images: tuple[Image, ...] = ()
    # Which parameters are assumed to be multiples of 16, in order of `types`.
    divisible: tuple[int, ...] = ()
    # Module and qualified name, with which the tests' stand-in finds the Python function.
    qualified_name: str = ""
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Library:
    """All there is to write out."""

    name: str
    ops: tuple[Op, ...]
    kernels: tuple[Kernel, ...]
    archs: tuple[int, ...]
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
