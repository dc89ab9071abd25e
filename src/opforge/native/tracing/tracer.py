"""Runs an op's body once on symbolic sizes, and records what it did."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import _compat
from ..._compat import driver, host_caches, process_state, tracing
from ..._compat.host_caches import Answered, HostCaches
from ..._compat.kernels import is_interpreted, kernel_name
from ..._compat.tracing import Traced
from ...arch import HIP, HOPPER, Arch
from ...capture import is_refused_launch
from ...errors import OpforgeError, UnsupportedBody, first_line
from ...registration.generated import Generated
from ...registry import Entry, registry
from ..device import torch_math
from ..frontend.expand import Declared
from ..ir.cases import Case, Guard, Path
from ..ir.dtypes import DTYPES
from ..ir.expr import Number, Var, address_of, addressed, evaluate, variables
from ..ir.interface import ScalarParam
from ..ir.places import Place, told
from ..symbolic.solve import VarRange, multiples_of, ranges_of
from ..symbolic.symint import NotConstant, Symbols, is_symbolic, term_of
from .launches import Calls, Choose, LaunchOptions, Pointed, TracedLaunch, pointed
from .recorder import (
    Buffer,
    Filled,
    Offence,
    Question,
    Recorder,
    Way,
    locate,
    raised_at,
    runs_host_code,
)
from .torch_calls import source
from .torch_calls.fusion import grouped, inlined, written
from .torch_calls.values import Called, Group, Reduced, Scanned, TorchCall
from .traced_gpu import traced_gpu
from .traced_gpu import var_ranges as device_ranges
from .views import compact


@dataclass
class Walk:
    """What one path through the body does; `refused` says why a library cannot have it."""

    guards: list[Guard]
    steps: list[Any] = field(default_factory=list)
    outputs: list[Traced | None] = field(default_factory=list)
    refused: str = ""
    refused_at: Place = ""
    # Whether that is because the body raised.
    raised: bool = False
    # Calls that a library cannot make, unlike inputs that the body itself refuses.
    offences: list[str] = field(default_factory=list)
    # What data decides on this path, and other ways that it may go then.
    asked: frozenset[Question] = frozenset()
    other_ways: Sequence[Way] = ()
    symbols: Symbols | None = None
    # By number of the allocation, which output it becomes, of those declared as strided.
    strided: Mapping[int, int] = field(default_factory=dict)

    def offend(self, *offences: str) -> None:
        self.offences = list(dict.fromkeys([*self.offences, *offences]))
        if self.offences:
            self.refused, self.refused_at = "\n".join(self.offences), ""

    @property
    def refusal(self) -> Path:
        return Path((), refused=self.refused, refused_at=self.refused_at)

    def end(self) -> None:
        """Nothing more is asked of this trace; what the body kept of it cannot be used."""
        if self.symbols is not None:
            self.symbols.has_ended = True


class _Owner:
    """Receives the notes about the launches of one trace."""

    def __init__(self, entry: Entry) -> None:
        self.name, self.location = entry.name, entry.location
        self.notes: list[str] = []

    def looks_through(self, wrapper: Any, kernel: Any, why: str) -> None:
        name = _compat.kernels.kernel_name(kernel)
        self.notes.append(
            f"{type(wrapper).__qualname__}, a wrapper around {name}, was skipped: {why}"
        )

    def reads(self, what: str, where: Place, kept: str) -> None:
        self.notes.append(told(lambda at: f"{what} is read at {at(where)}; {kept}"))


@contextlib.contextmanager
def many_traces() -> Iterator[None]:
    """Replace once what each trace replaces, 60 names, as long as several follow each other.

    The replacements do nothing outside of a trace.
    """
    with contextlib.ExitStack() as stack:
        for scope in (driver.STAND_INS, tracing.HOST_FUNCTIONS, process_state.READS):
            stack.enter_context(scope)
        yield


class Tracer:
    """Traces one case of an op for given values of its variables."""

    def __init__(
        self,
        entry: Entry,
        declared: Declared,
        case: Case,
        archs: tuple[Arch, ...],
        choose: Choose,
        *,
        caches: HostCaches | None = None,
    ) -> None:
        self.entry, self.declared, self.case = entry, declared, case
        self.archs = archs
        self.var_ranges = var_ranges = {**var_ranges_of(case, declared), **device_ranges(archs)}
        self.ranges = ranges_of(var_ranges)
        self.multiples = multiples_of(var_ranges)
        self.counts = {n: len(d.values) for n, d in var_ranges.items() if d.values}
        self.notes: list[str] = []
        self._choose = choose
        self._options = _options(archs[0])
        self._caches = caches or HostCaches()
        self._caches.include(entry.fn)
        # By output, the strides that callers choose; and where the last walk found these outputs.
        self._strides = {
            declared.outputs.index(one.param): one.strides
            for one in case.returns
            if one.strides is not None
        }
        self._strided: Mapping[int, int] = {}
        # Questions that data decides, and the offences that other answers led to.
        self._asked: frozenset[Question] | None = None
        self._elsewhere: dict[str, None] = {}

    def walk(self, values: Mapping[str, Number]) -> Walk:
        """Run the body once. Raises NotConstant if a size needs a narrower declaration."""
        watch = Answered()
        walk = self._run(values)
        answered = watch.caches()
        if not answered:
            return walk
        # The body reached a cache by a name that reading its code does not show.
        walk.end()
        self._caches.chase(answered)
        watch = Answered()
        walk = self._run(values)
        for cached in watch.caches():
            walk.offend(
                f"{host_caches.describe(cached)} answers from its functools cache, which may hold "
                "what another GPU or another call led to; call it by its name in the body"
            )
        return walk

    def _run(self, values: Mapping[str, Number]) -> Walk:
        """Only the end of a run tells which allocations are outputs, so a run begins with a guess:
        those of the run before. If it ends otherwise, a run with the body's own strides tells.
        """
        guess = self._strided
        walk: Walk | None = None
        raised: NotConstant | None = None
        try:
            walk = self._run_once(values, guess)
        except NotConstant as error:
            raised = error
        if walk is not None and walk.strided == guess:
            return walk
        own = self._run_once(values, {}) if guess or walk is None else walk
        if own.strided == guess:
            # The guess is right; it is the body that refuses these strides.
            if raised is not None:
                raise raised
            assert walk is not None
            return walk
        if not own.strided:
            return own
        self._strided = own.strided
        own.end()
        return self._run_once(values, own.strided)

    def _run_once(self, values: Mapping[str, Number], strided: Mapping[int, int]) -> Walk:
        walk = self._trace(values, strided)
        if walk.other_ways:
            self._see_other_ways(walk, values, strided)
            walk.offend(*self._elsewhere)
        return walk

    def _see_other_ways(
        self, walk: Walk, values: Mapping[str, Number], strided: Mapping[int, int]
    ) -> None:
        """Where data decides which way the body goes, no library holds it; but other ways may have
        more that is in the way of one.
        """
        if self._asked is not None and walk.asked <= self._asked:
            return
        self._asked = (self._asked or frozenset()) | walk.asked
        for way in walk.other_ways:
            with contextlib.suppress(OpforgeError):
                other = self._trace(values, strided, way, strict=False)
                other.end()
                self._elsewhere |= dict.fromkeys(other.offences)

    @runs_host_code
    def _trace(
        self,
        values: Mapping[str, Number],
        strided: Mapping[int, int],
        way: Way = Way(),  # noqa: B008  # it is frozen
        *,
        strict: bool = True,
    ) -> Walk:
        symbols = Symbols(values, self.ranges, locate, self.counts, self.multiples)
        symbols.declared = {
            p.name: p.dtype for p in self.declared.params if isinstance(p, ScalarParam)
        }
        chosen = {at: self._strides[output] for at, output in strided.items()}
        recorder = Recorder(symbols, self._nested, self._choose, chosen, way=way)
        leaves = self._leaves(symbols, recorder)
        args, kwargs = self.declared.arguments(self.case, leaves)
        owner = _Owner(self.entry)
        calls = Calls(owner, recorder, self._choose, self._options)
        walk = Walk(symbols.guards, recorder.steps, symbols=symbols)
        try:
            with (
                _compat.launches.routed_to(calls),
                _compat.driver.standing_in(traced_gpu(symbols, self.archs)),
                tracing.symbolic_host_functions(lambda n: symbols.next_power_of_2(term_of(n))),
                self._caches.passed_by(),
                process_state.noted(owner.reads),
                recorder.running(),
            ):
                result = self.entry.fn(*args, **kwargs)
                walk.outputs = self._outputs(result, recorder)
                walk.strided = self._found(walk.outputs, recorder)
                if not recorder.offences:
                    walk.steps = lowered(recorder.steps, walk.outputs, recorder.notes.append)
        except NotConstant as error:
            if strict:
                error.also = recorder.offences
                raise
        except Offence:
            pass
        except OpforgeError as error:
            if is_refused_launch(error):
                # About a launch, whatever the inputs are.
                raise UnsupportedBody(
                    error.what,
                    found=error.found,
                    fix=error.fix,
                ) from error
            if isinstance(error, UnsupportedBody) and error.cause == "outlived":
                recorder.note(f"{error.what}, {error.found}; {error.fix}")
            else:
                walk.refused = f"{error.what} ({error.found})" if error.found else error.what
        except Exception as error:  # noqa: BLE001  # the body's own: these inputs it refuses
            said = f"{type(error).__name__}: {first_line(error)}"
            base = _compat.tma.refused_base(error)
            if isinstance(base, Traced) and isinstance(base.memory, Buffer):
                memory = base.memory
                whose = "a tensor that the body allocates" if memory.allocated else memory.name
                said += f", of a tensor descriptor of {whose}"
            walk.raised = True
            walk.refused, walk.refused_at = f"the body raises {said}", raised_at(error)
        walk.offend(*recorder.offences)
        walk.asked = frozenset(recorder.stand_ins.asked)
        walk.other_ways = recorder.other_ways()
        notes = dict.fromkeys([*owner.notes, *recorder.notes])
        self.notes += [note for note in notes if note not in self.notes]
        return walk

    def _nested(self, func: Any) -> Callable[..., Any] | None:
        entry = registry.find(func)
        found = nested_body(func)
        if found is not None:
            self._caches.include(found if entry is None else entry.fn)
        return found

    def _leaves(self, symbols: Symbols, recorder: Recorder) -> dict[str, Any]:
        leaves: dict[str, Any] = {}
        for tensor in self.case.tensors:
            if not tensor.present:
                continue
            sizes = [symbols.integer(s) for s in tensor.shape]
            given = tensor.strides
            strides = compact(sizes) if given is None else [symbols.integer(s) for s in given]
            dtype = getattr(torch, DTYPES[tensor.dtype].torch)
            leaves[tensor.param] = recorder.parameter(tensor.param, dtype, sizes, strides)
        for param in self.declared.params:
            if isinstance(param, ScalarParam):
                is_float = param.dtype.startswith(("fp", "bf"))
                var = Var(param.name, is_float)
                leaves[param.name] = symbols.real(var) if is_float else symbols.integer(var)
        return leaves

    def _found(self, outputs: list[Traced | None], recorder: Recorder) -> dict[int, int]:
        numbers = {id(buffer): at for at, buffer in enumerate(recorder.buffers)}
        at = {i: None if t is None else numbers.get(id(t.memory)) for i, t in enumerate(outputs)}
        return {number: i for i, number in at.items() if number is not None and i in self._strides}

    def _outputs(self, result: Any, recorder: Recorder) -> list[Traced | None]:
        """What the body returns, as a flat list."""
        flat = [result] if not isinstance(result, (tuple, list)) else list(result)
        if not self.declared.outputs:
            return []
        for one in flat:
            if one is not None and not isinstance(one, Traced):
                recorder.note(f"the body returns a {type(one).__name__}, not a tensor")
                raise Offence("output")
        return flat


def var_ranges_of(case: Case, declared: Declared) -> dict[str, VarRange]:
    """The range of every variable of a case."""
    found: dict[str, VarRange] = {}
    for bound in case.bounds:
        high = float("inf") if bound.high is None else bound.high
        found[bound.var] = VarRange(bound.low, high, bound.values)
    for tensor in case.tensors:
        for term in (*tensor.shape, *(tensor.strides or ())):
            if isinstance(term, Var):
                found.setdefault(term.name, VarRange(0, float("inf")))
    for output in case.returns:
        for stride in output.strides or ():
            found |= {v.name: VarRange(0, float("inf")) for v in variables(stride)}
    for param in declared.params:
        if isinstance(param, ScalarParam) and param.name not in found:
            found[param.name] = _scalar_range(param.dtype)
    addresses = [address_of(tensor.param) for tensor in case.tensors if tensor.present]
    return found | dict.fromkeys(addresses, VarRange(0, float("inf")))


def _scalar_range(dtype: str) -> VarRange:
    if dtype.startswith(("fp", "bf")):
        return VarRange(-float("inf"), float("inf"), is_float=True)
    bits = DTYPES[dtype].bits
    if dtype.startswith("u"):
        return VarRange(0, 2**bits - 1)
    return VarRange(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# Different for each size, so that no two are equal by accident; never 0 or 1.
_PRIMES = (67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151)


def first_values(case: Case, var_ranges: Mapping[str, VarRange]) -> dict[str, Number]:
    """Ordinary values to start from: sizes of about a hundred, dense strides."""
    found: dict[str, Number] = {}
    primes = iter(_PRIMES * 4)
    for name, var_range in var_ranges.items():
        if name.startswith("device."):
            continue
        if addressed(name):
            found[name] = 0
            continue
        wanted: Number = 0.37 if var_range.is_float else next(primes)
        if var_range.values:
            wanted = var_range.values[-1]
        nearest = int(min(max(wanted, var_range.low), var_range.high))
        found[name] = wanted if wanted in var_range else nearest
    # For a size that the body computes.
    computed = {v.name: next(primes) for t in case.returns for s in t.shape for v in variables(s)}
    for tensor in (*case.tensors, *case.returns):
        dense = 1
        for size, stride in reversed(list(zip(tensor.shape, tensor.strides or (), strict=False))):
            if isinstance(stride, Var):
                found[stride.name] = dense
            dense *= int(evaluate(size, {**computed, **found}))
    return found


def nested_body(func: Any) -> Callable[..., Any] | None:
    """The Python body of a nested op, if tracing can see through it."""
    entry = registry.find(func)
    if entry is not None and entry.lowered is not None:
        return Generated(entry.name, entry.location, entry.lowered).bind(entry.fn)
    found: Callable[..., Any] | None = _compat.operators.triton_op_body(func)
    return found


# Any of AMD's: all have the same options.
_CDNA3 = Arch(HIP, 0x942)


def _options(arch: Arch) -> LaunchOptions:
    # What a GPU lacks is refused as that, not as a parameter that the kernel lacks.
    return LaunchOptions(_options_of(arch), _options_of(HOPPER if arch.is_amd else _CDNA3))


@functools.cache
def _options_of(arch: Arch) -> frozenset[str]:
    with _compat.driver.standing_in(_compat.driver.Gpu(arch, warp_size=arch.warp_size)):
        return frozenset(_compat.launches.launch_options())


# The torch calls of a trace as launches.


def lowered(
    steps: Iterable[Any], outputs: Iterable[Traced | None], note: Callable[[str], None]
) -> list[Any]:
    """The steps of a trace, with a launch for each group of torch calls."""
    kept = {id(tensor.memory) for tensor in outputs if tensor is not None}
    found: list[Any] = []
    for step in grouped(inlined(list(steps), kept), kept):
        if isinstance(step, (Group, Reduced, Scanned, Called)):
            launch = _launch(step)
            _refuse_interpreter(step.calls, launch)
            more = step.said if isinstance(step, Called) else ""
            note(_became(step.calls, launch, more))
            found.append(launch)
        else:
            found.append(step)
    return found


def _refuse_interpreter(calls: Sequence[TorchCall], launch: TracedLaunch) -> None:
    if is_interpreted(torch_math.positions):
        raise UnsupportedBody(
            f"kernel {kernel_name(launch.fn)} runs in Triton's interpreter, which compiles nothing",
            found=_listed(calls, str),
            fix="unset TRITON_INTERPRET for the build",
            cause="launch",
        )


def _listed(calls: Sequence[TorchCall], at: Callable[[Place], str]) -> str:
    """`aten.mul.Tensor, aten.add.Tensor at ops.py:7, aten.exp at ops.py:8`."""
    places: dict[Place, dict[str, None]] = {}
    for call in calls:
        places.setdefault(call.location, {})[call.name] = None
    return ", ".join(f"{', '.join(names)} at {at(place)}" for place, names in places.items())


def _became(calls: Sequence[TorchCall], launch: TracedLaunch, more: str) -> str:
    name = kernel_name(launch.fn)
    return told(lambda at: f"{_listed(calls, at)} became kernel {name}{more}")


def _launch(step: Group | Reduced | Scanned | Called) -> TracedLaunch:
    made: source.Written | Called
    if isinstance(step, Group):
        made = source.write_group(step)
    elif isinstance(step, Called):
        made = step
    elif isinstance(step, Reduced):
        made = source.write_reduced(step)
    else:
        made = source.write_scanned(step)
    location = step.calls[-1].location
    outs = [id(memory) for memory in written(step)]
    writes = [
        n for n, v in made.arguments.items() if isinstance(v, Traced) and id(v.memory) in outs
    ]
    arguments = {name: pointed(value) for name, value in made.arguments.items()}
    x, y, z = [*map(term_of, made.grid), 1, 1][:3]
    options = dict(made.options)
    return TracedLaunch(made.fn, arguments, (x, y, z), options, location, writes=frozenset(writes))


# A body traced again and compared, so that no random number or clock becomes a constant. What it
# reads of these looks like any other number, but differs from call to call: so the same path is
# walked at least twice, at different times.


# So many walks tell `randrange(2)` from a constant, but for once in 100 million times.
_IF_RANDOM = 32
# No multiple of anything that a body may divide a time by.
_SECONDS = 86_400 * 45 + 3_607


def repeated_walk(tracer: Tracer, values: Mapping[str, Number]) -> Walk:
    """The last of several walks that did the same, apart from what a body does only once."""
    last = tracer.walk(values)
    if last.offences:
        # No library will have this path, whatever it does the next time.
        return last
    times, done, differences = 1, 0, 0
    while done < times:
        done += 1
        before, state = _Did(last), process_state.random_state()
        last.end()
        # `last` lives on, so that what is made anew has another id().
        with process_state.clock_shifted(done * _SECONDS):
            again = tracer.walk(values)
        if process_state.random_state() != state:
            times = _IF_RANDOM
        last, found = again, before.difference(_Did(again))
        if found:
            differences += 1
            times = max(times, done + 1)
        if differences > 1:
            last.end()
            raise _refusal(tracer, values, found)
    return last


def _refusal(tracer: Tracer, values: Mapping[str, Number], found: str) -> UnsupportedBody:
    asked: dict[str, None] = {}
    with process_state.chance_noted(lambda what: asked.update({f"the body asks for {what}": None})):
        tracer.walk(values).end()
    return UnsupportedBody(
        "it does something different in each call, even with the same arguments",
        found="\n    ".join([found, *asked]),
        fix="make what differs a parameter, declared as a scalar: seed=native.scalar('i64')",
    )


class _Did:
    """What a walk did, as text, which outlives the walk's symbols."""

    def __init__(self, walk: Walk) -> None:
        self.refused = walk.refusal.why
        self.facts = [] if walk.refused else list(_facts(walk))

    def difference(self, other: _Did) -> str:
        """What another walk did differently; empty if nothing."""
        if self.refused or other.refused:
            return "" if self.refused and other.refused else self.refused or other.refused
        for (what, value), (also, now) in zip(self.facts, other.facts, strict=False):
            if what != also:
                return f"{what} in one call, {also} in another"
            if value != now:
                return f"{what} is {value} in one call, {now} in another"
        longer = max(self.facts, other.facts, key=len)
        missing = longer[min(len(self.facts), len(other.facts)) :]
        return f"{missing[0][0]} only in some calls" if missing else ""


def _facts(walk: Walk) -> Iterator[tuple[str, str]]:
    """All that a walk did, each thing with its value."""
    for step in walk.steps:
        if isinstance(step, Filled):
            at = f"the value in {step.buffer.name}"
            yield at, f"{step.value} ({step.offset}, {step.count}, {step.dtype})"
        elif isinstance(step, TracedLaunch):
            kernel = _compat.kernels.kernel_name(step.fn)
            launch = f"kernel {kernel} (launched at {step.location})"
            yield f"the grid of {launch}", _text(step.grid)
            written = _compat.kernels.written_source(step.fn)
            if written is not None:
                # A number of a torch call is in the kernel that opforge writes for it.
                yield f"a number in {launch}", ", ".join(_NUMBERS.findall(written[1]))
            for name, value in {**step.arguments, **step.options}.items():
                yield f"{name!r} of {launch}", _text(value)
    for tensor in walk.outputs:
        if tensor is not None:
            shape = (tensor.memory.name, tensor.sizes, tensor.strides, tensor.offset)  # type: ignore[attr-defined]
            yield "the shape of an output", _text(shape)
    for guard in walk.guards:
        yield f"a branch at {guard.location}", str(guard.condition)


def _text(value: Any) -> str:
    if isinstance(value, Pointed):
        return f"{value.memory.name}[{value.offset}] {value.dtype}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_text, value))
    if is_symbolic(value) or isinstance(value, _PLAIN):
        return str(value)
    # Objects that are made in every call are not equal, and nobody means them to differ.
    return type(value).__name__


_NUMBERS = re.compile(r"tl\.full\(\(\), (.*?), tl\.")
_PLAIN = (str, int, float, complex, type(None), torch.dtype)
