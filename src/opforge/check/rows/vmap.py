"""The row vmap: compared with a loop, for several positions of the new dimension."""

from __future__ import annotations

import torch

from ... import _compat
from ..compare import difference
from ..reasons import reason_of, short_reason
from ..report import Row, failed, passed, skipped
from ..subject import Subject
from ..values import HALVED, tensors_in
from .eager import STRIDED_FIX

Tensor = torch.Tensor
# Where the new dimension is in each tensor.
Dims = tuple[int | None, ...]


def vmap(subject: Subject) -> Row:
    """Whether vmap over a new dimension equals the loop over it."""
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, which vmap hands out differently")
    other = subject.run(subject.call.cloned().map(_other_slice))
    if other.error is not None:
        return skipped(f"the op does not accept its inputs times 0.5: {short_reason(other.error)}")
    notes: list[str] = []
    for dims in _ways(subject):
        where = _where(subject, dims)
        try:
            text = _vmap_mismatch(subject, dims)
        except Exception as error:
            if not where:
                raise
            if subject.strided.refused:
                # What slices behind the batch have.
                notes.append(f"not tried: {where}, because the op refuses inputs with gaps")
                continue
            line, fix = reason_of(error)
            return failed(f"vmap with {where}: {line}", fix or _VMAP_FIX)
        if text:
            if where and subject.strided.wrong:
                gaps = "slices have gaps, for which the op is wrong without vmap, too"
                return failed(f"with {where} {gaps} (row strided inputs)", STRIDED_FIX)
            return failed(f"{text}, with {where}" if where else text, _VMAP_FIX)
    own = subject.has("vmap") or not subject.registered
    return passed("" if own else "torch's own fallback", *notes)


_VMAP_FIX = "correct vmap=, or vmap='sequential'"


def _ways(subject: Subject) -> list[Dims]:
    """Where the new dimension is in each tensor: in front, behind, not in all.

    A rule must heed `in_dims`; torch's fallback and its own rules do.
    """
    sizes = [t.dim() for _, t in subject.call.tensors()]
    ways: list[Dims] = [tuple(0 for _ in sizes)]
    if not subject.has("vmap"):
        return ways
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
