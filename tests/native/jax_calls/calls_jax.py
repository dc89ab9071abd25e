"""The module that `opforge build --jax` writes, called by JAX on the stand-in driver.

tests/native/codegen/test_jax_ffi.py runs this file in a process of its own, because JAX starts
threads, and gives it the folder of the library.
"""

import ctypes
import importlib
import os
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.native import hand_made_calls, hand_made_frameworks
from support.standin.driver import AMD, NVIDIA

FOLDER = Path(os.environ.get("OPFORGE_TEST_BUILT", "/nonexistent"))
# A call that fails in a handler; the second time, JAX raises another one.
FAILED = (jax.errors.JaxRuntimeError, ValueError)
X = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
ROW = X[1]


@pytest.fixture
def vendor():
    """Whose GPUs the library is for."""
    return AMD if os.environ.get("OPFORGE_TEST_VENDOR") == "amd" else NVIDIA


@pytest.fixture(scope="session")
def module():
    sys.path.insert(0, str(FOLDER / "python"))
    return importlib.import_module("demo.jax")


@pytest.fixture
def ops(module, standin):
    standin.execute = hand_made_frameworks.execute
    module.opforge_host_memory(True)
    yield module
    module.opforge_host_memory(False)
    ctypes.CDLL(str(FOLDER / "lib/libdemo.so")).demo_unload(0)
    assert not standin.errors


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_a_call_gives_what_the_kernel_computes_with_jit_and_without(ops):
    for add in (ops.add, jax.jit(ops.add)):
        np.testing.assert_array_equal(add(X, X), 2 * X)
    np.testing.assert_array_equal(ops.add(np.asarray(X), y=X), 2 * X)


def test_the_module_has_the_functions_alone(module):
    # What it computes with is not in it, so an operator may be called `any` or `json`.
    there = {name for name in vars(module) if name[:2] != "__"}
    assert there == {*module.__all__}
    assert {"add", "opforge_host_memory"} <= there
    assert "JAX" in module.__doc__
    assert pickle.loads(pickle.dumps(module.add)) is module.add


def test_shapes_come_from_the_library(ops, standin):
    made = jax.eval_shape(ops.add, jax.ShapeDtypeStruct((5, 7), jnp.float16), jnp.ones((5, 7), "e"))
    assert (made.shape, made.dtype) == ((5, 7), jnp.float16)
    assert standin.launches == []


def test_vmap_calls_once_per_element(ops, standin):
    np.testing.assert_array_equal(jax.vmap(ops.add)(X, X), 2 * X)
    assert len(standin.launches) == 2
    found = jax.jit(jax.vmap(ops.add, in_axes=(0, None), out_axes=1))(X, ROW)
    np.testing.assert_array_equal(found, (X + ROW).T)


def test_gradients_are_those_of_the_librarys_backward(ops):
    def total(x, y):
        return (ops.add(x, y) * ROW).sum()

    y = jnp.array([7.0, 8.0, 9.0])
    for of in (jax.grad(total, (0, 1)), jax.jit(jax.grad(total, (0, 1)))):
        of_x, of_y = of(X[0], y)
        np.testing.assert_array_equal(of_x, ROW + y)
        np.testing.assert_array_equal(of_y, ROW + X[0] + y)
    batched = jax.vmap(jax.grad(total), in_axes=(0, None))(X, y)
    np.testing.assert_array_equal(batched, [ROW + y, ROW + y])


@pytest.mark.parametrize("mode", ["twice", None])
@pytest.mark.parametrize("bias", [None, jnp.ones(3)])
def test_a_backward_of_several_outputs_with_a_number_and_an_absent_tensor(ops, mode, bias):
    def total(x, bias):
        out, twice = ops.blend(x, bias, alpha=5.0, mode=mode)
        assert (twice is None) == (mode is None)
        return (out * ROW).sum()

    of_x, of_bias = jax.grad(total, (0, 1))(X[0], bias)
    np.testing.assert_array_equal(of_x, 5 * ROW)
    assert of_bias is None if bias is None else (of_bias == ROW).all()


def test_defaults_are_those_of_the_operator(ops):
    out, twice = ops.blend(ROW)
    np.testing.assert_array_equal(out, 3 * ROW)
    assert twice is None
    assert str(ops.blend.__signature__) == "(x, bias=None, alpha=3.0, mode=None)"
    assert ops.blend.__doc__ == "alpha * x + bias."
    _, twice = jax.jit(ops.blend, static_argnames=("alpha", "mode"))(ROW, alpha=1, mode="twice")
    np.testing.assert_array_equal(twice, 2 * ROW)


def test_what_is_written_to_comes_back_and_the_array_stays_as_it_was(ops):
    before = np.array(ROW)
    for special in (ops.special, jax.jit(ops.special, static_argnames="what")):
        np.testing.assert_array_equal(special(ROW, what="shared"), before + 1)
        np.testing.assert_array_equal(ROW, before)


@pytest.mark.usefixtures("x64")
def test_numbers_of_every_width_arrive(ops, standin):
    seen = []
    kinds = ["float", "double", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))]

    def execute(launched):
        if launched.function == "first_kernel":
            types = [getattr(ctypes, f"c_{kind}") for kind in kinds]
            seen.extend(launched.read(6 + i, type_) for i, type_ in enumerate(types))

    standin.execute = execute
    x, bias, state, *numbers, _ = hand_made_calls.everything()
    arrays = [jnp.asarray(tensor.numpy()) for tensor in (x, bias, state)]
    out, stats, written = ops.everything(*arrays, *numbers, "relu")
    assert (out.shape, stats.dtype, written.shape) == ((3, 8), jnp.float64, (3,))
    jax.block_until_ready(out)
    expected = [hand_made_calls.VALUES[t] for t in hand_made_frameworks.hand_made.SCALARS[2:12]]
    assert seen[0] == pytest.approx(expected[0])
    assert seen[1:] == expected[1:]


@pytest.mark.parametrize("dtype", [jnp.float16, np.dtype("float16"), None])
@pytest.mark.parametrize("level", hand_made_frameworks.LEVEL_VALUES)
def test_choices_are_passed_by_value(ops, standin, dtype, level):
    jax.block_until_ready(ops.choose(jnp.zeros(77, jnp.int8), dtype, level))
    assert len(standin.launches) == 1


ARRAYS = [jnp.asarray(t.numpy()) for t in hand_made_calls.everything()[:3]]
NUMBERS = hand_made_calls.everything()[3:-1]
# A call, its error, and what that must name.
REFUSED = {
    "a missing argument": (lambda ops: ops.add(X), TypeError, "demo_add: .*'y'\n  fix: "),
    "not an array": (lambda ops: ops.add(X, 3), TypeError, "demo_add: y: .* got int\n  fix: "),
    "no array": (lambda ops: ops.add(X, None), ValueError, "demo_add: y: is NULL"),
    "another dtype": (
        lambda ops: ops.add(X, X.astype(jnp.int32)),
        ValueError,
        "demo_add: y: type i32, expected fp16 or fp32",
    ),
    "too many dimensions": (
        lambda ops: ops.add(jnp.zeros((1,) * 9), X),
        ValueError,
        "demo_add: x: has 9 dimensions .*\n  fix: ",
    ),
    "a traced number": (
        lambda ops: jax.jit(lambda alpha: ops.blend(ROW, alpha=alpha))(2.0),
        TypeError,
        r"demo_blend: alpha: is traced, .*\n  fix: jax.jit\(..., static_argnames='alpha'\)",
    ),
    "not a number": (
        lambda ops: ops.blend(ROW, alpha="2"),
        TypeError,
        "demo_blend: alpha: is '2', .*\n  fix: pass a float",
    ),
    "too large a number": (
        lambda ops: ops.everything(*ARRAYS, *NUMBERS[:6], 2**31, *NUMBERS[7:], None),
        TypeError,
        "demo_everything: s_i32: is 2147483648, .*\n  fix: ",
    ),
    "another choice": (
        lambda ops: ops.blend(ROW, mode="thrice"),
        ValueError,
        "demo_blend: mode: is 'thrice', .*\n  fix: pass 'twice' or None",
    ),
    "another dtype as a choice": (
        lambda ops: ops.choose(jnp.zeros(77, jnp.int8), jnp.float32, 1),
        ValueError,
        "demo_choose: dtype: is .*float32.*\n  fix: pass float16 or None",
    ),
    "an output of 64 bits": (
        lambda ops: ops.everything(*ARRAYS, *NUMBERS, "relu"),
        ValueError,
        "demo_everything: stats: is float64, .*\n  fix: .*jax_enable_x64",
    ),
    "an output that is not row-major": (
        lambda ops: ops.copy(jnp.zeros((3, 5))),
        ValueError,
        r"demo_copy: out: has strides \[1, 3\], .*\n  fix: ",
    ),
    "no backward": (
        lambda ops: jax.grad(lambda x: ops.blend_backward(x, x, 2.0)[0].sum())(ROW),
        NotImplementedError,
        "demo_blend_backward: .*no backward for it\n  fix: ",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_an_exception_with_the_fix(ops, standin, what):
    call, error, said = REFUSED[what]
    with pytest.raises(error, match=f"^{said}"):
        call(ops)
    assert what == "no backward" or standin.launches == []


def test_arrays_on_the_cpu_are_refused_unless_it_is_asked_for(ops, vendor):
    gpu, platform = ("ROCm", "rocm") if vendor is AMD else ("CUDA", "cuda")
    ops.opforge_host_memory(False)
    with pytest.raises(FAILED) as error:
        jax.block_until_ready(ops.add(X, X))
    assert str(error.value).splitlines()[:2] == [
        f"INVALID_ARGUMENT: demo_add: its arrays are on the CPU; the library runs on {gpu}",
        f'  fix: put them on a GPU: jax.device_put(x, jax.devices("{platform}")[0])',
    ]


def test_a_failure_of_the_driver_has_its_text(ops, standin):
    launch = standin.vendor.call("cuLaunchKernel")
    standin.fail(1, 2, launch)
    with pytest.raises(FAILED, match=f"^RESOURCE_EXHAUSTED: demo_add: {launch}"):
        jax.block_until_ready(ops.add(X, X))


def test_a_handler_that_is_called_by_hand_says_how_it_is_called(ops):
    like = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for arrays, attributes, said in (
        ((X, X), {}, "there is no attribute present"),
        ((X,), {"present": np.int64(7)}, "it got 1 arrays too few"),
    ):
        with pytest.raises(FAILED, match=f"demo_add: {said}; call it through"):
            jax.block_until_ready(jax.ffi.ffi_call("demo_add", like)(*arrays, **attributes))
