"""Ways in which host functions launch kernels: each returns `x * factor` on a GPU.

`PATTERNS` is the table; the static reader must find `kernels`, by identity, in each function.
"""

import contextlib
import functools
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch.library import wrap_triton
from torch.library import wrap_triton as wrapped_launch

from support import launch_siblings
from support import launch_siblings as siblings

BLOCK = 64


class Pattern(NamedTuple):
    name: str
    fn: Any
    kernels: tuple[Any, ...]
    factor: float = 2.0


PATTERNS: list[Pattern] = []


def pattern(*kernels, factor=2.0, name=None):
    def add(fn):
        PATTERNS.append(Pattern(name or fn.__name__, fn, kernels, factor))
        return fn

    return add


@triton.jit
def _doubled(value):
    return value * 2


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _doubled(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def triple_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 64})
@triton.jit
def heuristic_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune([triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)], key=["n"])
@triton.heuristics({"BLOCK": lambda args: 64})
@triton.jit
def stacked_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def stacked_other_kernel(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


# A second autotuner around the same jitted function.
retuned_kernel = triton.autotune([triton.Config({"BLOCK": 256})], key=["n"])(tuned_kernel.fn)


def blocks(n):
    return (triton.cdiv(n, BLOCK),)


def meta_grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


@pattern(double_kernel)
def direct(x):
    out = torch.empty_like(x)
    double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def lambda_grid(x):
    out = torch.empty_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, out, x.numel(), BLOCK=BLOCK
    )
    return out


@pattern(double_kernel)
def run_method(x):
    out = torch.empty_like(x)
    double_kernel.run(x, out, x.numel(), grid=blocks(x.numel()), warmup=False, BLOCK=BLOCK)
    return out


@pattern(tuned_kernel)
def autotuned(x):
    out = torch.empty_like(x)
    tuned_kernel[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(tuned_kernel, retuned_kernel)
def two_autotuners_of_one_function(x):
    out = torch.empty_like(x)
    tuned_kernel[meta_grid(x.numel())](x, out, x.numel())
    retuned_kernel[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(tuned_kernel.fn)
def function_below_an_autotuner(x):
    out = torch.empty_like(x)
    tuned_kernel.fn[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(heuristic_kernel)
def heuristics(x):
    out = torch.empty_like(x)
    heuristic_kernel[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(stacked_kernel)
def autotuned_heuristics(x):
    out = torch.empty_like(x)
    stacked_kernel[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(stacked_other_kernel)
def heuristics_of_an_autotuner(x):
    out = torch.empty_like(x)
    stacked_other_kernel[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(double_kernel)
def wrap_by_imported_name(x):
    out = torch.empty_like(x)
    wrap_triton(double_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def wrap_by_alias(x):
    out = torch.empty_like(x)
    wrapped_launch(double_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def wrap_by_full_name(x):
    out = torch.empty_like(x)
    torch.library.wrap_triton(double_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def wrap_by_old_name(x):
    out = torch.empty_like(x)
    torch._library.capture_triton(double_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def wrap_by_home(x):
    out = torch.empty_like(x)
    wrapped = torch._library.triton.wrap_triton(double_kernel)
    wrapped[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def local_name(x):
    out = torch.empty_like(x)
    kernel = double_kernel
    again = kernel
    again[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


def _in_closure(kernel):
    def closure(x):
        out = torch.empty_like(x)
        kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
        return out

    return closure


pattern(double_kernel)(_in_closure(double_kernel))
pattern(triple_kernel, factor=3.0, name="closure_of_another")(_in_closure(triple_kernel))


@pattern(launch_siblings.double_kernel)
def module_attribute(x):
    out = torch.empty_like(x)
    siblings.double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, launch_siblings.double_kernel)
def same_name_in_two_modules(x):
    out = torch.empty_like(x)
    double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    launch_siblings.double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(launch_siblings.double_kernel)
def helper_of_another_module(x):
    return siblings.launch_double(x, torch.empty_like(x))


class Kernels:
    kernel = double_kernel

    class Inner:
        kernel = triple_kernel


@pattern(double_kernel)
def class_attribute(x):
    out = torch.empty_like(x)
    Kernels.kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(triple_kernel, factor=3.0)
def attribute_of_a_nested_class(x):
    out = torch.empty_like(x)
    Kernels.Inner.kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


namespace = types.SimpleNamespace(kernel=double_kernel)


@pattern(double_kernel)
def object_attribute(x):
    out = torch.empty_like(x)
    namespace.kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


class Layer:
    __slots__ = ("kernel",)

    def __init__(self, kernel):
        self.kernel = kernel

    def method(self, x):
        return self.launch(x, torch.empty_like(x))

    def launch(self, x, out):
        self.kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
        return out


pattern(double_kernel)(Layer(double_kernel).method)
double_layer = Layer(double_kernel)


@pattern(double_kernel)
def method_of_a_slotted_object(x):
    return double_layer.launch(x, torch.empty_like(x))


TABLE = {"double": double_kernel, "triple": triple_kernel}
LIST = [double_kernel, triple_kernel]
PAIR = (triple_kernel, double_kernel)


@pattern(double_kernel)
def dict_by_a_constant(x):
    out = torch.empty_like(x)
    TABLE["double"][blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def dict_by_a_variable(x, which="double"):
    out = torch.empty_like(x)
    name = which if x.dim() else which.lower()
    TABLE[name][blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def dict_get(x, which="double"):
    out = torch.empty_like(x)
    kernel = TABLE.get(str(which), triple_kernel)
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(triple_kernel, factor=3.0)
def list_by_index(x):
    out = torch.empty_like(x)
    LIST[1][blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def tuple_unpacked(x):
    out = torch.empty_like(x)
    _, kernel = PAIR
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(triple_kernel, double_kernel)
def loop_over_a_list(x):
    out = torch.empty_like(x)
    for kernel in reversed(LIST):
        kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def loop_over_items(x):
    outs = {}
    for name, kernel in TABLE.items():
        outs[name] = torch.empty_like(x)
        kernel[blocks(x.numel())](x, outs[name], x.numel(), BLOCK=BLOCK)
    return outs["double"]


@pattern(double_kernel, triple_kernel)
def loop_over_a_zip(x):
    outs = [torch.empty_like(x), torch.empty_like(x)]
    for place, (kernel, out) in enumerate(zip(LIST, outs, strict=True)):
        kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
        assert place < 2
    return outs[0]


@pattern(double_kernel, triple_kernel)
def comprehension(x):
    outs = [torch.empty_like(x) for _ in LIST]
    [k[blocks(x.numel())](x, o, x.numel(), BLOCK=BLOCK) for k, o in zip(LIST, outs, strict=True)]
    return outs[0]


@pattern(double_kernel, triple_kernel)
def ternary(x):
    out = torch.empty_like(x)
    kernel = double_kernel if x.numel() else triple_kernel
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def branches(x):
    out = torch.empty_like(x)
    if x.dim() > 7:
        kernel = triple_kernel
    else:
        kernel = double_kernel
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def either(x):
    out = torch.empty_like(x)
    (double_kernel or triple_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def walrus(x):
    out = torch.empty_like(x)
    if (kernel := double_kernel) is not None:
        kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def match_statement(x, how=2):
    out = torch.empty_like(x)
    match how:
        case 2:
            kernel = double_kernel
        case _:
            kernel = triple_kernel
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel, triple_kernel)
def try_and_except(x):
    out = torch.empty_like(x)
    try:
        kernel = TABLE["double"]
    except KeyError:
        kernel = triple_kernel
    finally:
        assert TABLE
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


def choose(double):
    if double:
        return double_kernel
    return triple_kernel


@pattern(double_kernel, triple_kernel)
def returned_by_a_helper(x):
    out = torch.empty_like(x)
    choose(True)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@functools.lru_cache(maxsize=None)
def cached_choice(name):
    return TABLE[name]


@pattern(triple_kernel, factor=3.0)
def returned_by_a_cached_factory(x):
    out = torch.empty_like(x)
    kernel = cached_choice("triple")
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


def pair_of_kernels():
    return double_kernel, triple_kernel


@pattern(double_kernel)
def returned_in_a_tuple(x):
    out = torch.empty_like(x)
    kernel, _ = pair_of_kernels()
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def partial_of_a_launcher(x):
    out = torch.empty_like(x)
    go = functools.partial(double_kernel[blocks(x.numel())], x, out)
    go(x.numel(), BLOCK=BLOCK)
    return out


def launch(kernel, x, out):
    kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def argument_of_a_helper(x):
    return launch(double_kernel, x, torch.empty_like(x))


@pattern(double_kernel, triple_kernel)
def one_helper_with_two_kernels(x):
    launch(triple_kernel, x, torch.empty_like(x))
    return launch(kernel=double_kernel, x=x, out=torch.empty_like(x))


launch_double = functools.partial(launch, double_kernel)


@pattern(double_kernel)
def partial_of_a_helper(x):
    return launch_double(x, torch.empty_like(x))


pattern(double_kernel, name="a_partial_itself")(
    functools.partial(lambda kernel, x: launch(kernel, x, torch.empty_like(x)), double_kernel)
)


def forward_all(fn, *args, **kwargs):
    return fn(*args, **kwargs)


@pattern(double_kernel)
def forwarded_by_star_arguments(x):
    return forward_all(launch, double_kernel, x, out=torch.empty_like(x))


@pattern(triple_kernel, factor=3.0)
def star_of_a_tuple(x):
    args = (triple_kernel, x)
    return launch(*args, **{"out": torch.empty_like(x)})


def with_callback(x, callback):
    out = torch.empty_like(x)
    callback(x, out)
    return out


@pattern(double_kernel)
def lambda_as_callback(x):
    return with_callback(
        x, lambda a, b: double_kernel[blocks(a.numel())](a, b, a.numel(), BLOCK=BLOCK)
    )


@pattern(launch_siblings.double_kernel)
def function_as_callback(x):
    return with_callback(x, callback=siblings.launch_double)


@pattern(double_kernel)
def two_steps(x):
    out = torch.empty_like(x)
    go = double_kernel[blocks(x.numel())]
    go(x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def nested_function(x):
    out = torch.empty_like(x)

    def inner():
        double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)

    inner()
    return out


@pattern(double_kernel)
def nested_function_twice(x):
    out = torch.empty_like(x)

    def outer():
        kernel = double_kernel

        def inner():
            kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)

        return inner

    outer()()
    return out


@pattern(double_kernel)
def local_lambda(x):
    out = torch.empty_like(x)
    go = lambda: double_kernel[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)  # noqa: E731
    go()
    return out


pattern(double_kernel, name="module_lambda")(
    lambda x: launch(double_kernel, x, torch.empty_like(x))
)
first_lambda, second_lambda = lambda x: launch(double_kernel, x, torch.empty_like(x)), lambda x: launch(triple_kernel, x, torch.empty_like(x))  # fmt: skip # noqa: E501
pattern(double_kernel, name="first_lambda_of_a_line")(first_lambda)
pattern(triple_kernel, factor=3.0, name="second_lambda_of_a_line")(second_lambda)


class Ops:
    kernel = triple_kernel

    @staticmethod
    def static(x):
        return launch(double_kernel, x, torch.empty_like(x))

    @classmethod
    def on_class(cls, x):
        return launch(cls.kernel, x, torch.empty_like(x))

    @property
    def chosen(self):
        return self.kernel

    def by_property(self, x):
        return launch(self.chosen, x, torch.empty_like(x))


class MoreOps(Ops):
    kernel = double_kernel

    def by_property(self, x):
        return super().by_property(x)


pattern(double_kernel, name="static_method")(Ops.static)
pattern(triple_kernel, factor=3.0, name="class_method")(Ops.on_class)
pattern(double_kernel, name="inherited_class_method")(MoreOps.on_class)
pattern(triple_kernel, factor=3.0, name="property_of_an_object")(Ops().by_property)
pattern(double_kernel, name="super_call")(MoreOps().by_property)


@pattern(double_kernel)
def static_method_by_class(x):
    return Ops.static(x)


class Launcher:
    def __init__(self, kernel, grid=None):
        self.kernel = kernel
        self.grid = grid

    def __call__(self, x):
        return launch(self.kernel, x, torch.empty_like(x))


@pattern(double_kernel)
def object_made_in_the_body(x):
    launcher = Launcher(double_kernel)
    return launcher(x)


pattern(triple_kernel, factor=3.0, name="callable_object")(Launcher(triple_kernel))


@dataclass(frozen=True)
class Plan:
    kernel: Any
    block: int = BLOCK


class Pair(NamedTuple):
    first: Any
    second: Any


@pattern(double_kernel)
def field_of_a_dataclass(x):
    plan = Plan(kernel=double_kernel)
    return launch(plan.kernel, x, torch.empty_like(x))


@pattern(triple_kernel, factor=3.0)
def field_of_a_named_tuple(x):
    pair = Pair(double_kernel, triple_kernel)
    return launch(pair.second, x, torch.empty_like(x))


class Module(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return launch(self.kernel, x, torch.empty_like(x))


double_module = Module(double_kernel)
sequential = torch.nn.Sequential(torch.nn.Identity(), Module(triple_kernel))


@pattern(double_kernel)
def module_call(x):
    return double_module(x)


@pattern(triple_kernel, factor=3.0)
def module_in_a_sequential(x):
    return sequential(x)


class GetItem:
    """A wrapper with a `__getitem__` of its own and no `fn`."""

    def __init__(self, kernel):
        self.inner = kernel

    def __getitem__(self, grid):
        def go(*args, **kwargs):
            return self.inner[grid](*args, **kwargs)

        return go


class FnWrapper:
    """A library's launcher: its own `run` and `__getitem__` around `fn`."""

    def __init__(self, fn):
        self.fn = fn

    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs)

    def __getitem__(self, grid):
        return functools.partial(self.run, grid=grid, warmup=False)


indexed = GetItem(double_kernel)
wrapper = FnWrapper(FnWrapper(double_kernel))
tuned_wrapper = FnWrapper(tuned_kernel)


@pattern(double_kernel)
def object_with_getitem(x):
    out = torch.empty_like(x)
    indexed[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def chain_of_fn(x):
    out = torch.empty_like(x)
    wrapper[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


@pattern(double_kernel)
def run_of_a_wrapper(x):
    out = torch.empty_like(x)
    wrapper.run(x, out, x.numel(), grid=blocks(x.numel()), warmup=False, BLOCK=BLOCK)
    return out


@pattern(tuned_kernel)
def wrapper_around_an_autotuner(x):
    out = torch.empty_like(x)
    tuned_wrapper[meta_grid(x.numel())](x, out, x.numel())
    return out


@pattern(double_kernel)
def wrapper_made_in_the_body(x):
    out = torch.empty_like(x)
    FnWrapper(double_kernel)[blocks(x.numel())](x, out, x.numel(), BLOCK=BLOCK)
    return out


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kernel = triple_kernel
        return launch(double_kernel, x, torch.empty_like(x))

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        ctx.kernel[blocks(grad.numel())](grad, out, grad.numel(), BLOCK=BLOCK)
        return out


apply = Function.apply


@pattern(double_kernel, triple_kernel)
def autograd_function(x):
    return Function.apply(x)


@pattern(double_kernel, triple_kernel)
def autograd_function_by_alias(x):
    return apply(x)


@pattern(launch_siblings.double_kernel)
def import_in_the_body(x):
    from support.launch_siblings import double_kernel as kernel

    return launch(kernel, x, torch.empty_like(x))


@pattern(launch_siblings.double_kernel)
def import_of_a_module_in_the_body(x):
    import support.launch_siblings as inside

    return launch(inside.double_kernel, x, torch.empty_like(x))


def logged(fn):
    @functools.wraps(fn)
    def around(*args, **kwargs):
        return fn(*args, **kwargs)

    return around


def unmarked(fn):
    return lambda *args: fn(*args)


class Decorator:
    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args):
        return self.fn(*args)


@pattern(double_kernel)
@logged
@torch.no_grad()
@logged
def decorated(x):
    return launch(double_kernel, x, torch.empty_like(x))


pattern(double_kernel, name="unmarked_decorator")(
    unmarked(unmarked(lambda x: launch(double_kernel, x, torch.empty_like(x))))
)


@Decorator
def by_an_object(x):
    return launch(double_kernel, x, torch.empty_like(x))


pattern(double_kernel, name="decorator_object")(by_an_object)


@contextlib.contextmanager
def doubling(x):
    out = torch.empty_like(x)
    launch(double_kernel, x, out)
    yield out, triple_kernel


@pattern(double_kernel)
def context_manager(x):
    with doubling(x) as (out, _):
        return out


@pattern(double_kernel, triple_kernel, factor=3.0)
def kernel_from_a_context_manager(x):
    with doubling(x) as (out, kernel):
        return launch(kernel, x, out)


def each_kernel():
    yield triple_kernel
    yield from (double_kernel,)


@pattern(triple_kernel, double_kernel)
def kernels_from_a_generator(x):
    out = torch.empty_like(x)
    for kernel in each_kernel():
        launch(kernel, x, out)
    return out


@functools.singledispatch
def dispatched(x):
    raise TypeError(x)


@dispatched.register(torch.Tensor)
def _(x):
    return launch(double_kernel, x, torch.empty_like(x))


@pattern(double_kernel)
def single_dispatch(x):
    return dispatched(x)


@pattern(double_kernel)
def mapped(x):
    def one(a):
        return launch(double_kernel, a, torch.empty_like(a))

    return next(iter(map(one, [x])))


@pattern(double_kernel)
def getattr_by_a_constant(x):
    return launch(getattr(siblings, "missing", double_kernel), x, torch.empty_like(x))


@pattern(launch_siblings.double_kernel)
def getattr_by_a_built_name(x):
    kind = "double"
    return launch(getattr(siblings, f"{kind}_kernel"), x, torch.empty_like(x))


@pattern(double_kernel)
def globals_by_name(x):
    return launch(globals()["double_kernel"], x, torch.empty_like(x))


@pattern(double_kernel, triple_kernel)
def table_filled_in_the_body(x):
    table = {}
    table["double"] = double_kernel
    table[x.dtype] = triple_kernel
    return launch(table["double"], x, torch.empty_like(x))


@pattern(double_kernel)
def list_filled_in_the_body(x):
    kernels = []
    kernels.append(double_kernel)
    out = torch.empty_like(x)
    for kernel in kernels:
        launch(kernel, x, out)
    return out


def launch_triple_unless_told(x, kernel=triple_kernel):
    return launch(kernel, x, torch.empty_like(x))


@pattern(triple_kernel, factor=3.0)
def default_argument(x):
    return launch_triple_unless_told(x)


@pattern(double_kernel)
def local_class(x):
    class Here:
        kernel = double_kernel

        def go(self, x):
            return launch(self.kernel, x, torch.empty_like(x))

    return Here().go(x)


def recursive(x, out, times):
    if times:
        return recursive(x, out, times - 1)
    return launch(double_kernel, x, out)


@pattern(double_kernel)
def recursion(x):
    return recursive(x, torch.empty_like(x), 3)


@pattern(double_kernel)
def checkpointed(x):
    from torch.utils.checkpoint import checkpoint

    def body(a):
        return launch(double_kernel, a, torch.empty_like(a))

    return checkpoint(body, x, use_reentrant=False)


module_launcher = double_kernel[(64,)]


@pattern(double_kernel)
def launcher_made_by_the_module(x):
    out = torch.empty_like(x)
    module_launcher(x, out, x.numel(), BLOCK=BLOCK)
    return out
