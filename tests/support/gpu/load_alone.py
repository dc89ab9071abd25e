"""Run by tests/gpu/test_loading.py in a process of its own: a library without its source.

python -m support.gpu.load_alone FOLDER run      every call, where `import triton` raises
python -m support.gpu.load_alone FOLDER package  an AOTInductor package, and what it gives
"""

import re
import sys
from pathlib import Path

import pytest
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.gpu_load.add(x * 2, y) + 1


def run(folder: str, adapter: bool) -> None:
    # Importing either, the operators' source or Triton, is an error from now on.
    sys.modules["triton"] = sys.modules["support.gpu.load_ops"] = None
    import opforge  # noqa: PLC0415 - after Triton is barred

    ops = opforge.load(folder, adapter=adapter)
    add = torch.ops.gpu_load.add
    for shape in ((1,), (1025,), (33, 1024), (0,), (4, 0)):
        for dtype in (torch.float16, torch.float32):
            x, y = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
            torch.testing.assert_close(add(x, y), x + y)
            torch.testing.assert_close(ops.add(x[:0], y[:0]), x[:0])
    x = torch.randn(5000, device="cuda")
    torch.testing.assert_close(add(x[1:], x[1:]), 2 * x[1:])
    torch.testing.assert_close(torch.ops.gpu_load.scale(x), 2 * x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        doubled = add(x, x)
        expected = x + x
    side.synchronize()
    torch.testing.assert_close(doubled, expected)
    changed = x.clone()
    torch.ops.gpu_load.scale_(changed, 3.0)
    torch.testing.assert_close(changed, 3 * x)
    assert changed._version == 1
    refused(lambda: add(x.double(), x.double()), "import the module that defines gpu_load::add")
    refused(lambda: add(x.cpu(), x.cpu()), "gpu_load_add: x: ")
    wants = x.clone().requires_grad_()
    recorded = add(wants, x)
    torch.testing.assert_close(recorded, 2 * x)
    refused(lambda: recorded.sum().backward(), "has no backward")
    wants = x.clone().requires_grad_()
    torch.ops.gpu_load.scale(wants, 3.0).sum().backward()
    torch.testing.assert_close(wants.grad, torch.full_like(x, 3.0))
    ops.preload(0)
    graph, given = torch.cuda.CUDAGraph(), torch.zeros_like(x)
    with torch.cuda.graph(graph):
        captured = add(given, x)
    given.copy_(x)
    graph.replay()
    torch.testing.assert_close(captured, 2 * x)
    exported = torch.export.export(
        Model(), (x, x), dynamic_shapes={n: {0: torch.export.Dim("n", min=2)} for n in "xy"},
        strict=False,
    )  # fmt: skip
    torch.testing.assert_close(exported.module()(x[:77], x[:77]), 3 * x[:77] + 1)
    assert sys.modules["triton"] is None
    sys.stdout.write("fine\n")


def refused(call, text: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()


def package(folder: str) -> None:
    import opforge  # noqa: PLC0415 - as in `run`

    opforge.load(folder)
    x, y = torch.arange(512.0, device="cuda"), torch.ones(512, device="cuda")
    sizes = {name: {0: torch.export.Dim("n", min=2, max=4096)} for name in ("x", "y")}
    exported = torch.export.export(Model(), (x, y), dynamic_shapes=sizes)
    path = str(Path(folder) / "model.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=path)
    runner = torch._inductor.aoti_load_package(path)
    for n in (512, 33):
        x, y = torch.arange(float(n), device="cuda"), torch.ones(n, device="cuda")
        torch.testing.assert_close(runner(x, y), 2 * x + y + 1)
    assert "support.gpu.load_ops" not in sys.modules
    sys.stdout.write("fine\n")


if __name__ == "__main__":
    if sys.argv[2] == "run":
        run(sys.argv[1], adapter=sys.argv[3] == "C++")
    else:
        package(sys.argv[1])
