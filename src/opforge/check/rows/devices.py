"""Rows about devices: CUDA graphs, DTensor, and the native build."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from ... import _compat
from ...comparison import difference, tensors_in
from ...native.frontend.declaration import alternatives_of, declarations_of
from ..report import Row, failed, passed, skipped
from ..subject import Batches, CallResult, Subject, interpreting

Tensor = torch.Tensor


def cuda_graph(subject: Subject) -> Row:
    """Capture, replay on new contents, and compare."""
    if not subject.on_gpu:
        return skipped("the inputs are on the CPU", "pass CUDA tensors")
    static = subject.call.cloned()
    _warm_up(subject)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), torch.cuda.graph(graph):
            value = subject.invoke(static)
    except Exception as error:  # noqa: BLE001  # raised again
        _end_capture()
        # The error says that the capture is invalid, its context what the body did.
        raise error.__context__ or error from None
    for (_, own), (_, given) in zip(static.tensors(), subject.call.tensors(), strict=True):
        own.detach().copy_(given.detach())
    graph.replay()
    torch.cuda.synchronize()
    text = subject.mismatch(CallResult(value, static), subject.eager)
    return failed(f"replayed, {text}", _READS_ONCE) if text else passed()


def _end_capture() -> None:
    """Leave the device as it was: an invalid capture keeps torch's generators in capture mode."""
    scratch = torch.empty(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        scratch.zero_()


def no_gpu(_subject: Subject) -> Row | None:
    return None if torch.cuda.is_available() else skipped("needs a GPU")


_READS_ONCE = "do not read values on the host in the body: a replay repeats only what the GPU does"


def _warm_up(subject: Subject) -> None:
    """Compile and autotune outside of the capture, on a side stream as torch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            subject.run()
    torch.cuda.current_stream().wait_stream(stream)


def no_sharding(subject: Subject) -> Row | None:
    if not subject.has("sharding"):
        return skipped("no sharding rule was given", "give sharding= to @opforge.op")
    return None


def dtensor(subject: Subject) -> Row:
    """Whether shards, computed by the sharding rule and put together, equal the whole.

    Two ranks are simulated one after the other, so no data can move between them; if the rule
    gathers a split batch, only replicated inputs are compared.
    """
    if torch.distributed.is_initialized():
        return skipped("a process group is open, but this row needs its own")
    if subject.draws_random_numbers:
        return skipped("the op draws random numbers, which differ by rank")
    batches = subject.batches
    split = batches.paths if isinstance(batches, Batches) else frozenset()
    notes, placed = [], ""
    for paths in dict.fromkeys((frozenset(), split)):
        shards = [_on_rank(subject, rank, paths) for rank in range(_RANKS)]
        if any(shard.moved for shard in shards):
            notes.append("a batch split over ranks is gathered first")
            continue
        text = _put_together(subject, shards)
        if text:
            how = "split over two ranks" if paths else "replicated"
            return failed(f"inputs {how}: {text}", "correct sharding=")
        placed = ", ".join(str(p) for p in shards[0].placements)
    return passed(f"outputs placed {placed}" if placed else "", *notes)


_RANKS = 2


@dataclass(frozen=True)
class Shard:
    """What one rank has after the call; `moved` if data would have moved between ranks."""

    local: list[Tensor]
    placements: list[Any]
    moved: bool


def _on_rank(subject: Subject, rank: int, split: frozenset[str]) -> Shard:
    # Imported only here: DTensor takes a third of a second to import.
    from torch.distributed import tensor as distributed  # noqa: PLC0415
    from torch.distributed.tensor.debug import CommDebugMode  # noqa: PLC0415

    device = "cuda" if subject.on_gpu else "cpu"
    with _compat.checking.playing_rank(rank, _RANKS, device) as mesh:

        def place(path: str, tensor: Tensor) -> Tensor:
            placement = distributed.Shard(0) if path in split else distributed.Replicate()
            return distributed.distribute_tensor(tensor, mesh, [placement], src_data_rank=None)

        call = subject.call.cloned().map(place)
        counted: Any = CommDebugMode()
        with torch.no_grad(), counted:
            value = subject.invoke(call)
        results: list[Any] = _written_and_returned(subject, CallResult(value, call))
        plain = [t for t in results if not isinstance(t, distributed.DTensor)]
        if plain:
            raise TypeError("an output is a plain tensor; the rule must place every output")
        return Shard(
            [t.to_local() for t in results],
            [t.placements[0] for t in results],
            counted.get_total_counts() > 0,
        )


def _written_and_returned(subject: Subject, outcome: CallResult) -> list[Tensor]:
    return [t for _, t in tensors_in(subject.results(outcome), "output")]


def _put_together(subject: Subject, shards: list[Shard]) -> str:
    whole = _written_and_returned(subject, subject.eager)
    for index, expected in enumerate(whole):
        placement = shards[0].placements[index]
        parts = [shard.local[index] for shard in shards]
        if placement.is_shard():
            found = torch.cat(parts, placement.dim)
        elif placement.is_partial():
            found = torch.stack(parts).sum(0)
        else:
            found = parts[0]
        text = difference(found, expected, f"output {index}")
        if text:
            return f"placed {placement}, {text}"
    return ""


def undeclared(subject: Subject) -> Row | None:
    if not declarations_of(subject.entry) and alternatives_of(subject.entry) is None:
        return skipped(
            "the op has no native.declare", "native.declare(op, x=native.tensor(...), ...)"
        )
    if subject.interpreted or interpreting():
        return skipped("its kernels run in Triton's interpreter, which compiles nothing")
    return None


def native(subject: Subject) -> Row:
    """Whether every declaration of the op builds into a library, for the GPU of the check."""
    # Imported only here: it brings Triton, which ops of plain torch do without.
    from ...native.build import build  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        made = build([subject.entry], folder, archs=[subject.arch], name="checked")
    count = len(made.library.kernels)
    return passed(f"{count} kernel variants for {subject.arch}", *made.notes)
