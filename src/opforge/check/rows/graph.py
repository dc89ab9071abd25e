"""Rows that compile the op: torch.compile static and dynamic, and what is in the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import _compat
from ...doctor import examine
from ...errors import BuildFailed, MissingBackward, last_line
from ...native.ir.kernel_request import Request, Requests, want
from ...notebook import counted
from ..report import Row, failed, passed, reason_of, short_reason, skipped
from ..subject import Batches, CallResult, OpCall, Subject
from .autograd import gradients, gradients_differ

_checking = _compat.checking


def compile_static(subject: Subject) -> Row:
    """One full graph, forward and backward, with eager's results."""
    backend, note = backend_for(subject)
    with _checking.counting_graphs() as graphs_made:
        compiled = _compiled(subject, backend, dynamic=False)
        found = _run(compiled, subject.call)
        made = graphs_made()
    text = subject.mismatch(found, subject.eager)
    if text:
        return failed(f"compiled, {text}", _WRONG_RESULT)
    try:
        text = "" if subject.draws_random_numbers else _backward_mismatch(subject, backend)
    except MissingBackward as error:
        # An op that a function in mode none calls lacks it.
        text, note = "", note or f"forward only: {error.op} has no backward"
    if text:
        return failed(f"compiled backward: {text}", "use only ctx and the arguments in backward=")
    return passed(f"{backend}, {counted(made, 'graph')}", note)


_WRONG_RESULT = (
    "a fake that differs from the body, or an undeclared write, misleads the compiler: see the "
    "rows fake and mutation"
)


def compile_dynamic(subject: Subject) -> Row:
    """A second batch size must not recompile."""
    backend, note = backend_for(subject)

    def compiled() -> Callable[[OpCall], CallResult]:
        function = _compiled(subject, backend, dynamic=True)
        return lambda call: _run(function, call)

    return _in_one_graph(subject, compiled, f"{backend}, one graph for {{}}", note)


def _in_one_graph(
    subject: Subject, compiled: Callable[[], Callable[[OpCall], Any]], said: str, note: str = ""
) -> Row:
    """Run two batch sizes; where heuristics may tell them apart, also a size and its double.

    `said` of the sizes is the reason of a row that passes; what was run must give eager's results.
    """
    batches = subject.batches
    if isinstance(batches, str):
        return skipped(batches)
    deciding = _with_heuristics(subject)
    doubled = subject.doubled(batches) if deciding else None
    first_text = ""
    for tried in filter(None, (batches, doubled)):
        run = compiled()
        results = [run(tried.first)]
        text = _recompiles(lambda: results.append(run(tried.second)), tried)  # noqa: B023
        first_text = first_text or text
        if text:
            continue
        for result, call in zip(results, tried.calls, strict=True):
            ran = isinstance(result, CallResult)
            if ran and (text := subject.mismatch(result, subject.expected(call))):
                return failed(f"compiled, {text}", _WRONG_RESULT)
        why = f"{first_text}, by a heuristic of {deciding}, or a branch in the body"
        sizes = f"batch {tried.sizes[0]} and {tried.sizes[1]}"
        return passed(said.format(sizes), note, first_text and why)
    where = f"in the body, nor in the heuristics of {deciding}," if deciding else "in the body,"
    as_they_are = "and pass them on as they are, not as int(...)"
    return failed(first_text, f"do not branch on sizes {where} {as_they_are}")


_OTHER_INPUTS = "check with inputs on which the kernels are launched"


def _with_heuristics(subject: Subject) -> str:
    """The op's kernels that have heuristics, whose values a graph holds."""
    kernels = _compat.kernels
    return ", ".join(
        ref.name
        for ref in subject.info.kernels
        if any(map(kernels.is_heuristics, kernels.chain(ref.kernel)))
    )


def compile_static_on_fakes(subject: Subject) -> Row:
    """The same with fake CUDA tensors, where the kernels cannot run, but do compile."""
    wrong, note = uncompiled(subject)
    if wrong:
        return failed(wrong, "correct the kernel, or name another GPU: arch=, --arch")
    with subject.targeting(), _checking.counting_graphs() as graphs_made:
        mode, call = subject.fakes()
        compiled = _compiled(subject, _checking.tracing_backend(mode), dynamic=False)
        compiled(*call.args, **call.kwargs)
        made = graphs_made()
        backward = _trace_backward(subject) if subject.has("backward") else ""
    return passed(f"{counted(made, 'graph')}, {ON_FAKES}", note, backward)


def _trace_backward(subject: Subject) -> str:
    """Trace forward and backward together, or say why not."""
    # On the CPU, because autograd's engine asks for the accelerator of CUDA tensors, fake or not.
    paths = subject.differentiable()
    mode, call = subject.fakes(device=None)
    try:
        with mode:
            subject.invoke(call)
    except Exception as error:  # noqa: BLE001  # a body for GPUs alone may refuse in any way
        return f"the backward was not traced: on CPU tensors, {short_reason(error)}"
    call = call.map(lambda p, t: t.requires_grad_(p in paths))
    compiled = _compiled(subject, _checking.tracing_backend(mode), dynamic=False)

    def ones(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.ones_like(output) for output in outputs]

    gradients(lambda c: compiled(*c.args, **c.kwargs), call, paths, ones)
    return ""


def compile_dynamic_on_fakes(subject: Subject) -> Row:
    wrong, _ = uncompiled(subject)
    if wrong:
        return skipped(f"{wrong.partition(':')[0]} (row compile)")
    mode = _checking.new_fake_mode()

    def compiled() -> Callable[[OpCall], Any]:
        made = _compiled(subject, _checking.tracing_backend(mode), dynamic=True)

        def run(call: OpCall) -> Any:
            fakes = subject.fakes(call, mode=mode)[1]
            return made(*fakes.args, **fakes.kwargs)

        return run

    with subject.targeting():
        return _in_one_graph(subject, compiled, f"one graph for {{}}, {ON_FAKES}")


ON_FAKES = "traced with fake CUDA tensors; nothing was run"


def _recompiles(run_second: Callable[[], object], batches: Batches) -> str:
    """Why a second size recompiled; empty if it did not."""
    try:
        with _checking.no_recompiles():
            run_second()
    except Exception as error:
        if not _checking.is_recompile(error):
            raise
        why = _guard(str(error), batches.second.names)
        return f"batch {batches.sizes[1]} after {batches.sizes[0]} recompiles{why}"
    return ""


def _guard(text: str, names: tuple[str, ...]) -> str:
    """The guard that failed, in the op's own names: `- 0/0: args[0].size()[0] <= 9  # ...`."""
    found = re.search(r"- \d+/\d+: (.*?)(?:\s+#|$)", text, re.MULTILINE)
    if found is None:
        return ""
    named = re.sub(r"args\[(\d+)\]", lambda m: names[int(m[1])], found[1])
    named = re.sub(r"kwargs\['(\w+)'\]", r"\1", named)
    return f": {named}"


def backend_for(subject: Subject) -> tuple[str, str]:
    """Inductor where it works, and a note where it does not."""
    asked = subject.settings.backend
    if asked != "inductor":
        return asked, ""
    found = next(f for f in examine() if f.name == "torch.compile")
    if found.status == "ok":
        return asked, ""
    return "aot_eager", f"with backend='aot_eager', because {found.detail} ({found.fix})"


def _compiled(subject: Subject, backend: Any, *, dynamic: bool) -> Any:
    handle = subject.entry.handle

    def call_op(*args: Any, **kwargs: Any) -> Any:
        return handle(*args, **kwargs)

    # With its own code object, so that graphs of other rows or of the user do not interfere.
    own = _checking.with_own_code(call_op)
    return torch.compile(own, fullgraph=True, dynamic=dynamic, backend=backend)


def _run(compiled: Any, call: OpCall) -> CallResult:
    own = call.cloned()
    with torch.no_grad():
        return CallResult(compiled(*own.args, **own.kwargs), own)


def _backward_mismatch(subject: Subject, backend: str) -> str:
    paths = subject.differentiable()
    if not paths or (subject.registered and not subject.has("backward")):
        return ""
    compiled = _compiled(subject, backend, dynamic=False)
    expected = gradients(subject.invoke, subject.call.recording(paths), paths)
    found = gradients(lambda c: compiled(*c.args, **c.kwargs), subject.call.recording(paths), paths)
    return gradients_differ(paths, found, expected)


def kernels_visible(subject: Subject) -> Row:
    """Whether AOTAutograd's graph holds the kernels."""
    if not subject.launches:
        return skipped("the op launches no Triton kernels")
    if subject.interpreted:
        return skipped(
            "Triton's interpreter runs the kernels, and no graph can hold that",
            "run without TRITON_INTERPRET=1; no GPU is needed for this row",
        )
    if subject.info.mode == "custom_op" and subject.has("mode"):
        return skipped("mode='custom_op' keeps the op opaque, as requested")
    try:
        seen = _checking.launched_in(subject.trace())
    except Exception as error:  # noqa: BLE001  # whatever keeps the trace from the kernels
        return failed(*reason_of(error))
    if subject.info.mode == "custom_op":
        return failed(
            f"the op is opaque: {subject.info.reason}", "mode='custom_op', if that is right"
        )
    launched = {ref.name for ref in subject.info.kernels if ref.is_certain}
    if not seen and not launched:
        return skipped("it only mentions kernels, and these inputs launch none", _OTHER_INPUTS)
    if not seen:
        names = ", ".join(sorted(launched))
        return failed(
            f"the graph has no launch: {names} is not launched on these inputs, or not traced",
            _OTHER_INPUTS,
        )
    unseen = sorted(launched - set(seen))
    note = f"not launched on these inputs: {', '.join(unseen)}" if unseen else ""
    return passed(f"the graph launches {', '.join(seen)}", note)


def uncompiled(subject: Subject) -> tuple[str, str]:
    """Which kernel does not compile for the check's GPU and why, and what was not compiled."""
    if "uncompiled" not in subject.cached:
        subject.cached["uncompiled"] = _uncompiled(subject)
    found: tuple[str, str] = subject.cached["uncompiled"]
    return found


def _uncompiled(subject: Subject) -> tuple[str, str]:
    # Imported only here: it brings Triton, which ops of plain torch do without.
    from ...native.kernels.compile import compile_all  # noqa: PLC0415

    launches = _Launches()
    _compat.described.listen(launches)
    try:
        with subject.targeting():
            mode, call = subject.fakes()
            with mode:
                # Not the op, whose fake may launch nothing.
                subject.entry.fn(*call.args, **call.kwargs)
    except Exception as error:  # noqa: BLE001  # whatever a body does with tensors without contents
        return "", f"its kernels were not compiled: {short_reason(error)}"
    finally:
        _compat.described.listen_no_more(launches)
    try:
        compile_all(launches.requests.values())
    except BuildFailed as error:
        if not error.failed:
            raise
        (key, arch), text = next(iter(error.failed.items()))
        request = launches.requests[key][0]
        return f"{request.name} does not compile for {arch}: {_shortly(text, request)}", ""
    return "", "; ".join(launches.odd)


def _shortly(text: str, request: Request) -> str:
    """`ops.py:9: AttributeError: ...` of Triton's message, which quotes the kernel's source."""
    return f"{last_line(text)} ({request.location})"


class _Launches:
    """What is launched, as requests to the compiler."""

    def __init__(self) -> None:
        self.requests: Requests = {}
        self.odd: list[str] = []

    def described(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        stood = tuple(map(_compat.fakes.stand_in_pointer, args))
        named = {name: _compat.fakes.stand_in_pointer(value) for name, value in kwargs.items()}
        try:
            found = _compat.compiled.of_launch(fn, stood, named)
        except _compat.compiled.NotPlain as error:
            self.odd.append(f"{_compat.kernels.kernel_name(fn)} was not compiled: {error}")
            return
        own = {"grid", "warmup", *fn.arg_names} - _compat.served.options_of_parameters(fn)
        options = {name: value for name, value in kwargs.items() if name not in own}
        values = {**found.constants, **dict.fromkeys(found.ones, 1)}
        names = [param.name for param in fn.params]
        request = Request(
            fn,
            *_compat.kernels.name_and_location(fn),
            f"{fn.fn.__module__}:{fn.fn.__qualname__}",
            _compat.kernel_hash.hash_or_unique(fn).digest,
            tuple((n, "constexpr" if n in values else found.types[n]) for n in names),
            tuple((n, values[n]) for n in names if n in values),
            tuple(i for i, n in enumerate(names) if n in found.divisible),
            tuple(sorted(_compat.served.told_options(fn, options).items())),
        )
        want(self.requests, request, (found.arch,))

    def unmeasured(self, tuner: Any, key: tuple[Any, ...], config: Any) -> None:
        """Of an autotuner's configurations the first is compiled."""
