"""Launches that no `kernel[grid](...)` in the text shows, and functions that only look called."""

import contextlib
import functools
import operator

import pytest
import torch
import triton

import opforge
from opforge import _compat
from support.launch_patterns import double_kernel, triple_kernel, tuned_kernel


def kernels_of(fn):
    return [found.kernel for found in opforge.find_kernels(fn)]


def lost(fn):
    return [(u.name, u.why) for u in opforge.find_kernels(fn).unresolved]


def test_getitem_by_its_name_is_a_launch():
    def host(x):
        double_kernel.__getitem__((1,))(x)
        launch = operator.getitem(triple_kernel, (1,))
        launch(x)
        operator.getitem({"tuned": tuned_kernel}, "tuned")[(1,)](x)

    assert kernels_of(host) == [double_kernel, triple_kernel, tuned_kernel]
    # As they are while something is traced.
    with _compat.launches.routed_to(None):
        assert kernels_of(host) == [double_kernel, triple_kernel, tuned_kernel]


def test_methods_of_the_kernels_class_are_launches():
    def host(x):
        type(double_kernel).run(double_kernel, x, grid=(1,), warmup=False)
        triton.JITFunction.__getitem__(triple_kernel, (1,))(x)
        type(tuned_kernel).run(tuned_kernel, x, grid=(1,))

    assert kernels_of(host) == [double_kernel, triple_kernel, tuned_kernel]


def test_code_run_from_text_is_lost_with_its_location():
    def host(x, text):
        exec("double_kernel[(1,)](x)")
        eval(text)
        eval("double_kernel")[(1,)](x)

    found = opforge.find_kernels(host)
    line = host.__code__.co_firstlineno
    assert [(u.name, u.location) for u in found.unresolved] == [
        ("exec", f"{__file__}:{line + 1}"),
        ("eval", f"{__file__}:{line + 2}"),
        ("eval('double_kernel')[(1,)]", f"{__file__}:{line + 3}"),
    ]
    assert all("text" in u.why for u in found.unresolved)


def test_text_that_calls_nothing_is_not_reported():
    def host(x):
        return eval("1 + 1") * x + eval("__name__")

    assert lost(host) == []


class Scaled:
    """Every operator of this class launches."""

    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        double_kernel[(1,)](self.x, other)
        return self

    def __rmatmul__(self, other):
        triple_kernel[(1,)](self.x, other)
        return self

    def __neg__(self):
        tuned_kernel[(1,)](self.x)
        return self

    def __imul__(self, other):
        double_kernel[(1,)](self.x, other)
        return self

    def __lt__(self, other):
        triple_kernel[(1,)](self.x, other)
        return self.x

    def __contains__(self, other):
        tuned_kernel[(1,)](self.x)
        return True

    def __getitem__(self, at):
        double_kernel[(1,)](self.x, at)
        return self.x

    def __setitem__(self, at, value):
        triple_kernel[(1,)](self.x, at, value)

    def __enter__(self):
        double_kernel[(1,)](self.x)

    def __exit__(self, *raised):
        triple_kernel[(1,)](self.x)

    def __call__(self, x):
        tuned_kernel[(1,)](x)

    def later(self):
        triple_kernel[(1,)](self.x)


shared = Scaled(None)


def adds(x):
    return shared + x


def adds_one_made_here(x):
    scaled = Scaled(x)
    return scaled + 1


def adds_one_made_in_place(x):
    return Scaled(x) + x


def adds_one_given(x, scaled=shared):
    return scaled + x


def multiplies_from_the_right(x):
    return x @ shared


def negates(x):
    return -shared


def multiplies_in_place(x):
    scaled = Scaled(x)
    scaled *= 2


def compares(x):
    return x if shared < x else None


def contains(x):
    assert x in shared


def takes_an_item(x):
    return shared[x]


def stores_an_item(x):
    shared[0] = x


def enters(x):
    with shared:
        return x


def enters_one_made_here(x):
    with Scaled(x):
        return x


def calls(x):
    return Scaled(x)(x)


def uses_what_an_operator_returns(x):
    sums = Scaled(x) + x
    sums.later()


def adds_again_and_again(x):
    x = x + 1
    total = shared
    for _ in range(3):
        total = total + x
    return total


def adds_many_terms(x):
    return 1 + x * 2 + (x - 3) + shared


class Layer:
    def __init__(self, x):
        self.scaled = Scaled(x)

    def adds(self, x):
        return self.scaled + x


def adds_in_a_comprehension(x):
    return [shared + one for one in x]


def adds_one_of_a_class_in_the_body(x):
    class Inner:
        def __add__(self, other):
            double_kernel[(1,)](other)

    return Inner() + x


@pytest.mark.parametrize(
    ("host", "kernels"),
    [
        (adds, [double_kernel]),
        (adds_one_made_here, [double_kernel]),
        (adds_one_made_in_place, [double_kernel]),
        (adds_one_given, [double_kernel]),
        (multiplies_from_the_right, [triple_kernel]),
        (negates, [tuned_kernel]),
        (multiplies_in_place, [double_kernel]),
        (compares, [triple_kernel]),
        (contains, [tuned_kernel]),
        (takes_an_item, [double_kernel]),
        (stores_an_item, [triple_kernel]),
        (enters, [double_kernel, triple_kernel]),
        (enters_one_made_here, [double_kernel, triple_kernel]),
        (calls, [tuned_kernel]),
        (uses_what_an_operator_returns, [double_kernel, triple_kernel]),
        (adds_again_and_again, [double_kernel]),
        (adds_many_terms, []),
        (Layer.adds, [double_kernel]),
        (adds_in_a_comprehension, [double_kernel]),
        (adds_one_of_a_class_in_the_body, [double_kernel]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_operator_that_launches_is_followed(host, kernels):
    assert {id(k) for k in kernels_of(host)} == {id(k) for k in kernels}
    assert lost(host) == []


def test_operators_of_tensors_and_numbers_are_not_reported():
    def host(x, n):
        y = x * n + shared.x
        y -= x[0] @ x
        return y < n, -y, n in (1, 2)

    assert kernels_of(host) == []
    assert lost(host) == []


def guarded(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


class Guarded(torch.autograd.Function):
    @guarded
    @staticmethod
    def forward(ctx, x):
        double_kernel[(1,)](x)

    @guarded
    @staticmethod
    def backward(ctx, grad):
        triple_kernel[(1,)](grad)


def test_a_decorator_around_a_static_method_is_seen_through():
    def helper(x):
        return Guarded.apply(x)

    def host(x):
        return helper(x)

    assert kernels_of(host) == [double_kernel, triple_kernel]


def forward_with_backward(x):
    double_kernel[(1,)](x)
    return x, backward_of_it


def backward_of_it(grad):
    triple_kernel[(1,)](grad)


class Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out, ctx.backward = forward_with_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        return ctx.backward(grad)


def test_an_attribute_gets_its_part_of_what_is_unpacked():
    def host(x):
        return Paired.apply(x)

    assert kernels_of(host) == [double_kernel, triple_kernel]


class GuardedPair(torch.autograd.Function):
    @staticmethod
    @guarded
    def forward(ctx, x):
        out, ctx.backward = forward_with_backward(x)
        return out

    @staticmethod
    @guarded
    def backward(ctx, grad):
        return ctx.backward(grad)


def test_what_a_decorated_forward_stores_is_found_in_its_backward():
    def host(x):
        return GuardedPair.apply(x)

    assert kernels_of(host) == [double_kernel, triple_kernel]


class Backend:
    def implementation(self, name):
        return getattr(self, name, None)

    def one(self, x):
        double_kernel[(1,)](x)

    def two(self, x):
        pass

    three = four = five = six = two

    def seven(self, x):
        triple_kernel[(1,)](x)


backend = Backend()


def test_a_short_host_with_many_names_is_read():
    def host(x):
        backend.implementation("one")(x)
        backend.implementation("two")(x)
        backend.implementation("three")(x)
        backend.implementation("four")(x)
        backend.implementation("five")(x)
        backend.implementation("six")(x)
        backend.implementation("seven")(x)

    assert kernels_of(host) == [double_kernel, triple_kernel]
    assert lost(host) == []


def test_a_name_out_of_a_list_of_names_is_known():
    def host(x):
        for name in ("one", "seven"):
            getattr(backend, name)(x)

    assert kernels_of(host) == [double_kernel, triple_kernel]
    assert lost(host) == []


class Lender:
    def bind(self):
        self.matmul = functools.partial(Lender.double, self)

    def double(self, x):
        double_kernel[(1,)](x)

    def other(self):
        self.matmul = functools.partial(Lender.triple, self)

    def triple(self, x):
        triple_kernel[(1,)](x)


class Borrower:
    def __init__(self):
        Lender.bind(self)

    def matmul(self, x):
        raise NotImplementedError

    def forward(self, x):
        return self.matmul(x)


def test_what_another_classs_method_stores_on_self_is_found():
    assert kernels_of(Borrower.forward) == [double_kernel]


def test_a_function_that_is_kept_is_not_called():
    def helper(x):
        double_kernel[(1,)](x)

    def host(x, library, hooks):
        library.impl("double", helper, "CUDA")
        hooks.append(helper)

    assert kernels_of(host) == []


def test_a_function_handed_to_unknown_code_is_called():
    def helper(x):
        double_kernel[(1,)](x)

    def host(x, runner):
        runner.start(helper)

    assert kernels_of(host) == [double_kernel]


implementations = {}


def implementation_of(name):
    return implementations.get(name)


def test_a_method_of_what_an_empty_table_gives_is_lost():
    def host(x):
        chosen = implementation_of("double")
        return chosen.launch(x).view(-1)

    assert [name for name, _ in lost(host)] == ["chosen.launch"]


def test_a_tensor_of_an_empty_cache_is_not_reported():
    def host(x):
        return implementation_of("buffer").view(-1)

    assert lost(host) == []


def test_the_way_to_a_kernel_reads_as_it_is_written():
    def host(x, n):
        double_kernel[(1,)](x)
        triple_kernel[(n, 2)](x)
        tuned_kernel[lambda meta: (n,)](x)

    ways = [found.found_via.split(" in ")[0] for found in opforge.find_kernels(host)]
    assert ways == [
        "double_kernel[(1,)]",
        "triple_kernel[(n, 2)]",
        "tuned_kernel[lambda meta: (n,)]",
    ]


def test_a_context_manager_of_the_standard_library_is_not_reported():
    def host(x):
        with contextlib.nullcontext(), torch.no_grad():
            return x + 1

    assert lost(host) == []
