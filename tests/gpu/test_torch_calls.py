"""torch calls in a body: the same bits as torch's own kernels."""

import pytest
import torch

from opforge import native
from opforge.native.ir.dtypes import DTYPES
from support.native.torch_bodies import Program
from support.native.torch_table import (
    BINARY,
    INDEXED,
    MOVED,
    PRODUCTS,
    REDUCED,
    UNARY,
    body_of_one,
    body_of_two,
)


def inputs(dtype, seed=0):
    """Every value of 16 bits, or many of more, with all kinds of special ones."""
    generator = torch.Generator("cuda").manual_seed(seed)
    wanted = getattr(torch, DTYPES[dtype].torch)
    if dtype == "i1":
        return torch.randint(0, 2, (4096,), device="cuda", generator=generator).bool()
    if dtype in {"fp16", "bf16"}:
        bits = torch.arange(65536, device="cuda").to(torch.uint16).view(wanted)
        return bits[torch.randperm(65536, device="cuda", generator=generator)]
    if not wanted.is_floating_point:
        low, high = torch.iinfo(wanted).min, torch.iinfo(wanted).max
        high = min(high, 2**62)
        low = max(low, -(2**62))
        return torch.randint(low, high, (65536,), device="cuda", generator=generator).to(wanted)
    usual = torch.randn(60000, device="cuda", generator=generator, dtype=wanted) * 8
    bits = {"fp32": torch.int32, "fp64": torch.int64}[dtype]
    wild = torch.randint(
        torch.iinfo(bits).min, torch.iinfo(bits).max, (5536,), device="cuda", generator=generator,
        dtype=bits,
    ).view(wanted)  # fmt: skip
    return torch.cat([usual, wild])


# Triton's libdevice differs from that of torch's CUDA in the last bits of these.
NEAR = {"erf", "gelu", "log1p", "softplus", "pow", "pow_odd", "two_to_the"}


def check(name, body, dtype, tensors, specs):
    program = Program(body, **{n: native.tensor("n", dtype=dtype) for n in specs})
    found, wanted = program(*tensors), body(*tensors)
    assert found.dtype is wanted.dtype
    if name in NEAR:
        torch.testing.assert_close(found, wanted, equal_nan=True)
        return
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.itemsize]
    both_nan = found.isnan() & wanted.isnan() if found.is_floating_point() else False
    alike = (found.view(width) == wanted.view(width)) | both_nan
    if not alike.all():
        at = (~alike).nonzero()[:3].flatten()
        raise AssertionError(
            f"{name} {dtype}: {(~alike).sum().item()} of {alike.numel()} differ: inputs "
            f"{[t[at].tolist() for t in tensors]}, {found[at].tolist()} for {wanted[at].tolist()}"
        )


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, dtypes) in UNARY.items() for d in dtypes]
)
def test_a_function_of_one_tensor(name, dtype):
    check(name, body_of_one(UNARY[name][0]), dtype, [inputs(dtype)], "x")


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, (_, dtypes) in BINARY.items() for d in dtypes]
)
def test_a_function_of_two_tensors(name, dtype):
    check(name, body_of_two(BINARY[name][0]), dtype, [inputs(dtype), inputs(dtype, 1)], "xy")


def test_tanh_of_every_float():
    """opforge's own, since libdevice's branch made chains slow."""
    program = Program(body_of_one(torch.tanh), x=native.tensor("n", dtype="fp32"))
    step = 1 << 27
    for start in range(-(1 << 31), 1 << 31, step):
        x = torch.arange(start, start + step, device="cuda").to(torch.int32).view(torch.float32)
        found, wanted = program(x), torch.tanh(x)
        alike = (found.view(torch.int32) == wanted.view(torch.int32)) | (
            found.isnan() & wanted.isnan()
        )
        assert alike.all(), x[~alike][:3].tolist()


def rows(dtype, shape=(5, 130, 257), seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    wanted = getattr(torch, DTYPES[dtype].torch)
    if not wanted.is_floating_point:
        low, high = (0, 2) if dtype == "i1" else (0, 100)
        return torch.randint(low, high, shape, device="cuda", generator=generator).to(wanted)
    return torch.randn(shape, device="cuda", generator=generator).to(wanted)


# The order of additions differs; extremes and places do not depend on one.
EXACT = {"amax", "amin", "max", "max_dim", "max_dim_at", "argmax", "argmax_of_all", "argmin", "any",
         "all", "any_of_all"}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("shape", [(5, 130, 257), (2, 300, 511), (1, 1, 1), (3, 4, 5000)])
@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction(name, shape):
    function, dtypes = REDUCED[name]
    for dtype in dtypes:
        body, x = body_of_one(function), rows(dtype, shape)
        found, wanted = Program(body, x=native.tensor("a b c", dtype=dtype))(x), body(x)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if "cumsum" in name:
            # torch adds halves in half precision.
            wanted = body(x.double() if x.is_floating_point() else x).to(wanted.dtype)
        if name in EXACT or not found.is_floating_point():
            assert torch.equal(found, wanted)
        else:
            near = {"fp16": 2e-2, "bf16": 5e-2}.get(dtype, 2e-4)
            torch.testing.assert_close(found, wanted, rtol=near, atol=near, equal_nan=True)


@pytest.mark.parametrize("name", MOVED)
def test_elements_that_move(name):
    body = body_of_one(MOVED[name])
    for dtype in ("fp32", "fp16"):
        x = rows(dtype, (3, 5, 7))
        found, wanted = Program(body, x=native.tensor("a b c", dtype=dtype))(x), body(x)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("name", INDEXED)
def test_elements_by_their_positions(name):
    body, x = body_of_two(INDEXED[name]), rows("fp32", (3, 5, 7))
    at = torch.tensor([[0, 4]], device="cuda").repeat(3, 1)
    specs = {"x": native.tensor("3 5 7", dtype="fp32"), "y": native.tensor("3 2", dtype="i64")}
    assert torch.equal(Program(body, **specs)(x, at), body(x, at))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_matrices(name, dtype):
    body = body_of_two(PRODUCTS[name])
    x, y = rows(dtype, (3, 65, 77)), rows(dtype, (3, 77, 33), 1)
    specs = {"x": native.tensor("b m k", dtype=dtype), "y": native.tensor("b k n", dtype=dtype)}
    found, wanted = Program(body, **specs)(x, y), body(x, y)
    near = {"fp16": 2e-2, "bf16": 1e-1}.get(dtype, 1e-4)
    torch.testing.assert_close(found, wanted, rtol=near, atol=near)
