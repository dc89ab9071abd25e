"""What is checked: an op with a call, and how to run and trace it on this machine."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _compat, environment
from ..arch_names import parse_arch
from ..comparison import Tolerance, copy_of, difference, parts, same_bits, tensors_in
from ..errors import NeedsGpu
from ..gpu_target import target
from ..model import OpInfo
from ..registry import Entry
from .report import short_reason

Tensor = torch.Tensor
Change = Callable[[str, Tensor], Any]
# Indices and flags stay as they are, so that they remain valid; 8-bit floats have no arithmetic.
HALVED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

GPU_FIX = "run on a machine with a GPU, or start Python with TRITON_INTERPRET=1"
# What graphs are traced for, and libraries built, if nobody says it.
_ARCH = "sm_90"


@dataclass(frozen=True)
class OpCall:
    """Arguments as the user gives them; `names` are the parameters of the positional ones."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor with its path, in order."""
        named = [*zip(self.names, self.args, strict=True), *self.kwargs.items()]
        return [pair for name, value in named for pair in tensors_in(value, name)]

    def map(self, change: Change) -> OpCall:
        """The call with every tensor replaced."""
        args = tuple(
            replace_tensors(value, change, name)
            for name, value in zip(self.names, self.args, strict=True)
        )
        kwargs = {name: replace_tensors(v, change, name) for name, v in self.kwargs.items()}
        return OpCall(args, kwargs, self.names)

    def with_tensors(self, tensors: Iterable[Any]) -> OpCall:
        """The call with other tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        return self.map(lambda _path, _tensor: next(rest))

    def map_each(self, change: Callable[[Tensor], Tensor]) -> OpCall:
        """The call with every tensor changed once; one given twice stays one."""
        made: dict[int, Tensor] = {}

        def changed(_path: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = change(tensor)
            return made[id(tensor)]

        return self.map(changed)

    def cloned(self) -> OpCall:
        """Copies of all tensors, without their history."""
        return self.map_each(copy_of)

    def recording(self, paths: Iterable[str]) -> OpCall:
        """Copies; those at `paths` require grad."""
        wanted = set(paths)
        return self.cloned().map(lambda p, t: t.requires_grad_(p in wanted))


@dataclass(frozen=True)
class Settings:
    """The options of a check."""

    reference: Callable[..., Any] | None = None
    tolerance: Tolerance = None
    backend: str = "inductor"
    # The GPU that graphs are traced for, and libraries built: sm_90, gfx942.
    arch: str | None = None


@dataclass(frozen=True)
class CallResult:
    """One run of an op: what it returned, and its arguments as it left them."""

    value: Any = None
    call: OpCall | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Batches:
    """One call in two batch sizes; `paths` are the tensors whose first dimension is the batch."""

    first: OpCall
    second: OpCall
    sizes: tuple[int, int]
    paths: frozenset[str]

    @property
    def calls(self) -> tuple[OpCall, OpCall]:
        return self.first, self.second


@dataclass
class Subject:
    """An op with its inputs; results that several rows need are made once."""

    entry: Entry
    call: OpCall
    settings: Settings = Settings()
    # What one row made and another needs.
    cached: dict[str, Any] = field(default_factory=dict)
    _expected: list[tuple[OpCall, CallResult]] = field(default_factory=list)

    @property
    def info(self) -> OpInfo:
        """Described anew: a trace can make the op opaque."""
        return self.entry.describe()

    @property
    def registered(self) -> bool:
        """Whether there is an operator; in mode none there is only the function."""
        return self.entry.overload is not None

    def has(self, option: str) -> bool:
        return option in self.entry.given()

    @property
    def launches(self) -> bool:
        return bool(self.info.kernels)

    @property
    def interpreted(self) -> bool:
        return any(_compat.kernels.is_interpreted(ref.kernel) for ref in self.info.kernels)

    @property
    def on_gpu(self) -> bool:
        return any(t.is_cuda for _, t in self.call.tensors())

    def invoke(self, call: OpCall) -> Any:
        return self.entry.handle(*call.args, **call.kwargs)

    def run(self, call: OpCall | None = None) -> CallResult:
        """Run on copies."""
        own = (self.call if call is None else call).cloned()
        try:
            with torch.no_grad():
                return CallResult(self.invoke(own), own)
        except Exception as error:  # noqa: BLE001  # whatever the op raises is what is reported
            return CallResult(error=error)

    @functools.cached_property
    def eager(self) -> CallResult:
        return self.run()

    def expected(self, call: OpCall) -> CallResult:
        """What eager gives for one of `calls`, made once: interpreted kernels take long."""
        if call is self.call:
            return self.eager
        for known, result in self._expected:
            if known is call:
                return result
        self._expected.append((call, self.run(call)))
        return self._expected[-1][1]

    @functools.cached_property
    def needs_gpu(self) -> bool:
        """Whether a missing GPU is the only reason why the op cannot run here."""
        error = self.eager.error
        if error is None or torch.cuda.is_available():
            return False
        phrases = ("Torch not compiled with CUDA", "no NVIDIA driver", "0 active drivers")
        return isinstance(error, NeedsGpu) or any(p in str(error) for p in phrases)

    @functools.cached_property
    def draws_random_numbers(self) -> bool:
        """Whether a run advances torch's generators; compiled code then draws different numbers."""
        before = _random_states()
        with torch.random.fork_rng(devices=cuda_devices()):
            self.run()
            after = _random_states()
        return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def declared(self, path: str) -> bool:
        """Whether `mutates_args` names a tensor."""
        if self.entry.lowered is None:
            return True
        dotted = path.replace("[", ".").replace("]", "")
        names = [a.leaf.path for a in self.entry.lowered.mutated if a.leaf is not None]
        return any(dotted == n or dotted.startswith(f"{n}.") for n in names)

    @property
    def mutates(self) -> bool:
        return self.entry.lowered is not None and bool(self.entry.lowered.mutated)

    @functools.cached_property
    def written(self) -> list[str]:
        """Paths of the inputs that the real run changed."""
        after = self.eager.call
        assert after is not None
        pairs = zip(self.call.tensors(), after.tensors(), strict=True)
        return [path for (path, a), (_, b) in pairs if not same_bits(a, b)]

    def differentiable(self) -> list[str]:
        """The inputs to take gradients of: those that require grad, else all floating ones."""
        floats = [(p, t) for p, t in self.call.tensors() if t.is_floating_point()]
        wanted = [p for p, t in floats if t.requires_grad]
        if wanted:
            return wanted
        kept = [p for p, _ in floats if not (self.registered and self.declared(p))]
        return kept if self.registered else [p for p in kept if p not in self.written]

    def results(self, outcome: CallResult) -> Any:
        """What a run gave: its return value and the inputs it may write."""
        assert outcome.call is not None
        return outcome.value, [t for p, t in outcome.call.tensors() if self.may_write(p)]

    def may_write(self, path: str) -> bool:
        return self.declared(path) if self.registered else path in self.written

    def mismatch(self, found: CallResult, expected: CallResult) -> str:
        """How two runs differ; if the op draws random numbers, only in shape, dtype and device."""
        left, right = self.results(found), self.results(expected)
        if self.draws_random_numbers:
            left, right = (_looks(side) for side in (left, right))
        text = difference(left[0], right[0], "output")
        return text or difference(left[1], right[1], "a written input")

    @property
    def with_strides(self) -> list[str]:
        """The inputs that can have gaps between their elements."""
        return [p for p, t in self.call.tensors() if _may_have_gaps(t)]

    @functools.cached_property
    def strided(self) -> tuple[str, str]:
        """How the results for inputs with gaps differ, or why the op refuses them; empty if not."""
        refused = ""
        paths = self.with_strides
        # All, and each by itself: with equal strides, one is easily taken for another's.
        for chosen in dict.fromkeys((tuple(paths), *((p,) for p in paths))):
            call = self.call.map(lambda p, t: with_gaps(t.detach()) if p in chosen else t)  # noqa: B023
            where = f"with gaps between the elements of {', '.join(chosen)}"
            found = self.run(call)
            if found.error is not None:
                refused = refused or f"refused {where}: {short_reason(found.error)}"
            elif text := self.mismatch(found, self.eager):
                return f"{where}, {text}", ""
        return "", refused

    def fakes(
        self, call: OpCall | None = None, device: str | None = "cuda", mode: Any = None
    ) -> tuple[Any, OpCall]:
        """The call on fake tensors, and their mode, which is new unless one is given."""
        mode = _compat.checking.new_fake_mode() if mode is None else mode
        own = self.call if call is None else call
        return mode, own.map_each(lambda t: _compat.checking.as_fake(mode, t.detach(), device))

    @functools.cached_property
    def batches(self) -> Batches | str:
        """The call in two batch sizes, or why there are none."""
        sized = [(p, t) for p, t in self.call.tensors() if t.dim() > 0]
        if not sized:
            return "no tensor input has a batch dimension"
        why = ""
        batch = sized[0][1].shape[0]
        least = max(batch, 2)
        # Torch takes sizes that are equal in the first call for the same size.
        others = {size for _, t in sized for size in t.shape[1:]}
        own = next(n for n in itertools.count(least) if n not in others)
        pairs = [
            (first, second)
            for first in dict.fromkeys((own, least))
            for second in (2 * first + 1, 2 * first, 4 * first)
        ]
        for paths, (first, second) in itertools.product(dict.fromkeys(_batched(sized)), pairs):
            calls = [_in_batches_of(self.call, paths, size) for size in (first, second)]
            error = next((e for e in map(self._error_of, calls) if e is not None), None)
            if error is None:
                return Batches(calls[0], calls[1], (first, second), paths)
            why = why or short_reason(error)
        return f"the op accepts no batch size but {batch}: {why}"

    @property
    def calls(self) -> list[OpCall]:
        """The call in two batch sizes if it has them, else as it was given."""
        batches = self.batches
        return [*batches.calls] if isinstance(batches, Batches) else [self.call]

    def doubled(self, batches: Batches) -> Batches | None:
        """The same with twice the first size for the second; None if it is that, or refused."""
        size = 2 * batches.sizes[0]
        second = _in_batches_of(self.call, batches.paths, size)
        if size == batches.sizes[1] or self._error_of(second) is not None:
            return None
        return Batches(batches.first, second, (batches.sizes[0], size), batches.paths)

    def _error_of(self, call: OpCall) -> Exception | None:
        if not self.needs_gpu:
            return self.expected(call).error
        try:
            self.run_on_fakes(call)
        except Exception as error:  # noqa: BLE001  # it says why this size fails
            return error
        return None

    def run_on_fakes(self, call: OpCall) -> Any:
        with self.targeting():
            mode, fakes = self.fakes(call)
            with mode:
                return self.invoke(fakes)

    def trace(self) -> Any:
        """The graph that AOTAutograd would get, for a GPU that may be absent."""
        with self.targeting():
            mode, fakes = self.fakes()

            def called(*tensors: Tensor) -> Any:
                value = self.invoke(fakes.with_tensors(tensors))
                return [t for _, t in tensors_in(value, "output")]

            tensors = [t for _, t in fakes.tensors()]
            return _compat.checking.functional_graph(mode, called, tensors)

    @functools.cached_property
    def arch(self) -> str:
        """The GPU that was asked for, that of `opforge.target`, this machine's, or any."""
        if self.settings.arch is not None:
            return str(parse_arch(self.settings.arch))
        current = _compat.driver.current()
        if current is not None:
            return str(current.arch)
        return str(_compat.device.device_arch()) if self.on_gpu else _ARCH

    def targeting(self) -> Any:
        return target(self.arch)


def cuda_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def interpreting() -> bool:
    return environment.TRITON_INTERPRET.is_on()


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in cuda_devices())]


def _batched(sized: list[tuple[str, Tensor]]) -> Iterator[frozenset[str]]:
    """Which tensors may have the batch in front, most likely first."""
    name, leader = sized[0]
    sharing = [(p, t) for p, t in sized if t.shape[0] == leader.shape[0]]
    yield frozenset(p for p, _ in sharing)
    yield frozenset(p for p, t in sharing if t.dim() == leader.dim())
    yield frozenset([name])


def _in_batches_of(call: OpCall, paths: frozenset[str], size: int) -> OpCall:
    return call.map(lambda p, t: resized(t, size) if p in paths else t)


def _may_have_gaps(tensor: Tensor) -> bool:
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
    return is_plain and tensor.dim() > 0 and tensor.numel() > 1


def _looks(value: Any) -> Any:
    returned, written = value
    blank = OpCall((returned, written), {}, ("output", "written"))
    return blank.map(lambda _p, t: torch.empty_like(t, device="meta")).args


def replace_tensors(value: Any, change: Change, path: str) -> Any:
    if isinstance(value, Tensor):
        return change(path, value)
    steps = parts(value)
    if steps is None or not tensors_in(value, path):
        return value
    new = [replace_tensors(part, change, path + step) for step, part in steps]
    if dataclasses.is_dataclass(value):
        # Not dataclasses.replace: __post_init__ may look into tensors that are fake now.
        made = copy.copy(value)
        for field, part in zip(dataclasses.fields(value), new, strict=True):
            object.__setattr__(made, field.name, part)
        return made
    if isinstance(value, dict):
        return dict(zip(value, new, strict=True))
    return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)


def resized(tensor: Tensor, size: int) -> Tensor:
    """The tensor with its rows repeated to `size`; dimensions keep their order in memory."""
    if tensor.shape[0] == 0:
        return tensor.new_zeros((size, *tensor.shape[1:]))
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    rows = torch.arange(size, device=tensor.device) % tensor.shape[0]
    dense = tensor.detach().index_select(0, rows).permute(order).contiguous()
    return dense.permute([order.index(d) for d in range(tensor.dim())])


def with_gaps(tensor: Tensor) -> Tensor:
    """The same values with gaps; code that assumes none reads wrong values, in bounds."""
    if not tensor.dim():
        return torch.stack([tensor, tensor + 1])[0]
    # Of integers, which may be indices, others would be out of range.
    has_others = tensor.dtype in (*HALVED, torch.complex64, torch.complex128)
    wide = torch.stack([tensor, tensor + 1 if has_others else tensor.roll(1, -1)], -1)
    return torch.cat([wide, wide], -2).select(-1, 0).narrow(-1, 0, tensor.shape[-1])


def describe(path: str, tensor: Tensor) -> str:
    """`x: float32 (8, 128) on cpu`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{path}: {dtype} {tuple(tensor.shape)} on {tensor.device}"
