"""Checks of what a body returns, which kernels call; one object per op."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from .. import _compat
from ..errors import AliasedOutput, OpforgeWarning, WrongReturn
from ..model import Leaf, Lowered

_RETURNED: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "SymInt": (int, torch.SymInt),
    "int": int,
    "float": (int, float, torch.SymFloat, torch.SymInt),
    "bool": (bool, torch.SymBool),
    "Scalar": (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool),
}


class OutputChecks:
    """Refuses outputs that contradict the annotation or alias; detaches recorded ones."""

    def __init__(self, name: str, location: str, lowered: Lowered) -> None:
        self.name = name
        self.location = location
        self.lowered = lowered
        self.warned = False

    def not_none(self) -> None:
        """The annotation says None, the body returned something."""
        raise self.wrong(
            "the body returned a value, but its annotation says None",
            "annotate what it returns, or return nothing",
        )

    def one(self, value: Any) -> None:
        """Check the output of an op that returns one tensor, if its type is not exactly Tensor."""
        (leaf,) = self.lowered.returns
        if not _is_what_it_says(leaf, value):
            raise self.wrong(
                f"the body returned {type(value).__name__}, but its annotation says Tensor",
                "return a tensor, or annotate Optional[Tensor]",
            )

    def several(self, out: Any) -> Any:
        """Check the outputs of any other op; returns them, detached if autograd recorded them."""
        returns = self.lowered.returns
        recorded = False
        for leaf, value in zip(returns, out if len(returns) != 1 else (out,), strict=True):
            for item in value if leaf.container else (value,):
                if not _is_what_it_says(leaf, item):
                    raise self.wrong(
                        f"the body returned {type(item).__name__} for {leaf.path}, "
                        f"but its annotation says {leaf.schema_type()}",
                        "return what the annotation says",
                    )
                recorded = recorded or (isinstance(item, torch.Tensor) and item.requires_grad)
        return self.unrecord(out) if recorded else out

    def unrecord(self, value: Any) -> Any:
        """Detach an output that autograd recorded because the body reads a captured tensor."""
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.name} ({self.location}): the body reads a tensor that requires grad and "
                "is not a parameter; no gradient reaches it. Pass it as a parameter and give a "
                "backward.",
                OpforgeWarning,
                stacklevel=3,
            )
        if isinstance(value, (list, tuple)):
            return type(value)(self.unrecord(v) for v in value)
        recorded = isinstance(value, torch.Tensor) and value.requires_grad
        return value.detach() if recorded else value

    def aliased(self, inputs: Sequence[Any], outputs: tuple[Any, ...]) -> None:
        """Raise for outputs that alias something, according to torch; name the input."""
        among_outputs = _compat.any_aliases((), {}, outputs)
        guilty = [
            argument.path
            for argument, value in zip(self.lowered.tensors, inputs, strict=True)
            if not among_outputs and _compat.any_aliases((value,), {}, outputs)
        ]
        raise AliasedOutput(
            "an output shares memory with an input or with another output",
            parameter=guilty[0] if guilty else None,
            fix="return a copy (x.clone()); to change an input in place, name it in mutates_args "
            "and do not return it",
            op=self.name,
            location=self.location,
        )

    def wrong(self, what: str, fix: str) -> WrongReturn:
        return WrongReturn(what, fix=fix, op=self.name, location=self.location)


def _is_what_it_says(leaf: Leaf, item: Any) -> bool:
    if item is None:
        return leaf.optional or leaf.element_optional
    if isinstance(item, bool):
        return leaf.base in ("bool", "Scalar")
    return isinstance(item, _RETURNED.get(leaf.base, object))
