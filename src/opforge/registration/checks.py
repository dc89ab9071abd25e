"""Checks of arguments and outputs that generated code makes at a call; one object per op."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _compat
from ..errors import MissingBackward, WrongArgument, WrongResult, WrongReturn, warn
from ..model import FlatArgument, Leaf, Lowered

_RETURNED: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "SymInt": (int, torch.SymInt),
    "int": (int, torch.SymInt),
    "float": (int, float, torch.SymFloat, torch.SymInt),
    "bool": (bool, torch.SymBool),
    "Scalar": (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool),
}


@dataclass(frozen=True)
class Returner:
    """The function whose result is checked, as errors name it."""

    what: str
    location: str
    annotation: str = "the op's annotation"

    @classmethod
    def of(cls, what: str, fn: Any, otherwise: str) -> Returner:
        """`otherwise`: the location for a callable that has no line of its own."""
        while isinstance(fn, functools.partial):
            fn = fn.func
        code = getattr(inspect.unwrap(fn), "__code__", None)
        place = otherwise if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        return cls(what, place)


class CallChecks:
    """Refuses what contradicts an op's annotations, or would be lost; detaches recorded outputs."""

    def __init__(
        self, name: str, location: str, lowered: Lowered, returner: Returner | None = None
    ) -> None:
        self.name = name
        self.location = location
        self.lowered = lowered
        self.body = Returner("the body", location, "its annotation")
        # `own` is what these checks are for; the body may run in its place.
        self.own = self.returner = returner or self.body
        self.warned = False

    def no_tensor(self, *values: Any) -> WrongArgument:
        """The error for a call with None in place of a tensor."""
        missing = [
            a.path
            for a, value in zip(self.lowered.tensors, values, strict=True)
            if value is None and not a.is_optional
        ]
        return self._argument(
            "expected a Tensor, got None",
            missing[0] if missing else None,
            "pass a tensor, or annotate Optional[Tensor]",
        )

    def wrong_type(self, path: str, value: Any, wanted: type[Any]) -> None:
        found, name = type(value).__qualname__, wanted.__qualname__
        if path.startswith("return"):
            raise self._returned(
                f"{self._says(f'a {found}')} {name}",
                f"return {name}(...)",
            )
        what = f"expected {name}, got {found}"
        if isinstance(value, wanted):
            raise self._argument(
                f"{what}, a subclass whose own fields the schema does not carry",
                path,
                f"annotate the parameter with {found}",
            )
        raise self._argument(what, path, f"pass {name}(...)")

    def explain_refusal(self, error: RuntimeError) -> None:
        """Raise what the user can read if torch refused a value, which it names as in the schema.

        d::op() Expected a value of type 'float' for argument 'cfg__scale' ...
        """
        refused = _compat.refused_value(error, self.name)
        arguments = {a.name: a for a in self.lowered.arguments}
        if refused is None or refused.argument not in arguments:
            return
        argument = arguments[refused.argument]
        wanted = _wanted(argument)
        raise WrongArgument(
            f"expected {wanted}, got {refused.type}",
            parameter=argument.path,
            found=refused.value or None,
            fix=f"pass {wanted}",
            op=self.name,
            location=self.location,
        ) from error

    def wrong_length(self, path: str, value: Any, count: int) -> None:
        sized = isinstance(value, (tuple, list))
        found = f"a {type(value).__name__} of {len(value)}" if sized else type(value).__qualname__
        if path.startswith("return"):
            raise self._returned(
                f"{self._says(found)} a tuple of {count}",
                f"return {count} values",
            )
        raise self._argument(
            f"expected a tuple of {count}, got {found}", path, f"pass {count} values"
        )

    def refuse_tangents(self, *values: Any) -> None:
        """Refuse inputs with a forward-mode tangent, which would be lost silently."""
        for tensor in (t for value in values for t in tensors_in(value)):
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise MissingBackward(
                    "the op has no forward-mode derivative",
                    fix="use reverse mode (torch.autograd.grad, torch.func.grad, torch.func.vjp)",
                ).locate(self.name, self.location)

    def as_list(self, path: str, value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            return list(value)
        raise self._returned(
            f"{self._says(f'{type(value).__name__} for {path}')} a list",
            "return a list of tensors",
        )

    def not_none(self) -> None:
        """The annotation says None, the function returned something."""
        raise self._returned(
            f"{self._says('a value')} None", "annotate what it returns, or return nothing"
        )

    def not_returned(self, name: str) -> None:
        """The op's tag says that it returns an argument, the function returned something else."""
        raise self._returned(
            f"{self.returner.what} did not return {name}, but the op's tag says that it does",
            f"return {name} itself, or remove the tag",
        )

    def check_one(self, value: Any) -> None:
        """Check the output of an op that returns one tensor, if its type is not exactly Tensor."""
        (leaf,) = self.lowered.returns
        if not _is_what_it_says(leaf, value):
            raise self._returned(
                f"{self._says(type(value).__name__)} Tensor",
                "return a tensor, or annotate Optional[Tensor]",
            )

    def check_several(self, out: Any, viewed: Sequence[Any] = ()) -> Any:
        """Check the outputs of any other op; returns them, detached if autograd recorded them."""
        if type(out) is not tuple and len(self.lowered.returns) != 1:
            # Since torch 2.14 a caller gets what the kernel returns, and no tuple made of it.
            out = tuple(out)
        if self._any_recorded(out):
            out = self.unrecord(out, viewed)
        if len(self.lowered.returns) != 1:
            out = tuple(map(_converted, self.lowered.returns, out))
        return out

    def _any_recorded(self, out: Any) -> bool:
        """Check the type of every output; returns whether autograd recorded one."""
        returns = self.lowered.returns
        recorded = False
        for leaf, value in zip(returns, out if len(returns) != 1 else (out,), strict=True):
            for item in value if leaf.container else (value,):
                if not _is_what_it_says(leaf, item):
                    raise self._returned(
                        f"{self._says(f'{type(item).__name__} for {leaf.path}')} "
                        f"{leaf.schema_type()}",
                        "return what the annotation says",
                    )
                recorded = recorded or (isinstance(item, torch.Tensor) and item.requires_grad)
        return recorded

    def traced(self, out: Any, given: Mapping[str, Any], *, views: bool) -> Any:
        """Check the flat result of a fake, which has no kernel's checks behind it.

        torch believes what it gets: too many outputs crash it, and compiled code returns a None.
        """
        returns = self.lowered.returns
        if self.lowered.signature.returns is None:
            return None if out is None else self.not_none()
        if len(returns) != 1:
            if not isinstance(out, (tuple, list)) or len(out) != len(returns):
                self.wrong_length("return", out, len(returns))
            out = tuple(self._listed(leaf, v) for leaf, v in zip(returns, out, strict=True))
        elif returns[0].is_tensor and not returns[0].container:
            self.check_one(out)
        else:
            out = self._listed(returns[0], out)
        self._any_recorded(out)
        outputs = (out,) if len(returns) == 1 else out
        for name, value in zip(self.lowered.returned, outputs, strict=False):
            if value is not given[name]:
                self.not_returned(name)
        inputs = tuple(given[a.name] for a in self.lowered.tensors)
        if outputs and not views and _compat.any_aliases(inputs, {}, outputs):
            self.aliased(inputs, outputs)
        return out

    def _listed(self, leaf: Leaf, value: Any) -> Any:
        return self.as_list(leaf.path, value) if leaf.container else value

    def unrecord(self, value: Any, viewed: Sequence[Any] = ()) -> Any:
        """Detach an output that autograd recorded because the body reads a captured tensor.

        A view of an input in `viewed` stays one: autograd must know of it, to refuse or to follow
        a write to it.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self.unrecord(v, viewed) for v in value)
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        if viewed and _compat.any_aliases(tuple(viewed), {}, (value,)):
            return value
        if not self.warned:
            self.warned = True
            by = self.returner
            warn(
                f"{self.name} ({by.location}): {by.what} reads a tensor that requires grad and "
                "is not a parameter; no gradient reaches it. Pass it as a parameter and give a "
                "backward."
            )
        return value.detach()

    def aliased(self, inputs: Sequence[Any], outputs: tuple[Any, ...]) -> None:
        """Raise for outputs that alias something, according to torch; name the input."""
        among_outputs = _compat.any_aliases((), {}, outputs)
        guilty = [
            argument.path
            for argument, value in zip(self.lowered.tensors, inputs, strict=True)
            if not among_outputs and _compat.any_aliases((value,), {}, outputs)
        ]
        whose = "" if self.returner is self.body else f" of {self.returner.what}"
        raise WrongResult(
            f"an output{whose} shares memory with an input or with another output",
            parameter=guilty[0] if guilty else None,
            fix="return a copy (x.clone()); to change an input in place, name it in mutates_args "
            "and do not return it",
        ).locate(self.name, self.returner.location)

    def views_transformed(self, _original: Any) -> Callable[..., Any]:
        """The kernel at functorch's key of an op that returns views.

        A level sees the view as a tensor of its own, so a write to it would get no gradient.
        """

        def refuse(_keyset: Any, *_args: Any, **_kwargs: Any) -> Any:
            raise WrongResult(
                "the op returns a view, whose writes torch.func's gradients cannot follow",
                fix="return a copy and declare none in schema=, or use torch.autograd.grad",
            ).locate(self.name, self.location)

        return refuse

    def _argument(self, what: str, path: str | None, fix: str) -> WrongArgument:
        return WrongArgument(what, parameter=path, fix=fix, op=self.name, location=self.location)

    def _returned(self, what: str, fix: str) -> WrongReturn:
        return WrongReturn(what, fix=fix, op=self.name, location=self.returner.location)

    def _says(self, found: str) -> str:
        return f"{self.returner.what} returned {found}, but {self.returner.annotation} says"


_NUMBERS = {"SymInt": int, "int": int, "float": float, "bool": bool}


def _converted(leaf: Leaf, value: Any) -> Any:
    """A number of a subclass, or an int for a float, as the dispatcher returns it."""
    number = _NUMBERS.get(leaf.base)
    convert = number is not None and not leaf.container and isinstance(value, (int, float))
    return number(value) if convert and number is not None else value


# Python's words for types of a schema.
_WORDS = {
    "SymInt": "int",
    "ScalarType": "torch.dtype",
    "Device": "torch.device",
    "Layout": "torch.layout",
    "MemoryFormat": "torch.memory_format",
    "Scalar": "number",
}


def _wanted(argument: FlatArgument) -> str:
    """`a list of int, or None`, `one of 'a', 'b'`: what an argument may be."""
    leaf = argument.leaf
    if leaf is None:
        return f"a {argument.type}"
    word = _WORDS.get(leaf.base, leaf.base)
    listed = f"a {leaf.container} of " if leaf.container else ""
    if leaf.codec is not None:
        word = f"{listed}one of {', '.join(map(repr, leaf.codec.values))}"
    else:
        word = f"{listed}{word}" if listed else f"{'an' if word == 'int' else 'a'} {word}"
    return f"{word}, or None" if leaf.optional else word


def _is_what_it_says(leaf: Leaf, item: Any) -> bool:
    if item is None:
        return leaf.optional or leaf.element_optional
    if isinstance(item, bool):
        return leaf.base in ("bool", "Scalar")
    return isinstance(item, _RETURNED.get(leaf.base, object))


Counts = list[int | None]


def expand(values: Sequence[Any]) -> tuple[list[Any], Counts]:
    """Flatten tensor lists for autograd, which tracks only tensors that are arguments themselves.

    [a, [b, c], 3] -> [a, b, c, 3] with counts [None, 2, None]; lists without a tensor stay.
    """
    expanded: list[Any] = []
    counts: Counts = []
    for value in values:
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            expanded += value
            counts.append(len(value))
        else:
            expanded.append(value)
            counts.append(None)
    return expanded, counts


def regroup(expanded: Sequence[Any], counts: Counts) -> list[Any]:
    """The inverse of `expand`."""
    values = iter(expanded)
    return [next(values) if n is None else list(itertools.islice(values, n)) for n in counts]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of one argument: itself, its elements, or none."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        return []
    return [v for v in value if isinstance(v, torch.Tensor)]
