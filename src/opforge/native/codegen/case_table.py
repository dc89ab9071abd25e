"""The cases of an operator as tables: what tells them apart, and what each checks."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.cases import Bound, Case, TensorCase
from ..ir.expr import Term, Var
from .expression import integer
from .names import quoted
from .path_table import path_row
from .pool import Pool
from .scope import OpScope, Place, type_key

Places = dict[str, Place]


def case_row(scope: OpScope, pool: Pool, kernels: dict[str, str], number: int) -> str:
    """A row of the operator's table of cases."""
    case = scope.op.cases[number]
    places = scope.places[number]
    by_name = {t.param: t for t in case.tensors}
    chosen = dict(case.choices)
    keys = []
    for param in scope.inputs:
        given = by_name.get(param.name)
        if given is None:
            raise scope.error(f"a case says nothing about the tensor {param.name!r}")
        keys.append(type_key(given.dtype, len(given.shape)) if given.present else "OF_ABSENT")
    keys += [str(chosen[choice.name]) for choice in scope.choices]
    checks = [check for tensor in case.tensors for check in _tensor_checks(scope, places, tensor)]
    checks += [
        f"OF_CHECK_COMPACT({scope.tensors.index(output.param)})"
        for output in case.returns
        if output.strides is None and output.shape
    ]
    checks += [c for bound in case.bounds for c in _bound_checks(scope, pool, places, bound)]
    fields = [
        f"{{{quoted(name)}, offsetof(Values, {scope.fields[name]}), {int(scope.is_float(name))}}}"
        for name in scope.variables(number)
    ]
    rows = [path_row(scope, pool, kernels, path) for path in case.paths]
    cells = [
        pool.array("uint32_t", "keys", keys),
        _bind(scope, pool, places),
        str(len(checks)),
        pool.array("Check", "checks", checks),
        str(len(fields)),
        pool.array("Field", "fields", fields),
        str(len(rows)),
        pool.array("Path", "paths", rows),
    ]
    return f"{{{quoted(case_text(scope, case))},\n     {', '.join(cells)}}}"


def case_text(scope: OpScope, case: Case) -> str:
    """`x fp16 [m, n], bias NULL, activation=RELU`; behind `add_flat: ` where there are several."""
    parts = []
    for tensor in case.tensors:
        if not tensor.present:
            parts.append(f"{tensor.param} NULL")
            continue
        shape = ", ".join(str(size) for size in tensor.shape)
        strides = ", ".join(str(stride) for stride in tensor.strides or ())
        shown = f"{tensor.param} {tensor.dtype} [{shape}]"
        parts.append(f"{shown} strides [{strides}]" if strides else shown)
    chosen = dict(case.choices)
    parts += [f"{c.name}={c.labels[chosen[c.name]]}" for c in scope.choices]
    served = scope.op.served_by
    whose = f"{served[case.implementation].name}: " if len(served) > 1 else ""
    return whose + (", ".join(parts) or "any call")


def _bind(scope: OpScope, pool: Pool, places: Places) -> str:
    if not places:
        return "NULL"
    lines = ["Values *v = (Values *)values;"]
    lines += [f"v->{scope.fields[name]} = {place.c};" for name, place in places.items()]
    return pool.function("void", "bind", "const View *views, void *values", lines)


def _tensor_checks(scope: OpScope, places: Places, tensor: TensorCase) -> Iterator[str]:
    index = scope.input_index[tensor.param]
    if tensor.strides is None and tensor.shape:
        yield f"OF_CHECK_COMPACT({index})"
    for dim, size in enumerate(tensor.shape):
        yield from _same(scope, places, index, dim, size, is_stride=False)
    for dim, stride in enumerate(tensor.strides or ()):
        yield from _same(scope, places, index, dim, stride, is_stride=True)


def _same(
    scope: OpScope, places: Places, index: int, dim: int, term: Term, *, is_stride: bool
) -> Iterator[str]:
    kind = "OF_CHECK_STRIDE" if is_stride else "OF_CHECK_SIZE"
    if isinstance(term, int):
        yield f"{kind}({index}, {dim}, {integer(term)})"
        return
    if not isinstance(term, Var):
        raise scope.error(f"a tensor's size or stride is {term}, neither a name nor a number")
    first = places[term.name]
    if first.is_stride != is_stride:
        raise scope.error(f"{term.name!r} is both a size and a stride")
    if (first.tensor, first.dim) != (index, dim):
        yield f"{kind}_LIKE({index}, {dim}, {first.tensor}, {first.dim}, {quoted(term.name)})"


def _bound_checks(scope: OpScope, pool: Pool, places: Places, bound: Bound) -> Iterator[str]:
    place = places.get(bound.var)
    tensor = -1 if place is None else place.tensor
    subject = f"{tensor}, {quoted(bound.var)}, offsetof(Values, {scope.fields[bound.var]})"
    if bound.values:
        values = pool.array("int64_t", "allowed", [integer(v) for v in bound.values])
        yield f"OF_CHECK_ONE_OF({subject}, {len(bound.values)}, {values})"
    # The runtime refuses negative sizes itself.
    elif bound.low > 0 or bound.high is not None or place is None:
        high = "INT64_MAX" if bound.high is None else integer(bound.high)
        yield f"OF_CHECK_RANGE({subject}, {integer(bound.low)}, {high})"
