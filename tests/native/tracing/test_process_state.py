"""What a library keeps of the process that built it is said in the build."""
# ruff: noqa: PLW0108  # a lambda finds the function by its name, as a body does

import inspect
import os

import pytest
import torch
from torch import Tensor

from opforge import native
from opforge.errors import UnsupportedBody
from support.native.traced_kernels import take
from support.native.traced_oracle import Body

X = {"x": native.tensor("n", dtype="fp32")}


def asking(ask):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, A=1 if ask() else 2)
        return out

    return body


def notes(ask):
    (found,) = Body(asking(ask), X).built
    return found.notes


@pytest.mark.parametrize(
    ("ask", "what", "value"),
    [
        (lambda: os.environ["HOME_OF_TEST"], "the variable HOME_OF_TEST", "'here'"),
        (lambda: os.getenv("HOME_OF_TEST"), "the variable HOME_OF_TEST", "'here'"),
        (lambda: os.environ.get("NO_SUCH"), "the variable NO_SUCH", "not set"),
        (lambda: "NO_SUCH" in os.environ, "the variable NO_SUCH", "not set"),
        (lambda: torch.get_default_dtype(), "torch.get_default_dtype()", "torch.float32"),
        (lambda: torch.get_float32_matmul_precision() == "high",
         "torch.get_float32_matmul_precision()", "highest"),
        (lambda: torch.is_autocast_enabled("cuda"), "torch.is_autocast_enabled()", "False"),
        (lambda: torch.backends.cuda.matmul.allow_tf32,
         "torch.backends.cuda.matmul.allow_tf32", "False"),
        (lambda: torch.backends.cudnn.deterministic,
         "torch.backends.cudnn.deterministic", "False"),
    ],
)  # fmt: skip
def test_a_read_is_noted_with_its_line(monkeypatch, ask, what, value):
    monkeypatch.setenv("HOME_OF_TEST", "here")
    (note,) = notes(ask)
    assert note.startswith(f"{what} is read at {__file__}:")
    assert note.endswith(f"; the library keeps what it was in this build: {value}")


def test_another_default_dtype_is_noted_where_a_tensor_gets_it():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](torch.zeros(8, device=x.device), out)
        return out

    assert Body(body, X).built[0].notes == []
    torch.set_default_dtype(torch.float64)
    try:
        (note,) = Body(body, X).built[0].notes
    finally:
        torch.set_default_dtype(torch.float32)
    line = inspect.getsourcelines(body)[1] + 2
    assert note == (
        f"torch's default dtype, torch.float64 in this build, is that of a tensor at "
        f"{__file__}:{line}; the library keeps it"
    )


@pytest.mark.parametrize("name", ["mem_get_info", "memory_allocated", "memory_reserved"])
def test_a_body_may_not_ask_what_a_gpus_memory_holds(name):
    with pytest.raises(UnsupportedBody, match=f"torch.cuda.{name} tells what a GPU's memory holds"):
        notes(lambda: getattr(torch.cuda, name)())
    assert torch.cuda.memory_allocated() == 0 or torch.cuda.is_available()
