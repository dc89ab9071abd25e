"""Builds the cases of an op's declared backward from those of the op.

    gated(x, eps) -> out     gated_backward(grad_out, x, eps) -> grad_x

It is traced with all that there is: gradients of the outputs, the op's parameters, its outputs.
What no path uses is not a parameter of the C function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._compat.host_caches import HostCaches
from ...arch import Arch
from ...errors import UnsupportedBody
from ...registry import Entry
from ..frontend.expand import Declared
from ..ir.cases import Case, Output, TensorCase
from ..ir.expr import Term, Var
from ..ir.interface import Param, TensorParam
from ..symbolic.algebra import Algebra
from .backward_body import backward_body
from .case_builder import BuiltCase, build_case, first_config
from .launches import Choose
from .refusals import all_of
from .used_parameters import UsedParameters


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
    built = all_of(own, params, _cases(own, forward, list(grads), cases), build)
    used = UsedParameters(declared.params, declared.outputs, [one.case for one in built])
    if not used.outputs:
        raise UnsupportedBody(
            "it gives no gradient of a floating-point tensor",
            fix="return gradients, or remove backward=",
            op=own.name,
            location=own.location,
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


def _cases(
    own: Entry, forward: Declared, grads: Sequence[str], cases: Sequence[Case]
) -> list[Case]:
    made: dict[Case, None] = {}
    for case in cases:
        if not any(_is_float(tensor) for tensor in case.tensors if tensor.present):
            continue
        outputs = [_output(own, case, name, i) for i, name in enumerate(forward.outputs)]
        came, given = (tuple(map(_tensor, outputs, names)) for names in (grads, forward.outputs))
        if any(map(_is_float, outputs)):
            made[Case((*came, *case.tensors, *given), case.choices, case.bounds)] = None
    if not made:
        raise UnsupportedBody(
            "the op is declared for no floating-point tensors",
            fix="declare it for fp32 or the like, or remove backward=",
            op=own.name,
            location=own.location,
        )
    return list(made)


def _is_float(tensor: TensorCase | Output) -> bool:
    return tensor.dtype.startswith(("fp", "bf"))


def _output(own: Entry, case: Case, name: str, number: int) -> Output:
    """What a case of the op returns; strided if callers may choose its strides on all paths."""
    found = [path.outputs[number] for path in case.paths if not path.refused]
    alike = {None if one is None else dataclasses.replace(one, strided=False) for one in found}
    output = alike.pop()
    if output is None or alike:
        raise UnsupportedBody(
            f"the op does not return {name} with one type, shape and strides on all of its paths",
            fix="allocate it in one place of the op's body",
            op=own.name,
            location=own.location,
        )
    is_strided = all(one is not None and one.strided for one in found)
    if not (is_strided or _is_compact(output)):
        raise UnsupportedBody(
            f"the op returns {name} with strides that are not compact",
            found=f"[{', '.join(map(str, output.strides))}] for "
            f"[{', '.join(map(str, output.shape))}]",
            fix="allocate it with compact strides, or let callers choose them: "
            "returns=native.tensor(..., layout='strided')",
            op=own.name,
            location=own.location,
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
