"""Which kernels the static reader finds, pattern by pattern, and which calls it loses."""

import re
import sys

import pytest

pytest.importorskip("triton")

import functools
import importlib
import types

import torch
import triton
import triton.language as tl

import opforge
from opforge.analysis.discovery import source
from support import launch_patterns, launch_siblings
from support.launch_patterns import (
    PATTERNS,
    Launcher,
    Layer,
    double_kernel,
    launch,
    triple_kernel,
    tuned_kernel,
)


def kernels_of(fn, **options):
    return [k.kernel for k in opforge.find_kernels(fn, **options)]


def lost(fn):
    return [u.why for u in opforge.find_kernels(fn).unresolved]


def here(fn, offset=0):
    code = fn.__code__
    return f"{code.co_filename}:{code.co_firstlineno + offset}"


@pytest.mark.parametrize("pattern", PATTERNS, ids=[p.name for p in PATTERNS])
def test_a_launch_is_found(pattern):
    found = opforge.find_kernels(pattern.fn)
    assert {id(k.kernel) for k in found} == {id(k) for k in pattern.kernels}
    assert len(found) == len(pattern.kernels)
    assert found.unresolved == ()
    assert found.unbound == ()


def test_the_corpus_is_large_and_its_names_are_its_own():
    assert len(PATTERNS) >= 60
    assert len({p.name for p in PATTERNS}) == len(PATTERNS)


def test_a_record_says_what_is_launched_and_where():
    (found,) = opforge.find_kernels(launch_patterns.autotuned)
    assert found.name == "tuned_kernel"
    assert found.kernel is tuned_kernel
    assert found.location == here(tuned_kernel.fn.fn)
    assert found.found_via.startswith("tuned_kernel[")
    assert f"({here(launch_patterns.autotuned, 3)})" in found.found_via


def test_the_way_to_a_kernel_names_the_function_that_launches():
    (found,) = opforge.find_kernels(launch_patterns.argument_of_a_helper)
    assert " in launch (" in found.found_via


def test_a_kernel_launched_twice_is_one_record():
    def twice(x):
        launch(double_kernel, x, x)
        double_kernel[(1,)](x)

    assert kernels_of(twice) == [double_kernel]


def test_gluon_kernels_count():
    gluon = pytest.importorskip("triton.experimental.gluon")

    @gluon.jit
    def kernel(x):
        pass

    def host(x):
        kernel[(1,)](x)

    assert kernels_of(host) == [kernel]


def test_a_module_level_wrapped_kernel_is_the_kernel_below():
    wrapped = torch.library.wrap_triton(double_kernel)
    go = wrapped[(1,)]

    def indexed(x):
        wrapped[(1,)](x)

    def called(x):
        go(x)

    assert kernels_of(indexed) == [double_kernel]
    assert kernels_of(called) == [double_kernel]


def hidden(x):
    double_kernel[(1,)](x)


def test_a_local_hides_a_global():
    def host(x):
        double_kernel = triple_kernel
        double_kernel[(1,)](x)

    assert kernels_of(host) == [triple_kernel]


def test_a_local_hides_a_closure_variable():
    kernel = double_kernel

    def host(x):
        kernel = triple_kernel
        kernel[(1,)](x)

    assert kernel is double_kernel
    assert kernels_of(host) == [triple_kernel]


def test_a_closure_variable_hides_a_global():
    double_kernel = triple_kernel

    def host(x):
        double_kernel[(1,)](x)

    assert kernels_of(host) == [triple_kernel]


def test_a_parameter_hides_a_global():
    def host(x, double_kernel):
        double_kernel[(1,)](x)

    found = opforge.find_kernels(host)
    assert len(found) == 0
    assert "parameter 'double_kernel'" in found.unresolved[0].why


def test_a_comprehension_variable_stays_inside():
    def host(x):
        [double_kernel for double_kernel in (triple_kernel,)]
        double_kernel[(1,)](x)

    assert kernels_of(host) == [double_kernel]


def test_a_class_body_is_not_seen_by_its_methods():
    def host(x):
        class Here:
            double_kernel = triple_kernel

            def go(self, x):
                double_kernel[(1,)](x)

        Here().go(x)

    assert kernels_of(host) == [double_kernel]


def test_a_name_bound_after_the_definition_is_honoured():
    space = {"__name__": "late"}

    host = types.FunctionType(hidden.__code__, space)
    assert [u.name for u in opforge.find_kernels(host).unbound] == ["double_kernel"]
    assert opforge.find_kernels(host).unbound[0].location == here(hidden, 1)
    space["double_kernel"] = triple_kernel
    assert kernels_of(host) == [triple_kernel]
    assert opforge.find_kernels(host).unbound == ()


def test_an_empty_cell_is_unbound_until_it_is_filled():
    def host(x):
        late[(1,)](x)

    (name,) = opforge.find_kernels(host).unbound
    assert name.name == "late"
    assert "closure" in name.why
    assert name.location == here(host, 1)
    late = double_kernel
    assert kernels_of(host) == [double_kernel]


def test_names_of_helpers_and_nested_functions_are_unbound_too():
    def helper(x):
        return lambda: not_there_yet(x)  # noqa: F821

    def host(x):
        helper(x)

    assert [u.name for u in opforge.find_kernels(host).unbound] == ["not_there_yet"]


def test_a_kernel_that_is_only_mentioned_is_not_launched():
    def mention(x):
        print(double_kernel)
        assert double_kernel is not triple_kernel
        names = [double_kernel, triple_kernel]
        str(names)
        return repr(double_kernel.fn)

    found = opforge.find_kernels(mention)
    assert len(found) == 0
    assert found.unresolved == ()


def test_warmup_is_not_a_launch():
    def host(x):
        double_kernel.warmup(x, grid=(1,))

    assert kernels_of(host) == []


def test_a_kernel_handed_to_a_helper_that_does_not_launch_is_not_launched():
    def describe(kernel):
        return kernel.fn.__name__

    def host(x):
        describe(double_kernel)

    assert kernels_of(host) == []


def test_device_functions_are_not_launches():
    assert kernels_of(launch_patterns.direct) == [double_kernel]


def test_torch_and_the_standard_library_are_leaves():
    def host(x):
        y = torch.nn.functional.silu(x).contiguous()
        y = torch.nn.Linear(2, 2)(y)
        sorted([3, 1], key=lambda v: -v)
        return triton.cdiv(x.numel(), 2), functools.reduce(max, [1, 2]), y.stride(0)

    assert opforge.find_kernels(host) == opforge.Discovery()


def level_3(x):
    double_kernel[(1,)](x)


def level_2(x):
    level_3(x)


def level_1(x):
    level_2(x)


@pytest.mark.parametrize("depth", range(5))
def test_depth_counts_calls(depth):
    found = opforge.find_kernels(level_1, max_depth=depth)
    assert [k.kernel for k in found] == ([double_kernel] if depth >= 2 else [])
    if depth < 2:
        assert f"deeper than max_depth={depth}" in found.unresolved[0].why


def last_step(x):
    double_kernel[(1,)](x)
    return x


def middle_step(x):
    return last_step(x)


def long_way(x):
    return middle_step(x)


def given_both(x, fn):
    return x


def two_ways(x):
    far = long_way(0)
    given_both(far, last_step)
    return middle_step(0)


def test_a_call_beyond_the_depth_is_read_where_a_shorter_way_leads_to_it():
    found = opforge.find_kernels(two_ways, max_depth=2)
    assert [k.kernel for k in found] == [double_kernel]
    assert not found.unresolved


def test_depth_zero_reads_the_function_itself():
    assert kernels_of(hidden, max_depth=0) == [double_kernel]


@pytest.mark.parametrize(
    "name",
    ["decorated", "unmarked_decorator", "decorator_object", "nested_function", "local_lambda"],
)
def test_wrappers_and_nested_functions_cost_no_depth(name):
    (fn,) = (p.fn for p in PATTERNS if p.name == name)
    assert double_kernel in kernels_of(fn, max_depth=1)


def test_decorators_alone_cost_no_depth():
    @launch_patterns.logged
    @torch.no_grad()
    @launch_patterns.logged
    @launch_patterns.Decorator
    def host(x):
        double_kernel[(1,)](x)

    assert kernels_of(host, max_depth=0) == [double_kernel]


def ping(x):
    pong(x)


def pong(x):
    ping(x)
    double_kernel[(1,)](x)


def test_a_cycle_is_read_once():
    assert kernels_of(ping) == [double_kernel]


def growing(fn):
    return growing(lambda: fn())


def test_functions_that_grow_arguments_without_end_stop():
    assert kernels_of(lambda: growing(hidden)) is not None


def test_a_function_is_parsed_once(monkeypatch):
    parsed = []
    real = source._parse
    monkeypatch.setattr(source, "_parse", lambda *a: parsed.append(a[0].co_name) or real(*a))
    namespace = {"double_kernel": double_kernel}
    fresh = types.FunctionType(hidden.__code__.replace(co_name="hidden"), namespace)
    for _ in range(3):
        assert kernels_of(fresh) == [double_kernel]
    assert parsed.count("hidden") == 1


chosen_kernel = double_kernel
KERNELS = {"first": double_kernel}


class Holder:
    kernel = double_kernel


holder = Holder()


def launches_a_global(x):
    chosen_kernel[(1,)](x)


def launches_an_attribute(x):
    holder.kernel[(1,)](x)


def launches_an_item(x):
    KERNELS["first"][(1,)](x)


@pytest.mark.parametrize("fn", [launches_a_global, launches_an_attribute, launches_an_item])
def test_a_kernel_that_was_replaced_since_the_last_reading_is_seen(fn, monkeypatch):
    assert kernels_of(fn) == [double_kernel]
    monkeypatch.setitem(globals(), "chosen_kernel", triple_kernel)
    monkeypatch.setitem(vars(holder), "kernel", triple_kernel)
    monkeypatch.setitem(KERNELS, "first", triple_kernel)
    assert kernels_of(fn) == [triple_kernel]
    monkeypatch.undo()
    assert kernels_of(fn) == [double_kernel]


def test_globals_that_are_stored_in_each_other_end():
    def host(x):
        LEFT["other"] = RIGHT
        RIGHT["other"] = LEFT
        return LEFT["other"], (lambda: hidden(x))()

    assert kernels_of(host) == [double_kernel]


LEFT, RIGHT = {}, {}


def test_a_method_read_by_itself_knows_its_class():
    class_of = Launcher.__call__
    assert kernels_of(class_of) == []
    assert "known only when it runs" in lost(class_of)[0] or "parameter" in lost(class_of)[0]
    assert kernels_of(Layer(triple_kernel).launch) == [triple_kernel]


def test_a_subclass_method_is_what_runs():
    assert kernels_of(launch_patterns.MoreOps().by_property) == [double_kernel]
    assert kernels_of(launch_patterns.MoreOps.by_property) == [double_kernel]


def test_an_unknown_parameter_is_lost_with_its_location():
    def host(kernel, x):
        kernel[(1,)](x)

    (found,) = opforge.find_kernels(host).unresolved
    assert found.location == here(host, 1)
    assert found.name.startswith("kernel[")
    assert found.why == "parameter 'kernel' is given by the caller"


def test_getattr_with_a_computed_name_is_lost():
    def host(x, name):
        getattr(launch_siblings, name.upper())[(1,)](x)

    assert lost(host) == ["getattr with a name that is computed"]


def test_getattr_of_torch_is_not_reported():
    def host(x, name):
        return getattr(torch, name)(x) + getattr(x, name)()

    assert lost(host) == []


def test_a_kernel_made_by_the_body_is_lost():
    def host(x):
        @triton.jit
        def kernel(x):
            pass

        kernel[(1,)](x)
        triton.autotune([], key=[])(double_kernel)[(1,)](x)

    assert lost(host) == ["the kernel is made when the function runs"] * 2


def test_a_function_without_source_is_lost():
    space = {}
    exec("def made(x): return x.launch()", space)
    made = space["made"]

    def host(x):
        return made(x)

    (found,) = opforge.find_kernels(host).unresolved
    assert found == opforge.find_kernels(host).unresolved[0]
    assert found.location == here(host, 1)
    assert found.why == "made has no source to read"
    (alone,) = opforge.find_kernels(made).unresolved
    assert alone.why == "made has no source to read"


def test_a_module_that_is_not_imported_yet_is_lost():
    def host(x):
        from idle_installed_module import kernel

        kernel[(1,)](x)

    (why,) = lost(host)
    assert why == "what it holds is known only when it runs"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules; only the one asked for is imported."""
    folder = tmp_path / "opforge_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(
        "import triton\n@triton.jit\ndef kernel(x):\n    pass\ndef go(x):\n    kernel[(1,)](x)\n"
    )
    (folder / "host.py").write_text(
        "def helper(x):\n    from .kernels import go\n    go(x)\n\n"
        "def host(x):\n    helper(x)\n\n"
        "def by_name(x):\n    import importlib\n"
        "    importlib.import_module('opforge_package.kernels').go(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("opforge_package.host")
    for name in [m for m in sys.modules if m.startswith("opforge_package")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["host", "by_name"])
def test_an_import_in_a_helper_is_followed_once_it_is_loaded(package, name):
    host = getattr(package, name)
    (before,) = opforge.find_kernels(host).unresolved
    assert "is not imported yet" in before.why
    assert "opforge_package.kernels" not in sys.modules
    loaded = importlib.import_module("opforge_package.kernels")
    assert kernels_of(host) == [loaded.kernel]


def test_a_method_of_a_parameter_is_not_reported():
    def host(x, layer):
        return layer.weight.stride(0) + x.size(1) + layer(x)

    assert [u.why for u in opforge.find_kernels(host).unresolved] == [
        "parameter 'layer' is given by the caller"
    ]


def test_an_empty_table_is_lost():
    table = {}

    def host(x):
        table[x.dtype][(1,)](x)

    assert lost(host) == ["the table it is taken from is still empty"]
    table[torch.float32] = double_kernel
    assert kernels_of(host) == [double_kernel]


def test_a_registry_by_two_parts_gives_what_the_known_part_selects():
    registry = {
        ("double", "a"): double_kernel,
        ("double", "b"): tuned_kernel,
        ("triple", "a"): triple_kernel,
    }

    def host(x, backend):
        registry["double", backend][(1,)](x)

    assert kernels_of(host) == [double_kernel, tuned_kernel]


def test_every_location_has_a_file_and_a_line():
    found = [opforge.find_kernels(p.fn) for p in PATTERNS]
    for discovery in found:
        for record in discovery:
            assert re.fullmatch(r".+\.py:\d+", record.location)
            assert re.search(r"\(.+\.py:\d+\)$", record.found_via)


@triton.jit
def unused_kernel(x, BLOCK: tl.constexpr):
    pass
