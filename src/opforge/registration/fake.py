"""Fakes: what outputs look like before they exist.

`FakeRule.source` says where the answer comes from:
    given         the user's callable
    listed        the user's list of the parameters that outputs look like
    body          the body itself, run on fake tensors
    assumed       the i-th output looks like the i-th tensor input, because the body cannot run
                  on fake tensors; the first real call verifies it
    undetermined  not asked yet
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import _compat
from ..errors import (
    BadOption,
    BadSignature,
    OpforgeError,
    UnsupportedBody,
    WrongResult,
    first_line,
    warn,
)
from ..lowering.plan import select_tensor
from ..model import OPFORGE, Dialect, Leaf, Lowered
from .checks import tensors_in

Tensor = torch.Tensor
Kinds = tuple[tuple[torch.dtype, str, int], ...]
ANY: Kinds = ((torch.bool, "any", -1),)


class FakeRule:
    """The fake of one op, and what is known about it.

    In a lenient dialect, whatever a body raises on fakes counts as a refusal, and a real call that
    contradicts the fake only warns.
    """

    def __init__(
        self,
        name: str,
        location: str,
        lowered: Lowered,
        *,
        given: Callable[..., Any] | None = None,
        listed: Sequence[str] | None = None,
        dialect: Dialect = OPFORGE,
    ) -> None:
        self.name = name
        self.location = location
        self.lowered = lowered
        self.given = given
        self.dialect = dialect
        self.listed = _listed(lowered, listed, dialect.fake) if listed is not None else None
        # Set when the op is registered. The given fake, or the body, on flat arguments; and what
        # decides the op's mode if that had to wait.
        self.call: Callable[..., Any]
        self.resolve_mode: Callable[[], None]
        # Why the body could not run on fakes, and whether it was FakeTensor that refused.
        self.refusal, self.refused = "", True
        self.source = "undetermined"
        self.contradicted = False
        # Kinds of inputs (dtype, device and rank of each) for which a real call has yet to confirm
        # the fake; ANY if it has not been asked. Never replaced by another set, because generated
        # kernels test on every call whether this one is empty.
        self.pending: set[Kinds] = set()
        self.verified: set[Kinds] = set()
        if given is not None:
            self.source = "given"
        elif self.listed is not None:
            self.source, self.pending = "listed", {ANY}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.resolve_mode()
        if self.given is not None:
            return self.call(*args, **kwargs)
        # A lenient rule tries again: the body may have raised because of that call's arguments.
        if self.listed is None and (self.source != "assumed" or self.dialect.lenient):
            tensors = [t for value in (*args, *kwargs.values()) for t in tensors_in(value)]
            trial = _compat.fakes.FakeTrial(tensors)
            try:
                with trial.strict():
                    result = self.call(*args, **kwargs)
            except Exception as error:
                self.explain_leak(error)
                if not self._may_assume_after(error):
                    raise
                trial.forget_symbols(())
                self.refused = _compat.fakes.is_fake_refusal(error)
                self.refusal = _compat.fakes.host_read(error) or (
                    f"{type(error).__name__}: {first_line(error)}"
                )
            else:
                trial.forget_symbols(result)
                self.source = "body"
                if self.pending:
                    self.pending.discard(self._kinds(self.lowered.by_name(args, kwargs)))
                return result
            self._refuse_unassumable()
            self.source = "assumed"
        given = self.lowered.by_name(args, kwargs)
        kinds = self._kinds(given)
        if kinds not in self.verified:
            self.pending.add(kinds)
        likes = self._likes(given)
        outputs = [None if t is None else torch.empty_like(t) for t in likes]
        if not self.lowered.returns:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def verify(self, outputs: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> None:
        """Compare real outputs with a `listed` or `assumed` fake, once per kind of inputs."""
        given = self.lowered.by_name(args, kwargs)
        kinds = self._kinds(given)
        if kinds in self.verified:
            return
        try:
            likes = self._likes(given)
        except UnsupportedBody as error:
            self._contradict(error)
            return
        for index, (real, like) in enumerate(zip(outputs, likes, strict=True)):
            difference = _difference(real, like)
            if difference:
                self._contradict(
                    WrongResult(
                        f"output {index} differs from the fake ({self._why()}): {difference}",
                        fix=f"give {self.dialect.fake}=: a function with the op's signature that "
                        "returns tensors of the right shape, dtype and device",
                    ).locate(self.name, self.location)
                )
        self.verified.add(kinds)
        self.pending -= {kinds, ANY}

    def describe(self) -> str:
        """One line for `explain`."""
        if self.source == "given":
            return "given"
        if self.listed is not None:
            return f"listed: outputs look like {', '.join(self.listed)}"
        if self.source == "assumed":
            state = "not yet verified by a real call" if self.pending else "verified by a real call"
            if self.contradicted:
                state = "a real call returned something else"
            return f"assumed: {self._why()}; {state}"
        if self.source == "body":
            return "body: the body ran on fake tensors"
        return "undetermined: the body will be tried on fake tensors when first traced"

    def _may_assume_after(self, error: Exception) -> bool:
        if _compat.fakes.is_fake_refusal(error):
            return True
        # A real call would raise opforge's own errors, too, except that an op in the body has no
        # fake.
        mistaken = isinstance(error, OpforgeError) and not isinstance(error, UnsupportedBody)
        return self.dialect.lenient and self._assumable() and not mistaken

    def _contradict(self, mismatch: OpforgeError) -> None:
        if not self.dialect.lenient:
            raise mismatch
        if not self.contradicted:
            self.contradicted = True
            warn(str(mismatch))

    def _why(self) -> str:
        if self.listed is not None:
            return f"outputs are listed to look like {', '.join(self.listed)}"
        because = "FakeTensor refused the body" if self.refused else "the body fails on fakes"
        return f"output i looks like tensor input i, because {because}: {self.refusal}"

    def _kinds(self, given: Mapping[str, Any]) -> Kinds:
        values = [given[a.name] for a in self.lowered.tensors]
        return tuple((t.dtype, t.device.type, t.dim()) for v in values for t in tensors_in(v))

    def _likes(self, given: Mapping[str, Any]) -> list[Any]:
        wanted = len(self.lowered.returns)
        if self.listed is not None:
            absent = [n for n in self.listed if given[n] is None]
            if absent:
                raise UnsupportedBody(
                    f"an output is listed to look like {absent[0]}, which is None in this call",
                    parameter=absent[0],
                    fix=f"give {self.dialect.fake} as a function with the op's signature",
                ).locate(self.name, self.location)
            return [given[name] for name in self.listed]
        tensors = [t for a in self.lowered.tensors for t in tensors_in(given[a.name])]
        if len(tensors) < wanted:
            raise UnsupportedBody(
                f"{wanted} outputs, but only {len(tensors)} tensor inputs to take shapes from",
                found=self.refusal,
                fix=f"give {self.dialect.fake}=: a function with the op's signature",
            ).locate(self.name, self.location)
        return tensors[:wanted]

    def explain_leak(self, error: BaseException) -> None:
        """Raise the reason if a real call failed because the body kept a tensor of a trace."""
        if not _compat.fakes.is_fake_leak(error):
            return
        raise UnsupportedBody(
            "the body keeps tensors between calls, and kept a fake one when it was traced",
            found=first_line(error),
            fix=f"register the op opaque, mode='custom_op', and give {self.dialect.fake}=: a "
            "function with the op's signature, which tracing then runs instead of the body",
        ).locate(self.name, self.location) from error

    def _assumable(self) -> bool:
        returns, tensors = self.lowered.returns, self.lowered.tensors
        lists = any(a.is_tensor_list for a in tensors)
        return all(map(_assumable, returns)) and (len(returns) <= len(tensors) or lists)

    def _refuse_unassumable(self) -> None:
        if not self._assumable():
            kinds = ", ".join(leaf.schema_type() for leaf in self.lowered.returns)
            raise UnsupportedBody(
                f"cannot tell what the outputs ({kinds}) look like",
                found=self.refusal,
                fix=f"give {self.dialect.fake}=: a function with the op's signature that returns "
                "such outputs; with it, mode='custom_op' never runs the body while tracing",
            ).locate(self.name, self.location)


def check_fake_signature(
    fn: Callable[..., Any], fake: Callable[..., Any], option: str, *, by_name: bool
) -> None:
    """Check that a fake takes the op's arguments: in the same order and perhaps by name."""
    if not callable(fake):
        raise BadOption(
            f"{option}={fake!r} is neither a callable nor a list of parameter names",
            fix=f"{option}=lambda x: torch.empty_like(x), or {option}=['x']",
        )
    wanted = list(inspect.signature(fn).parameters.values())
    try:
        found = inspect.signature(fake)
    except ValueError:
        # A builtin such as torch.empty_like has no signature; its first call will tell.
        return
    try:
        bound = found.bind(
            *[p.name for p in wanted if p.kind is not p.KEYWORD_ONLY],
            **{p.name: p.name for p in wanted if p.kind is p.KEYWORD_ONLY},
        ).arguments
        reason = ""
    except TypeError as error:
        bound, reason = {}, str(error)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, value in bound.items() if by_name else ():
        if not reason and found.parameters[name].kind not in kinds and name != value:
            reason = f"it has {name!r} where the op has {value!r}"
    if reason:
        raise BadSignature(
            f"the fake's signature does not match the op's: {reason}",
            found=f"fake{found}",
            fix=f"fake({', '.join(p.name for p in wanted)})",
        )


def _listed(lowered: Lowered, listed: Sequence[str], option: str) -> tuple[str, ...]:
    if isinstance(listed, str) or not all(isinstance(n, str) for n in listed):
        raise BadOption(
            f"{option}={listed!r} must list parameter names", fix=f"{option}=[{listed!r}]"
        )
    arguments = [select_tensor(lowered, name, option) for name in listed]
    for argument in arguments:
        if argument.is_tensor_list:
            raise BadOption(
                f"{option} names {argument.path!r}, which is a list of tensors",
                parameter=argument.path,
                fix=f"give {option} as a function",
            )
    if len(arguments) != len(lowered.returns) or not all(map(_assumable, lowered.returns)):
        kinds = ", ".join(leaf.schema_type() for leaf in lowered.returns) or "nothing"
        raise BadOption(
            f"{option} lists {len(arguments)} parameters, but the op returns {kinds}",
            fix=f"list one parameter per returned tensor, or give {option} as a function",
        )
    return tuple(a.name for a in arguments)


def _assumable(leaf: Leaf) -> bool:
    return leaf.is_tensor and not leaf.container


def _difference(real: Any, like: Any) -> str:
    if not isinstance(real, Tensor) or not isinstance(like, Tensor):
        same = real is None and like is None
        return "" if same else f"got {type(real).__name__}, expected {type(like).__name__}"
    expected = torch.empty_like(like, device="meta")
    pairs = (
        ("shape", tuple(real.shape), tuple(expected.shape)),
        ("dtype", real.dtype, expected.dtype),
        ("device", real.device, like.device),
    )
    for what, got, wanted in pairs:
        if got != wanted:
            return f"{what} {got}, expected {wanted}"
    if real.numel() and _strides(real) != _strides(expected):
        return f"strides {tuple(real.stride())}, expected {tuple(expected.stride())}"
    return ""


def _strides(tensor: Tensor) -> list[int]:
    # The stride of a dimension of size one is never used.
    return [st for size, st in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
