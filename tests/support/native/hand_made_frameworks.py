"""Hand-made operators for tests of tvm-ffi and JAX, and what their kernels compute."""

import ctypes
import dataclasses

import numpy as np

from opforge.native.ir.cases import Case, Launch, Path, Pointer, ScalarValue, TensorCase, Variant
from opforge.native.ir.expr import Var
from opforge.native.ir.interface import ChoiceParam, Op, ScalarParam, SchemaArgument, TensorParam
from opforge.native.tracing.case_builder import is_of
from support.native import hand_made

DTYPES = ChoiceParam("dtype", ("HALF", "NONE"), ("torch.float16", "None"))
LEVELS = ChoiceParam(
    "level", ("ONE", "HALF", "ON", "LONG"), ("1", "0.5", "True", "'a text of more than 7 bytes'")
)
LEVEL_VALUES = (1, 0.5, True, "a text of more than 7 bytes")


def choosing():
    """`pick`, with choices of every type."""
    op, _ = hand_made.overlapping()
    cases = tuple(
        dataclasses.replace(case, choices=(("dtype", d), ("level", level)))
        for d in range(2)
        for level in range(4)
        for case in op.cases
    )
    return dataclasses.replace(op, name="choose", params=(*op.params, DTYPES, LEVELS), cases=cases)


def blend():
    """out = alpha * x + bias, and twice that in mode "twice"; with a backward that is below."""
    n = Var("n")
    cases, kernels = [], []
    types = (*("*fp32",) * 4, "i32", "fp32")
    for biased in (True, False):
        for mode in (0, 1):
            key = f"blend_{'with' if biased else 'without'}_{'twice' if mode == 0 else 'once'}"
            kernels.append(hand_made.kernel(key, key, types))
            arguments = (
                Pointer("x_ptr", "x", 0, "fp32"),
                Pointer("bias_ptr", "bias" if biased else "x", 0, "fp32"),
                Pointer("out_ptr", "out", 0, "fp32"),
                Pointer("twice_ptr", "twice" if mode == 0 else "out", 0, "fp32"),
                ScalarValue("n", n),
                ScalarValue("alpha", Var("alpha", is_float=True)),
            )
            grid = (hand_made.blocks(n), 1, 1)
            launch = Launch(key, "kernels.py:99", grid, arguments, (Variant(key, types),))
            like = hand_made.out_like("fp32", (n,))
            path = Path((), (like, like if mode == 0 else None), (launch,))
            bias = TensorCase("bias", True, "fp32", (n,)) if biased else TensorCase("bias", False)
            tensors = (*hand_made.tensors("fp32", (n,), "x"), bias)
            cases.append(Case(tensors, (("mode", mode),), (), (path,)))
    params = (
        TensorParam("x"),
        TensorParam("bias", optional=True),
        ScalarParam("alpha", "fp32"),
        ChoiceParam("mode", ("TWICE", "NONE"), ("'twice'", "None")),
    )
    arguments = (
        SchemaArgument("x", "Tensor"),
        SchemaArgument("bias", "Tensor?", default=(None,)),
        SchemaArgument("alpha", "float", default=(3.0,)),
        SchemaArgument("mode", "str?", ("twice", None), default=(None,)),
        SchemaArgument("n", "SymInt", (7,), fixed=True, default=(7,)),
    )
    call = ("call", "demo::blend_backward", ("grad", 0), ("input", 0), ("input", 2))
    op = Op(
        "blend", "demo::blend", "ops.py:99", params, ("out", "twice"), tuple(cases),
        "alpha * x + bias.", schema="demo::blend(...) -> (Tensor, Tensor?)", arguments=arguments,
        returns=("Tensor", "Tensor?"),
        formula=(("item", call, 0), ("item", call, 1), None, None, None),
    )  # fmt: skip
    return op, kernels


def blend_backward():
    """alpha * grad, and grad."""
    n = Var("n")
    types = (*("*fp32",) * 4, "i32", "fp32")
    kernels = [hand_made.kernel("blend_backward", "blend_backward", types)]
    arguments = (
        *hand_made.pointers("fp32", "grad", "x", "grad_x", "grad_bias"),
        ScalarValue("n", n),
        ScalarValue("alpha", Var("alpha", is_float=True)),
    )
    launch = Launch(
        "blend_backward", "kernels.py:109", (hand_made.blocks(n), 1, 1), arguments,
        (Variant("blend_backward", types),),
    )  # fmt: skip
    like = hand_made.out_like("fp32", (n,))
    tensors = hand_made.tensors("fp32", (n,), "grad", "x")
    params = (TensorParam("grad"), TensorParam("x"), ScalarParam("alpha", "fp32"))
    schema = (
        SchemaArgument("grad", "Tensor"),
        SchemaArgument("x", "Tensor"),
        SchemaArgument("alpha", "float"),
    )
    op = Op(
        "blend_backward", "demo::blend_backward", "ops.py:109", params, ("grad_x", "grad_bias"),
        (Case(tensors, (), (), (Path((), (like, like), (launch,)),)),),
        schema="demo::blend_backward(...) -> (Tensor, Tensor)", arguments=schema,
        returns=("Tensor", "Tensor"),
    )  # fmt: skip
    return op, kernels


def added():
    """`add`, whose gradients are calls of `add`: of x the gradient and y, of y it and the sum."""
    op, kernels = hand_made.add()
    formula = tuple(
        ("call", "demo::add", ("grad", 0), other) for other in (("input", 1), ("output", 0))
    )
    return dataclasses.replace(op, formula=formula), kernels


def by_vendor(name, amd):
    """A copy of x whose output has n elements on NVIDIA's GPUs, and `amd` on AMD's."""
    n = Var("n")
    types = ("*fp32", "*fp32")
    kernels = [hand_made.kernel(name, f"{name}_kernel", types)]
    arguments = hand_made.pointers("fp32", "x", "out")
    launch = hand_made.launch(name, arguments, types, place="kernels.py:120")
    paths = tuple(
        Path((is_of(vendor),), (hand_made.out_like("fp32", (size,)),), (launch,))
        for vendor, size in enumerate((n, amd))
    )
    op = Op(
        name, f"demo::{name}", "ops.py:120", (TensorParam("x"),), ("out",),
        (Case(hand_made.tensors("fp32", (n,), "x"), paths=paths),),
        schema=f"demo::{name}(Tensor x) -> Tensor", arguments=(SchemaArgument("x", "Tensor"),),
        returns=("Tensor",),
    )  # fmt: skip
    return op, kernels


def for_two_vendors():
    n = Var("n")
    parts = [by_vendor("alike", n), by_vendor("wider", hand_made.make("*", n, 2))]
    return hand_made.for_both(hand_made.library(*parts))


def program():
    parts = [
        added(), hand_made.everything(), hand_made.special(), hand_made.overlapping(),
        hand_made.copying(), blend(), blend_backward(),
    ]  # fmt: skip
    whole = hand_made.library(*parts)
    return dataclasses.replace(whole, ops=(*whole.ops, choosing()))


def execute(launched):
    """What the kernels of the operators above compute, and a 1 added to what `special` writes."""
    if launched.function == "add_kernel":
        count = launched.read(3, ctypes.c_int32)
        x, y, out = (_array(launched, i, count) for i in range(3))
        out[:] = x + y
    elif launched.function == "shared_kernel":
        _array(launched, 0, launched.grid[0])[:] += 1
    elif launched.function == "blend_backward":
        count, alpha = launched.read(4, ctypes.c_int32), launched.read(5, ctypes.c_float)
        grad, _, grad_x, grad_bias = (_array(launched, i, count) for i in range(4))
        grad_x[:], grad_bias[:] = alpha * grad, grad
    elif launched.function.startswith("blend_"):
        count, alpha = launched.read(4, ctypes.c_int32), launched.read(5, ctypes.c_float)
        x, bias, out, twice = (_array(launched, i, count) for i in range(4))
        out[:] = alpha * x + (bias if "_with_" in launched.function else 0)
        if launched.function.endswith("_twice"):
            twice[:] = 2 * out


def _array(launched, index, count):
    memory = (ctypes.c_float * count).from_address(launched.read(index, ctypes.c_void_p))
    return np.ctypeslib.as_array(memory)
