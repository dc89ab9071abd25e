"""AOTInductor sees through an op, and the package runs for other batch sizes."""

import subprocess
import sys

from support.gpu.packages import skip_unless_loaded
from support.processes import environment

SCRIPT = """
import sys, torch, triton, triton.language as tl, opforge

@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)

@opforge.op("packaged::double")
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out

class Model(torch.nn.Module):
    def forward(self, x):
        return double(x + 1) - 1

x = torch.randn(8, 64, device="cuda")
batch = torch.export.Dim("batch", min=2, max=1024)
for strict in (True, False):
    exported = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: batch}}, strict=strict)
    kept = [n.target for n in exported.graph.nodes if n.op == "call_function"]
    assert torch.ops.packaged.double.default in kept, kept
seen = exported.run_decompositions(decompose_custom_triton_ops=True)
assert any("triton_kernel_wrapper" in str(n.target) for n in seen.graph.nodes)
path = torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
runner = torch._inductor.aoti_load_package(path)
for rows in (8, 33):
    x = torch.randn(rows, 64, device="cuda")
    torch.testing.assert_close(runner(x), (x + 1) * 2 - 1)
print("fine")
"""


def test_a_dynamic_batch_goes_through_export_and_aotinductor(tmp_path):
    skip_unless_loaded()
    script = tmp_path / "packaged.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "model.pt2")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
