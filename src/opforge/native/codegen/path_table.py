"""The ways through an operator's body, as tables and small functions."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.cases import (
    ONE,
    Allocate,
    Argument,
    Descriptor,
    Fill,
    Guard,
    Launch,
    Path,
    Pointer,
    ScalarValue,
    Step,
    Variant,
)
from ..ir.expr import Term, is_float, text, text_of_all
from .names import comment, quoted
from .pool import Pool
from .scope import OpScope, type_key

NUMBERS = "const void *values, const uint64_t *at, int64_t *n, int *overflow"
_TYPES = {
    "i1": "OF_I1", "u1": "OF_I1", "i8": "OF_I8", "i16": "OF_I16", "i32": "OF_I32",
    "i64": "OF_I64", "u8": "OF_U8", "u16": "OF_U16", "u32": "OF_U32", "u64": "OF_U64",
    "fp16": "OF_FP16", "bf16": "OF_BF16", "fp32": "OF_FP32", "fp64": "OF_FP64", ONE: "OF_ONE",
}  # fmt: skip
_FLOATS = {"fp16", "bf16", "fp32", "fp64"}
_WIDTHS = {1, 2, 4, 8}


def path_row(scope: OpScope, pool: Pool, kernels: dict[str, str], path: Path) -> str:
    """A row of a case's table of paths."""
    buffers = {name: i for i, name in enumerate(scope.tensors)}
    workspaces = [step.buffer for step in path.steps if isinstance(step, Allocate)]
    for buffer in workspaces:
        if buffer in buffers:
            raise scope.error(f"two buffers of a path are called {buffer!r}")
        buffers[buffer] = len(buffers)
    steps = _Steps(scope, pool, kernels, buffers)
    rows = [] if path.refused else [steps.row(step) for step in path.steps]
    # A condition that always holds needs no test.
    guards = [g for g in path.guards if not isinstance(g.condition, int) or not g.condition]
    cells = [
        quoted(path.why) if path.refused else "NULL",
        _guards(scope, pool, guards),
        pool.array("char *const", "conditions", [quoted(_condition(g)) for g in guards]),
        _output_keys(scope, pool, path),
        _layouts(scope, pool, path),
        str(len(workspaces)),
        str(len(rows)),
        pool.array("Step", "steps", rows),
    ]
    return f"{{{', '.join(cells)}}}"


def _shown(argument: Argument) -> str:
    """For messages: callers know the operator's tensors, not a kernel's parameters."""
    if isinstance(argument, Pointer) and argument.buffer != argument.name:
        return f"{argument.buffer} ({argument.name} of the kernel)"
    return argument.name


def _condition(guard: Guard) -> str:
    where = f" ({guard.location})" if guard.location else ""
    return f"{text(guard.condition)} does not hold{where}"


def _guards(scope: OpScope, pool: Pool, guards: list[Guard]) -> str:
    if not guards:
        return "NULL"
    tests = []
    for i, guard in enumerate(guards):
        tests += [f"if (!({scope.write.condition(guard.condition)})) {{", f"    return {i};", "}"]
    body = [*_opening(tests), *tests, "return -1;"]
    shown = comment(text_of_all([g.condition for g in guards]))
    return pool.function("int", "guards", "const void *values, int *overflow", body, shown)


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


def _output_keys(scope: OpScope, pool: Pool, path: Path) -> str:
    given = path.outputs or (None,) * len(scope.op.outputs)
    if len(given) != len(scope.op.outputs):
        raise scope.error(f"a path has {len(given)} outputs of {len(scope.op.outputs)}")
    keys = [
        "OF_ABSENT"
        if o is None
        else type_key(o.dtype, len(o.shape)) + (" | OF_ANY_STRIDES" if o.strided else "")
        for o in given
    ]
    return pool.array("uint32_t", "outputs", keys)


def _layouts(scope: OpScope, pool: Pool, path: Path) -> str:
    lines, shown = [], []
    for i, output in enumerate(path.outputs):
        if output is None:
            continue
        for dim, (size, stride) in enumerate(zip(output.shape, output.strides, strict=True)):
            lines.append(f"layouts[{i}].sizes[{dim}] = {scope.write(size)};")
            lines.append(f"layouts[{i}].strides[{dim}] = {scope.write(stride)};")
        sizes = ", ".join(text(size) for size in output.shape)
        shown.append(f"{scope.op.outputs[i]} [{sizes}]")
    if not lines:
        return "NULL"
    parameters = "const void *values, Layout *layouts, int *overflow"
    body = [*_opening(lines), *lines]
    return pool.function("void", "layouts", parameters, body, comment(", ".join(shown)))


class _Steps:
    """Writes the steps of one path, whose buffers have the given positions."""

    def __init__(
        self, scope: OpScope, pool: Pool, kernels: dict[str, str], buffers: Mapping[str, int]
    ) -> None:
        self._scope, self._pool, self._kernels = scope, pool, kernels
        self._write = scope.write
        self._buffers = buffers

    def row(self, step: Step) -> str:
        if isinstance(step, Allocate):
            numbers = self._numbers([(step.bytes, "bytes")], f"{step.buffer}: {text(step.bytes)}")
            return f"{{OF_ALLOCATE, {self._buffer(step.buffer)}, 0, 0, NULL, {numbers}}}"
        if isinstance(step, Fill):
            return self._fill(step)
        return self._launch(step)

    def _buffer(self, name: str) -> int:
        if name not in self._buffers:
            raise self._scope.error(f"a step uses an unknown buffer, {name!r}")
        return self._buffers[name]

    def _numbers(self, terms: list[tuple[Term, str]], shown: str) -> str:
        lines = [
            f"n[{i}] = {self._write(term)}; /* {comment(name)} */"
            for i, (term, name) in enumerate(terms)
        ]
        return self._function(lines, shown)

    def _function(self, lines: list[str], shown: str) -> str:
        body = [*_opening(lines, at=True), *lines]
        return self._pool.function("void", "numbers", NUMBERS, body, comment(shown))

    def _fill(self, step: Fill) -> str:
        if step.width not in _WIDTHS:
            raise self._scope.error(f"a fill of {step.width}-byte elements")
        terms = [(step.offset, "offset"), (step.count, "count")]
        numbers = self._numbers(terms, f"fill {step.buffer} with {step.pattern:#x}")
        pattern = f"UINT64_C({step.pattern:#x})"
        buffer = self._buffer(step.buffer)
        return f"{{OF_FILL, {buffer}, {step.width}, {pattern}, NULL, {numbers}}}"

    def _launch(self, launch: Launch) -> str:
        lines = [f"n[{i}] = {self._write(size)};" for i, size in enumerate(launch.grid)]
        for i, argument in enumerate(launch.arguments):
            value = self._argument(launch, i, argument)
            lines.append(f"n[{3 + i}] = {value}; /* {comment(argument.name)} */")
        grid = ", ".join(text(size) for size in launch.grid)
        constants = "".join(f", {name}={value}" for name, value in launch.constants)
        shown = f"{launch.kernel_name}, grid ({grid}){constants}"
        numbers = self._function(lines, shown)
        return f"{{OF_LAUNCH, 0, 0, 0, &{self._launch_record(launch)}[0], {numbers}}}"

    def _argument(self, launch: Launch, index: int, argument: Pointer | ScalarValue) -> str:
        if isinstance(argument, Pointer):
            base = f"at[{self._buffer(argument.buffer)}]"
            if argument.offset == 0:
                return f"(int64_t){base}"
            return f"(int64_t)({base} + (uint64_t){self._write(argument.offset)})"
        types = {variant.types[index] for variant in launch.variants} - {ONE}
        floats = types & _FLOATS
        if floats:
            if types != floats:
                raise self._error(launch, argument.name, f"is passed as {sorted(types)}")
            return f"of_float_bits({self._write.as_double(argument.value)})"
        if is_float(argument.value):
            raise self._error(launch, argument.name, f"is a float, but passed as {sorted(types)}")
        return self._write(argument.value)

    def _error(self, launch: Launch, name: str, what: str) -> Exception:
        kernel = f"{launch.kernel_name} ({launch.kernel_location})"
        return self._scope.error(f"{kernel}: the argument {name!r} {what}")

    def _launch_record(self, launch: Launch) -> str:
        names = self._pool.array(
            "char *const", "arguments_of", [quoted(_shown(a)) for a in launch.arguments]
        )
        variants = [self._variant(launch, variant) for variant in launch.variants]
        cells = [
            quoted(launch.kernel_name),
            quoted(launch.location or launch.kernel_location),
            str(len(launch.arguments)),
            names,
            str(len(variants)),
            self._pool.array("Variant", "variants", variants),
        ]
        return self._pool.array("Launch", "launch", [f"{{{', '.join(cells)}}}"])

    def _variant(self, launch: Launch, variant: Variant) -> str:
        if variant.kernel not in self._kernels:
            raise self._scope.error(f"a variant names an unknown kernel, {variant.kernel!r}")
        if len(variant.types) != len(launch.arguments):
            raise self._error(launch, launch.kernel_name, "has a different number of types")
        multiples = {*variant.aligned, *variant.divisible}
        codes = [
            self._code(launch, argument, type_) + (" | OF_BY_16" if i in multiples else "")
            for i, (argument, type_) in enumerate(zip(launch.arguments, variant.types, strict=True))
        ]
        arguments = self._pool.array("uint8_t", "types", codes)
        return f"{{{self._kernels[variant.kernel]}, {arguments}}}"

    def _code(self, launch: Launch, argument: Pointer | ScalarValue, type_: str) -> str:
        if isinstance(argument, Descriptor):
            flags = " | OF_NAN" * argument.is_nan + " | OF_TF32" * argument.is_tf32
            # Tensor maps need it, whatever the kernel was compiled for.
            return f"OF_DESCRIPTOR + {argument.rank}{flags} | OF_BY_16"
        if isinstance(argument, Pointer):
            return "OF_POINTER"
        code = _TYPES.get(type_)
        if code is None:
            raise self._error(launch, argument.name, f"has the type {type_}, which C cannot pass")
        return f"{code} | OF_UNSIGNED" if self._scope.is_unsigned(argument.value) else code
