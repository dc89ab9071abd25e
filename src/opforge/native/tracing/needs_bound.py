"""The error for a number that must be a constant: which sizes need a bound, and which would do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import BadDeclaration
from ...registry import Entry
from ..ir.device_attributes import is_attribute
from ..ir.expr import variables
from ..symbolic.algebra import Algebra
from ..symbolic.symint import MANY, MOST_ON_A_PATH, NotConstant, TooManyBranches

HOLDS = (
    "a native library can hold launches and the torch calls that docs/how-to/native/torch-calls.md "
    "lists; move the rest into a kernel"
)
# The largest bound that is offered.
_USUAL = 8192
# TMA's, and what is offered for blocks.
_LARGEST_BLOCK = 256
_BLOCKS = [64, 128]


def needs_bound(error: NotConstant, entry: Entry, also: Sequence[str] = ()) -> BadDeclaration:
    """Names the sizes that lack a bound, not others in the same term; `also` is more to list."""
    names = list(dict.fromkeys(v.name for v in variables(error.term)))
    sizes = [name for name in names if not is_attribute(name)] or names
    lacking = [name for name in sizes if math.isinf(error.ranges[name][1])] or sizes
    floats = [v.name for v in variables(error.term) if v.is_float]
    strides = [name for name in lacking if ".stride[" in name]
    found = f"{'launched' if error.purpose else 'used'} at {error.location}"
    if isinstance(error, TooManyBranches):
        what, found, fix = _loop(error, lacking)
    elif error.bucket:
        what = f"next_power_of_2({error.term}) is unbounded, so {error.purpose or 'it'} would need "
        what += "infinitely many kernels"
        high = _LARGEST_BLOCK if error.purpose else _USUAL
        fix = f"bound {_joined(lacking)}: {_dims(lacking, (1, high))}"
    elif floats:
        what = f"{error.term} must be a constant, but it is a float that could have any value"
        fix = (
            f"declare its values: {floats[0]}=native.choice(0.5, 1.0), or remove what asks for a "
            "plain number: tl.constexpr in the kernel, float() or int() in the body"
        )
        lacking = []
    else:
        what = (
            f"{error.term} must be a constant, for "
            f"{error.purpose or 'a constexpr of a kernel or for Python'}, and each value would "
            "need its own kernels"
        )
        asked = [name for name in names if is_attribute(name)]
        fix = _of_gpu(asked) if asked else _of_sizes(error, lacking)
        lacking = [] if asked else lacking
    if strides:
        tensor = strides[0].partition(".")[0]
        fix = f"pass {strides[0]} to the kernel as a number, or declare {tensor} with "
        fix += "layout='contiguous'"
        lacking = []
    unnamed = [name for name in lacking if not _declared(name)]
    if unnamed:
        fix += f", and give {_joined(unnamed)} a name in the declared shape"
    fix = f"{error.instead}, or {fix}" if error.instead else fix
    if also:
        found = "\n    ".join([found, *also])
        fix += f"; {HOLDS}"
    return BadDeclaration(what, found=found, fix=fix, op=entry.name, location=entry.location)


def _of_sizes(error: NotConstant, names: Sequence[str]) -> str:
    if error.purpose:
        # Bounds do not help: of the sizes between them few are powers of two.
        fix = "give the block a constant size, such as that of a tl.constexpr, or declare the "
        return f"{fix}values of {_joined(names)}: {_dims(names, _BLOCKS)}"
    fix = f"declare the values of {_joined(names)}: {_dims(names, [1024, 4096])}"
    high = _enough(error, names)
    fix += f", or bound {'it' if len(names) == 1 else 'them'}" if high else ""
    return fix + (f": {_dims(names, (1, high))}" if high else "")


def _of_gpu(asked: Sequence[str]) -> str:
    """No list of sizes helps, because the GPU's number may be any."""
    fix = "remove tl.constexpr in the kernel, or put a number of your own in place of "
    return f"{fix}{_joined(asked)}, which differs from GPU to GPU"


def _loop(error: TooManyBranches, names: Sequence[str]) -> tuple[str, str, str]:
    """What, found and fix. The values of this path are too high as a bound, if only just."""
    highest = max(int(error.values.get(name, _USUAL)) for name in names)
    bound = (1, min(_USUAL, 1 << max(highest.bit_length() - 1, 1)))
    if any(math.isinf(error.ranges[name][1]) for name in names):
        has = "has" if len(names) == 1 else "have"
        what = f"a loop may go round any number of times, because {_joined(names)} {has} no upper "
        return (
            f"{what}bound",
            f"it branches again and again at {error.location}",
            f"bound {_joined(names)}: {_dims(names, bound)}",
        )
    return (
        f"a path has more than {MOST_ON_A_PATH} branches on sizes",
        f"the last at {error.location}",
        f"bound {_joined(names)} lower: {_dims(names, bound)}",
    )


def _enough(error: NotConstant, names: Sequence[str]) -> int:
    """The highest upper end at which the term has few enough values; 0 if none does."""
    high = _USUAL
    while high > 1:
        algebra = Algebra({**error.ranges, **dict.fromkeys(names, (1, high))})
        low, most = algebra.range(error.term)
        if most - low <= MANY:
            return high
        high //= 2
    return 0


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _declared(name: str) -> str:
    """`n` -> "n", `s[0]` of "*s" -> "s", and `x.shape[0]` of "..." has no name."""
    shown = name.partition("[")[0]
    return shown if shown.isidentifier() else ""


def _dims(names: Sequence[str], bound: tuple[int, int] | list[int]) -> str:
    """`dims={'n': (1, 8192)}`; a size without a name is called n, or m, ..."""
    free = iter("nmkhpqr")
    shown = dict.fromkeys(_declared(name) or next(free, "n") for name in names)
    return f"dims={{{', '.join(f'{name!r}: {bound}' for name in shown)}}}"
