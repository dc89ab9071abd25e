"""Autotuned kernels under TRITON_INTERPRET=1: the table's configuration, or the first."""

import json

from support.processes import run_python

SCRIPT = """
import json, sys
import torch, triton, opforge
import triton.language as tl
from support import tuned_ops


def fits(configs, nargs, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] >= nargs["n"]]


CONFIGS = [triton.Config({"BLOCK": b}) for b in (4, 16, 64)]


@triton.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": fits})
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def block_kernel(out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, BLOCK, mask=offsets < n)


def backward(ctx, grad):
    out = torch.empty_like(grad)
    block_kernel[(1,)](out, out.numel())
    return out


@opforge.op("tests_interpreted::block", backward=backward)
def block(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    block_kernel[(1,)](out, x.numel())
    return out


def chosen():
    tuned_ops.scale(torch.ones(1024))
    return tuned_ops.scale_kernel.best_config.kwargs["BLOCK"]


x = torch.ones(10, requires_grad=True)
out = block(x)
out.sum().backward()
result = {
    "scaled": tuned_ops.scale(torch.ones(3)).tolist(),
    "first": chosen(),
    "pruned": [out[0].item(), x.grad[0].item()],
    "explain": opforge.explain(block),
    "single": opforge.explain(tuned_ops.copy),
}
opforge.use_tuning(sys.argv[1])
result["table"] = chosen()
opforge.use_tuning(None)
result["without"] = chosen()
print(json.dumps(result))
"""


def test_an_autotuned_kernel_takes_its_first_configuration_or_the_tables(table_of, tmp_path):
    script = tmp_path / "script.py"
    table = table_of({1024: 128})
    script.write_text(SCRIPT.replace("sys.argv[1]", repr(str(table))))
    found = json.loads(run_python(script, TRITON_INTERPRET="1"))
    assert found["scaled"] == [2.0, 2.0, 2.0]
    assert found["first"] == 64
    assert found["pruned"] == [16.0, 16.0]
    assert (found["table"], found["without"]) == (128, 64)
    assert "block_kernel is not measured in Triton's interpreter" in found["explain"]
    assert "or else its first" in found["explain"]
    assert "measured" not in found["single"]
