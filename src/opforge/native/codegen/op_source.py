"""The C file of one operator: tables of its cases, functions over sizes, functions of the API.

Whatever its cases have alike is written once: an op over three dtypes has the same sizes, guards
and arguments for each, which become one `bind_0`, one `guards_0` and one `numbers_0`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from ..ir.abi import PREFIX, is_attribute
from ..ir.case_text import guards, source
from ..ir.cases import (
    ONE,
    Allocate,
    Argument,
    Bound,
    Case,
    Descriptor,
    Guard,
    Launch,
    Path,
    Pointer,
    ScalarValue,
    Step,
    TensorCase,
)
from ..ir.dtypes import DTYPES
from ..ir.expr import Expr, Var, addressed, is_float, text, text_of_all, variables
from ..ir.interface import ScalarParam, TensorParam
from .expression import Writer, integer
from .signature import CSignature, Kind
from .text import comment, distinct, function, quoted

_NUMBERS = "const void *values, const uint64_t *at, int64_t *n, int *overflow"
_TYPES = {
    "i1": "OF_I1", "u1": "OF_I1", "i8": "OF_I8", "i16": "OF_I16", "i32": "OF_I32",
    "i64": "OF_I64", "u8": "OF_U8", "u16": "OF_U16", "u32": "OF_U32", "u64": "OF_U64",
    "fp16": "OF_FP16", "bf16": "OF_BF16", "fp32": "OF_FP32", "fp64": "OF_FP64", ONE: "OF_ONE",
}  # fmt: skip
_FLOATS = {"fp16", "bf16", "fp32", "fp64"}
# What a function takes behind its tensors and values.
_LAST: dict[Kind, list[str]] = {"call": ["stream"], "outputs": [], "workspace": ["bytes"]}


def operation_source(signature: CSignature, kernels: Mapping[str, str]) -> str:
    """`src/NAME/op_silu.c`; `kernels` has the constant for each kernel, by key."""
    return _OpSource(signature, kernels).text()


class _Pool:
    """Static arrays and functions, numbered by kind in the order they are first needed."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self.definitions: list[str] = []

    def array(self, element: str, kind: str, items: Sequence[str]) -> str:
        """`static const ELEMENT kind_0[] = {...}`; NULL for an empty one, which C forbids."""
        if not items:
            return "NULL"
        opening = f"static const {element} "
        line = f"[] = {{{', '.join(items)}}};"
        # As if the name had one character, so that its number does not change the layout.
        is_long = len(opening) + 1 + len(line) > 96
        if is_long or any(item.startswith(("{", "OF_CHECK")) for item in items):
            line = "\n".join(["[] = {", *(f"    {item}," for item in items), "};"])
        return self._define(kind, opening, line)

    def table(self, element: str, kind: str, items: Sequence[str]) -> str:
        """An array behind its length."""
        return f"{len(items)}, {self.array(element, kind, items)}"

    def function(
        self, result: str, kind: str, parameters: str, body: Sequence[str], comment: str = ""
    ) -> str:
        """`static RESULT kind_0(PARAMETERS) {...}`, with a comment above it."""
        said = f"/* {comment} */\n" if comment else ""
        return self._define(kind, f"{said}static {result} ", function(f"({parameters})", body))

    def _define(self, kind: str, before: str, after: str) -> str:
        """Before and after the name."""
        key = kind, before, after
        if key not in self._names:
            name = self._names[key] = f"{kind}_{self._counts[kind]}"
            self._counts[kind] += 1
            self.definitions.append(before + name + after)
        return self._names[key]


@dataclass(frozen=True)
class _Place:
    """Where a tensor holds a variable: `views[tensor].shape[dim]`, its strides or its address."""

    tensor: int
    dim: int | None
    is_stride: bool = False

    @property
    def c(self) -> str:
        if self.dim is None:
            return f"(int64_t)views[{self.tensor}].address"
        return f"views[{self.tensor}].{'strides' if self.is_stride else 'shape'}[{self.dim}]"


_Places = dict[str, _Place]
_PART = re.compile(r"(.+)\.(shape|stride)\[(\d+)\]")


class _OpSource:
    """Writes the file. `fields` names the field of `Values` for each variable of a case."""

    def __init__(self, signature: CSignature, kernels: Mapping[str, str]) -> None:
        self.signature, self.kernels = signature, kernels
        self.op = op = signature.op
        self.inputs = [p for p in op.params if isinstance(p, TensorParam)]
        self.choices = signature.choices
        self.scalars = {p.name: p for p in op.params if isinstance(p, ScalarParam)}
        self.tensors = [*(p.name for p in self.inputs), *op.outputs]
        self.index = {name: i for i, name in enumerate(self.tensors)}
        self.places = [self._places(case) for case in op.cases]
        used = [name for case, places in self._cases() for name in _bound(case, places)]
        names = list(dict.fromkeys([*self.scalars, *used]))
        self.fields = distinct(names)
        self.write = Writer(self.fields)
        self.attributes = [n for n in names if is_attribute(n) and n not in self.scalars]
        self.pool = _Pool()

    def text(self) -> str:
        rows = [self._case_row(case, places) for case, places in self._cases()]
        operation = self._operation(rows)
        op, c = self.op, self.signature
        name = f"{op.torch_name or op.name}{f' ({op.location})' if op.location else ''}"
        parts = [
            f"/* {c.function}: {comment(name)}. Written by opforge. */",
            '#include "runtime.h"\n\n#include "api.h"\n#include "kernels.h"\n\n#include <string.h>',
            self._values(),
            *self.pool.definitions,
            operation,
            *(self._function(kind, forced=f) for kind in c.kinds for f in (False, True)),
            f"{c.implementations()}\n{{\n    return of_implementations(&operation, list);\n}}",
        ]
        return "\n\n".join(parts) + "\n"

    def _cases(self) -> Iterator[tuple[Case, _Places]]:
        return zip(self.op.cases, self.places, strict=True)

    def _is_float(self, name: str) -> bool:
        return name in self.scalars and self.scalars[name].dtype in _FLOATS

    # Where a call's tensors hold the variables of a case.

    def _places(self, case: Case) -> _Places:
        """Where each variable of a tensor is first seen."""
        places: _Places = {}
        for tensor in case.tensors:
            index = self.index[tensor.param]
            for dim, size in enumerate(tensor.shape):
                if isinstance(size, Var):
                    places.setdefault(size.name, _Place(index, dim))
            for dim, stride in enumerate(tensor.strides or ()):
                if isinstance(stride, Var):
                    places.setdefault(stride.name, _Place(index, dim, is_stride=True))
        for output in case.returns:
            index = self.index[output.param]
            places |= {
                var.name: _Place(index, dim, is_stride=True)
                for dim, stride in enumerate(output.strides or ())
                for var in variables(stride)
            }
        for name in _used(case):
            if name not in places and name not in self.scalars and not is_attribute(name):
                places[name] = self._place_of(name)
        return places

    def _place_of(self, name: str) -> _Place:
        """Of `x.shape[0]`, `x.stride[1]` or `x.data_ptr()`."""
        if (tensor := addressed(name)) is not None:
            return _Place(self.index[tensor], None)
        part = _PART.fullmatch(name)
        assert part is not None, name
        return _Place(self.index[part[1]], int(part[3]), is_stride=part[2] == "stride")

    def _wide(self) -> list[str]:
        """64-bit unsigned scalars that are computed with, and so must fit into 63 bits."""
        wide = {n for n, p in self.scalars.items() if p.dtype == "u64"}
        return sorted(wide & {n for c in self.op.cases for n in _used(c, direct=False)})

    # The operator, and the functions that callers have.

    def _values(self) -> str:
        members = [
            f"    {'double' if self._is_float(name) else 'int64_t'} {field};"
            + (f" /* {comment(name)} */" if name != field else "")
            for name, field in self.fields.items()
        ]
        head = "/* The sizes and scalars of a call. */"
        return "\n".join([head, "typedef struct {", *(members or ["    int none;"]), "} Values;"])

    def _operation(self, cases: list[str]) -> str:
        op, array, table = self.op, self.pool.array, self.pool.table
        tensors = [f"{{{quoted(p.name)}, {_flags(p)}}}" for p in self.inputs]
        tensors += [f"{{{quoted(name)}, OF_OUTPUT | OF_OPTIONAL}}" for name in op.outputs]
        choices = []
        for choice in self.choices:
            labels = array("char *const", "labels", [quoted(label) for label in choice.labels])
            choices.append(f"{{{quoted(choice.name)}, {len(choice.labels)}, {labels}}}")
        wide = [f"{{{quoted(n)}, offsetof(Values, {self.fields[n]}), 0}}" for n in self._wide()]
        offsets = [f"offsetof(Values, {self.fields[name]})" for name in self.attributes]
        asked = [f"OF_DEVICE_{name.removeprefix(PREFIX).upper()}" for name in self.attributes]
        served = [
            f"{{{quoted(one.name)},\n     {quoted(source(one))},\n     {quoted(guards(op, i))}}}"
            for i, one in enumerate(op.served_by)
        ]
        # Where the cases of each implementation begin, and where the last one's end.
        whose = [case.implementation for case in op.cases]
        firsts = [str(bisect_left(whose, i)) for i in range(len(served) + 1)]
        implementations = table("OpforgeImplementation", "implementations", served)
        cells = [
            quoted(self.signature.function),
            f"{implementations}, {array('int', 'first_cases', firsts)}",
            f"{len(self.inputs)}, {len(op.outputs)}, {array('TensorInfo', 'tensors', tensors)}",
            table("ChoiceInfo", "choices", choices),
            table("Field", "wide", wide),
            f"{table('size_t', 'attribute_offsets', offsets)}, {array('int', 'attributes', asked)}",
            table("Case", "cases", cases),
        ]
        rows = "\n".join(f"    {cell}," for cell in cells)
        return f"static const Operation operation = {{\n{rows}\n}};"

    def _function(self, kind: Kind, *, forced: bool) -> str:
        """`mylib_silu`, `mylib_silu_outputs` or `mylib_silu_workspace`: gathers its arguments."""
        names = self.signature.names
        read, written = "const OpforgeTensor *const", "OpforgeTensor *const"
        inputs, outputs = [p.name for p in self.inputs], list(self.op.outputs)
        arrays = [(read, "of_given", "", [*inputs, *outputs])]
        if kind == "outputs":
            arrays = [(read, "of_inputs", "", inputs), (written, "of_filled", "", outputs)]
        arrays.append(
            ("const int", "of_choices", "(int)", [choice.name for choice in self.choices])
        )
        lines, passed = [], ["&operation", *(["implementation"] if forced else [])]
        for type_, array, cast, gathered in arrays:
            items = ", ".join(cast + names[name] for name in gathered)
            lines += [f"{type_} {array}[] = {{{items}}};"] if gathered else []
            passed.append(array if gathered else "NULL")
        lines += ["Values of_values;", "memset(&of_values, 0, sizeof of_values);"]
        for name, param in self.scalars.items():
            value = {"i1": f"{names[name]} != 0", "u64": f"(int64_t){names[name]}"}
            lines.append(f"of_values.{self.fields[name]} = {value.get(param.dtype, names[name])};")
        passed += ["&of_values", *_LAST[kind]]
        lines.append(f"return of_{kind}{'_with' if forced else ''}({', '.join(passed)});")
        return function(self.signature.declaration(kind, forced=forced), lines)

    # A case: what tells it from others, and what a call's tensors must hold.

    def _case_row(self, case: Case, places: _Places) -> str:
        by_name = {t.param: t for t in case.tensors}
        chosen = dict(case.choices)
        keys = [
            _type_key(t.dtype, len(t.shape)) if t.present else "OF_ABSENT"
            for t in (by_name[param.name] for param in self.inputs)
        ]
        keys += [str(chosen[choice.name]) for choice in self.choices]
        checks = [check for tensor in case.tensors for check in self._checks(places, tensor)]
        checks += [
            f"OF_CHECK_COMPACT({self.index[output.param]})"
            for output in case.returns
            if output.strides is None and output.shape
        ]
        checks += [check for bound in case.bounds for check in self._bound_checks(places, bound)]
        fields = [
            f"{{{quoted(n)}, offsetof(Values, {self.fields[n]}), {int(self._is_float(n))}}}"
            for n in _bound(case, places)
        ]
        rows = [self._path_row(path) for path in case.paths]
        cells = [
            self.pool.array("uint32_t", "keys", keys),
            self._bind(places),
            self.pool.table("Check", "checks", checks),
            self.pool.table("Field", "fields", fields),
            self.pool.table("Path", "paths", rows),
        ]
        return f"{{{quoted(self._case_text(case))},\n     {', '.join(cells)}}}"

    def _case_text(self, case: Case) -> str:
        """`x fp16 [m, n], bias NULL, activation=RELU`; behind `add_flat: ` if there are several."""
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
        parts += [f"{c.name}={c.labels[chosen[c.name]]}" for c in self.choices]
        served = self.op.served_by
        whose = f"{served[case.implementation].name}: " if len(served) > 1 else ""
        return whose + (", ".join(parts) or "any call")

    def _bind(self, places: _Places) -> str:
        if not places:
            return "NULL"
        lines = ["Values *v = (Values *)values;"]
        lines += [f"v->{self.fields[name]} = {place.c};" for name, place in places.items()]
        return self.pool.function("void", "bind", "const View *views, void *values", lines)

    def _checks(self, places: _Places, tensor: TensorCase) -> Iterator[str]:
        index = self.index[tensor.param]
        if tensor.strides is None and tensor.shape:
            yield f"OF_CHECK_COMPACT({index})"
        for kind, terms in (("SIZE", tensor.shape), ("STRIDE", tensor.strides or ())):
            for dim, term in enumerate(terms):
                if isinstance(term, int):
                    yield f"OF_CHECK_{kind}({index}, {dim}, {integer(term)})"
                    continue
                assert isinstance(term, Var)
                first = places[term.name]
                if (first.tensor, first.dim) != (index, dim):
                    like = f"{first.tensor}, {first.dim}, {quoted(term.name)}"
                    yield f"OF_CHECK_{kind}_LIKE({index}, {dim}, {like})"

    def _bound_checks(self, places: _Places, bound: Bound) -> Iterator[str]:
        place = places.get(bound.var)
        tensor = -1 if place is None else place.tensor
        subject = f"{tensor}, {quoted(bound.var)}, offsetof(Values, {self.fields[bound.var]})"
        if bound.values:
            values = self.pool.array("int64_t", "allowed", [integer(v) for v in bound.values])
            yield f"OF_CHECK_ONE_OF({subject}, {len(bound.values)}, {values})"
        # The runtime refuses negative sizes itself.
        elif bound.low > 0 or bound.high is not None or place is None:
            high = "INT64_MAX" if bound.high is None else integer(bound.high)
            yield f"OF_CHECK_RANGE({subject}, {integer(bound.low)}, {high})"

    # A path: its conditions, its outputs, and its steps.

    def _path_row(self, path: Path) -> str:
        workspaces = [step.buffer for step in path.steps if isinstance(step, Allocate)]
        buffers = {name: i for i, name in enumerate([*self.tensors, *workspaces])}
        rows = [] if path.refused else [self._step(step, buffers) for step in path.steps]
        # A condition that always holds needs no test.
        tested = [g for g in path.guards if not isinstance(g.condition, int) or not g.condition]
        conditions = [
            quoted(
                f"{text(g.condition)} does not hold" + (f" ({g.location})" if g.location else "")
            )
            for g in tested
        ]
        cells = [
            quoted(path.why) if path.refused else "NULL",
            self._guards(tested),
            self.pool.array("char *const", "conditions", conditions),
            self._output_keys(path),
            self._layouts(path),
            str(len(workspaces)),
            self.pool.table("Step", "steps", rows),
        ]
        return f"{{{', '.join(cells)}}}"

    def _guards(self, tested: list[Guard]) -> str:
        if not tested:
            return "NULL"
        lines = []
        for i, guard in enumerate(tested):
            lines += [
                f"if (!({self.write.condition(guard.condition)})) {{",
                f"    return {i};",
                "}",
            ]
        body = [*_opening(lines), *lines, "return -1;"]
        shown = comment(text_of_all([g.condition for g in tested]))
        parameters = "const void *values, int *overflow"
        return self.pool.function("int", "guards", parameters, body, shown)

    def _output_keys(self, path: Path) -> str:
        keys = [
            "OF_ABSENT"
            if o is None
            else _type_key(o.dtype, len(o.shape)) + (" | OF_ANY_STRIDES" if o.strided else "")
            for o in path.outputs or (None,) * len(self.op.outputs)
        ]
        return self.pool.array("uint32_t", "outputs", keys)

    def _layouts(self, path: Path) -> str:
        lines, shown = [], []
        for i, output in enumerate(path.outputs):
            if output is None:
                continue
            for dim, (size, stride) in enumerate(zip(output.shape, output.strides, strict=True)):
                lines.append(f"layouts[{i}].sizes[{dim}] = {self.write(size)};")
                lines.append(f"layouts[{i}].strides[{dim}] = {self.write(stride)};")
            sizes = ", ".join(text(size) for size in output.shape)
            shown.append(f"{self.op.outputs[i]} [{sizes}]")
        if not lines:
            return "NULL"
        parameters = "const void *values, Layout *layouts, int *overflow"
        body = [*_opening(lines), *lines]
        return self.pool.function("void", "layouts", parameters, body, comment(", ".join(shown)))

    def _step(self, step: Step, buffers: Mapping[str, int]) -> str:
        if isinstance(step, Launch):
            return self._launch(step, buffers)
        buffer = buffers[step.buffer]
        if isinstance(step, Allocate):
            shown = f"{step.buffer}: {text(step.bytes)}"
            numbers = self._numbers([(self.write(step.bytes), "bytes")], shown)
            return f"{{OF_ALLOCATE, {buffer}, 0, 0, NULL, {numbers}}}"
        shown = f"fill {step.buffer} with {step.pattern:#x}"
        values = [(self.write(step.offset), "offset"), (self.write(step.count), "count")]
        numbers = self._numbers(values, shown)
        pattern = f"UINT64_C({step.pattern:#x})"
        return f"{{OF_FILL, {buffer}, {step.width}, {pattern}, NULL, {numbers}}}"

    def _numbers(self, values: list[tuple[str, str]], shown: str) -> str:
        """The function that computes what a step needs; each value with what it is."""
        lines = [
            f"n[{i}] = {value};" + (f" /* {comment(name)} */" if name else "")
            for i, (value, name) in enumerate(values)
        ]
        body = [*_opening(lines, at=True), *lines]
        return self.pool.function("void", "numbers", _NUMBERS, body, comment(shown))

    def _launch(self, launch: Launch, buffers: Mapping[str, int]) -> str:
        values = [(self.write(size), "") for size in launch.grid]
        for i, argument in enumerate(launch.arguments):
            if isinstance(argument, Pointer):
                base = f"at[{buffers[argument.buffer]}]"
                offset = self.write(argument.offset)
                value = f"({base} + (uint64_t){offset})" if argument.offset != 0 else base
                values.append((f"(int64_t){value}", argument.name))
            else:
                values.append((self._scalar(launch, i, argument), argument.name))
        grid = ", ".join(text(size) for size in launch.grid)
        constants = "".join(f", {name}={value}" for name, value in launch.constants)
        shown = f"{launch.kernel_name}, grid ({grid}){constants}"
        numbers = self._numbers(values, shown)
        names = [quoted(_shown(argument)) for argument in launch.arguments]
        cells = [
            quoted(launch.kernel_name),
            quoted(launch.location or launch.kernel_location),
            self.pool.table("char *const", "arguments_of", names),
            self._variants(launch),
        ]
        record = self.pool.array("Launch", "launch", [f"{{{', '.join(cells)}}}"])
        return f"{{OF_LAUNCH, 0, 0, 0, &{record}[0], {numbers}}}"

    def _scalar(self, launch: Launch, index: int, argument: ScalarValue) -> str:
        types = {variant.types[index] for variant in launch.variants} - {ONE}
        if types & _FLOATS:
            return f"of_float_bits({self.write.as_double(argument.value)})"
        if is_float(argument.value) or not types <= _TYPES.keys():
            # By the annotation of the kernel's parameter.
            kernel = f"{launch.kernel_name} ({launch.kernel_location})"
            kind = "a float" if is_float(argument.value) else "an integer"
            what = f"the argument {argument.name!r} is {kind}, but passed as {sorted(types)}"
            raise self.signature.error(f"{kernel}: {what}")
        return self.write(argument.value)

    def _variants(self, launch: Launch) -> str:
        rows = []
        for variant in launch.variants:
            multiples = {*variant.aligned, *variant.divisible}
            arguments = zip(launch.arguments, variant.types, strict=True)
            codes = [
                self._code(argument, type_) + (" | OF_BY_16" if i in multiples else "")
                for i, (argument, type_) in enumerate(arguments)
            ]
            types = self.pool.array("uint8_t", "types", codes)
            rows.append(f"{{{self.kernels[variant.kernel]}, {types}}}")
        return self.pool.table("Variant", "variants", rows)

    def _code(self, argument: Argument, type_: str) -> str:
        if isinstance(argument, Descriptor):
            flags = " | OF_NAN" * argument.is_nan + " | OF_TF32" * argument.is_tf32
            # Tensor maps need it, whatever the kernel was compiled for.
            return f"OF_DESCRIPTOR + {argument.rank}{flags} | OF_BY_16"
        if isinstance(argument, Pointer):
            return "OF_POINTER"
        scalar = self.scalars.get(argument.value.name) if isinstance(argument.value, Var) else None
        # One of 64 bits that is only handed on.
        is_unsigned = scalar is not None and scalar.dtype == "u64"
        return f"{_TYPES[type_]} | OF_UNSIGNED" if is_unsigned else _TYPES[type_]


def _type_key(dtype: str, rank: int) -> str:
    """By which the runtime tells tensors apart."""
    return f"OF_KEY({DTYPES[dtype].code}, {DTYPES[dtype].bits}, {rank})"


def _flags(param: TensorParam) -> str:
    flags = {
        "OF_WRITTEN": param.written,
        "OF_OPTIONAL": param.optional,
        "OF_BROADCAST": param.broadcast,
        f"OF_GROUP({param.group})": param.group,
    }
    return " | ".join(flag for flag, holds in flags.items() if holds) or "0"


def _shown(argument: Argument) -> str:
    """For messages: callers know the operator's tensors, not a kernel's parameters."""
    if isinstance(argument, Pointer) and argument.buffer != argument.name:
        return f"{argument.buffer} ({argument.name} of the kernel)"
    return argument.name


def _opening(lines: list[str], *, at: bool = False) -> list[str]:
    """Declares `v`, and marks the parameters that a body does not use."""
    body = "\n".join(lines)
    used = "v->" in body
    opening = ["const Values *v = (const Values *)values;" if used else "(void)values;"]
    if at and "at[" not in body:
        opening.append("(void)at;")
    if "overflow" not in body:
        opening.append("(void)overflow;")
    return opening


def _bound(case: Case, places: _Places) -> list[str]:
    """Every variable that a case binds or computes with, sizes first."""
    return list(dict.fromkeys([*places, *_used(case)]))


def _used(case: Case, *, direct: bool = True) -> list[str]:
    """The variables of a case; without `direct`, not those that are only handed to a kernel."""
    found: dict[str, None] = {}
    _find_names(case.paths, found, direct=direct)
    return list(dict.fromkeys([*found, *(bound.var for bound in case.bounds)]))


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _find_names(value: Any, found: dict[str, None], *, direct: bool) -> None:
    """Add the variables of all terms in a record, in the order of its fields."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, Var):
        found[value.name] = None
    elif isinstance(value, Expr):
        _find_names(value.args, found, direct=direct)
    elif isinstance(value, tuple):
        for item in value:
            _find_names(item, found, direct=direct)
    elif is_dataclass(value):
        handed_on = isinstance(value, ScalarValue) and isinstance(value.value, Var)
        if direct or not handed_on:
            for item in vars(value).values():
                _find_names(item, found, direct=direct)
