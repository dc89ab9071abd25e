"""The operators in ops/, for tests: built, opened, called in every way, compared.

They are called `ops::...`, as those in examples/native, so a process can have either. Tests start
a second one, with Triton's interpreter or on a GPU, which runs tests/ops/calls_*.py.
"""

import os
import re
import subprocess
from pathlib import Path

import torch

from support.processes import (
    ROOT,
    WITHOUT_PLUGINS,
    environment,
    python,
    without_machine_code,
)

CALLS = ROOT / "tests" / "ops"
# For the second process: the library's folder, and "cuda" on a GPU, "cpu" for the stand-in.
BUILT = Path(os.environ.get("OPFORGE_TEST_BUILT", "/nonexistent"))
DEVICE = os.environ.get("OPFORGE_TEST_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
# Whose stand-in.
VENDOR = os.environ.get("OPFORGE_TEST_VENDOR", "nvidia")

# Vendors of the stand-ins that a library without an architecture is for.
VENDORS = ("nvidia", "amd")
MODES = ("eager", "compiled", "exported", "native")
# On the CPU a native call makes the launches that its body makes, in the interpreter that the body
# would use. There the body itself is called in every mode, and where the library lacks a dtype.
CALLED = ("eager", "native") if ON_GPU else ("native",)
# Relative errors against double precision.
LIMITS = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1.5e-3,
    torch.bfloat16: 1e-2,
}


def build(folder, *wanted, arch=""):
    """A library of some operators: `"add"`, or some dtypes and ranks of it, `"add:fp32,i8@1,2"`.

    Without an architecture, for the stand-in drivers of both vendors.
    """
    command = [python(), "-m", "support.ops.subset", str(folder), arch or "stand-ins", *wanted]
    _run(command, environment(**({} if arch else without_machine_code())))
    return folder


def run_calls(folder, *files, device="cpu", only="", vendor="nvidia"):
    """Run `calls_*.py` in a separate process, against a built library.

    On the stand-in for AMD's driver only natively: in Python the operators are the same there.
    """
    if vendor == "amd":
        only = "native"
    variables = {
        "OPFORGE_TEST_BUILT": str(folder),
        "OPFORGE_TEST_DEVICE": device,
        "OPFORGE_TEST_VENDOR": vendor,
    }
    if device == "cpu":
        variables["TRITON_INTERPRET"] = "1"
    return _run_pytest(files, variables, only)


def count_passed(said):
    """How many tests passed, of a run that skipped none."""
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert "skipped" not in said, said
    return int(passed[1])


def run_traces(*files):
    """Run `traces_*.py` in a separate process, whose kernels are compiled but not run."""
    return _run_pytest(files, {}, "")


def _run_pytest(files, variables, only):
    command = [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", only]
    command += ["--show-capture=no", *(str(CALLS / file) for file in files)]
    return _run(command, environment(**WITHOUT_PLUGINS, **variables))


def _run(command, variables):
    done = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    return done.stdout


class Module(torch.nn.Module):
    """An op as a model, for torch.export."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, *args):
        return self.op(*args)


def in_mode(mode, op, native):
    """The op as a function of its arguments, as a mode calls it."""
    if mode == "eager":
        return op
    if mode == "native":
        return native
    if mode == "compiled":
        torch.compiler.reset()
        # Inductor would spend seconds on C++ for the CPU, around an op that it cannot see into.
        return torch.compile(op, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")

    def exported(*args):
        return torch.export.export(Module(op), args).module()(*args)

    return exported


def numbers(shape, dtype=torch.float32, seed=0):
    """Random numbers on the device: normal ones, or integers that overflow when added."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape).to(DEVICE)


def double(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def assert_close(found, expected, dtype=None):
    """Compares with a result in double precision, within the dtype's limit."""
    dtype = dtype or found.dtype
    assert found.dtype == dtype
    assert found.shape == expected.shape
    # Where terms cancel, the error is that of the terms.
    scale = expected.double().square().mean().sqrt().item() if expected.numel() else 0.0
    limit = LIMITS[dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=limit, atol=limit * scale)


def _sliced(shape, make):
    return make((*shape[:-1], 2 * shape[-1] + 3))[..., 1 : 2 * shape[-1] : 2]


def _part(shape, make):
    return make((*shape[:-1], shape[-1] + 16))[..., : shape[-1]]


def _transposed(shape, make):
    return make((*shape[:-2], *shape[-2:][::-1])).transpose(-1, -2)


def _permuted(shape, make):
    return make(shape[::-1]).permute(tuple(reversed(range(len(shape)))))


def _shifted(shape, make):
    count = int(torch.Size(shape).numel())
    return make((count + 1,))[1:].view(shape)


def _one_row(shape, make):
    return make((*shape[:-2], 1, shape[-1])).expand(shape)


def _one_column(shape, make):
    return make((*shape[:-1], 1)).expand(shape)


def _one_number(shape, make):
    return make((1,) * len(shape)).expand(shape)


# Memory layouts: from a shape, and a function that makes a contiguous tensor.
LAYOUTS = {
    "compact": lambda shape, make: make(shape),
    "shifted": _shifted,
    "sliced": _sliced,
    "part of rows": _part,
    "transposed": _transposed,
    "permuted": _permuted,
    "one row": _one_row,
    "one column": _one_column,
    "one number": _one_number,
}


def laid_out(layout, shape, dtype=torch.float32, seed=0):
    """Random numbers in one of LAYOUTS; contiguous if the layout needs more dimensions."""
    if len(shape) < 2 and layout in {"transposed", "one row"}:
        layout = "compact"
    return LAYOUTS[layout](tuple(shape), lambda s: numbers(s, dtype, seed))
