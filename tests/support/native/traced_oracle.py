"""Compares a traced program with the host function itself, run on fake tensors.

The function is run as it stands, with plain numbers for sizes; what it launches, fills and returns
is written down by code that shares nothing with the tracer. The program is evaluated for the same
sizes. Both must have done the same.
"""

import contextlib
import functools
import inspect
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

import opforge
from opforge import native
from opforge._compat import driver, launches
from opforge.arch import CUDA, Arch
from opforge.native.frontend.expand import expand
from opforge.native.ir.cases import ONE, Allocate, Fill, Launch, Pointer
from opforge.native.ir.dtypes import ALIASES, DTYPES
from opforge.native.ir.expr import evaluate
from opforge.native.ir.interface import ScalarParam
from opforge.native.tracing.case_builder import build_case, pattern
from opforge.native.tracing.launches import first_config
from opforge.native.tracing.tracer import var_ranges_of
from opforge.registry import registry
from support.archs import SM_90

_numbers = itertools.count()


@dataclass
class Body:
    """A host function, its declaration, and how the test may treat it."""

    fn: Any
    specs: dict[str, Any]
    mutates: tuple[str, ...] = ()
    archs: tuple[Arch, ...] = (SM_90,)
    # The function to run instead if it calls operators, which have their own bodies.
    eager: Any = None
    # How autotuned launches find their configuration.
    choose: Any = first_config

    @functools.cached_property
    def op(self) -> Any:
        name = f"table{next(_numbers)}::{self.fn.__name__}"
        made = opforge.op(self.fn, name=name, mode="custom_op", mutates_args=self.mutates)
        native.declare(made, **self.specs)
        return made

    @functools.cached_property
    def entry(self) -> Any:
        return registry.get(self.op)

    @functools.cached_property
    def declared(self) -> Any:
        return expand(self.op)

    @functools.cached_property
    def built(self) -> list[Any]:
        return [
            build_case(self.entry, self.declared, case, self.archs, self.choose)
            for case in self.declared.cases
        ]

    def domains(self, index: int) -> dict[str, Any]:
        return var_ranges_of(self.declared.cases[index], self.declared)


@dataclass(frozen=True)
class Place:
    """An address: whose memory, and how many bytes into it."""

    owner: Any
    offset: int
    dtype: str


@dataclass
class Launched:
    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, Any]
    fn: Any = field(default=None, compare=False)


@dataclass
class Set:
    owner: Any
    offset: int
    count: int
    width: int
    bits: int


class Recording:
    """A router that launches nothing, but goes through Triton's own layers to the launch."""

    leaves_wrapped = False

    def __init__(self, events):
        self.events = events

    def launch(self, kernel, run, args, kwargs):
        if not isinstance(kernel, JITFunction) and hasattr(kernel, "configs"):
            kwargs.pop("warmup", None)
            return kernel.fn.run(*args, **kwargs, **kernel.configs[0].all_kwargs())
        if not isinstance(kernel, JITFunction):
            return run(*args, **kwargs)
        kwargs = dict(kwargs)
        grid = kwargs.pop("grid")
        kwargs.pop("warmup", None)
        signature = inspect.signature(kernel.fn)
        names = list(signature.parameters)
        options = {n: kwargs.pop(n) for n in list(kwargs) if n not in names}
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        if callable(grid):
            grid = grid({**arguments, **options})
        grid = grid if isinstance(grid, (tuple, list)) else (grid,)
        options = {n: v for n, v in options.items() if v is not None}
        passed, constants = {}, {}
        for param in kernel.params:
            value = arguments[param.name]
            value = getattr(value, "value", value) if param.is_constexpr else value
            fixed = param.is_constexpr or value is None
            (constants if fixed else passed)[param.name] = value
        self.events.append(
            Launched(kernel.fn.__name__, tuple(grid), passed, constants, options, kernel)
        )
        return None

    def compiled(self, kernel):
        raise AssertionError("nothing is compiled here")

    def written(self, kernel, names, tensors, failure):
        raise AssertionError("nothing is traced here")


_FILLS = {"zeros": 0, "ones": 1, "zero_": 0, "new_zeros": 0, "new_ones": 1, "zeros_like": 0,
          "ones_like": 1}  # fmt: skip


class _Fills(TorchDispatchMode):
    def __init__(self, events):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        value = None
        if name in _FILLS:
            value = _FILLS[name]
        elif name in {"full", "full_like", "fill_", "new_full"}:
            value = args[-1]
        if value is not None:
            self.events.append(
                Set(storage(result), result.storage_offset() * result.element_size(),
                    result.numel(), result.element_size(), pattern(value, result.dtype))
            )  # fmt: skip
        return result


def storage(tensor):
    return tensor.untyped_storage()._cdata


def dtype_name(tensor):
    return ALIASES[str(tensor.dtype).removeprefix("torch.")]


@dataclass
class Did:
    """What a call did: `error` where it raised."""

    events: list[Any]
    outputs: list[Any] = field(default_factory=list)
    error: Exception | None = None
    names: dict[Any, str] = field(default_factory=dict)
    # Keeps storages alive, so that no two have one address.
    kept: list[Any] = field(default_factory=list)
    # Whether meaningless strides may differ: torch computes strides with a size of 0 as 1, and
    # keeps the caller's for a size of 1.
    loose: bool = False


def run_eagerly(body, index, values):
    """Run the function on fake tensors of these sizes."""
    case = body.declared.cases[index]
    gpu = driver.Gpu(
        arch=_arch(values),
        **{
            n.removeprefix("device."): v
            for n, v in values.items()
            if n.startswith("device.") and n not in {"device.major", "device.minor"}
        },
    )
    did = Did([])
    with contextlib.ExitStack() as stack:
        stack.enter_context(driver.standing_in(gpu))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_Fills(did.events))
        stack.enter_context(launches.routed_to(Recording(did.events)))
        leaves = {}
        for tensor in case.tensors:
            if not tensor.present:
                continue
            shape = [evaluate(s, values) for s in tensor.shape]
            strides = tensor.strides
            dtype = getattr(torch, DTYPES[tensor.dtype].torch)
            if strides is None:
                made = torch.empty(shape, dtype=dtype, device="cuda")
            else:
                made = torch.empty_strided(
                    shape, [evaluate(s, values) for s in strides], dtype=dtype, device="cuda"
                )
            leaves[tensor.param] = made
            did.loose |= not made.numel() or (strides is not None and 1 in shape)
            did.names[storage(made)] = tensor.param
        for param in body.declared.params:
            if isinstance(param, ScalarParam):
                leaves[param.name] = values[param.name]
        did.kept.append(leaves)
        args, kwargs = body.declared.arguments(case, leaves)
        try:
            result = (body.eager or body.fn)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the function may raise anything
            did.error = error
            return did
        if body.declared.outputs:
            did.outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        for name, output in zip(body.declared.outputs, did.outputs, strict=True):
            if output is not None:
                did.names[storage(output)] = name
    return did


def paths_for(built, values):
    """The paths whose guards hold."""
    return [p for p in built.case.paths if all(evaluate(g.condition, values) for g in p.guards)]


def compare(built, path, did, values):
    """The program and the function did the same."""
    assert did.error is None, f"the function raises {did.error!r}, the library does not"
    assert len(path.outputs) == len(did.outputs)
    for output, tensor in zip(path.outputs, did.outputs, strict=True):
        compare_output(output, tensor, values)
    names = dict(did.names)
    steps = [s for s in path.steps if not isinstance(s, Allocate)]
    sizes = {s.buffer: evaluate(s.bytes, values) for s in path.steps if isinstance(s, Allocate)}
    assert len(steps) == len(did.events), (steps, did.events)
    for step, event in zip(steps, did.events, strict=True):
        if isinstance(step, Fill):
            assert isinstance(event, Set)
            names.setdefault(event.owner, step.buffer)
            found = (
                step.buffer, evaluate(step.offset, values), evaluate(step.count, values),
                step.width, step.pattern,
            )  # fmt: skip
            assert found == (
                names[event.owner], event.offset, event.count, event.width, event.bits
            )  # fmt: skip
        else:
            assert isinstance(event, Launched), (step, event)
            compare_launch(built, step, event, did, names, sizes, values)
    owners = list(names.values())
    assert did.loose or len(set(owners)) == len(owners), "two tensors became one buffer"


def compare_output(output, tensor, values):
    assert (output is None) == (tensor is None)
    if tensor is None:
        return
    assert output.dtype == dtype_name(tensor)
    assert [evaluate(s, values) for s in output.shape] == list(tensor.shape)
    if tensor.numel():
        found = [evaluate(s, values) for s in output.strides]
        told = [d for d, size in enumerate(tensor.shape) if size > 1]
        assert [found[d] for d in told] == [tensor.stride(d) for d in told]


def compare_launch(built, step, event, did, names, sizes, values):  # noqa: PLR0917  # two sides
    assert isinstance(step, Launch)
    assert step.kernel_name == event.kernel
    grid = tuple(evaluate(g, values) for g in step.grid)
    assert grid == tuple([*event.grid, 1, 1, 1][:3])
    request = built.requests[step.variants[0].kernel][0]
    assert dict(request.options) == event.options
    given = dict(request.constants)
    for name, value in event.constants.items():
        assert same(given[name], value), (name, given[name], value)
    passed = {a.name: a for a in step.arguments}
    for name, value in event.arguments.items():
        if isinstance(value, torch.Tensor):
            argument = passed[name]
            assert isinstance(argument, Pointer)
            owner = names.setdefault(storage(value), argument.buffer)
            found = Place(argument.buffer, evaluate(argument.offset, values), argument.dtype)
            offset = value.storage_offset() * value.element_size()
            assert found == Place(owner, offset, dtype_name(value)) or did.loose
            if argument.buffer in sizes:
                assert sizes[argument.buffer] == value.untyped_storage().nbytes()
        elif name in passed:
            found = evaluate(passed[name].value, values)
            assert same(found, value) or did.loose, (name, found, value)
        else:
            assert (given[name] == value == 1) or did.loose
    if not did.loose:
        compare_variant(built, step, event, values)


def same(found, value):
    if isinstance(value, bool) or isinstance(found, bool):
        return bool(found) == bool(value)
    floats = isinstance(found, float) and isinstance(value, float)
    return found == value or (floats and math.isnan(found) and math.isnan(value))


class _Address:
    """What the JIT looks at in a tensor."""

    def __init__(self, tensor):
        self.dtype = tensor.dtype
        self.offset = tensor.storage_offset() * tensor.element_size()

    def data_ptr(self):
        return 4096 + self.offset


@functools.cache
def _binder(fn):
    return create_function_from_signature(fn.signature, fn.params, make_backend(_TARGET))


def _arch(values):
    return Arch(CUDA, values["device.major"] * 10 + values["device.minor"])


_TARGET = GPUTarget("cuda", 90, 32)


def compare_variant(built, step, event, values):
    """The first variant that holds assumes nothing that Triton's JIT would not see."""
    found = [evaluate(a.offset if isinstance(a, Pointer) else a.value, values)
             for a in step.arguments]  # fmt: skip
    variant = next((v for v in step.variants if holds(v, found)), None)
    assert variant is not None, "no variant takes the launch"
    request, archs = built.requests[variant.kernel]
    assert _arch(values) in archs
    given = {n: _Address(v) if isinstance(v, torch.Tensor) else v
             for n, v in {**event.arguments, **event.constants}.items()}  # fmt: skip
    _, specialization, _ = _binder(event.fn)(**given, debug=False)
    kinds = dict(request.signature)
    for position, (param, (jits, assumed)) in enumerate(
        zip(event.fn.params, specialization, strict=True)
    ):
        ours = kinds[param.name]
        if jits == "constexpr":
            value = event.arguments.get(param.name)
            assert ours == "constexpr" or (value == 1 and ours in {"i32", "i64"})
        else:
            # A scalar that is declared fp64 stays one.
            wider = (jits, ours) in {("i32", "i64"), ("fp32", "fp64")}
            assert ours == jits or wider, (param.name, ours, jits)
        if position in request.divisible:
            assert assumed == "D", (param.name, position)


def holds(variant, values):
    for type_, value in zip(variant.types, values, strict=True):
        if type_ == ONE and value != 1:
            return False
        if type_ == "i32" and not -(2**31) <= value < 2**31:
            return False
    return all(values[i] % 16 == 0 for i in (*variant.aligned, *variant.divisible))
