"""Types of tensor descriptors, as Triton writes them."""

import types

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from opforge._compat import compiled, tma


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("tensordesc<fp16[64, 32]>", ("fp16", (64, 32), None)),
        ("tensordesc<fp8e4nv[128]>", ("fp8e4nv", (128,), None)),
        ("tensordesc<i8[1, 2, 4],A(b=[[1, 0]])>", ("i8", (1, 2, 4), "A(b=[[1, 0]])")),
    ],
)
def test_a_type_is_taken_apart(kind, parts):
    assert tma.parts(kind) == parts
    assert tma.rank(kind) == len(parts[1])


@pytest.mark.parametrize(
    "kind", ["tensordesc<fp16>", "tensordesc<[64]>", "tensordesc<fp16[]>", "i"]
)
def test_what_is_not_such_a_type_is_refused(kind):
    with pytest.raises(ValueError, match="is not the type of a tensor descriptor"):
        tma.parts(kind)


def test_elements_are_those_of_torch():
    assert compiled.dtype_of("tensordesc<bf16[64]>") == (torch.bfloat16, (64,), None)
    with pytest.raises(ValueError, match="has elements that torch does not have"):
        compiled.dtype_of("tensordesc<fp7[64]>")


def test_a_copy_has_another_tensor():
    given = TensorDescriptor.from_tensor(torch.zeros(64), [32])
    other = tma.with_base(given, "another")
    assert (other.base, other.block_shape, type(other)) == ("another", [32], TensorDescriptor)
    assert given.base is not other.base


def test_maps_of_a_program_are_not_recorded():
    @triton.jit
    def kernel(desc_ptr):
        pass

    target = types.SimpleNamespace(backend="cuda", arch=90)
    with pytest.raises(compiled.NotPlain, match="desc_ptr is a tensor map that the program has"):
        compiled.specialized(kernel, {"desc_ptr": "nvTmaDesc"}, {}, {}, target)
