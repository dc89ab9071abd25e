"""`returns=` of a declaration: what is said of an op's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import BadDeclaration, WrongArgument
from ...model import Leaf, Lowered
from ...notebook import counted
from .declaration import Tensors
from .dims import Part, Rest, Shared, parse
from .specs import TensorSpec
from .validate import fit

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
        raise WrongArgument(
            f"returns= describes {len(listed)}, and the op has {counted(len(leaves), 'output')}",
            found=repr(given),
            fix=_fix(leaves),
        )
    return tuple(
        None if spec is None else _output(leaf, spec, variables, shared, leaves)
        for leaf, spec in zip(leaves, listed, strict=True)
    )


def _fix(leaves: Sequence[Leaf]) -> str:
    if not leaves:
        return "leave returns= out"
    if len(leaves) == 1:
        return f"returns={_EXAMPLE}"
    rest = ", ".join(["None"] * (len(leaves) - 1))
    return f"returns=({_EXAMPLE}, {rest}), with None for an output that is as the body makes it"


def _output(
    leaf: Leaf,
    spec: Any,
    variables: Mapping[str, tuple[str, ...]],
    shared: Sequence[str],
    leaves: Sequence[Leaf],
) -> Tensors:
    if not isinstance(spec, TensorSpec):
        raise WrongArgument(
            "an output is declared with native.tensor",
            parameter=leaf.path,
            found=repr(spec),
            fix=_fix(leaves),
        )
    # First what an output cannot have: `fit` would advise it as for a parameter.
    _refuse_unknown(leaf, spec, parse(spec.dims, leaf.path), shared)
    if spec.ranks is not None or spec.broadcast:
        raise _decided(leaf, spec)
    declared = fit(leaf, spec, variables)
    assert isinstance(declared, Tensors)
    if len(declared.dtypes) > 1 and not declared.variable:
        raise _decided(leaf, spec)
    return declared


def _decided(leaf: Leaf, spec: TensorSpec) -> WrongArgument:
    return WrongArgument(
        "the parameters decide the dtype, the ranks and the broadcast shape of an output",
        parameter=leaf.path,
        found=repr(spec),
        fix="one dtype or a type variable, and neither ranks= nor broadcast=",
    )


def _refuse_unknown(
    leaf: Leaf, spec: TensorSpec, parts: Sequence[Part], shared: Sequence[str]
) -> None:
    for part in parts:
        if isinstance(part, Rest):
            what = 'an output cannot have "...", which is one parameter\'s own'
            fix = 'write "*s" there and here; '
            fix += "a name that no parameter has stands for a size that the body computes"
        elif isinstance(part, Shared) and part.name not in shared:
            what = f"no parameter has {part}"
            fix = "use the *s of a parameter, or name the sizes"
        else:
            continue
        raise BadDeclaration(what, parameter=leaf.path, found=repr(spec), fix=fix)
