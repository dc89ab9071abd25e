"""Lets the compiler see through an op: AOTAutograd traces its body instead of recording it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import _compat
from ..capture import Capture, capture, cpu_refusal, is_refused_launch
from ..errors import (
    NeedsGpu,
    OpforgeError,
    UnsupportedBody,
    WrongResult,
    warn,
)
from ..locks import fork_safe_lock
from ..model import (
    MENTIONED,
    SEEN_WHILE_TRACING,
    TRACED,
    Decision,
    FlatArgument,
    KernelRef,
    Lowered,
    Reading,
)
from ..tuning.choose import choose_first
from .checks import tensors_in
from .dependence import Dependence
from .direct import is_overridden

_kernels = _compat.kernels
_launches = _compat.launches
_BACKWARD = "the op's backward"
# Where a kernel of somebody else's changes what compilers see of an op.
_BACKENDS = ("CPU", "CUDA", "XPU", "MPS", "PrivateUse1")


class Transparency:
    """One op's kernels, its mode, and its body under a trace."""

    def __init__(
        self,
        name: str,
        location: str,
        lowered: Lowered,
        read: Callable[[], Reading],
        *,
        first: Reading,
        sources: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self.name = name
        self.location = location
        self.lowered = lowered
        self.sources = sources
        # The body on flat arguments; set when the op is registered.
        self.body: Callable[..., Any]
        # Keys at which a native build of this body is registered.
        self.native_keys: set[str] = set()
        # Keys at which the body itself is registered; None if it is for all.
        self.body_keys: frozenset[str] | None = None
        self._read = read
        self.first = first
        self._reading = first
        self._read_before = False
        self._being_read = False
        self._seen: list[KernelRef] = []
        self._nested: list[Any] = []
        # By id; the kernels are kept, so that no new one gets the id of an old one.
        self._launched: dict[int, Any] = {}
        self._fallen = ""
        self._warned: set[str] = set()
        self._lock = fork_safe_lock()

    @property
    def reading(self) -> Reading:
        """The reading of the body, repeated as long as names are unbound."""
        with self._lock:
            if self._being_read:
                # Two ops that call each other ask for each other's modes.
                return self._reading
            if not self._read_before or self._reading.is_open:
                if self._reading.is_open:
                    self._reading = self._read_located()
                self._read_before = True
                # A trace tells of those that the text only names.
                launched = (r.kernel for r in self._reading.found if r.is_certain)
                for kernel in (*launched, *self._reading.nested):
                    self._launched[id(kernel)] = kernel
                    choose_first(kernel)
                self.publish()
                if self._reading.decision.warning:
                    self.warn(self._reading.decision.warning)
            return self._reading

    @property
    def decision(self) -> Decision:
        return self.reading.decision

    @property
    def kernels(self) -> tuple[KernelRef, ...]:
        return (*map(self._graded, self.reading.body), *self._seen)

    @property
    def backward_kernels(self) -> tuple[KernelRef, ...]:
        return tuple(map(self._graded, self.reading.backward))

    def _graded(self, ref: KernelRef) -> KernelRef:
        is_news = ref.grade == MENTIONED and id(ref.kernel) in self._launched
        return replace(ref, grade=TRACED) if is_news else ref

    @property
    def is_open(self) -> bool:
        """Whether the mode may still change, because something is not bound yet."""
        return self._reading.is_open

    def resolve_mode(self) -> None:
        """Decide the mode, if that had to wait; refuse what cannot be registered."""
        self.reading  # noqa: B018  # reading decides

    def publish(self) -> None:
        """Make Inductor's cache key depend on everything that is launched."""
        refs = (*self._reading.found, *self._seen)
        kernels = [r.kernel for r in refs] + [*self._reading.nested, *self._nested]
        if kernels:
            jitted = [kernel for kernel in kernels if not _kernels.is_interpreted(kernel)]
            dependence = Dependence(jitted, self.sources, self._others)
            _launches.kernels_of_ops[self.name] = dependence.entries()

    def forget(self) -> None:
        _launches.kernels_of_ops.pop(self.name, None)

    def launches(self, kernel: Any, *, inside: str) -> None:
        with self._lock:
            # Autotuners may share a function, but each has its own configs.
            if id(kernel) in self._launched:
                return
            self._launched[id(kernel)] = kernel
            choose_first(kernel)
            if id(kernel) in {id(ref.kernel) for ref in self._reading.found}:
                return
            if inside:
                self._nested.append(kernel)
            elif not self._finds_now(kernel):
                self._add_missed(kernel)
            self.publish()

    def assumes(self, kernel: Any, why: str) -> None:
        self.warn(
            f"Triton's analysis cannot tell what kernel {_describe(kernel)} writes ({why}); it is "
            "assumed to write every tensor it is given, which costs a copy of each"
        )

    def looks_through(self, wrapper: Any, kernel: Any, why: str) -> None:
        self.warn(
            f"{type(wrapper).__qualname__}, which wraps kernel {_describe(kernel)}, cannot run "
            f"while tracing ({why}); the kernel is launched with what the body gave the wrapper"
        )

    def on_fakes(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body on fake tensors; launches do nothing.

        If the compiler sees through the op, they ask for pruning as `triton_op`'s do, whose fake
        traces them; what prunes may have to be seen by torch.export, too.
        """
        self.resolve_mode()
        with self._captured(into_graph=False, prunes=self.decision.mode == "triton_op"):
            return self.body(*args, **kwargs)

    def traced(self, mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The rule for FunctionalTensorMode: record the op, or trace its body."""
        tensors = self._tensors(args, kwargs)
        inputs = [tensor for _, tensor in tensors]
        if not self.seen_through() or self._runs_elsewhere(inputs):
            return mode.__torch_dispatch__(op, types, args, kwargs)
        if not _compat.only_known_types(types):
            return NotImplemented
        before = [_compat.write_count(t) for t in inputs]
        trial = _compat.fakes.FakeTrial(inputs)
        try:
            with mode, _compat.below_autograd(), self._captured(inputs=inputs) as run:
                out = self.body(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # raised again, unless the op becomes opaque
            wrote = [_compat.write_count(t) for t in inputs] != before
            self._become_opaque(error, wrote=wrote)
            trial.undo()
            return mode.__torch_dispatch__(op, types, args, kwargs)
        written = [_compat.write_count(t) - n for t, n in zip(inputs, before, strict=True)]
        self._compare_writes([a for a, _ in tensors], written, run)
        return out

    def seen_through(self) -> bool:
        return self.decision.mode == "triton_op" and not _compat.keeps_triton_ops()

    def with_capture(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """A backward or setup_context whose launches are captured when it is traced."""

        @functools.wraps(backward)
        def captured(*args: Any, **kwargs: Any) -> Any:
            if _compat.functionalizing() or _compat.faking():
                into_graph = _compat.functionalizing()
                with self._captured(into_graph=into_graph, who=_BACKWARD):
                    return backward(*args, **kwargs)
            try:
                with _compat.wrap_triton_disabled():
                    return backward(*args, **kwargs)
            except Exception as error:
                self.explain_failure(error, *args[1:], who=_BACKWARD)
                raise

        return captured

    def explain_failure(self, error: Exception, *values: Any, who: str = "the op") -> None:
        """Raise the reason if Triton refused a launch in eager because of the tensors' device."""
        if isinstance(error, OpforgeError) or not _launches.is_no_gpu(error):
            return
        tensors = [t for value in values for t in tensors_in(value)]
        where = sorted({str(t.device) for t in tensors})
        if tensors and "cpu" not in where:
            return
        if any(_kernels.is_interpreted(ref.kernel) for ref in self.kernels):
            raise NeedsGpu(
                "an autotuner times its configs, and Triton's interpreter needs a GPU for that",
                found=f"tensors on {', '.join(where)}" if tensors else None,
                fix=(
                    "name it: kernels=[...] lets it take its first config; or leave it one config, "
                    "or run on a GPU"
                ),
            ).locate(self.name, self.location) from error
        raise cpu_refusal(self.name, self.location, who, where) from error

    def warn(self, text: str) -> None:
        """Warn, once per op and text."""
        with self._lock:
            if text in self._warned:
                return
            self._warned.add(text)
        warn(f"{self.name} ({self.location}): {text}")

    def _become_opaque(self, error: Exception, *, wrote: bool) -> None:
        """Make the op opaque if its body cannot be traced, which nobody could know before.

        That is so if the body reads on the host, or if a kernel that it only mentions cannot be in
        a graph. Any other error is raised again; so is one for which it is too late, with what to
        do.
        """
        read = _compat.fakes.host_read(error)
        by_launch = ""
        if is_refused_launch(error) and not self._is_certain(error.kernel):
            by_launch = f"because of {error.what}"
        if not read and not by_launch:
            raise error
        if self.decision.asked != "auto" or wrote or _compat.fakes.is_fake_kept(error):
            if isinstance(error, OpforgeError):
                # It says more: which heuristic of which kernel reads.
                raise error
            raise UnsupportedBody(
                "torch cannot trace the body, because tensors have no values in a trace",
                found=read,
                fix="register the op opaque, mode='custom_op', and give fake=: a function with the "
                "op's signature, which tracing then runs instead of the body",
                cause="launch",
            ).locate(self.name, self.location) from error
        by_read = f"because tensors have no values in a trace ({read})"
        reason = f"torch cannot trace its body, {by_read if read else by_launch}"
        with self._lock:
            self._fallen = reason
            self._reading = self._as_fallen(self._reading)
        self.warn(
            f"the op is opaque to the compiler from now on: {reason}. mode='custom_op' says so and "
            "ends this warning"
        )

    def _is_certain(self, kernel: Any) -> bool:
        """Whether the text launches a kernel for certain; any kernel if it is not known which."""
        refs = [ref for ref in self._reading.body if ref.is_certain]
        certain = [each for ref in refs for each in _kernels.chain(ref.kernel)]
        return bool(certain) if kernel is None else any(each is kernel for each in certain)

    def _read_located(self) -> Reading:
        self._being_read = True
        try:
            return self._as_fallen(self._read())
        except OpforgeError as error:
            raise error.locate(self.name, self.location) from error.__cause__
        finally:
            self._being_read = False

    def _as_fallen(self, reading: Reading) -> Reading:
        if not self._fallen:
            return reading
        decision = replace(reading.decision, mode="custom_op", reason=self._fallen)
        return replace(reading, decision=decision)

    def _finds_now(self, kernel: Any) -> bool:
        """Whether reading the body again finds a kernel, because a name was rebound since."""
        if self._being_read:
            return False
        if self._reading.is_open:
            # The body may just have imported what was not loaded, and the mode hangs on that.
            return any(ref.kernel is kernel for ref in self.reading.body)
        reading = self._read_located()
        if id(kernel) not in {id(ref.kernel) for ref in reading.body}:
            return False
        self._reading = replace(reading, decision=self._reading.decision)
        return True

    def _add_missed(self, kernel: Any) -> None:
        name, where = _kernels.kernel_name(kernel), _kernels.kernel_location(kernel)
        self._seen.append(KernelRef(name, kernel, where, SEEN_WHILE_TRACING, TRACED))
        if _kernels.is_interpreted(kernel):
            return
        mode = self.decision.mode
        launched = f"kernel {_describe(kernel)} was launched while tracing, and reading the body "
        if mode == "triton_op":
            self.warn(
                launched + "did not find it; code that was compiled and cached before does not "
                f"depend on its source. Name it: kernels=[{name}]"
            )
        elif self.decision.asked == "auto" and self.decision.cell.startswith("neither"):
            self.warn(
                launched + "did not find it, so the op is opaque to the compiler. Name it: "
                f"kernels=[{name}] makes it transparent, mode='custom_op' keeps it opaque"
            )

    def _captured(
        self, *, into_graph: bool = True, **options: Any
    ) -> contextlib.AbstractContextManager[Capture]:
        if self.reading.may_launch:
            # The body may import it before it launches.
            _kernels.load_triton()
        return capture(self, into_graph=into_graph, **options)

    def _runs_elsewhere(self, tensors: Sequence[Any]) -> bool:
        """Whether a kernel other than the body, or none, is for these tensors' device."""
        keys = {_compat.backend_key(t.device.type) for t in tensors} - self.native_keys
        if is_overridden(self.name):
            return True
        if self.body_keys is not None:
            return not keys <= self.body_keys
        return any(_compat.has_kernel(self.name, key) for key in keys)

    def _others(self) -> list[str]:
        """The backends at which somebody registered another kernel."""
        keys = [key for key in _BACKENDS if key not in self.native_keys]
        return [key for key in keys if _compat.has_kernel(self.name, key)]

    def _tensors(self, args: Any, kwargs: Any) -> list[tuple[FlatArgument, Any]]:
        given = self.lowered.by_name(args, kwargs)
        return [(a, t) for a in self.lowered.tensors for t in tensors_in(given[a.name])]

    def _compare_writes(
        self, arguments: list[FlatArgument], written: list[int], run: Capture
    ) -> None:
        storages = [_compat.storage_of(t) for t in run.inputs]
        declared = {s for s, a in zip(storages, arguments, strict=True) if a.mutated}
        for index, argument in enumerate(arguments):
            known = written[index] - run.assumed[index]
            if known > 0 and storages[index] not in declared:
                declared_names = {a.path for a in arguments if a.mutated} | {argument.path}
                writer = run.writers.get(index)
                by = "an in-place operation" if writer is None else f"kernel {_describe(writer)}"
                raise WrongResult(
                    f"{by} writes to {argument.path!r}, which mutates_args does not name",
                    parameter=argument.path,
                    fix=f"mutates_args={sorted(declared_names)}, or write to a copy",
                ).locate(self.name, self.location)


def _describe(kernel: Any) -> str:
    return f"{_kernels.kernel_name(kernel)} ({_kernels.kernel_location(kernel)})"
