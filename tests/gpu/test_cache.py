"""Compiled code that was cached must not outlive an edit of what it was compiled from."""

import subprocess
import sys

import pytest

from support.processes import environment

SOURCE = """
import torch, triton, triton.language as tl, opforge

@triton.jit
def part(value):
    return value * 2

@triton.autotune([triton.Config({"BLOCK": 128, "SHIFT": 0})], key=[])
@triton.jit
def kernel(x_ptr, out_ptr, n, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, part(tl.load(x_ptr + offsets, mask=mask)) + SHIFT, mask=mask)

def launch(x, out):
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())

@opforge.op("edited::op")
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    launch(x, out)
    return out

x = torch.ones(8, device="cuda")
print(torch.compile(op, fullgraph=True)(x).sum().item())
from torch._dynamo.utils import counters
print(counters["aot_autograd"]["autograd_cache_hit"])
"""

EDITS = {
    "the kernel": ("+ SHIFT, mask=mask)", "+ SHIFT + 1, mask=mask)", 24.0),
    "a function that the kernel calls": ("return value * 2", "return value * 3", 24.0),
    "an autotune config": ('"SHIFT": 0', '"SHIFT": 1', 24.0),
    "the host function": ("    return out\n\nx =", "    return out + 1\n\nx =", 24.0),
    "a helper of the host function": ("(x, out, x.numel())", "(x + 1, out, x.numel())", 32.0),
}


def result_of(text, folder):
    (folder / "edited.py").write_text(text)
    env = environment(TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"))
    command = [sys.executable, str(folder / "edited.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return float(value), int(hits)


@pytest.fixture(scope="module")
def compiled_before(tmp_path_factory):
    """A folder whose cache holds the unedited source, compiled, and is used when it runs again."""
    folder = tmp_path_factory.mktemp("cached")
    assert result_of(SOURCE, folder) == (16.0, 0)
    assert result_of(SOURCE, folder) == (16.0, 1)
    return folder


@pytest.mark.parametrize("what", EDITS)
def test_editing_it_is_seen(what, compiled_before):
    old, new, expected = EDITS[what]
    assert SOURCE.count(old) == 1
    assert result_of(SOURCE.replace(old, new), compiled_before) == (expected, 0)
