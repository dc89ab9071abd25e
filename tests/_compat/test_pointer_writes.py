"""What a kernel is seen to write to: addresses, and not what was read on the way to one."""

import pytest
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl

from opforge._compat.compiling import Variant, to_ttir
from opforge._compat.pointer_writes import UnknownWrites, written_in, written_pointers
from support.archs import SM_90
from support.native.hopper_ops import moved_kernel


@triton.jit
def at(p, i):
    return tl.load(p + i)


@triton.jit(noinline=True)
def at_called(p, i):
    return tl.load(p + i)


@triton.jit(noinline=True)
def put(p, v):
    tl.store(p, v)


@triton.jit
def index_by_function(x, out, n):
    tl.store(out + at(x, n), 1)


@triton.jit
def index_by_call(x, out, n):
    tl.store(out + at_called(x, n), 1)


@triton.jit
def index_in_a_loop(x, out, n):
    i = 0
    for j in range(n):
        i += tl.load(x + j)
    tl.store(out + i, i)


@triton.jit
def moving_pointers(x, out, n):
    for _ in range(n):
        tl.store(out, tl.load(x))
        x += 1
        out += 1


@triton.jit
def by_call(x, out, n):
    put(out + n, tl.load(x))


@triton.jit
def waits(x, out, n):
    tl.extra.cuda.gdc_wait()
    tl.store(out, tl.load(x + n))


@triton.jit
def counter(x, out, n):
    tl.atomic_add(out, tl.load(x + n))


@triton.jit
def descriptors(x, out, n):
    read = tl.make_tensor_descriptor(x, [n, n], [n, 1], [16, 16])
    write = tl.make_tensor_descriptor(out, [n, n], [n, 1], [16, 16])
    write.store([0, 0], read.load([0, 0]))


@triton.jit
def early_return(x, out, n):
    if n > 3:
        return
    tl.store(out, tl.load(x))


@triton.jit
def either(x, out, n):
    tl.store(x if n > 3 else out, 1)


@triton.jit
def nothing(x, out, n):
    pass


@triton.jit
def assembly(x, out, n):
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [n], tl.int32, is_pure=False, pack=1)
    tl.store(out, v)


def written(kernel):
    signature = {"x": "*i32", "out": "*i32", "n": "i32"}
    return written_pointers(Variant(kernel, SM_90, signature, {}, {}))


@pytest.mark.parametrize(
    "kernel",
    [
        index_by_function, index_by_call, index_in_a_loop, moving_pointers, by_call, counter,
        descriptors, early_return,
    ],
    ids=lambda k: k.fn.__name__,
)  # fmt: skip
def test_only_the_address_of_a_write_counts(kernel):
    assert written(kernel) == {"out"}


def test_gluon_writes_by_descriptors():
    layout = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)
    described = f"tensordesc<fp16[64, 32],{layout!r}>"
    signature = {"x_desc": described, "out_desc": described, "M": "constexpr", "N": "constexpr"}
    variant = Variant(moved_kernel, SM_90, signature, {"M": 64, "N": 32}, {})
    assert written_pointers(variant) == {"out_desc"}


def test_every_possible_address_counts():
    assert written(either) == {"x", "out"}


def test_a_kernel_may_write_nothing():
    assert written(nothing) == frozenset()


def test_assembly_without_operands_writes_nothing():
    assert written(waits) == {"out"}


def test_assembly_may_write_anything():
    with pytest.raises(UnknownWrites, match="inline assembly"):
        written(assembly)


@pytest.mark.parametrize(
    ("kernel", "passed", "expected"),
    [
        (index_by_function, ["x", "out", "n"], {"out"}),
        (either, ["x", "out", "n"], {"x", "out", "n"}),
        # What a function that is not inlined returns could be an address.
        (index_by_call, ["x", "out", "n"], None),
        (assembly, ["x", "out", "n"], None),
        # The names are not those of the module's arguments.
        (index_by_function, ["x", "out"], None),
    ],
)
def test_what_a_traced_module_writes_is_not_told_where_it_is_unknown(kernel, passed, expected):
    variant = Variant(kernel, SM_90, {"x": "*i32", "out": "*i32", "n": "i32"}, {}, {})
    _, module = to_ttir(variant)
    assert written_in(module, passed) == expected
