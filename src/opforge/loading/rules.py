"""What a manifest says of an operator, evaluated: its arguments, its fake and its gradient.

A wheel has a copy of this module: its operators have fakes and gradients without opforge. Sizes may
be symbolic. A trace gets guards only for what decides an output: a case whose paths all have the
same outputs, as most do, adds none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import Uncovered, UnsupportedBody
from ..native.ir.cases import Case, Output, Path, TensorCase
from ..native.ir.dtypes import DTYPES
from ..native.ir.expr import OPERATIONS, Expr, Term, Var, evaluate, variables
from ..native.ir.interface import ChoiceParam, Flat, Op, SchemaArgument, TensorParam
from ..native.ir.wording import one_of

DTYPE_OF = {getattr(torch, d.torch): d for d in DTYPES.values()}


class CallBinding:
    """Arguments by name; for a choice or a fixed argument, the index of its value."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._defaults = {a.name: unflat(a.default[0]) for a in op.arguments if a.default}
        self._names = [a.name for a in op.arguments]
        choices = {p.name for p in op.params if isinstance(p, ChoiceParam)}
        self._told = [a for a in op.arguments if a.fixed or a.name in choices]

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `Uncovered` for a value that the library was not built for."""
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        for argument in self._told:
            value = given[argument.name]
            place = _place(argument, value)
            if place is None:
                shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                built = one_of([repr(unflat(v)) for v in argument.values])
                what = f"{self._op.torch_name}: {argument.name} is {shown}"
                raise uncovered(f"{what}, but the library was built for {built}")
            given[argument.name] = place
        return given


def uncovered(what: str, status: str = "UNCOVERED") -> Uncovered:
    error = Uncovered(what)
    error.status = status
    return error


def _place(argument: SchemaArgument, value: Any) -> int | None:
    """Which of an argument's values this is; to Python 1, 1.0 and True are equal."""
    for index, known in enumerate(map(unflat, argument.values)):
        if known is None or value is None or isinstance(value, torch.Tensor):
            same = known is None and value is None
        elif isinstance(known, bool) or isinstance(value, bool):
            same = known is value
        else:
            same = bool(known == value) or (known != known and value != value)  # noqa: PLR0124 - nan
        if same:
            return index
    return None


def unflat(value: Flat) -> Any:
    """`("dtype", "float16")` -> torch.float16, `("list", 1, 2)` -> [1, 2]."""
    if not isinstance(value, tuple):
        return value
    kind, *rest = value
    if kind == "list":
        return [unflat(item) for item in rest]
    return torch.device(str(rest[0])) if kind == "device" else getattr(torch, str(rest[0]))


_SYMBOLIC: dict[str, Callable[..., Any]] = OPERATIONS | {
    "min": lambda *values: functools.reduce(torch.sym_min, values),
    "max": lambda *values: functools.reduce(torch.sym_max, values),
    "int": torch.sym_int,
    "float": torch.sym_float,
    "not": lambda a: int(not a),
}


class Shapes:
    """The fake of one operator, over its flat arguments."""

    def __init__(self, op: Op, cases: tuple[Case, ...]) -> None:
        self._op = op
        self._bind = CallBinding(op)
        tensors = [p for p in op.params if isinstance(p, TensorParam)]
        self._tensors = [p.name for p in tensors]
        groups = sorted({p.group for p in tensors} - {0})
        self._groups = [[p.name for p in tensors if p.group == group] for group in groups]
        self._choices = [p.name for p in op.params if isinstance(p, ChoiceParam)]
        self._cases = cases

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._broadcast(self._bind(args, kwargs))
        outputs, values = self._outputs(given)
        device = next(
            (given[n].device for n in self._tensors if given[n] is not None), torch.device("cuda")
        )
        made = [None if o is None else self._empty(o, values, device) for o in outputs]
        if not self._op.returns:
            return None
        return made[0] if len(self._op.returns) == 1 else tuple(made)

    def _broadcast(self, given: dict[str, Any]) -> dict[str, Any]:
        """Tensors of one group, broadcast to one shape as the library does it."""
        for group in self._groups:
            present = [name for name in group if given[name] is not None]
            broadcast = torch.broadcast_tensors(*(given[name] for name in present))
            given |= dict(zip(present, broadcast, strict=True))
        return given

    def _outputs(self, given: Mapping[str, Any]) -> tuple[Sequence[Output | None], dict[str, Any]]:
        cases = [case for case in self._cases if self._is_of(case, given)]
        for case in cases:
            values = _values(case, given)
            if len(cases) > 1 and not self._holds(case, given, values):
                continue
            path = self._path(case, values)
            if path is not None:
                return path.outputs, values
        tensors = {n: given[n] for n in self._tensors if isinstance(given[n], torch.Tensor)}
        shown = ", ".join(f"{name}: {_shown(tensor)}" for name, tensor in tensors.items())
        what = f"{self._op.torch_name}: the library was not built for this call"
        raise uncovered(f"{what} ({shown})" if shown else what)

    def _is_of(self, case: Case, given: Mapping[str, Any]) -> bool:
        """Whether dtypes, ranks, choices and missing tensors are those of the case."""
        chosen = dict(case.choices)
        if any(chosen.get(name, given[name]) != given[name] for name in self._choices):
            return False
        stated = {t.param: t for t in case.tensors}
        return all(_is_like(stated.get(name), given[name]) for name in self._tensors)

    def _path(self, case: Case, values: Mapping[str, Any]) -> Path | None:
        paths = [path for path in case.paths if not path.refused]
        if not paths or all(path.outputs == paths[0].outputs for path in paths):
            return paths[0] if paths else None
        strides = {v.name for t in case.returns for s in t.strides or () for v in variables(s)}
        for path in case.paths:
            asked = {v.name for guard in path.guards for v in variables(guard.condition)}
            if path.refused and asked & strides:
                continue
            known = {**values, **self._own_strides(case, path, values)}
            if all(self._value(guard.condition, known) for guard in path.guards):
                return None if path.refused else path
        return None

    def _own_strides(self, case: Case, path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of outputs that a caller may give any strides: a traced call gets the body's."""
        made = dict(zip(self._op.outputs, path.outputs, strict=False))
        return {
            var.name: evaluate(own, values, _SYMBOLIC)
            for said in case.returns
            if (output := made.get(said.param)) is not None
            for stride, own in zip(said.strides or (), output.strides, strict=False)
            for var in variables(stride)
        }

    def _value(self, term: Term, values: Mapping[str, Any]) -> Any:
        unknown = [v.name for v in variables(term) if v.name not in values]
        if unknown:
            raise UnsupportedBody(
                f"what the op returns depends on {unknown[0]}, which is not known in a trace",
                found=str(term),
                fix="import the op's source, which has its own fake",
                op=self._op.torch_name,
            )
        return evaluate(term, values, _SYMBOLIC)

    def _holds(self, case: Case, given: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Whether a case takes these sizes; asked only where several cases remain."""
        for term, size in _sizes(case, given):
            if size != (values[term.name] if isinstance(term, Var) else term):
                return False
        for bound in case.bounds:
            value = self._value(Var(bound.var), values)
            if bound.values and all(value != known for known in bound.values):
                return False
            if value < bound.low or (bound.high is not None and value > bound.high):
                return False
        return True

    def _empty(
        self, output: Output, values: Mapping[str, Any], device: torch.device
    ) -> torch.Tensor:
        shape = [self._value(size, values) for size in output.shape]
        dtype = getattr(torch, DTYPES[output.dtype].torch)
        if _is_compact(output):
            return torch.empty(shape, dtype=dtype, device=device)
        strides = [self._value(stride, values) for stride in output.strides]
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _is_like(stated: TensorCase | None, tensor: Any) -> bool:
    if stated is None or not stated.present or tensor is None:
        return tensor is None and (stated is None or not stated.present)
    known = DTYPE_OF.get(tensor.dtype)
    return known is not None and known.name == stated.dtype and tensor.dim() == len(stated.shape)


def _values(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """By variable: sizes, strides and numbers."""
    values = {n: v for n, v in given.items() if not isinstance(v, torch.Tensor)}
    for term, size in _sizes(case, given):
        if isinstance(term, Var):
            values.setdefault(term.name, size)
    return values


def _sizes(case: Case, given: Mapping[str, Any]) -> Iterator[tuple[Term, Any]]:
    for stated in case.tensors:
        if stated.present:
            tensor = given[stated.param]
            yield from zip(stated.shape, tensor.shape, strict=True)
            if stated.strides is not None:
                yield from zip(stated.strides, tensor.stride(), strict=True)


def _is_compact(output: Output) -> bool:
    """Whether each stride is the product of the sizes after it, as it is written."""
    after: list[str] = []
    for size, stride in zip(reversed(output.shape), reversed(output.strides), strict=True):
        if _factors(stride) != sorted(after):
            return False
        after += _factors(size)
    return True


def _factors(term: Term) -> list[str]:
    if isinstance(term, Expr) and term.op == "*":
        return sorted(f for arg in term.args for f in _factors(arg))
    return [] if term == 1 else [str(term)]


def _shown(tensor: torch.Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} [{sizes}]"


class Formula:
    """`save` and `backward` of an op, made from the manifest's terms for its gradients."""

    def __init__(self, op: Op) -> None:
        self._gradients = op.formula
        self._used = sorted(_used(op.formula))

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        held = {"input": inputs, "output": outputs}
        values = [held[kind][index] for kind, index in self._used]
        tensors = [v if isinstance(v, torch.Tensor) else None for v in values]
        ctx.save_for_backward(*tensors)
        ctx.opforge_numbers = [None if isinstance(v, torch.Tensor) else v for v in values]

    def backward(self, ctx: Any, *grads: Any) -> Any:
        pairs = zip(ctx.saved_tensors, ctx.opforge_numbers, strict=True)
        values = [number if tensor is None else tensor for tensor, number in pairs]
        known = dict(zip(self._used, values, strict=True))
        # Autograd passes expanded gradients, which a library for compact tensors refuses.
        known |= {
            ("grad", i): g.contiguous() if isinstance(g, torch.Tensor) else g
            for i, g in enumerate(grads)
        }
        done: dict[Any, Any] = {}
        made = tuple(None if t is None else _run(t, known, done) for t in self._gradients)
        return made if len(made) > 1 else made[0]


def _used(terms: Any) -> set[tuple[str, int]]:
    found = set()
    for term in terms:
        if isinstance(term, tuple):
            if term[0] in {"input", "output"}:
                found.add(term)
            elif term[0] in {"call", "item"}:
                found |= _used(term[1:])
    return found


def _run(term: Any, known: dict[Any, Any], done: dict[Any, Any]) -> Any:
    """The value of a term; a call that several gradients use is made once."""
    kind, *rest = term
    if kind == "value":
        return unflat(rest[0])
    if kind == "item":
        return _run(rest[0], known, done)[rest[1]]
    if kind != "call":
        return known[term]
    if term not in done:
        namespace, _, name = rest[0].partition("::")
        op = getattr(getattr(torch.ops, namespace), name).default
        done[term] = op(*[_run(argument, known, done) for argument in rest[1:]])
    return done[term]
