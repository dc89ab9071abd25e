"""Answers torch calls of a traced body with steps that compute the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .... import _compat
from ...._compat import tracing
from ...._compat.tracing import Traced
from ....tuning.choose import Choice
from ...ir.dtypes import DTYPES
from ...ir.expr import Term, Var, is_float, make
from ...symbolic.symint import Symbols, is_symbolic, term_of
from ..views import Views, is_compact, is_dense, is_one, is_same_view, same
from .pointwise import BOOL, DEFAULT, FLOAT, RULES, Rule, refuse_kind
from .values import (
    Applied,
    Computed,
    Inexpressible,
    Load,
    Number,
    Position,
    Reduced,
    TorchCall,
    Value,
    cast,
    is_small,
    loaded,
)

_ATEN = torch.ops.aten


class Trace(Protocol):
    """What a call needs of the trace that it is in."""

    symbols: Symbols
    views: Views
    steps: list[Any]

    def allocate(self, sizes: Any, dtype: torch.dtype | None, *, strides: Any = None) -> Traced: ...
    def dense_strides(self, tensors: Sequence[Traced], sizes: Sequence[Any]) -> list[Any]: ...
    def value(self, number: Any) -> Any: ...
    def choose(self, tuner: Any, arguments: dict[str, Any], /) -> Choice: ...
    def note(self, offence: str) -> None: ...


def answer(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch call that a library can make, or NotImplemented."""
    if func in _ASKED:
        return tracing.on_fakes(func, args, kwargs, trace.value)
    function = CALLS.get(func)
    rule = None if function is not None else _rule(func, kwargs)
    if function is None and rule is None:
        return NotImplemented
    call = Call(trace, func, args)
    if rule is not None:
        found = call.pointwise(rule, args, kwargs)
    else:
        assert function is not None
        found = function(call, *args, **kwargs)
    if found is NotImplemented:
        return found
    # What torch would return, or raise. The questions about sizes have been asked before.
    expected = tracing.on_fakes(func, args, kwargs, trace.value)
    alike = _alike(found, expected, trace.value)
    if not alike and rule is not None:
        # Fakes convert operands one by one before they choose strides, which a GPU does not: an
        # expanded operand has lost its strides of 0 by then.
        plain = tracing.on_fakes(func, call.converted(rule, args), kwargs, trace.value)
        alike = found.dtype is expected.dtype and _same_layout(found, plain, trace.value)
    if not (alike or call.has_own_layout):
        trace.note(
            f"{call.made.name} at {call.made.location}, whose result has another layout in torch "
            "than opforge gives it"
        )
    return found


def fill(trace: Trace, tensor: Traced, value: Any) -> Traced:
    """Set all of a tensor to a number."""
    return Call(trace, _ATEN.fill_.Scalar, (tensor,)).copy(tensor, value)


def number(trace: Trace, value: Any, dtype: torch.dtype) -> Traced:
    """A tensor without dimensions that holds a number."""
    call = Call(trace, _ATEN.scalar_tensor.default, ())
    return call.copy(trace.allocate([], dtype), value)


def _rule(func: Any, kwargs: dict[str, Any]) -> Rule | None:
    name = _base_name(func)
    if name is None:
        return None
    if name in _OF_TENSORS and str(func).endswith(".Tensor"):
        name = _OF_TENSORS[name]
    if name == "div" and kwargs.get("rounding_mode") is not None:
        name = f"div_{kwargs['rounding_mode']}"
    return RULES.get(name)


# These take other dtypes where the end is a tensor.
_OF_TENSORS = {"clamp_min": "maximum", "clamp_max": "minimum"}


def _base_name(func: Any) -> str | None:
    """`aten.add_.Tensor` -> "add"; None for what does not return one new or changed tensor."""
    namespace, _, name = _compat.qualified_name(func).partition("::")
    name, _, overload = name.partition(".")
    if namespace != "aten" or "out" in overload or _compat.returned_types(func) != ["Tensor"]:
        return None
    return name if name.endswith("__") else name.removesuffix("_")


def _alike(found: Any, expected: Any, value: Callable[[Any], Any]) -> bool:
    if isinstance(found, (tuple, list)):
        return all(_alike(a, b, value) for a, b in zip(found, expected, strict=True))
    if not isinstance(found, Traced):
        return bool(found == expected)
    return found.dtype is expected.dtype and _same_layout(found, expected, value)


def _same_layout(found: Traced, expected: torch.Tensor, value: Callable[[Any], Any]) -> bool:
    sizes, strides = [value(n) for n in found.sizes], [value(n) for n in found.strides]
    return sizes == list(expected.shape) and (
        expected.numel() < 2
        or all(
            n == 1 or ours == theirs
            for n, ours, theirs in zip(sizes, strides, expected.stride(), strict=True)
        )
    )


class Call:
    """One torch call of a trace."""

    def __init__(self, trace: Trace, func: Any, args: tuple[Any, ...]) -> None:
        self.trace = trace
        self.changed = args[0] if tracing.writes(func) else None
        name = tracing.defining_name(func)
        self.made = TorchCall(name, tracing.name_in_body(func), trace.symbols.locate())
        # Whether fakes choose other strides for the result than a GPU does.
        self.has_own_layout = False

    def pointwise(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = list(args[: rule.operands])
        if not all(_is_operand(o) for o in operands):
            return NotImplemented
        given = _deciding(rule, args)
        compute, result = tracing.promoted_dtypes(given, rule.promotion)
        common = tracing.promoted_dtypes(given, DEFAULT)[1]
        runs_in = result if rule.promotion == FLOAT else common
        bools = [d for d in map(_dtype_of, given) if d is torch.bool] if rule.refuses_bools else []
        for dtype in [runs_in, *bools]:
            refuse_kind(self.made.name, dtype, *rule.takes)
        if rule.ends and tracing.SATURATES and not compute.is_floating_point:
            operands = _within(operands, rule.ends, compute)
        more = [*args[rule.operands :], *kwargs.values()]
        self._refuse_numbers(rule, operands, more, common if rule.is_exact else compute)
        sizes = self.broadcast([o for o in operands if isinstance(o, Traced)])
        values = []
        for number, operand in enumerate(operands):
            if number not in rule.deciding:
                values.append(self.value(operand, sizes, None))
            elif rule.is_exact:
                values.append(self.value(operand, sizes, common))
            else:
                values.append(self.value(operand, sizes, compute))
        found = rule.make(*values, *args[rule.operands :], **kwargs)
        if found is None:
            return NotImplemented
        return self.set(found, [] if rule.is_compact else operands, sizes, result)

    def _refuse_numbers(
        self, rule: Rule, operands: Sequence[Any], more: Sequence[Any], dtype: torch.dtype
    ) -> None:
        """Raise for numbers that torch does not convert to the dtype that it computes in."""
        checked = [operands[at] for at in rule.checked if at < len(operands)]
        if rule in {RULES["sub"], RULES["rsub"]}:
            # torch adds, with the negative alpha.
            more = [-one for one in more if is_number(one)]
        for number in filter(is_number, [*checked, *more]):
            refuse_beyond(self.trace.symbols, number, dtype)

    def converted(self, rule: Rule, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A pointwise call's arguments, with its operands in the dtype that it computes in.

        A call that tells truths may compute in bool: then `logical_and` converts nothing.
        """
        compute, _ = tracing.promoted_dtypes(_deciding(rule, args), rule.promotion)
        compute = torch.bool if rule.promotion == BOOL else compute

        def changed(x: Any) -> Any:
            is_tensor = isinstance(x, Traced)
            return Traced(x.memory, x.sizes, x.strides, x.offset, compute) if is_tensor else x

        return tuple(changed(a) if n in rule.deciding else a for n, a in enumerate(args))

    def value(self, operand: Any, sizes: Sequence[Any], dtype: torch.dtype | None) -> Value | None:
        if operand is None:
            return None
        if isinstance(operand, Traced):
            if len(operand.sizes) != len(sizes) or not all(map(same, operand.sizes, sizes)):
                operand = self.expanded(operand, sizes)
            loaded = Load(operand.dtype, operand)
            return loaded if dtype is None else cast(loaded, dtype)
        return rounded(operand, dtype or _dtype_of(operand))

    def set(
        self, value: Value, operands: Sequence[Any], sizes: Sequence[Any], dtype: torch.dtype
    ) -> Traced:
        """Store a value in the tensor that is changed in place, or in a new one."""
        value = cast(value, dtype)
        if self.changed is not None:
            out = self.changed
            _refuse_result(dtype, out.dtype)
            value = cast(value, out.dtype)
        else:
            tensors = [o for o in operands if isinstance(o, Traced)]
            strides = self.strides(tensors, sizes)
            out = self.trace.allocate(sizes, dtype, strides=strides)
        return self.store(out, value)

    def store(self, out: Traced, value: Value) -> Traced:
        if not isinstance(value, Number):
            _refuse_repeated(out)
        for tensor in loaded(value):
            _refuse_overlap(out, tensor)
        small = is_small(value, out)
        self.trace.steps.append(Computed(out, value, (self.made,), small))
        return out

    def reduce(
        self,
        kind: str,
        outs: tuple[Traced, ...],
        value: Value,
        results: tuple[Value, ...],
        sizes: tuple[Any, ...],
        **more: Any,
    ) -> None:
        step = Reduced(kind, outs, value, results, sizes, (self.made,), **more)
        self.trace.steps.append(step)

    def strides(self, tensors: Sequence[Traced], sizes: Sequence[Any]) -> list[Any] | None:
        """Those of a new result, as torch chooses them by its operands'; None is dense."""
        if all(map(is_compact, tensors)):
            return None
        wide = [self.expanded(t, sizes) for t in tensors]
        return self.trace.dense_strides(wide, sizes)

    def expanded(self, x: Traced, sizes: Sequence[Any]) -> Traced:
        """A view of wider sizes. Unlike torch's `expand` it does not ask whether these are 1."""
        new = len(sizes) - len(x.sizes)
        strides: list[Any] = [0] * len(sizes)
        for d, (size, stride) in enumerate(zip(x.sizes, x.strides, strict=True), start=new):
            if same(size, sizes[d]) or (not is_one(size) and size == sizes[d]):
                strides[d] = stride
            elif not is_one(size) and size != 1:
                raise RuntimeError(f"size {size} of dimension {d} is not {sizes[d]} or 1")
        return self.trace.views.of(x, sizes, strides)

    def broadcast(self, tensors: Sequence[Traced]) -> list[Any]:
        rank = max((len(t.sizes) for t in tensors), default=0)
        sizes: list[Any] = [1] * rank
        for tensor in tensors:
            for d, size in enumerate(tensor.sizes, start=rank - len(tensor.sizes)):
                sizes[d] = _common_size(sizes[d], size)
        return sizes

    def copy(self, out: Traced, source: Any) -> Traced:
        """Set all of a tensor to another, which is expanded and converted, or to a number."""
        if is_number(source):
            refuse_beyond(self.trace.symbols, source, out.dtype)
        value = self.value(source, out.sizes, None)
        assert value is not None
        return self.store(out, cast(value, out.dtype))


def _within(operands: list[Any], ends: Sequence[int | None], dtype: torch.dtype) -> list[Any]:
    """Ends of a range that exclude nothing become those of an integer dtype."""
    found, info = list(operands), torch.iinfo(dtype)
    ways: list[tuple[Callable[..., Any], int]] = [
        (torch.sym_max, info.min),
        (torch.sym_min, info.max),
    ]
    for at, (nearest, last) in zip(ends, ways, strict=True):
        if at is not None and at < len(found) and is_number(found[at]):
            found[at] = nearest(found[at], last)
    return found


def _refuse_result(dtype: torch.dtype, changed: torch.dtype) -> None:
    """Raise as torch does for a result that the changed tensor cannot hold: `integers *= 1.5`."""
    if not torch.can_cast(dtype, changed):
        raise RuntimeError(
            f"result type {dtype} can't be cast to the desired output type {changed}"
        )


def _refuse_repeated(out: Traced) -> None:
    """Raise as torch does where elements of a changed tensor are one: `x.expand(4, n).add_(1)`.

    A number may be written to them again and again.
    """
    if any(same(size, 0) for size in out.sizes):
        # Nothing is written, and compact strides are 0 as well.
        return
    for size, stride in zip(out.sizes, out.strides, strict=True):
        if same(stride, 0) and not is_one(size) and size > 1:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location; clone() the tensor before"
            )


def _refuse_overlap(out: Traced, given: Traced) -> None:
    """Raise as torch does where a call would read what it writes elsewhere: `x[1:] += x[:-1]`."""
    if out.memory is not given.memory or is_same_view(out, given):
        return
    if not (is_dense(out) and is_dense(given)):
        # Nor can torch tell.
        return
    ends = [(t.offset, t.offset + math.prod(t.sizes)) for t in (out, given)]
    (start, end), (first, last) = ends
    # `x[:1] -= x` is fine where x has one row.
    if not (end <= first or last <= start or _are_equal(out, given)):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor "
            "refer to a single memory location"
        )


def _are_equal(a: Traced, b: Traced) -> bool:
    """Whether two tensors are the same elements for the sizes of this path."""
    alike = a.dtype is b.dtype and len(a.sizes) == len(b.sizes) and a.offset == b.offset
    return alike and all(
        n == m and (n == 1 or one == other)
        for n, m, one, other in zip(a.sizes, b.sizes, a.strides, b.strides, strict=True)
    )


def _common_size(a: Any, b: Any) -> Any:
    if same(a, b):
        return a
    if is_one(a):
        return b
    if is_one(b):
        return a
    if a == b:
        return a
    if a == 1:
        return b
    if b == 1:
        return a
    raise RuntimeError(f"sizes {a} and {b} must be equal, or one of them 1")


def _deciding(rule: Rule, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands that decide the dtype."""
    return tuple(args[i] for i in rule.deciding if i < len(args) and args[i] is not None)


def _is_operand(value: Any) -> bool:
    return value is None or isinstance(value, (Traced, int, float)) or is_symbolic(value)


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, Traced):
        return number.dtype
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    is_integer = isinstance(number, (int, torch.SymInt))
    return torch.int64 if is_integer else torch.float64


def rounded(number: Any, dtype: torch.dtype) -> Value:
    """A number in a dtype: 0.1 as float16 is 0.0999755859375."""
    if is_symbolic(number):
        return cast(Applied(dtype, "{0}", (Number(dtype, number),)), dtype)
    exact = dtype in {torch.float64, torch.float32} or not dtype.is_floating_point
    kept = number if exact else torch.tensor(number, dtype=dtype).item()
    return Number(dtype, kept)


def _to_copy(
    call: Call,
    x: Traced,
    *,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> Any:
    if device is not None and not is_gpu(torch.device(device)):
        return NotImplemented
    if memory_format is torch.contiguous_format or is_compact(x):
        strides = None
    elif memory_format in {None, torch.preserve_format}:
        strides = call.trace.dense_strides([x], x.sizes)
    else:
        return NotImplemented
    return call.copy(call.trace.allocate(x.sizes, dtype or x.dtype, strides=strides), x)


def is_gpu(device: torch.device) -> bool:
    """Whether it is the GPU that a library runs on."""
    return device.type == "cuda" and device.index in {None, 0}


def refuse_elsewhere(device: Any) -> None:
    """For a new tensor that would not be the GPU's."""
    found = torch.device("cpu" if device is None else device)
    if found.type != "cuda":
        where = "the CPU" if found.type == "cpu" else str(found)
        raise Inexpressible(f"its result is on {where}; pass device=x.device")


def _scalar_tensor(
    call: Call, value: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Any:
    out = call.trace.allocate([], dtype)
    if torch.device(device or "cpu").type == "cpu" and out.dtype in _HALVES:
        # torch makes infinities of numbers beyond these on the CPU, and raises on a GPU.
        return call.store(out, rounded(value, out.dtype))
    return call.copy(out, value)


def _arange(call: Call, *args: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    refuse_elsewhere(device)
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if any(isinstance(n, (float, torch.SymFloat)) for n in (start, end, step)):
        return NotImplemented
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if start > end if step > 0 else start < end:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    count = (end - start + step - (1 if step > 0 else -1)) // step
    out = call.trace.allocate([count], dtype or torch.int64)
    at: Value = Position(torch.int64, 0)
    if not same(step, 1):
        at = Applied(torch.int64, "{0} * {1}", (at, rounded(step, torch.int64)))
    if not same(start, 0):
        at = Applied(torch.int64, "{0} + {1}", (at, rounded(start, torch.int64)))
    return call.store(out, cast(at, out.dtype))


# Numbers that a dtype cannot hold: torch refuses them where it converts a number by itself.

# The only ones of opforge's without an infinity.
_FINITE = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def is_number(value: Any) -> bool:
    """Whether a value may be too large; a bool is not."""
    is_bool = isinstance(value, bool)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not is_bool


def refuse_beyond(symbols: Symbols, number: Any, dtype: torch.dtype) -> None:
    """Raise as torch does for a number that a dtype cannot hold; one of a call becomes a guard."""
    if isinstance(number, (bool, torch.SymBool)) or dtype is torch.bool:
        return
    if not symbols.ask(_fits(symbols, term_of(number), dtype)):
        name = str(dtype).removeprefix("torch.")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")


def _fits(symbols: Symbols, term: Term, dtype: torch.dtype) -> Term:
    """The condition that a number fits, which is 0 or 1 for one that is known."""
    algebra = symbols.algebra
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        # torch lets small negative integers become unsigned ones.
        low, high = (info.min if info.min or is_float(term) else -info.max), info.max
        return algebra.both(algebra.compare("<=", low, term), algebra.compare("<=", term, high))
    most = torch.finfo(dtype).max
    if isinstance(term, Var) and term.name in symbols.declared:
        given = getattr(torch, DTYPES[symbols.declared[term.name]].torch)
        if given.is_floating_point and torch.finfo(given).max <= most:
            return 1
    size = make("abs", term)
    fits = algebra.compare("<=", size, most)
    if not is_float(term):
        return fits
    is_infinite = 0 if dtype in _FINITE else algebra.compare("<", sys.float_info.max, size)
    return algebra.either(fits, is_infinite, algebra.compare("!=", term, term))


# Questions about dtypes alone.
_ASKED = {
    _ATEN.promote_types.default,
    _ATEN.can_cast.default,
    _ATEN.result_type.Tensor,
    _ATEN.result_type.Scalar,
    _ATEN.result_type.Scalar_Tensor,
}


_HALVES = {torch.float16, torch.bfloat16}


# By operator, what makes it; other modules add theirs.
CALLS: dict[Any, Callable[..., Any]] = {
    _ATEN.clone.default: _to_copy,
    _ATEN._to_copy.default: _to_copy,  # noqa: SLF001  # that is its name
    _ATEN.copy_.default: lambda call, x, source, _=False: call.copy(x, source),
    _ATEN.fill_.Tensor: Call.copy,
    _ATEN.scalar_tensor.default: _scalar_tensor,
    _ATEN.arange.default: _arange,
    _ATEN.arange.start: _arange,
    _ATEN.arange.start_step: _arange,
}
