"""Launches: how arguments are bound, which variant is taken, and what the driver gets."""

import contextlib
import math
import os
import subprocess
import sys
import threading
import tracemalloc

import pytest
import torch
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import native_specialize_impl

from support.archs import SM_80
from support.native.hand_made import cubin
from support.serving import Tensor, extension, param
from support.standin.driver import FLAGS, SOURCES

F32, F16 = torch.float32, torch.float16
X = Tensor(F32)
ODD = Tensor(F32, 0x7000_0004)
BLOCK = param("BLOCK", constexpr=True)


def test_a_launch_gets_grid_threads_stream_and_arguments(serving, standin):
    kernel = serving.simple(F32, image=serving.image(threads=256, shared=1024))
    serving.stream = standin.stream()
    seen = serving.read_arguments("p", "i32", "p", "p")
    assert kernel.bind((7, 2))(X, 1000) is None
    (launched,) = standin.launches
    assert launched.function == "add"
    assert launched.image.endswith(b"add sm_80")
    assert launched.grid == (7, 2, 1)
    assert launched.block == (256, 1, 1)
    assert launched.shared == 1024
    assert launched.stream == serving.stream
    assert not launched.has_attributes
    # The last two are pointers to scratch memory, which it does not use.
    assert seen == [(X.address, 1000, 0, 0)]
    assert serving.handed == []


@pytest.mark.parametrize(
    ("value", "dtype", "type_", "expected"),
    [
        (-(2**31), "int", "i32", -(2**31)),
        (-(2**63), "int", "i64", -(2**63)),
        (2**64 - 1, "int", "u64", 2**64 - 1),
        (-128, "int", "i8", -128),
        (-(2**15), "int", "i16", -(2**15)),
        (255, "int", "u8", 255),
        (65535, "int", "u16", 65535),
        (2**32 - 1, "int", "u32", 2**32 - 1),
        (2**40, "int", "i64:16", 2**40),
        (1.5, "fp32", "fp32", 1.5),
        (math.pi, "fp32", "fp64", math.pi),
        (2**63, "int", "fp64", 2.0**63),
        (True, "u1", "u1", 1),
        (True, "u1", "i32", 1),
    ],
)
def test_values_are_passed_as_their_type(serving, value, dtype, type_, expected):
    kernel = serving.kernel(param("n", typed=True))
    kernel.add((), (dtype,), {}, [((type_,), serving.image())])
    seen = serving.read_arguments(type_.partition(":")[0])
    kernel.bind((1,))(value)
    assert seen == [(expected,)]


def test_the_first_variant_that_holds_is_taken(serving, standin):
    names = ("p16", "1"), ("p16", "i32:16"), ("p16", "i32"), ("p", "i32"), ("p", "i64")
    kernel = serving.kernel(param("x"), param("n"))
    kernel.add((), (F32, "int"), {}, [(t, serving.image(f"v{i}")) for i, t in enumerate(names)])
    launch = kernel.bind((1,))
    for x, n in [(X, 1), (X, 32), (X, 0), (X, 5), (ODD, 16), (ODD, 1), (ODD, 2**40)]:
        assert launch(x, n) is None
    taken = [launched.function for launched in standin.launches]
    assert taken == ["v0", "v1", "v1", "v2", "v3", "v3", "v4"]


INTEGERS = [1, 0, -16, 17, 2**31 - 1, -(2**31), 2**31, 2**31 + 1, 2**63, 2**63 + 1, -(2**63), 2**40]


def test_a_variant_holds_where_triton_would_compile_it(serving, standin):
    types = ["1", "i32:16", "i32", "i64:16", "i64", "u64:16", "u64"]
    kernel = serving.kernel(param("n"))
    kernel.add((), ("int",), {}, [((t,), serving.image(t)) for t in types])
    for n in INTEGERS:
        kernel.bind((1,))(n)
    chosen = [native_specialize_impl(BaseBackend, n, False, True, True) for n in INTEGERS]
    names = {("constexpr", 1): "1"}
    for name in types[1:]:
        base, _, by_16 = name.partition(":")
        names[base, "D" if by_16 else ""] = name
    assert [one.function for one in standin.launches] == [names[pair] for pair in chosen]


def test_the_general_variant_is_counted(serving):
    kernel = serving.simple(F32, ("p16", "i32:16"), ("p", "i32"))
    launch = kernel.bind((1,))
    launch(X, 32)
    launch(X, 33)
    launch(X, "33")
    assert kernel.counts() == {"served": 2, "general": 1, "handed_over": 1}
    # One variant is not general, nor is one that assumes something.
    for types in ([("p", "i32")], [("p16", "i32"), ("p", "i32:16")]):
        kernel = serving.simple(F32, *types)
        kernel.bind((1,))(ODD, 32)
        assert kernel.counts() == {"served": 1, "general": 0, "handed_over": 0}


def bound(serving, *params):
    kernel = serving.kernel(*params)
    dtypes = tuple("int" for p in params if not p[1])
    kernel.add((), dtypes, {}, [(("i32",) * len(dtypes), serving.image())])
    return kernel.bind((1,))


def test_arguments_are_bound_as_python_binds_them(serving):
    launch = bound(serving, param("a"), param("b"), param("c", default=9), param("d", default=8))
    seen = serving.read_arguments("i32", "i32", "i32", "i32")
    launch(1, 2, 3, 4)
    launch(1, 2)
    launch(1, d=5, b=2)
    launch(d=4, c=3, b=2, a=1)
    assert seen == [(1, 2, 3, 4), (1, 2, 9, 8), (1, 2, 9, 5), (1, 2, 3, 4)]


def test_names_that_are_not_interned_are_found(serving):
    # Those in source code are.
    kernel = serving.kernel(param("number"), BLOCK)
    kernel.add((64,), ("int",), {"num_warps": 4}, [(("i32",), serving.image())])
    names = [bytes(text, "ascii").decode() for text in ("number", "BLOCK", "num_warps")]
    kernel.bind((1,))(**dict(zip(names, (3, 64, 4), strict=True)))
    assert serving.handed == []


class Broken:
    @property
    def dtype(self):
        raise RuntimeError("no dtype today")


class NoAddress:
    dtype = F32


class WrongAddress(NoAddress):
    def data_ptr(self):
        return "here"


def test_what_a_tensor_raises_is_raised(serving):
    launch = serving.simple(F32).bind((1,))
    with pytest.raises(RuntimeError, match="no dtype today"):
        launch(Broken(), 1)
    with pytest.raises(TypeError):
        launch(WrongAddress(), 1)
    assert serving.handed == []


class Equal:
    def __init__(self, action):
        self.action = action

    def __eq__(self, other):
        return self.action()

    __hash__ = None


def fail():
    raise ValueError("not comparable")


def test_comparing_may_add_instances_and_raise(serving, standin):
    kernel = serving.kernel(BLOCK)

    def grow():
        for i in range(50):
            kernel.add((object(),), (), {}, [((), serving.image(f"new{i}"))])
        return False

    kernel.add((Equal(grow),), (), {}, [((), serving.image())])
    kernel.add((3,), (), {}, [((), serving.image("three"))])
    kernel.bind((1,))(Equal(bool))
    assert len(serving.handed) == 1
    kernel.bind((1,))(3)
    assert standin.launches[-1].function == "three"
    kernel = serving.kernel(BLOCK)
    kernel.add((Equal(fail),), (), {}, [((), serving.image())])
    with pytest.raises(ValueError, match="not comparable"):
        kernel.bind((1,))(Equal(fail))


def test_many_instances_are_found_whatever_was_used_before(serving, standin):
    kernel = serving.kernel(param("x"), BLOCK)
    for i in range(40):
        kernel.add((i,), (F32,), {}, [(("p",), serving.image(f"k{i}"))])
    order = [i * 7 % 40 for i in range(40)] * 2 + [3, 3, 39]
    for i in order:
        kernel.bind((1,))(X, i)
    assert [one.function for one in standin.launches] == [f"k{i}" for i in order]


def test_a_callable_grid_gets_all_parameters_by_name(serving, standin):
    kernel = serving.kernel(param("x"), param("n", default=640), BLOCK)
    kernel.add((64,), (F32, "int"), {"num_warps": 4}, [(("p", "i32"), serving.image())])
    seen = []

    def grid(meta):
        seen.append(meta)
        return (meta["n"] // meta["BLOCK"], 2, 3)

    kernel.bind(grid)(X, BLOCK=64, num_warps=4)
    assert seen == [{"x": X, "n": 640, "BLOCK": 64}]
    assert list(seen[0]) == ["x", "n", "BLOCK"]
    assert standin.launches[0].grid == (10, 2, 3)


class Index:
    def __index__(self):
        return 4


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ((2,), (2, 1, 1)),
        ([2, 3], (2, 3, 1)),
        (torch.Size([2, 3, 4]), (2, 3, 4)),
        ((Index(), True), (4, 1, 1)),
        # As Triton: what follows is not looked at.
        ((2, 3, 4, "five"), (2, 3, 4)),
        (lambda _: [5], (5, 1, 1)),
        ((2**31 - 1, 65535, 65535), (2**31 - 1, 65535, 65535)),
    ],
)
def test_grids(serving, standin, grid, expected):
    serving.simple(F32).bind(grid)(X, 5)
    assert standin.launches[0].grid == expected


@pytest.mark.parametrize("grid", [(0,), (4, 0), (1, 1, 0), (-1, 2), (2, -(2**70))])
def test_an_empty_grid_launches_nothing(serving, standin, grid):
    kernel = serving.simple(F32)
    assert kernel.bind(grid)(X, 5) is None
    assert standin.calls == []
    assert kernel.counts()["served"] == 1


@pytest.mark.parametrize(
    ("grid", "error", "text"),
    [
        ((2**31,), ValueError, "add: grid[0] is 2147483648, but the largest is 2147483647"),
        ((1, 1, 2**70), ValueError, f"add: grid[2] is {2**70}, but the largest is 65535"),
        ((), ValueError, "add: its grid is empty; it needs 1 to 3 dimensions"),
        ((1, None), TypeError, "add: grid[1] is of type NoneType, not an integer"),
        (lambda _: 7, TypeError, "add: its grid is of type int, not a tuple or list of integers"),
        (lambda _: fail(), ValueError, "not comparable"),
    ],
)
def test_bad_grids(serving, standin, grid, error, text):
    kernel = serving.simple(F32)
    with pytest.raises(error) as refused:
        kernel.bind(grid)(X, 5)
    assert str(refused.value) == text
    assert standin.launches == []
    assert kernel.counts() == {"served": 0, "general": 0, "handed_over": 0}


@pytest.mark.parametrize("count", [2, 16])
def test_clusters_and_cooperation_are_asked_for(serving, standin, count):
    image = serving.image(num_ctas=count, cooperative=True, more=(True,))
    serving.simple(F32, image=image).bind((3, 2))(X, 5)
    (launched,) = standin.launches
    assert launched.has_attributes
    assert (launched.cluster, launched.spread) == (count, True)
    assert launched.cooperative
    assert launched.programmatic
    assert launched.grid == (3 * count, 2, 1)


def test_a_grid_in_clusters_has_its_own_limit(serving):
    kernel = serving.simple(F32, image=serving.image(num_ctas=4))
    with pytest.raises(ValueError, match="grid") as refused:
        kernel.bind((2**29,))(X, 5)
    expected = "add: grid[0] is 536870912, but the largest in clusters of 4 is 536870911"
    assert str(refused.value) == expected


def test_scratch_memory_is_allocated_for_all_programs(serving):
    image = serving.image(num_ctas=2, scratch=(100, 128))
    serving.stream = serving.standin.stream()
    seen = serving.read_arguments("p", "i32", "p", "p")
    serving.simple(F32, image=image).bind((3, 5))(X, 7)
    assert serving.allocated == [(100 * 3 * 5 * 2, 128, serving.stream)]
    assert seen == [(X.address, 7, 0xABC000, 0)]


@pytest.mark.parametrize(
    ("answer", "error"), [(fail, ValueError), (object, AttributeError), (lambda: "here", TypeError)]
)
@pytest.mark.parametrize("name", ["stream_of", "device_of", "allocate"])
def test_what_python_is_asked_may_raise_or_answer_oddly(serving, standin, name, answer, error):
    functions = {"stream_of": lambda _: 0, "device_of": lambda: 0, "allocate": lambda *_: None}
    serving.module.configure(**functions | {name: lambda *_: answer()})
    launch = serving.simple(F32, image=serving.image(scratch=(8, 8))).bind((1,))
    expected = (error, TypeError) if error is AttributeError else (error, AttributeError)
    with pytest.raises(expected):
        launch(X, 7)
    assert standin.launches == []


@pytest.mark.parametrize(("given", "expected"), [(4096, 4096), (None, 0)])
def test_scratch_memory_may_be_an_address_or_none(serving, given, expected):
    serving.allocate = lambda *_: given
    serving.configure()
    seen = serving.read_arguments("p", "i32", "p")
    serving.simple(F32, image=serving.image(scratch=(8, 8))).bind((1,))(X, 7)
    assert seen == [(X.address, 7, expected)]
    with pytest.raises(MemoryError):
        serving.simple(F32, image=serving.image(scratch=(2**62, 8))).bind((8,))(X, 7)


def test_memory_of_the_host_is_refused(serving, standin):
    kernel = serving.kernel(param("x"), param("y"))
    kernel.add((), (F32, F32), {}, [(("p", "p"), serving.image())])
    standin.hide(0x9000_0000)
    with pytest.raises(ValueError, match="reach") as refused:
        kernel.bind((1,))(X, Tensor(F32, 0x9000_0000))
    expected = "add: y is in memory that the GPU cannot reach; is it a CPU tensor?"
    assert str(refused.value) == expected
    assert standin.launches == []
    # Tensors without elements have no memory.
    kernel.bind((1,))(X, Tensor(F32, 0))
    assert len(standin.launches) == 1


def test_a_launch_that_fails_names_the_kernel_and_the_call(serving, standin):
    kernel = serving.simple(F32)
    kernel.bind((1,))(X, 7)
    standin.fail(1, name="cuLaunchKernel")
    with pytest.raises(RuntimeError) as refused:
        kernel.bind((1,))(X, 7)
    expected = "add: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): invalid argument"
    assert str(refused.value) == expected
    standin.fail(1, 719, name="cuLaunchKernelEx")
    clusters = serving.simple(F32, image=serving.image(num_ctas=2), name="mul")
    with pytest.raises(RuntimeError, match=r"^mul: cuLaunchKernelEx: CUDA_ERROR_LAUNCH_FAILED"):
        clusters.bind((1,))(X, 7)
    standin.fail(1, 201, name="cuPointerGetAttribute")
    with pytest.raises(RuntimeError, match=r"^add: cuPointerGetAttribute: CUDA_ERROR_INVALID_CO"):
        kernel.bind((1,))(Tensor(F32, 0xA000_0000), 7)


def test_a_launch_costs_two_calls_of_the_driver_once_loaded(serving, standin):
    standin.set_current(0)
    launch = serving.simple(F32).bind((1,))
    launch(X, 7)
    standin.forget_calls()
    launch(X, 8)
    assert standin.calls == ["cuCtxGetCurrent", "cuLaunchKernel"]
    standin.set_current(-1)


@pytest.mark.parametrize("current", [-1, 0])
def test_the_context_is_made_current_and_restored(serving, standin, current):
    standin.reset(devices=2)
    standin.set_current(current)
    serving.device = 1
    serving.simple(F32).bind((1,))(X, 7)
    assert standin.launches[0].device == 1
    assert standin.depth == (current >= 0)
    standin.set_current(-1)


# In a process of its own: this one is configured, and has a driver.
ALONE = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("_opforge_served", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
content = pathlib.Path(sys.argv[2]).read_bytes()
image = module.Image([(80, content, "symbol", 32, 0, 2, False, 0, 1)])
kernel = module.Kernel("k", (), print)
kernel.add((), (), {}, [((), image)])
def report(call):
    try:
        call()
    except RuntimeError as error:
        print(error)
report(kernel.bind((1,)))
report(image.load)
module.configure(lambda _: 0, lambda: 0, print)
report(kernel.bind((1,)))
"""


def alone(image, **variables):
    """What calls before and after configure() say."""
    command = [sys.executable, "-c", ALONE, extension().__file__, str(image)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | variables
    ).stdout.splitlines()


def test_calls_before_configure_are_refused():
    *before, after = alone(os.devnull)
    assert before == ["configure() comes before the first launch"] * 2
    if "no CUDA driver" not in after:
        pytest.skip("this machine has a driver")
    assert after.startswith("k: no CUDA driver: libcuda.so.1: cannot open shared object file")


def test_a_driver_too_old_for_clusters(tmp_path):
    library = tmp_path / "libcuda.so.1"
    renamed = "-DcuLaunchKernelEx=cuLaunchKernelOther"
    subprocess.run(["cc", *FLAGS, renamed, *SOURCES, "-o", str(library), "-lpthread"], check=True)
    image = tmp_path / "image"
    image.write_bytes(cubin("symbol", SM_80))
    *_, after = alone(image, LD_LIBRARY_PATH=str(tmp_path))
    assert after == "k: the driver has no cuLaunchKernelEx; install a newer one"


def test_nothing_leaks(serving, collect):
    kernel = serving.kernel(param("x"), param("n"), param("s", default=1.25), BLOCK)
    block, alpha, warps, number = 12345, 2.5, 54321, 98765
    image = serving.image(scratch=(8, 8))
    kernel.add(
        (block,), (F32, "int", "fp32"), {"num_warps": warps}, [(("p", "i32", "fp32"), image)]
    )
    tensor = torch.zeros(4)
    serving.stream = serving.standin.stream()
    grid = (7,)

    def calls():
        kernel.bind(grid)(tensor, number, alpha, BLOCK=block, num_warps=warps)
        kernel.bind(lambda meta: (meta["n"],))(tensor, n=number, BLOCK=block, num_warps=warps)
        kernel.bind(grid)(tensor, n="no", BLOCK=block, num_warps=warps)
        kernel.bind(grid)(tensor, n=number, BLOCK=alpha)
        kernel.bind(grid)(tensor, n=number, BLOCK=block)
        kernel.bind(grid)(tensor, n=2**40, BLOCK=block, num_warps=warps)
        for bad in (0.5,), (2**31,), 7, ():
            # Without pytest's, which keep tracebacks.
            with contextlib.suppress(TypeError, ValueError):
                kernel.bind(bad)(tensor, number, alpha, BLOCK=block, num_warps=warps)
        serving.handed.clear()
        serving.told.clear()
        serving.allocated.clear()
        serving.standin.launches.clear()

    watched = [
        kernel, image, tensor, F32, serving.stream, block, alpha, warps, number, grid, None, "no",
    ]  # fmt: skip
    calls()
    before = [sys.getrefcount(one) for one in watched]
    tracemalloc.start()
    for _ in range(100):
        calls()
    collect()
    held = tracemalloc.get_traced_memory()[0]
    for _ in range(1000):
        calls()
    collect()
    held = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    # One number per call would be 32 KB.
    assert held < 8192
    grown = [sys.getrefcount(one) - count for one, count in zip(watched, before, strict=True)]
    assert max(grown) < 50


def test_threads_launch_at_once(serving, standin):
    kernel = serving.kernel(param("n"), BLOCK)
    for i in range(8):
        kernel.add((i,), ("int",), {}, [(("i32",), serving.image(f"k{i}"))])
    ready = threading.Barrier(8)
    results = []

    def work(block):
        ready.wait()
        results.extend(kernel.bind((1,))(n, BLOCK=(block + n) % 8) for n in range(100))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [None] * 800
    assert kernel.counts() == {"served": 800, "general": 0, "handed_over": 0}
    assert len(standin.launches) == 800
    assert standin.alive["modules"] == 8
