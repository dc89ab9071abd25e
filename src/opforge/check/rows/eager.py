"""Rows that run the op: eager, opcheck, fake, mutation, determinism, strides, vmap, numerics."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ... import _compat
from ...comparison import difference, paired, same_bits, shown, tensors_in, unlike
from ...errors import WrongResult
from ..report import Row, failed, passed, reason_of, short_reason, skipped
from ..subject import (
    GPU_FIX,
    HALVED,
    Batches,
    OpCall,
    Subject,
    cuda_devices,
)
from .graph import uncompiled

Tensor = torch.Tensor


def eager(subject: Subject) -> Row:
    """Whether the op runs on these inputs at all."""
    if subject.eager.error is not None:
        return failed(*reason_of(subject.eager.error))
    return passed()


def opcheck(subject: Subject) -> Row:
    """What torch checks itself: schema, aliasing, fake, autograd registration, AOT dispatch."""
    call = subject.call.cloned()
    if subject.has("backward"):
        call = call.recording(subject.differentiable())
    overload = subject.info.overload
    with _Arguments(overload) as seen:
        subject.invoke(call)
    results: dict[str, Any] = torch.library.opcheck(
        overload, seen.args, seen.kwargs, raise_exception=False
    )
    wrong = {name: found for name, found in results.items() if isinstance(found, Exception)}
    if not wrong:
        return passed()
    name, error = next(iter(wrong.items()))
    # opcheck wraps what a test raised in a page of advice.
    cause = error.__cause__ if error.__cause__ is not None else error
    line, fix = reason_of(cause)
    others = f" (also: {', '.join(list(wrong)[1:])})" if len(wrong) > 1 else ""
    return failed(f"{name}: {line}{others}", fix or _OPCHECK_FIXES.get(name, ""))


class _Arguments(TorchFunctionMode):
    """The arguments that the dispatcher gets in a call of an op: records are taken apart."""

    def __init__(self, overload: Any) -> None:
        self._overload = overload
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is self._overload:
            self.args, self.kwargs = args, kwargs or {}
        return func(*args, **(kwargs or {}))


def no_schema(subject: Subject) -> Row | None:
    if not subject.registered:
        return skipped("mode none: the function is not an operator, so there is no schema to check")
    return None


_OPCHECK_FIXES = {
    "test_schema": "name what the body writes to in mutates_args, and return copies of inputs",
    "test_faketensor": "give fake=, a function with the op's signature that returns such outputs",
    "test_autograd_registration": "give backward= to @opforge.op",
    "test_aot_dispatch_dynamic": "make fake and body agree on every size",
}


def fake(subject: Subject) -> Row:
    """Whether the fake describes the outputs of real runs, at a second size too."""
    text = _fake_mismatch(subject, subject.call, subject.eager.value)
    batches = subject.batches
    if not text and isinstance(batches, Batches):
        text = _fake_mismatch(subject, batches.second, subject.expected(batches.second).value)
        text = text and f"{text}, for batch {batches.sizes[1]}"
    if text:
        return failed(text, _fake_fix(subject))
    source = "" if not subject.registered else f"from: {subject.entry.describe().fake_source}"
    return passed(source)


def fake_by_trace(subject: Subject) -> Row:
    """The same against the body on fake CUDA tensors, where the kernels cannot run."""
    if subject.info.mode != "triton_op":
        return skipped("needs a GPU: the op is opaque, so only a run shows its outputs", GPU_FIX)
    if not subject.has("fake"):
        return skipped("needs a GPU: the fake is the body itself", GPU_FIX)
    body = _compat.checking.outputs_of(subject.trace())
    said = [t for _, t in tensors_in(subject.run_on_fakes(subject.call), "output")]
    text = _outputs_differ(said, body)
    if text:
        return failed(text, _fake_fix(subject))
    source = subject.entry.describe().fake_source
    return passed(f"from: {source}, as the body on fake CUDA tensors; nothing was run")


def _fake_mismatch(subject: Subject, call: OpCall, real: Any) -> str:
    mode, fakes = subject.fakes(call, device=None)
    with mode:
        said = subject.invoke(fakes)
    return _outputs_differ(said, real)


def _outputs_differ(said: Any, real: Any) -> str:
    pairs = paired(said, real, "output")
    if pairs is None:
        return f"the fake gives {unlike(said, real, ', the op')}"
    for path, one, other in pairs:
        text = _fake_difference(one, other)
        if text:
            return f"{path}: {text}"
    return ""


def _fake_fix(subject: Subject) -> str:
    if not subject.registered:
        return "make the function do the same on fake and on real tensors"
    if subject.entry.describe().fake_source == "given":
        return "correct fake=: it must return what the body returns"
    return "give fake=, a function with the op's signature that returns such outputs"


def _fake_difference(said: Any, real: Any) -> str:
    if not isinstance(said, Tensor) or not isinstance(real, Tensor):
        both = isinstance(said, Tensor) == isinstance(real, Tensor)
        symbolic = isinstance(said, (torch.SymInt, torch.SymFloat, torch.SymBool))
        same = symbolic or (both and said == real)
        return "" if same else f"the fake says {shown(said)}, the op gives {shown(real)}"
    if real.layout is not torch.strided:
        # It has no strides.
        said, real = said.to_dense(), real.to_dense()
    shape, strides = tuple(said.shape), tuple(said.stride())
    if said.dim() == real.dim():
        # A size that depends on data is not a number yet; no stride along a size of one is used.
        sizes = zip(shape, real.shape, strict=True)
        shape = tuple(a if isinstance(a, int) else b for a, b in sizes)
        strides = tuple(
            a if isinstance(a, int) and n != 1 else b
            for a, b, n in zip(strides, real.stride(), real.shape, strict=True)
        )
    pairs: list[tuple[str, Any, Any]] = [
        ("dtype", said.dtype, real.dtype),
        ("device", said.device, real.device),
        ("shape", shape, tuple(real.shape)),
    ]
    if real.numel():
        pairs.append(("strides", strides, tuple(real.stride())))
    for what, one, other in pairs:
        if one != other:
            return f"the fake says {what} {one}, the op gives {other}"
    return ""


def mutation(subject: Subject) -> Row:
    """Whether the op writes what it declares."""
    written = subject.written
    if not subject.registered:
        said = f"writes to {', '.join(written)}; mode none declares nothing" if written else ""
        return passed(said or "writes to no input")
    undeclared = [p for p in written if not subject.declared(p)]
    if undeclared:
        path = undeclared[0]
        return failed(
            f"the op writes to {path!r}, which mutates_args does not name",
            f"mutates_args=({path.partition('[')[0]!r},), or write to a copy",
        )
    paths = [p for p, _ in subject.call.tensors() if subject.declared(p)]
    idle = [p for p in paths if p not in written]
    notes = [f"mutates_args names {p!r}, which this call did not change" for p in idle]
    return passed(f"writes to {', '.join(written)}, as declared" if written else "", *notes)


def mutation_by_trace(subject: Subject) -> Row:
    """The same by Triton's analysis of the kernels, where they cannot run."""
    if subject.info.mode != "triton_op":
        return skipped("needs a GPU: the op is opaque, so only a run shows its writes", GPU_FIX)
    try:
        subject.trace()
    except WrongResult as error:
        return failed(*reason_of(error))
    wrong, _ = uncompiled(subject)
    if wrong:
        return skipped(f"{wrong.partition(':')[0]} (row compile)")
    notes = [n for n in subject.entry.describe().notes if "mutates_args" in n]
    return passed("by analysis of the kernels; nothing was run", *notes)


def determinism(subject: Subject) -> Row:
    """Whether two runs from one random state give the same bits."""
    runs = []
    for _ in range(2):
        with torch.random.fork_rng(devices=cuda_devices()):
            runs.append(subject.results(subject.run()))
    pairs = zip(tensors_in(runs[0], "output"), tensors_in(runs[1], "output"), strict=True)
    for (path, one), (_, other) in pairs:
        if not same_bits(one, other):
            text = difference(one, other, path, (0.0, 0.0)) or path
            text = text.replace("output[0]", "output", 1).replace("output[1]", "written input", 1)
            return failed(
                f"two runs on the same inputs differ: {text}",
                "keep no state between calls, and write every element of torch.empty; atomics add "
                "in any order, so reduce within a program, or accept it and test with a tolerance",
            )
    if subject.interpreted:
        return passed("", "Triton's interpreter runs programs one by one, so no race shows here")
    return passed()


def strided(subject: Subject) -> Row:
    """Whether inputs with gaps between their elements give the same, or are refused."""
    wrong, refused = subject.strided
    if wrong:
        fix = "pass the strides to the kernel, call .contiguous() on the input, or refuse it"
        return failed(wrong, fix)
    return passed(refused)


def no_strides(subject: Subject) -> Row | None:
    return None if subject.with_strides else skipped("no tensor input can have gaps")


def numerics(subject: Subject) -> Row:
    """Whether the outputs are the reference's."""
    reference = subject.settings.reference
    assert reference is not None
    own = subject.call.cloned()
    with torch.no_grad():
        value = reference(*own.args, **own.kwargs)
    expected = _expected(subject, value, own.tensors())
    if isinstance(expected, str):
        return failed(expected, "make it return what the op returns, and write what the op writes")
    found = subject.results(subject.eager)
    notes: list[str] = []
    for name, one, other in zip(("output", "written input"), found, expected, strict=True):
        for path, a, b in paired(one, other, name) or [(name, one, other)]:
            same = _in_dtype_of(a, b)
            if same is not b:
                notes.append(f"the reference gives {b.dtype}, the op {a.dtype}")
            text = difference(a, same, path, subject.settings.tolerance)
            if text:
                return failed(text, "if the difference is rounding, pass tolerance=", *notes)
    return passed("", *notes)


def _in_dtype_of(found: Any, expected: Any) -> Any:
    """A reference may compute in a wider dtype than the op, and return it."""
    if isinstance(found, Tensor) and isinstance(expected, Tensor) and found.dtype != expected.dtype:
        floats = found.is_floating_point() and expected.is_floating_point()
        return expected.to(found.dtype) if floats else expected
    return expected


def no_reference(subject: Subject) -> Row | None:
    if subject.settings.reference is None:
        return skipped("no reference", "pass reference=fn, a function with the op's parameters")
    return None


def _expected(subject: Subject, value: Any, after: list[tuple[str, Tensor]]) -> Any:
    """The reference's results in the form of the op's, or why that is impossible."""
    returned, written = subject.results(subject.eager)
    own = [t for p, t in after if subject.may_write(p)]
    pairs = zip(after, subject.call.tensors(), strict=True)
    changed = any(not same_bits(t, before) for (_, t), (_, before) in pairs)
    if returned is None and value is not None and not changed:
        # A reference of an op that works in place may return what the op writes.
        given = [t for _, t in tensors_in(value, "output")]
        if len(given) != len(written):
            return f"the reference returns {len(given)} tensors, but the op writes {len(written)}"
        return None, given
    if written and not changed and any(p in subject.written for p, _ in after):
        return "the op writes to an input, and the reference does not"
    # What an in-place function also returns, as x.add_() does, is ignored.
    return None if returned is None else value, own


# Where the new dimension is in each tensor.
Dims = tuple[int | None, ...]


def vmap(subject: Subject) -> Row:
    """Whether vmap over a new dimension equals the loop over it."""
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, which vmap hands out differently")
    other = subject.run(subject.call.cloned().map(_other_slice))
    if other.error is not None:
        return skipped(f"the op does not accept its inputs times 0.5: {short_reason(other.error)}")
    for dims in _ways(subject):
        where = _where(subject, dims)
        try:
            text = _vmap_mismatch(subject, dims)
        except Exception as error:
            if not where:
                raise
            line, fix = reason_of(error)
            return failed(f"vmap with {where}: {line}", fix or _VMAP_FIX)
        if text:
            return failed(f"{text}, with {where}" if where else text, _VMAP_FIX)
    own = subject.has("vmap") or not subject.registered
    return passed("" if own else "torch's own fallback")


_VMAP_FIX = "correct vmap=, or vmap='sequential'"


def _ways(subject: Subject) -> list[Dims]:
    """Where the new dimension is in each tensor: in front, behind, not in all.

    A rule must heed `in_dims`; torch's fallback and its own rules do.
    """
    sizes = [t.dim() for _, t in subject.call.tensors()]
    ways: list[Dims] = [tuple(0 for _ in sizes)]
    if not subject.has("vmap"):
        return ways
    if subject.strided == ("", ""):
        # Slices behind the batch have gaps, which the op must take without vmap, too.
        ways.append(tuple(sizes))
    if len(sizes) > 1 and not subject.mutates:
        # Writing batched values into an unbatched tensor has no meaning.
        ways.append((0, *(None for _ in sizes[1:])))
        ways.append((None, *(0 for _ in sizes[1:])))
    return list(dict.fromkeys(ways))


def _where(subject: Subject, dims: Dims) -> str:
    """`in_dims`, unless it is all zeros."""
    if not any(d is None or d > 0 for d in dims):
        return ""
    paths = [path for path, _ in subject.call.tensors()]
    return f"in_dims {', '.join(f'{p}: {d}' for p, d in zip(paths, dims, strict=True))}"


def _vmap_mismatch(subject: Subject, dims: Dims) -> str:
    """How vmap differs from the loop over two slices; empty if it does not."""
    first = subject.call.cloned()
    tensors = [t for _, t in first.tensors()]
    others = [t for _, t in first.map(_other_slice).tensors()]
    second = [a if d is None else b for a, b, d in zip(tensors, others, dims, strict=True)]
    expected = [subject.run(call) for call in (first, first.with_tensors(second))]
    batched = [
        a.clone() if d is None else torch.stack([a, b], d)
        for a, b, d in zip(tensors, second, dims, strict=True)
    ]

    def called(*slice_: Tensor) -> tuple[Tensor, ...]:
        value = subject.invoke(subject.call.with_tensors(slice_))
        return tuple(t for _, t in tensors_in(value, "output"))

    with _compat.checking.quiet_vmap_fallback():
        found = torch.vmap(called, in_dims=dims)(*batched)
    after = list(zip(subject.call.tensors(), batched, dims, strict=True))
    for index, outcome in enumerate(expected):
        outputs = [t for _, t in tensors_in(outcome.value, "output")]
        written = [t for p, t in outcome.call.tensors() if p in subject.written]  # type: ignore[union-attr]
        own = [
            t if d is None else t.select(d, index) for (p, _), t, d in after if p in subject.written
        ]
        text = difference([t[index] for t in found], outputs, "output")
        text = text or difference(own, written, "a written input")
        if text:
            return f"slice {index} of vmap: {text}"
    return ""


def no_vmap(subject: Subject) -> Row | None:
    if not subject.call.tensors():
        return skipped("no tensor input to batch")
    if subject.registered and not subject.has("vmap") and _without_fallback(subject):
        return skipped(
            "no vmap rule, and torch has no fallback for lists, numbers or mutation",
            "give vmap='sequential'",
        )
    return None


def _without_fallback(subject: Subject) -> bool:
    lowered = subject.entry.lowered
    assert lowered is not None
    lists = any(a.is_tensor_list for a in lowered.arguments)
    odd = any(leaf.container or not leaf.is_tensor for leaf in lowered.returns)
    return lists or bool(lowered.mutated) or odd


def _other_slice(_path: str, tensor: Tensor) -> Tensor:
    return tensor * 0.5 if tensor.dtype in HALVED else tensor
