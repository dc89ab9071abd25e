"""Rows about devices: CUDA graphs, DTensor, and the native build."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..compare import difference
from ..subject import Outcome, Subject
from ..values import tensors_in
from ..verdict import Verdict, failed, passed, skipped

Tensor = torch.Tensor


def cuda_graph(subject: Subject) -> Verdict:
    """Capture, replay on new contents, and compare."""
    if not subject.on_gpu:
        return skipped("the inputs are on the CPU", "pass CUDA tensors")
    static = subject.call.cloned()
    _warm_up(subject)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        value = subject.invoke(static)
    for (_, own), (_, given) in zip(static.tensors(), subject.call.tensors(), strict=True):
        own.detach().copy_(given.detach())
    graph.replay()
    torch.cuda.synchronize()
    text = subject.mismatch(Outcome(value, static), subject.eager)
    return failed(f"replayed, {text}", _READS_ONCE) if text else passed()


def no_gpu(_subject: Subject) -> Verdict | None:
    return None if torch.cuda.is_available() else skipped("needs a GPU")


_READS_ONCE = "let the body read no values on the host: a replay repeats only what the GPU does"


def _warm_up(subject: Subject) -> None:
    """Compile and autotune outside of the capture, on a side stream as torch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            subject.run()
    torch.cuda.current_stream().wait_stream(stream)


def dtensor(subject: Subject) -> Verdict:
    """Whether the op runs on DTensors as its sharding rule says."""
    if torch.distributed.is_initialized():
        return skipped("a process group is open, and this row needs one of its own")
    device = "cuda" if subject.on_gpu else "cpu"
    with _one_process(device) as mesh:
        return _on_mesh(subject, mesh)


def no_sharding(subject: Subject) -> Verdict | None:
    if not subject.has("sharding"):
        return skipped("no sharding rule was given", "give sharding= to @opforge.op")
    return None


def _on_mesh(subject: Subject, mesh: Any) -> Verdict:
    # Imported only here: DTensor takes a third of a second to import.
    from torch.distributed.tensor import (  # noqa: PLC0415
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
    )

    batches = subject.batches
    sharded = batches.paths if not isinstance(batches, str) else frozenset()

    def distributed(path: str, tensor: Tensor) -> Tensor:
        placement = Shard(0) if path in sharded else Replicate()
        return distribute_tensor(tensor, mesh, [placement])

    call = subject.call.cloned().map(distributed)
    with torch.no_grad():
        value = subject.invoke(call)
    outputs: list[Any] = [t for _, t in tensors_in(value, "output")]
    plain = next((i for i, t in enumerate(outputs) if not isinstance(t, DTensor)), None)
    if plain is not None:
        return failed(f"output {plain} is a plain tensor", "let the rule place every output")
    found = [t.full_tensor() for t in outputs]
    expected = [t for _, t in tensors_in(subject.eager.value, "output")]
    text = "" if subject.draws_random_numbers else difference(found, expected, "output")
    if text:
        return failed(text, "correct sharding=")
    placed = ", ".join(str(t.placements[0]) for t in outputs)
    return passed(f"outputs placed {placed}" if placed else "", "on a mesh of one process")


@contextlib.contextmanager
def _one_process(device: str) -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    backend = "nccl" if device == "cuda" else "gloo"
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # public, not listed
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        torch.distributed.destroy_process_group()


def native(_subject: Subject) -> Verdict:
    return skipped("not built yet")
