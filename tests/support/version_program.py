"""Writes what another torch and Triton use: `python -m support.version_program FOLDER`."""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor

import opforge
from opforge import _compat, native
from opforge.serving.build import build
from support import compiled_graphs as texts
from support import launching
from support.served_kernels import combine, recorded, tuned

GRAPH = "triton_poi_fused_add_0"
GRAPH_TEXT = texts.pointwise()


@opforge.op("versions::doubled")
def doubled(x: Tensor) -> Tensor:
    out, n = torch.empty_like(x), x.numel()
    launching.double[launching.blocks(n)](x, out, n, BLOCK=64)
    return out


native.declare(doubled, x=native.tensor("n", dtype="fp32"))


def record(folder: Path):
    from torch._inductor.runtime import triton_helpers  # noqa: PLC0415  # only a recording
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner  # noqa: PLC0415

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    triton_helpers.set_driver_to_gpu = lambda: None
    CachingAutotuner.run = lambda self, *args, stream: None
    with opforge.record() as session:
        texts.note(GRAPH_TEXT)
        tuner = _compat.inductor_kernels.autotuner(GRAPH, GRAPH_TEXT)
        texts.launching(tuner, ("in_ptr0", "out_ptr0", "xnumel"), 0).run(16, 16, 16, stream=0)
    launched = recorded(
        lambda x: combine[(1,)](x, x, x, 1000, BLOCK=64), lambda x: tuned[(1,)](x, 1000)
    )
    return launched.joined(session.recording)


def main(folder: Path) -> None:
    native.build([doubled], folder / "dist", archs=["sm_80"], torch=True, cache=None)
    recording = record(folder)
    recording.save(folder / "recording.json")
    build(recording, folder / "served", archs=["sm_80"], cache=None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
