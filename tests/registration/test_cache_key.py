"""What Inductor's cache key covers of an op: everything that compiled code depends on."""

import importlib.util
import itertools

import pytest
import torch
from torch._library.triton import triton_ops_to_kernels

import opforge
from support.cache_keys import key_of
from support.launching import double, graph_of, guessed
from support.processes import OTHER_SEED, run_python

MODULE = """
import torch, triton, opforge
import triton.language as tl

UNREAD = {unread}
HOST_CONSTANT = {constant}
SIZES = ({size}, 2)
TABLE = {{"by": {entry}}}

@triton.jit
def scaled(value):
    return value * {scale}

def guess(args):
    return {guess}

@triton.autotune([triton.Config({{"BLOCK": {block}}}, num_warps={warps})], key=["n"])
@triton.heuristics({{"EXTRA": guess}})
@triton.jit
def kernel(x_ptr, out_ptr, n, EXTRA: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, scaled(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)

def helper(x, by={default}, *, plus={keyword}):
    return x * by + {help}

class Scaler:
    def scale(self, x):
        return x * {method}

scaler = Scaler()

def make(closed):
    def backward(ctx, grad):
        return grad * {gradient}

    @opforge.op({name!r}, backward=backward)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
            helper(x) * closed + HOST_CONSTANT, out, x.numel()
        )
        return scaler.scale(out) + {body} + SIZES[0] + TABLE["by"]
    return op

op = make({closed})
"""
PLAIN = {
    "unread": 1,
    "constant": 1,
    "size": 1,
    "entry": 1,
    "scale": 2,
    "guess": 4,
    "block": 128,
    "warps": 4,
    "help": 1,
    "default": 1,
    "keyword": 1,
    "method": 1,
    "gradient": 1,
    "body": 1,
    "closed": 1,
}
numbers = itertools.count()
# Cached code is stale when one of these changes.


@pytest.fixture
def key(tmp_path, op_name):
    """The key of an op in a module whose text differs in some places."""
    name = op_name()

    def load(**changes):
        path = tmp_path / f"keyed{next(numbers)}.py"
        path.write_text(MODULE.format(name=name, **{**PLAIN, **changes}))
        spec = importlib.util.spec_from_file_location("keyed", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return key_of(name)
        finally:
            opforge.unregister(name)

    return load


def test_the_same_text_gives_the_same_key(key):
    assert key() == key()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        pytest.param("block", 256, id="a config's block"),
        pytest.param("warps", 8, id="a config's warps"),
        pytest.param("scale", 3, id="a device function"),
        pytest.param("guess", 8, id="a heuristic"),
        pytest.param("body", 2, id="the host body"),
        pytest.param("gradient", 2, id="the backward"),
        pytest.param("constant", 2, id="a constant that the host body reads"),
        pytest.param("closed", 2, id="a value that the host body closes over"),
        pytest.param("help", 2, id="a helper of the host body"),
        pytest.param("default", 2, id="a default of a helper"),
        pytest.param("keyword", 2, id="a keyword's default of a helper"),
        pytest.param("size", 5, id="a tuple that the host body reads"),
        pytest.param("entry", 2, id="a dict that the host body reads"),
        pytest.param("method", 2, id="a method that the host body calls"),
    ],
)
def test_the_key_changes_with(key, part, value):
    assert key() != key(**{part: value})


def test_unread_values_do_not_change_the_key(key):
    assert key() == key(unread=2)


def test_the_key_is_the_same_in_every_process(key, tmp_path):
    here = key()
    (file,) = tmp_path.glob("keyed*.py")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {file.stem} as keyed, opforge;"
        "from support.cache_keys import key_of; print(key_of(opforge.info(keyed.op).name))"
    )
    assert run_python(script, **OTHER_SEED) == f"{here}\n"


def test_torch_can_read_every_entry_of_outermost_heuristics(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        guessed[(8,)](x, out, x.numel())
        return out

    assert opforge.info(op).mode == "triton_op"
    assert "def double(" in key_of(name)


def test_a_kernel_that_somebody_registers_changes_the_key(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    assert opforge.info(op).mode == "triton_op"
    before = key_of(name)
    torch.library.register_kernel(op, "cpu", lambda x: x * 2)
    assert key_of(name) != before


def test_unregistering_forgets_the_entry(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    assert double in triton_ops_to_kernels[name]
    graph_of(op, torch.ones(8, 128))
    opforge.unregister(op)
    assert name not in triton_ops_to_kernels


def test_an_op_without_kernels_has_no_entry(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    op(torch.ones(1))
    graph_of(op, torch.ones(1))
    assert name not in triton_ops_to_kernels
