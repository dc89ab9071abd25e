"""Records what a traced body does: it allocates, takes views, fills, computes and launches.

Calls that a library cannot make are noted and answered with the right shapes, so that one trace
reports all of them.
"""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch
import triton

from ..._compat import tracing
from ..._compat.tracing import Traced
from ...tuning.choose import Choice
from ..ir.expr import Term, Var, address_of
from ..ir.places import told
from ..symbolic.symint import NotConstant, Symbols, dense, is_symbolic, term_of
from .torch_calls import calls, matmul, reductions, shapes  # noqa: F401  # they add to the calls
from .torch_calls.values import Inexpressible
from .views import Views, compact, is_compact, is_contiguous, same

Method = TypeVar("Method", bound=Callable[..., Any])

_ATEN = torch.ops.aten
_HERE = str(Path(__file__).parent.parent.parent)
_OTHERS = (torch.__file__, triton.__file__, inspect.__file__)
_HIDDEN = (_HERE, *(str(Path(file).parent) for file in _OTHERS), "<")
# More calls after one that depends on data are not followed.
_MOST_CALLS = 1000
# So many other ways are followed where data decides which one a body goes.
_MOST_WAYS = 6
_FOREIGN = ": a library has no data of its own; make it a parameter"


# Results for calls that a library cannot make, so that a trace goes on and finds the others.


# Numbers that only data tells. A line that asks again gets the next, so that loops end. The last is
# above most limits that bodies compare with, and low enough to count to.
_NUMBERS = (2, 0, -3, 4099)
# A list of more elements is cut off; a body that asks more often is in a loop without end.
_LONGEST, _MOST = 4096, 250

# The instruction of the body that asks.
Question = tuple[Any, int]


class NoStandIn(Exception):
    """Nothing can stand in for a result."""


@dataclass(frozen=True)
class Way:
    """One of the ways that data may take a body.

    Its first `number` questions are answered with no, others with yes; numbers begin with that at
    `number`. Sizes that only data tells are `size`, which is like no other and no special one.
    """

    number: int = 0
    size: int = 61


class StandIns:
    """What the refused calls of one trace return.

    A question gets another answer every time, so that `while x.any():` ends.
    """

    def __init__(
        self, value: Callable[[Any], Any], instruction: Callable[[], Question], way: Way
    ) -> None:
        self._value, self._instruction, self._way = value, instruction, way
        # How often each question was asked, in the order in which they came.
        self.asked: Counter[Question] = Counter()
        # Whether the trace goes on with sizes that only data tells.
        self.has_sizes = False

    def result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator, with fakes for tensors."""
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001  # what `.item()` calls
            return self._number(args[0].dtype)
        if tracing.returned_types(func) == ["bool"]:
            return self._number(torch.bool)
        try:
            return tracing.on_fakes(func, args, kwargs, self._value)
        except tracing.UNKNOWN:
            self.has_sizes = True
            size = self._way.size
            return tracing.on_fakes_of_unknown_size(func, args, kwargs, self._value, size=size)

    def listed(self, x: Traced) -> Any:
        """What `x.tolist()` returns."""
        found = self._number(x.dtype)
        for size in reversed(x.sizes):
            found = [found] * min(self._value(size), _LONGEST)
        return found

    def array(self, x: Traced) -> Any:
        """What `x.numpy()` returns."""
        import numpy as np  # noqa: PLC0415  # torch does without it

        dtype = str(x.dtype).removeprefix("torch.")
        one = np.full((), self._number(x.dtype), dtype=dtype)
        return np.broadcast_to(one, [self._value(size) for size in x.sizes])

    def _number(self, dtype: torch.dtype) -> Any:
        where = self._instruction()
        self.asked[where] += 1
        times, place = self.asked[where], [*self.asked].index(where)
        if times > _MOST:
            raise NoStandIn("the body asks for data again and again")
        if dtype is torch.bool:
            return (place >= self._way.number) == (times % 2 == 1)
        # Each line has another number, so that they compare.
        number = _NUMBERS[(self._way.number + times - 1) % len(_NUMBERS)]
        number += place * (number > 0) - place * (number < 0)
        if dtype.is_complex:
            return complex(number)
        return float(number) if dtype.is_floating_point else number


@dataclass(eq=False)
class Buffer:
    """Memory of a parameter, or allocated by the body: `count` elements of `dtype`."""

    name: str
    dtype: torch.dtype
    count: Term
    allocated: bool
    # The recorder of the trace that it belongs to.
    trace: Any = field(repr=False)
    # As the body allocated it; `own` are the strides that it would have without a caller's.
    sizes: Sequence[Any] = field(default=(), repr=False)
    strides: Sequence[Any] = field(default=(), repr=False)
    own: Sequence[Any] = field(default=(), repr=False)
    # Whether callers choose the strides, which are then symbols.
    strided: bool = False

    def address(self) -> Any:
        """A symbol; None for what the body allocates, which has no address yet."""
        return None if self.allocated else self.trace.symbols.integer(Var(address_of(self.name)))

    def told(self, stride: Any) -> Any:
        return self.trace.symbols.stride(stride)


@dataclass
class Filled:
    """A part of a buffer was set to one value."""

    buffer: Buffer
    offset: Term
    count: Term
    dtype: torch.dtype
    value: Any

    def memories(self) -> Iterator[Buffer]:
        yield self.buffer


class Offence(Exception):
    """The trace cannot continue; the recorder's notes say why."""


class Recorder:
    """One trace: answers operators and keeps the steps that the library will run."""

    def __init__(
        self,
        symbols: Symbols,
        nested: Callable[[Any], Callable[..., Any] | None],
        choose: Callable[[Any, dict[str, Any]], Choice],
        strided: Mapping[int, Sequence[Term]] | None = None,
        *,
        way: Way = Way(),  # it is frozen
    ) -> None:
        """`strided` has the strides of allocations that become strided outputs, by number."""
        self.symbols = symbols
        self._strided = strided or {}
        self.views = Views(symbols)
        self.buffers: list[Buffer] = []
        # As long as they live, what another walk makes has another id().
        self._kept: list[Traced] = []
        self.steps: list[Any] = []
        self.offences: list[str] = []
        self.notes: list[str] = []
        self._nested = nested
        self.choose = choose
        self.stand_ins = StandIns(self.value, _instruction, way)
        self._parameters: list[Traced] = []
        self._since_asked = 0
        self._number: Traced | None = None

    def parameter(self, name: str, dtype: torch.dtype, sizes: Any, strides: Any) -> Traced:
        """A tensor that the caller passes."""
        buffer = Buffer(name, dtype, self._span(sizes, strides), allocated=False, trace=self)
        self._parameters.append(Traced(buffer, sizes, strides, 0, dtype))
        return self._parameters[-1]

    def running(self) -> AbstractContextManager[None]:
        functions = {
            **FUNCTIONS,
            torch.Tensor.tolist: self._list,
            torch.Tensor.numpy: self._array,
            torch.Tensor.__array__: self._array,
            torch.Tensor.__len__: self._length,
        }
        # The last is for functions that torch has in C++ and that take plain numbers for sizes.
        return tracing.tracing(self.answer, functions, self._offend)

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator."""
        self._refuse_many()
        if any(isinstance(a, torch.Tensor) and not isinstance(a, Traced) for a in args):
            return self._answer_foreign(func, args, kwargs)
        for argument in args:
            if isinstance(argument, Traced):
                self.refuse_kept(argument.memory)
        try:
            found = self._made(func, args, kwargs)
        except Inexpressible as error:
            return self._offend(func, args, kwargs, f": {error}")
        if found is not NotImplemented:
            return found
        body = self._nested(func)
        if body is not None:
            # Torch disables a mode while the mode handles a call.
            with self.running():
                return body(*args, **kwargs)
        return self._offend(func, args, kwargs)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a library can make, or NotImplemented."""
        special = _SPECIAL.get(func)
        if special is not None:
            found = special(self, *args, **kwargs)
            if found is not NotImplemented:
                return found
        found = self.views(func, args, kwargs)
        if found is not NotImplemented:
            return found
        return calls.answer(self, func, args, kwargs)

    def _answer_foreign(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """For a tensor that is not a parameter: the library would have to contain its data."""
        number = tracing.number_in(args[0]) if func is _ATEN.lift_fresh.default else None
        if number is None:
            return self._offend(func, args, kwargs, _FOREIGN)
        self._number = calls.number(self, number, args[0].dtype)
        return self._number

    def number_to_host(self, x: Traced, *, device: Any = None, **_: Any) -> Any:
        """Torch 2.15 moves the number that it has lifted to the CPU, where the body has it."""
        stays = x is self._number and torch.device(device or "cuda").type == "cpu"
        return x if stays else NotImplemented

    def _offend(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], more: str = ""
    ) -> Any:
        self.note(f"{tracing.name_in_body(func)} at {locate()}{more}")
        try:
            found = self.stand_ins.result(func, args, kwargs)
        except Exception as error:
            raise Offence(str(error)) from error
        return self._with_traced(found, args)

    def _with_traced(self, found: Any, args: tuple[Any, ...]) -> Any:
        """What a call on fakes returned, with tensors of this trace."""
        # Sizes that stay symbolic spare the rest of the body branches on what they are here.
        symbols = {self.value(s): s for a in args if isinstance(a, Traced) for s in a.sizes}

        def traced(x: torch.Tensor) -> Traced:
            sizes = [symbols.get(n, n) for n in x.shape]
            dense = x.is_contiguous()
            return self.allocate(sizes, x.dtype, strides=None if dense else list(x.stride()))

        return tracing.map_tensors(traced, found)

    def _list(self, x: Traced) -> Any:
        self.note(f".tolist() at {locate()}")
        return self.stand_ins.listed(x)

    def _array(self, x: Traced, *_: Any, **__: Any) -> Any:
        self.note(f".numpy() at {locate()}")
        return self.stand_ins.array(x)

    def _length(self, x: Traced) -> int:
        if not x.sizes:
            raise TypeError("len() of a 0-d tensor")
        try:
            return int(x.sizes[0])
        except NotConstant as error:
            error.instead = "write x.shape[0] for len(x), which Python wants as a plain number"
            raise

    def _refuse_many(self) -> None:
        """A number that stands in for data may be a loop's, which nobody knows the end of."""
        self._since_asked += bool(self.stand_ins.asked)
        if self._since_asked > _MOST_CALLS:
            raise Offence("a loop that data ends")

    def other_ways(self) -> list[Way]:
        """Those that data may take the body, too; with sizes that it may have to give it."""
        if not (self.stand_ins.asked or self.stand_ins.has_sizes):
            return []
        known = [one.sizes for one in self._parameters] + [one.sizes for one in self.buffers]
        sizes = [*dict.fromkeys([1, 0, *(self.value(size) for one in known for size in one)])]
        return [Way(n, sizes[(n - 1) % len(sizes)]) for n in range(1, _MOST_WAYS + 1)]

    def note(self, offence: str) -> None:
        """Something that a library cannot hold."""
        if offence not in self.offences:
            self.offences.append(offence)

    def refuse_kept(self, memory: Any) -> None:
        """A body that keeps tensors between calls has state, which a C function does not."""
        if memory.trace is not self:
            self.note(
                f"a tensor kept from an earlier call is used at {locate()}; allocate it in "
                "every call, or make it a parameter"
            )

    def value(self, number: Any) -> Any:
        """The value of a number on this path, without a guard."""
        return self.symbols.value(term_of(number)) if is_symbolic(number) else number

    def allocate(
        self, sizes: Sequence[Any], dtype: torch.dtype | None, *, strides: Any = None
    ) -> Traced:
        dtype = dtype or self._default_dtype()
        for size in sizes:
            if size < 0:
                raise RuntimeError(f"a tensor cannot have size {size}")
        own = strides = compact(sizes) if strides is None else strides
        chosen = self._strided.get(len(self.buffers), ())
        is_strided = len(self.buffers) in self._strided and len(chosen) == len(sizes)
        if is_strided:
            strides = [self.symbols.integer(stride) for stride in chosen]
        span = self._span(sizes, strides)
        buffer = Buffer(
            f"w{len(self.buffers)}", dtype, span, allocated=True, trace=self,
            sizes=sizes, strides=strides, own=own, strided=is_strided,
        )  # fmt: skip
        self.buffers.append(buffer)
        made = Traced(buffer, sizes, strides, 0, dtype)
        self._kept.append(made)
        return made

    def _span(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Term:
        """The number of elements from the first to the last, gaps included."""
        algebra = self.symbols.algebra
        span: Term = 1
        if all(map(same, strides, compact(sizes))):
            return functools.reduce(algebra.mul, map(term_of, sizes), span)
        for size, stride in zip(sizes, strides, strict=True):
            steps = algebra.sub(term_of(size), 1)
            span = algebra.add(span, algebra.mul(steps, term_of(stride)))
        return span

    def _default_dtype(self) -> torch.dtype:
        found = torch.get_default_dtype()
        if found is not torch.float32:
            where = locate()
            note = told(
                lambda at: (
                    f"torch's default dtype, {found} in this build, is that of a tensor at "
                    f"{at(where)}; the library keeps it"
                )
            )
            self.notes.append(note)
        return found

    def fill(self, tensor: Traced, value: Any) -> Any:
        """Fill a tensor; only a dense one can be filled without a kernel."""
        buffer = tensor.memory
        assert isinstance(buffer, Buffer)
        if buffer.strided or is_symbolic(value) or not is_compact(tensor):
            return calls.fill(self, tensor, value)
        calls.refuse_beyond(self.symbols, value, tensor.dtype)
        offset = term_of(tensor.offset * tensor.dtype.itemsize)
        count = term_of(math.prod(tensor.sizes))
        self.steps.append(Filled(buffer, offset, count, tensor.dtype, value))
        return tensor

    def empty(
        self, sizes: Any, strides: Any = None, *, dtype: Any = None, device: Any = None, **_: Any
    ) -> Any:
        calls.refuse_elsewhere(device)
        strides = None if strides is None else list(map(dense, strides))
        return self.allocate(sizes, dtype, strides=strides)

    def empty_like(
        self,
        x: Traced,
        *,
        dtype: Any = None,
        device: Any = None,
        memory_format: Any = None,
        **_: Any,
    ) -> Any:
        calls.refuse_elsewhere(device or x.device)
        dtype = dtype or x.dtype
        if memory_format is torch.contiguous_format or is_compact(x):
            return self.allocate(x.sizes, dtype)
        if memory_format not in {None, torch.preserve_format}:
            return NotImplemented
        return self.allocate(x.sizes, dtype, strides=self.dense_strides([x], x.sizes))

    def dense_strides(self, tensors: Sequence[Traced], sizes: Sequence[Any]) -> list[Any]:
        """Dense strides in the order of some tensors', as torch chooses it for a result."""
        order = list(reversed(range(len(sizes))))
        for start in range(1, len(order)):
            at = start
            for before in reversed(range(start)):
                outer, inner = order[before], order[at]
                lies = self._order_of(tensors, outer, inner, last=not before)
                if lies > 0:
                    order[before], order[at] = inner, outer
                    at = before
                elif lies < 0:
                    break
        strides: list[Any] = [0] * len(order)
        stride: Any = 1
        for d in order:
            strides[d] = stride
            stride *= sizes[d]
        return strides

    def _order_of(self, tensors: Sequence[Traced], a: int, b: int, *, last: bool) -> int:
        """1 if dimension a lies outside of b, -1 if inside, 0 if no tensor tells.

        The last comparison of a dimension only tells whether it lies outside.
        """
        for number, tensor in enumerate(tensors, start=1):
            if self._lies_outside(tensor, a, b):
                return 1
            if not (last and number == len(tensors)) and self._lies_inside(tensor, a, b):
                return -1
        return 0

    def _lies_outside(self, x: Traced, a: int, b: int) -> bool:
        """Whether dimension a has the larger stride; strides of 0 do not count."""
        compare, both = self.symbols.algebra.compare, self.symbols.algebra.both
        one, other = term_of(x.strides[a]), term_of(x.strides[b])
        sizes = compare("<", term_of(x.sizes[b]), term_of(x.sizes[a]))
        larger = both(compare("!=", other, 0), compare("<", other, one))
        equal = both(compare("!=", one, 0), compare("==", one, other), sizes)
        return self.symbols.ask(self.symbols.algebra.either(larger, equal))

    def _lies_inside(self, x: Traced, a: int, b: int) -> bool:
        one, other = term_of(x.strides[a]), term_of(x.strides[b])
        compare = self.symbols.algebra.compare
        smaller = self.symbols.algebra.both(compare("!=", one, 0), compare("<", one, other))
        return self.symbols.ask(smaller)

    def new_empty(
        self, x: Traced, *layout: Any, dtype: Any = None, device: Any = None, **_: Any
    ) -> Any:
        return self.empty(*layout, dtype=dtype or x.dtype, device=device or x.device)

    def is_contiguous(self, x: Traced, memory_format: Any = torch.contiguous_format) -> Any:
        if memory_format is torch.contiguous_format:
            return is_contiguous(self.symbols, x)
        order = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}.get(len(x.sizes))
        return order is not None and is_contiguous(self.symbols, x, order)


def _filled(make: Callable[..., Any], value: Any = None) -> Callable[..., Any]:
    """An allocation that is filled with a value, or else with its own last argument."""

    def run(recorder: Recorder, *args: Any, **kwargs: Any) -> Any:
        *given, filler = args if value is None else (*args, value)
        if make is Recorder.empty and value is None and kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": _dtype_of(filler)}
        made = make(recorder, *given, **kwargs)
        return made if made is NotImplemented else recorder.fill(made, filler)

    return run


def _dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of what is filled with a value; None is torch's default."""
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(value, (int, torch.SymInt)) else None


_SPECIAL: dict[Any, Callable[..., Any]] = {
    _ATEN.empty.memory_format: Recorder.empty,
    _ATEN.empty_strided.default: Recorder.empty,
    _ATEN.empty_like.default: Recorder.empty_like,
    _ATEN.new_empty.default: Recorder.new_empty,
    _ATEN.new_empty_strided.default: Recorder.new_empty,
    _ATEN.zeros.default: _filled(Recorder.empty, 0),
    _ATEN.zeros_like.default: _filled(Recorder.empty_like, 0),
    _ATEN.new_zeros.default: _filled(Recorder.new_empty, 0),
    _ATEN.ones.default: _filled(Recorder.empty, 1),
    _ATEN.ones_like.default: _filled(Recorder.empty_like, 1),
    _ATEN.new_ones.default: _filled(Recorder.new_empty, 1),
    _ATEN.full.default: _filled(Recorder.empty),
    _ATEN.full_like.default: _filled(Recorder.empty_like),
    _ATEN.new_full.default: _filled(Recorder.new_empty),
    _ATEN.zero_.default: _filled(lambda _, x: x, 0),
    _ATEN.fill_.Scalar: Recorder.fill,
    _ATEN._to_copy.default: Recorder.number_to_host,  # noqa: SLF001  # that is its name
    _ATEN.is_contiguous.default: Recorder.is_contiguous,
    _ATEN.is_contiguous.memory_format: Recorder.is_contiguous,
    _ATEN.is_non_overlapping_and_dense.default: lambda _, x: is_compact(x),
    _ATEN.is_strides_like_format.default: lambda *_: False,
}


# Methods that run host code, of objects with its `entry`.
_runners: set[CodeType] = set()


def runs_host_code(method: Method) -> Method:
    """Beyond this method's frame there is no host code, only who called opforge."""
    _runners.add(method.__code__)
    return method


def _host_frame() -> FrameType | None:
    """That of the host code that is running, or of opforge's where that adds calls to it."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        if frame.f_code in _runners:
            break
        frame = frame.f_back
    return frame


def locate() -> str:
    """`file:line` of the host code that is running; of calls that opforge adds, its beginning."""
    frame = _host_frame()
    if frame is None:
        return "unknown"
    if frame.f_code in _runners:
        return str(frame.f_locals["self"].entry.location)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _instruction() -> Question:
    """That of the host code that is running: a line may ask several questions."""
    frame = _host_frame()
    return ("unknown", 0) if frame is None else (frame.f_code, frame.f_lasti)


def raised_at(error: BaseException) -> str:
    """`file:line` of the host code that an error passed last."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    return next((f"{f}:{n}" for f, n in reversed(places) if not f.startswith(_HIDDEN)), "unknown")


# Functions of torch that a trace answers itself, before torch takes them apart in C++. There a
# traced tensor is not on the GPU, so that `x.cuda()` would be a copy, and `torch.tensor` wants
# plain numbers.


def _to(x: Traced, *args: Any, **kwargs: Any) -> Any:
    """`x.to(...)` without the GPU, on which x is."""
    if args and isinstance(args[0], Traced):
        args = (args[0].dtype, *args[1:])
    if args and _is_gpu(args[0]):
        args = args[1:]
    elif _is_gpu(kwargs.get("device")):
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    if args and args[0] is None:
        args = (x.dtype, *args[1:])
    if not args and "dtype" not in kwargs:
        kwargs["dtype"] = x.dtype
    return torch.Tensor.to(x, *args, **kwargs)


def _cuda(x: Traced, device: Any = None, *_: Any, **kwargs: Any) -> Any:
    given = isinstance(device, (str, torch.device))
    return _to(x, device if given else torch.device("cuda", device or 0), **kwargs)


def _is_gpu(given: Any) -> bool:
    return isinstance(given, (str, torch.device)) and calls.is_gpu(torch.device(given))


def _tensor(data: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if is_symbolic(data):
        return torch.full((), data, dtype=dtype, device="cuda")
    return torch.tensor(data, dtype=dtype, **kwargs)


def _new_tensor(x: Traced, data: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    return _tensor(data, dtype=dtype or x.dtype, **{"device": x.device, **kwargs})


FUNCTIONS: dict[Any, Any] = {
    **matmul.FUNCTIONS,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.new_tensor: _new_tensor,
    torch.tensor: _tensor,
}
