"""Builds the cases of an op's declared backward from those of the op.

    gated(x, eps) -> out     gated_backward(grad_out, x, eps) -> grad_x

It is traced with all that there is: gradients of the outputs, the op's parameters, its outputs.
What no path uses is not a parameter of the C function.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._compat.host_caches import HostCaches
from ..._compat.tracing import Traced
from ...arch import Arch
from ...errors import BadGradient, UnsupportedBody
from ...records import changed
from ...registration.autograd import flatten_gradients, fold_needs, with_all_inputs
from ...registration.generated import Generated
from ...registry import Entry
from ..frontend.expand import Declared
from ..ir.cases import Case, Fill, Guard, Launch, Output, Pointer, TensorCase
from ..ir.expr import Expr, Term, Var
from ..ir.interface import ChoiceParam, Param, ScalarParam, TensorParam
from ..symbolic.algebra import Algebra
from .case_builder import BuiltCase, all_of, build_case, located
from .launches import Choose, first_config
from .views import same


@dataclass(frozen=True)
class Backward:
    """The backward of an op: what its C function takes and gives, and its cases.

    `passed` says what each parameter is: ("grad", 0) and ("output", 0) are counted among the op's
    outputs, ("input", 2) among its flat arguments. `gradients` names the arguments whose gradients
    the outputs are. `marks` if `setup_context` marks an output as not differentiable.
    """

    entry: Entry
    params: tuple[Param, ...]
    outputs: tuple[str, ...]
    built: tuple[BuiltCase, ...]
    passed: tuple[tuple[str, int], ...]
    gradients: tuple[str, ...]
    marks: bool


@dataclass(frozen=True)
class _Flat(Declared):
    """Parameters that a body takes one by one."""

    def arguments(
        self, case: Case, leaves: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        chosen = {name: self.values[name][index] for name, index in case.choices}
        given = {**leaves, **chosen}
        return tuple(given.get(param.name) for param in self.params), {}


def build_backward(
    entry: Entry,
    forward: Declared,
    cases: Sequence[Case],
    archs: tuple[Arch, ...],
    choose: Choose = first_config,
    *,
    on_path: Callable[[], None] = lambda: None,
) -> Backward:
    """Trace the backward for every case of an op, whose own paths `cases` has.

    Raises if a library cannot have it.
    """
    definition = entry.registration.definition
    marks: list[bool] = []
    code = getattr(definition.backward, "__code__", None)
    own = dataclasses.replace(
        entry,
        name=f"{entry.name}_backward",
        location=f"{code.co_filename}:{code.co_firstlineno}" if code else entry.location,
        fn=backward_body(entry, forward, lambda: marks.append(True)),
    )
    grads, gradients = _names(forward)
    params: tuple[Param, ...] = (*map(TensorParam, grads), *map(_whole, forward.params))
    params += tuple(map(TensorParam, forward.outputs))
    declared = _Flat(params, tuple(gradients), (), values=forward.values)
    caches = HostCaches()
    for function in (definition.backward, definition.setup_context):
        if function is not None:
            caches.include(function)
    build = functools.partial(
        build_case, own, declared, archs=archs, choose=choose, caches=caches, on_path=on_path
    )
    with located(own):
        built = all_of(own, params, _cases(forward, list(grads), cases), build)
        used = _Used(declared.params, declared.outputs, [one.case for one in built])
        if not used.outputs:
            raise UnsupportedBody(
                "it gives no gradient of a floating-point tensor",
                fix="return gradients, or remove backward=",
            )
    made: dict[Case, BuiltCase] = {}
    for one, case in zip(built, used.cases, strict=True):
        made.setdefault(case, dataclasses.replace(one, case=case))
    inputs = [argument.name for argument in entry.flat().arguments]
    every = {"grad": grads, "input": inputs, "output": forward.outputs}
    known = {name: (kind, i) for kind, names in every.items() for i, name in enumerate(names)}
    return Backward(
        own,
        used.params,
        used.outputs,
        tuple(made.values()),
        tuple(known[param.name] for param in used.params),
        tuple(gradients[name] for name in used.outputs),
        marks=bool(marks),
    )


def _names(forward: Declared) -> tuple[dict[str, str], dict[str, str]]:
    """By name, what each gradient is of: `grad_out`, which comes in, and `grad_x`, `grad_eps`."""
    params = [param.name for param in forward.params]
    every = {f"grad_{name}": name for name in (*forward.outputs, *params)}
    while every.keys() & {*forward.outputs, *params}:
        every = {f"{name}_": of for name, of in every.items()}
    came = {name: of for name, of in every.items() if of in forward.outputs}
    return came, {name: of for name, of in every.items() if of not in came.values()}


def _whole(param: Param) -> Param:
    """A parameter as the backward takes it: with the shape that it was broadcast to."""
    if not isinstance(param, TensorParam):
        return param
    doc = param.doc.replace(", broadcast", "")
    return TensorParam(param.name, optional=param.optional, doc=doc)


def _cases(forward: Declared, grads: Sequence[str], cases: Sequence[Case]) -> list[Case]:
    made: dict[Case, None] = {}
    for case in cases:
        if not any(_is_float(tensor) for tensor in case.tensors if tensor.present):
            continue
        outputs = [_output(case, name, i) for i, name in enumerate(forward.outputs)]
        came, given = (tuple(map(_tensor, outputs, names)) for names in (grads, forward.outputs))
        if any(map(_is_float, outputs)):
            made[Case((*came, *case.tensors, *given), case.choices, case.bounds)] = None
    if not made:
        raise UnsupportedBody(
            "the op is declared for no floating-point tensors",
            fix="declare it for fp32 or the like, or remove backward=",
        )
    return list(made)


def _is_float(tensor: TensorCase | Output) -> bool:
    return tensor.dtype.startswith(("fp", "bf"))


def _output(case: Case, name: str, number: int) -> Output:
    """What a case of the op returns; strided if callers may choose its strides on all paths."""
    found = [path.outputs[number] for path in case.paths if not path.refused]
    alike = {None if one is None else dataclasses.replace(one, strided=False) for one in found}
    output = alike.pop()
    if output is None or alike:
        raise UnsupportedBody(
            f"the op does not return {name} with one type, shape and strides on all of its paths",
            fix="allocate it in one place of the op's body",
        )
    is_strided = all(one is not None and one.strided for one in found)
    if not (is_strided or _is_compact(output)):
        raise UnsupportedBody(
            f"the op returns {name} with strides that are not compact",
            found=f"[{', '.join(map(str, output.strides))}] for "
            f"[{', '.join(map(str, output.shape))}]",
            fix="allocate it with compact strides, or let callers choose them: "
            "returns=native.tensor(..., layout='strided')",
        )
    return dataclasses.replace(output, strided=is_strided)


def _tensor(output: Output, name: str) -> TensorCase:
    """An output, or its gradient, as C callers pass it."""
    strides = tuple(Var(f"{name}.stride[{i}]") for i in range(len(output.shape)))
    return TensorCase(
        name,
        dtype=output.dtype,
        shape=output.shape,
        strides=strides if output.strided else None,
    )


def _is_compact(output: Output) -> bool:
    stride: Term = 1
    for size, found in zip(reversed(output.shape), reversed(output.strides), strict=True):
        if found != stride:
            return False
        stride = Algebra({}).mul(stride, size)
    return True


class _Used:
    """What the cases of a C function use of its parameters and outputs.

    A tensor stays if a kernel has it, if a path needs a size or stride that no other tensor has, or
    if it tells apart two cases that do different things. An output that is always None goes.
    """

    def __init__(
        self, params: Sequence[Param], outputs: Sequence[str], cases: Sequence[Case]
    ) -> None:
        self._names = {id(case): _variables(case.paths) for case in cases}
        self._tensors = {b for case in cases for b in _buffers(case)}
        while (wanted := next(self._wanted(cases), None)) is not None:
            self._tensors.add(wanted)
        used = {name for case in cases for name in self._needed(case)}
        self._scalars = {p.name for p in params if isinstance(p, ScalarParam)} & used
        made = [path.outputs for case in cases for path in case.paths if not path.refused]
        self._outputs = [any(o[i] is not None for o in made) for i in range(len(outputs))]
        self.cases = [self._case(case) for case in cases]
        kept = self._tensors | self._scalars
        for choice in [param.name for param in params if isinstance(param, ChoiceParam)]:
            fewer = [_without(case, choice) for case in self.cases]
            if len({(case.tensors, case.choices) for case in fewer}) == len(set(fewer)):
                # All of its values do the same.
                self.cases = fewer
            else:
                kept.add(choice)
        self.params = tuple(param for param in params if param.name in kept)
        self.outputs = tuple(itertools.compress(outputs, self._outputs))

    def _kept(self, case: Case) -> list[TensorCase]:
        return [tensor for tensor in case.tensors if tensor.param in self._tensors]

    def _needed(self, case: Case) -> set[str]:
        """The variables that a call must give: of paths, and of sizes that are computed."""
        return self._names[id(case)] | _variables(tuple(self._kept(case)))

    def _wanted(self, cases: Sequence[Case]) -> Iterator[str]:
        for case in cases:
            missing = self._needed(case) - self._places(case).keys()
            for tensor in case.tensors:
                if missing & {name for name, _ in _gives(tensor)}:
                    yield tensor.param
        yield from self._telling_apart(cases)

    def _telling_apart(self, cases: Sequence[Case]) -> Iterator[str]:
        seen: dict[Any, Case] = {}
        for case in cases:
            alike = (tuple(map(_kind, self._kept(case))), case.choices)
            other = seen.setdefault(alike, case)
            # What they do, whatever their variables are called.
            mine, theirs = [_renamed(c.paths, self._places(c)) for c in (case, other)]
            if mine != theirs:
                for tensor, others in zip(case.tensors, other.tensors, strict=True):
                    if tensor.param not in self._tensors and _kind(tensor) != _kind(others):
                        yield tensor.param

    def _places(self, case: Case) -> dict[str, str]:
        """By variable, the first tensor that has it: `x.shape[0]`."""
        found: dict[str, str] = {}
        for tensor in self._kept(case):
            for name, place in _gives(tensor):
                found.setdefault(name, place)
        return found

    def _case(self, case: Case) -> Case:
        kept = self._kept(case)
        guards = [guard for tensor in kept for guard in _conditions(tensor)]
        paths = tuple(
            dataclasses.replace(
                path,
                guards=(*guards, *path.guards),
                # A refused path has no outputs.
                outputs=tuple(itertools.compress(path.outputs, self._outputs)),
            )
            for path in case.paths
        )
        places = self._places(case)
        # A variable that has the name of a tensor gets that of one that is still there.
        gone = {tensor.param for tensor in case.tensors} - self._tensors
        new = {n: place for n, place in places.items() if n.rpartition(".")[0] in gone}
        bounds = [b for b in case.bounds if b.var in places or b.var in self._scalars]
        made = Case(
            tuple(dataclasses.replace(t, shape=_plain(t)) for t in kept),
            case.choices,
            tuple(dataclasses.replace(b, var=new.get(b.var, b.var)) for b in bounds),
            paths,
        )
        renamed: Case = _renamed(made, new)
        return renamed


def _without(case: Case, choice: str) -> Case:
    return dataclasses.replace(case, choices=tuple(c for c in case.choices if c[0] != choice))


def _buffers(case: Case) -> Iterator[str]:
    """The memory that a case reads or writes, by name."""
    for path in case.paths:
        for step in path.steps:
            if isinstance(step, Fill):
                yield step.buffer
            elif isinstance(step, Launch):
                yield from (a.buffer for a in step.arguments if isinstance(a, Pointer))


def _variables(value: Any) -> set[str]:
    """The variables in a record."""
    found: dict[str, Var] = {}
    changed(value, Var, lambda var: found.setdefault(var.name, var))
    return set(found)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return changed(value, Var, lambda v: Var(names.get(v.name, v.name), v.is_float))


def _gives(tensor: TensorCase) -> Iterator[tuple[str, str]]:
    """The variables that a tensor gives a value to, each with its place."""
    for what, terms in (("shape", tensor.shape), ("stride", tensor.strides or ())):
        for dim, term in enumerate(terms):
            if isinstance(term, Var):
                yield term.name, f"{tensor.param}.{what}[{dim}]"


def _kind(tensor: TensorCase) -> tuple[Any, ...]:
    fixed = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return tensor.param, tensor.present, tensor.dtype, fixed, tensor.strides is None


def _plain(tensor: TensorCase) -> tuple[Term, ...]:
    """Sizes as a call has them: a variable for one that is computed from others."""
    return tuple(
        Var(f"{tensor.param}.shape[{dim}]") if isinstance(size, Expr) else size
        for dim, size in enumerate(tensor.shape)
    )


def _conditions(tensor: TensorCase) -> list[Guard]:
    """That computed sizes are what they should be."""
    pairs = zip(_plain(tensor), tensor.shape, strict=True)
    return [Guard(Expr("==", pair)) for pair in pairs if isinstance(pair[1], Expr)]


class Context:
    """Stands for autograd's ctx."""

    def __init__(self, needs_input_grad: tuple[bool, ...], on_mark: Callable[[], None]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._on_mark = on_mark

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Any) -> None:
        self._on_mark()

    def _no_effect(self, *_: Any) -> None:
        """All gradients are given, and nothing goes forward."""

    set_materialize_grads = save_for_forward = _no_effect


def backward_body(
    entry: Entry, forward: Declared, on_mark: Callable[[], None]
) -> Callable[..., list[Any]]:
    """A function of the gradients, the op's C parameters and its outputs, in this order.

        scale(x, factor) -> out     body(grad_out, x, factor, out) -> [grad of x]

    What `setup_context` saves, it saves of the tensors that C callers pass, before the backward.

    It returns a gradient or None for each of these parameters. `on_mark` is called if an output
    is marked as not differentiable.
    """
    definition = entry.registration.definition
    backward = definition.backward
    assert backward is not None
    lowered = entry.flat()
    setup = with_all_inputs(lowered.signature, definition.setup_context)
    result = Generated(entry.name, entry.location, lowered).structure("_of_result")
    names = [param.name for param in forward.params]
    count = len(forward.outputs)

    def body(*given: Any) -> list[Any]:
        grads, outputs = given[:count], given[len(given) - count :]
        values = {**forward.constants, **dict(zip(names, given[count:], strict=False))}
        flat = tuple(_is_differentiable(values[a.name]) for a in lowered.arguments)
        ctx = Context(fold_needs(lowered.signature, flat), on_mark)
        if setup is not None:
            args, kwargs = forward.rebuilt(values.__getitem__)
            output = outputs[0] if count == 1 else outputs
            setup(ctx, (*args, *kwargs.values()), result(output))
        returned = backward(ctx, *grads)
        found = flatten_gradients(lowered.signature, returned, needed=ctx.needs_input_grad)
        by_name = {a.name: grad for a, grad in zip(lowered.arguments, found, strict=True)}
        own = _Own()
        return [own(name, by_name[name], values[name]) for name in names]

    return body


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


class _Own:
    """Gradients as autograd hands them on, each in memory of its own for C callers to bring."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def __call__(self, name: str, grad: Any, value: Any) -> Any:
        if grad is None or not _is_differentiable(value):
            return None
        grad = _summed(name, grad, value).to(value.dtype)
        if not isinstance(grad, Traced):
            return grad
        memory: Any = grad.memory
        is_whole = same(grad.offset, 0) and same(math.prod(grad.sizes), memory.count)
        if not (memory.allocated and is_whole) or id(memory) in self._taken:
            grad = grad.clone(memory_format=torch.contiguous_format)
        self._taken.add(id(grad.memory))
        return grad


def _summed(name: str, grad: Any, value: Any) -> Any:
    """Of the input's shape: autograd sums over what the op repeated."""
    more = grad.dim() - value.dim()
    pairs = list(zip(grad.shape[max(more, 0) :], value.shape, strict=False))
    repeated = [more + i for i, (g, v) in enumerate(pairs) if same(v, 1) and not same(g, 1)]
    if more < 0 or any(i + more not in repeated and g != v for i, (g, v) in enumerate(pairs)):
        raise BadGradient(
            f"backward returned a gradient of shape {tuple(grad.shape)} for {name}, whose shape is "
            f"{tuple(value.shape)}",
            parameter=name,
            fix="return a gradient of the input's shape",
        )
    if repeated:
        grad = grad.sum(repeated, keepdim=True)
    return grad.sum(list(range(more))) if more else grad
