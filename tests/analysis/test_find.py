"""What `find_kernels` finds that a function leads to, of what grade, and that it runs nothing."""

import collections
import enum
import functools
import importlib
import json
import operator
import sys
import types
import weakref
from unittest import mock

import pytest

pytest.importorskip("triton")

import torch
import triton
from torch.library import wrap_triton

import opforge
from support import backends, launch_patterns
from support.launch_patterns import PATTERNS, TABLE, double_kernel, triple_kernel, tuned_kernel
from support.processes import run_python


def kernels_of(fn, **options):
    return [ref.kernel for ref in opforge.find_kernels(fn, **options)]


def here(fn, offset=0):
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno + offset}"


def nothing(x):
    return x


def launch(x):
    double_kernel[(1,)](x)


# Those of PATTERNS whose texts show what they launch.
LAUNCHED = """
    direct lambda_grid run_method autotuned two_autotuners_of_one_function heuristics
    function_below_an_autotuner autotuned_heuristics heuristics_of_an_autotuner
    wrap_by_imported_name wrap_by_alias wrap_by_full_name wrap_by_old_name wrap_by_home local_name
    closure closure_of_another module_attribute same_name_in_two_modules helper_of_another_module
    class_attribute attribute_of_a_nested_class object_attribute method dict_by_a_constant
    method_of_a_slotted_object dict_by_a_variable list_by_index branches walrus match_statement
    try_and_except partial_of_a_launcher lambda_as_callback function_as_callback two_steps
    nested_function local_lambda chain_of_fn run_of_a_wrapper wrapper_around_an_autotuner
""".split()  # noqa: SIM905  # one a line would fill a page


@pytest.mark.parametrize("pattern", PATTERNS, ids=[p.name for p in PATTERNS])
def test_every_kernel_that_a_pattern_launches_is_found(pattern):
    found = opforge.find_kernels(pattern.fn)
    kernels = {id(kernel) for kernel in pattern.kernels}
    certain = {id(ref.kernel) for ref in found if ref.grade == "launched"}
    assert kernels <= {id(ref.kernel) for ref in found}
    assert pattern.name not in LAUNCHED or certain == kernels
    assert found.unresolved == found.unbound == ()


def test_kernels_of_the_interpreter_are_found():
    assert len({p.name for p in PATTERNS}) == len(PATTERNS) == 98
    code = """
import json, opforge
from support.launch_patterns import PATTERNS, double_kernel
found = [{id(ref.kernel) for ref in opforge.find_kernels(p.fn)} for p in PATTERNS]
missed = [p.name for p, ids in zip(PATTERNS, found) if {*map(id, p.kernels)} - ids]
print(json.dumps([missed, type(double_kernel).__name__]))
"""
    assert json.loads(run_python(code, TRITON_INTERPRET="1")) == [[], "InterpretedFunction"]


class Choice:
    table = {"a": ({"b": [launch]},)}  # noqa: RUF012  # as others write it
    named = type("Named", (dict,), {"values": None})(a=[launch])
    partial = functools.partialmethod(lambda self, go, x: go(x), launch)
    cached = functools.cached_property(lambda self: double_kernel)
    dispatched = functools.singledispatchmethod(nothing)
    dispatched.register(torch.Tensor, lambda self, x: launch(x))

    def by_name(self, name, x):
        getattr(self, f"on_{name}")(x)

    def on_double(self, x):
        launch(x)


class Backend(enum.Enum):
    TRITON = functools.partial(launch)
    EAGER = functools.partial(nothing)
    KERNEL = (double_kernel, 64)


class Launchers(collections.UserDict):
    pass


launchers = Launchers(a=launch)
chained = collections.ChainMap({}, {"a": launch})
Function = type("Function", (torch.autograd.Function,), {"setup_context": staticmethod(launch)})
choice, held = Choice(), types.SimpleNamespace(double_kernel=double_kernel)
Held = type("Held", (), vars(held))
# Ways to `double_kernel` beside those of PATTERNS.
WAYS = {
    "method of a class": Choice.by_name,
    "nested partials": functools.partial(functools.partial(lambda go, x: go(x), launch), 1),
    "torch's decorators": torch.no_grad()(torch.compiler.disable(torch.compile(launch))),
    "dispatch to backends": backends.scale,
    "no source": types.FunctionType(compile("launch()", __file__, "eval"), {"launch": launch}),
    "keyword's default": lambda x, *, go=launch: go(x),
    "setup_context": Function.apply,
    "cached property": lambda x: choice.cached[(1,)](x),
    "partial method": lambda x: choice.partial(x),
    "dispatched method": lambda x: choice.dispatched(x),
    "nested tables": lambda x: choice.table["a"][0]["b"][0](x),
    "class derived from dict": lambda x: choice.named["a"][0](x),
    "member of an enum": lambda x: Backend.KERNEL.value[0][(1,)](x),
    "enum by a computed name": lambda x, name: Backend[name].value(x),
    "class derived from UserDict": lambda x: launchers["a"](x),
    "ChainMap": lambda x, name: chained[name](x),
    "method by a computed name": lambda x, name: choice.by_name(name, x),
    "computed name, object": lambda x, name: getattr(held, f"{name}_kernel")[(1,)](x),
    "computed name, class": lambda x, name: getattr(Held, f"{name}_kernel")[(1,)](x),
    "computed name, module": lambda x, name: getattr(launch_patterns, f"{name}_kernel")[(1,)](x),
    "vars": lambda x: vars(launch_patterns)["double_kernel"][(1,)](x),
    "attrgetter": lambda x: operator.attrgetter("double_kernel")(launch_patterns)[(1,)](x),
    "sys.modules": lambda x: sys.modules["support.launch_patterns"].double_kernel[(1,)](x),
    "__getitem__": lambda x: double_kernel.__getitem__((1,))(x),
    "run of the class": lambda x: type(double_kernel).run(double_kernel, x, grid=(1,)),
}


@pytest.mark.parametrize("fn", WAYS.values(), ids=WAYS)
def test_what_a_functions_names_lead_to_is_found(fn):
    assert double_kernel in kernels_of(fn)


@pytest.mark.parametrize("name", ["add", "rmatmul", "imul", "lt", "getitem", "enter", "getattr"])
def test_what_an_operator_launches_is_found(name):
    operand = type("Operand", (), {f"__{name}__": lambda *_: launch(None)})()
    assert kernels_of(lambda x: operand + x) == [double_kernel]


def test_what_lies_below_an_autotuner_is_found_where_it_is_named():
    kernel = launch_patterns.stacked_kernel
    assert kernels_of(lambda x: kernel[(1,)](x)) == [kernel]
    assert kernel.fn.fn in kernels_of(lambda x: kernel.fn.fn[(1,)](x))


@pytest.mark.parametrize(
    "body",
    [
        "from .kernels import go; go(x)",
        "import opforge_package.kernels; (lambda: opforge_package.kernels.go(x))()",
        "import importlib; importlib.import_module('opforge_package.kernels').go(x)",
        "import importlib; importlib.import_module('.kernels', __package__).go(x)",
    ],
)
def test_a_module_is_unbound_until_it_is_loaded(body, tmp_path, monkeypatch):
    folder = tmp_path / "opforge_package"
    folder.mkdir()
    folder.joinpath("__init__.py").write_text(f"def host(x):\n    {body}\n")
    folder.joinpath("kernels.py").write_text("from support.backends import experiment as go")
    monkeypatch.syspath_prepend(tmp_path)
    with mock.patch.dict(sys.modules):
        host = importlib.import_module("opforge_package").host
        found = opforge.find_kernels(host)
        assert (found.kernels, [u.name for u in found.unbound]) == ((), ["opforge_package.kernels"])
        importlib.import_module("opforge_package.kernels")
        assert kernels_of(host) == [tuned_kernel]
        assert opforge.find_kernels(host).unbound == ()


def local_grid(x, n):
    grid = (n,)
    if (kernel := double_kernel) is not None:
        kernel[grid](x)


def other_local(x):
    double_kernel = x
    return double_kernel[0], double_kernel.run(x)


MANY = [double_kernel] * 100
tree = types.SimpleNamespace(inner=types.SimpleNamespace(kernel=double_kernel))
wrapped = wrap_triton(double_kernel)
SHOWN = {
    "local grid": local_grid,
    "attributes": lambda x: tree.inner.kernel[(1,)](x),
    "wrapped before": lambda x: wrapped[(1,)](x),
}
MENTIONED = {
    "passed on": lambda x: nothing(double_kernel)[0],
    "stored": lambda x: (setattr(x, "kernel", double_kernel), x.shape[0], x[double_kernel]),
    "returned": lambda x: double_kernel,
    "taken out": lambda x: (double_kernel.fn[0], [double_kernel][x], (double_kernel, x)[0]),
    "warmup": lambda x: double_kernel.warmup(x, grid=(1,)),
    "operator.getitem": lambda x: operator.getitem(double_kernel, (1,))(x),
    "another item": lambda x: TABLE["triple"][(1,)](x),
    "unknown key of many": lambda x: MANY[x][(1,)](x),
    "run of something else": lambda x: x.run(double_kernel, tree.run(x)),
    "parameter": lambda x, double_kernel: (double_kernel[(1,)](x), MANY),
    "local": lambda x: (other_local(x), MANY),
    "loop": lambda x: [kernel[(1,)](x) for kernel in MANY],
}


@pytest.mark.parametrize("fn", [*SHOWN.values(), *MENTIONED.values()], ids=[*SHOWN, *MENTIONED])
def test_a_kernel_is_launched_where_the_text_shows_it_and_else_mentioned(fn):
    grades = {ref.name: ref.grade for ref in opforge.find_kernels(fn)}
    assert grades["double_kernel"] == ("launched" if fn in SHOWN.values() else "mentioned")


def test_options_that_a_graph_drops_are_listed_with_their_lines():
    def host(x):
        double_kernel[(1,)](x, n=1, num_warps=4)
        double_kernel[(1,)](x, launch_pdl=True)
        double_kernel.run(x, grid=(1,), warmup=False, num_ctas=2)

    (ref,) = opforge.find_kernels(host)
    assert ref.dropped == (f"launch_pdl ({here(host, 2)})", f"num_ctas ({here(host, 3)})")


def test_a_tuple_that_a_launch_passes_is_no_option():
    (ref,) = opforge.find_kernels(lambda x: double_kernel[(1,)](x, ("num_ctas", "launch_pdl")))
    assert ref.dropped == ()


def test_a_record_says_what_is_found_and_where():
    (ref,) = opforge.find_kernels(launch_patterns.autotuned)
    assert (ref.name, ref.location) == ("tuned_kernel", here(tuned_kernel.fn.fn))
    assert ref.found_via == f"tuned_kernel[...] in autotuned ({here(launch_patterns.autotuned, 3)})"
    named = MENTIONED["returned"]
    (ref,) = opforge.find_kernels(lambda x: named(x))
    assert f"({here(named)}), through test_a_record" in ref.found_via


def test_torch_triton_and_the_standard_library_lead_nowhere():
    def host(x):
        y = torch.nn.Linear(2, 2)(torch.nn.functional.silu(x).contiguous()).stride(0)
        return triton.cdiv(x.numel(), 2), functools.reduce(max, [1, 2]), json.dumps(y)

    assert opforge.find_kernels(host) == opforge.Discovery()


NAME = "opforge_nested::double"


@torch.library.custom_op(NAME, mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    launch(x)
    return x * 2


def marked(x):
    launch(x)


def local_operator(x):
    op = torch.ops.opforge_nested.double
    return op(x)


handle, namespace = torch.ops.opforge_nested.double, torch.ops.opforge_nested
marked._magi_torch_registered_op = handle.default
CALLED = {
    "path": lambda x: torch.ops.opforge_nested.double(x),
    "path of an overload": lambda x: torch.ops.opforge_nested.double.default(x),
    "handle": lambda x: handle(x),
    "overload of a handle": lambda x: handle.default(x),
    "definition": lambda x: double(x),
    "namespace": lambda x: namespace.double(x),
    "local": local_operator,
    "helper": lambda x: local_operator(x),
    "marked": lambda x: marked(x),
}
NAMED = {
    "mentioned": lambda x: print(torch.ops.opforge_nested.double, handle),
    "passed on": lambda x: torch.vmap(handle)(x),
    "getattr": lambda x: getattr(torch.ops.opforge_nested, "double")(x),
}


@pytest.mark.parametrize("fn", [*CALLED.values(), *NAMED.values()], ids=[*CALLED, *NAMED])
def test_an_operator_is_found_and_not_read(fn):
    found = opforge.find_kernels(fn)
    assert (found.kernels, found.nested_ops) == ((), (NAME,))
    (op,) = found.nested_ops
    assert op.op in (handle, handle.default, double)
    assert op.location.startswith(__file__)
    assert op.called is (fn in CALLED.values())


def test_an_operator_that_is_not_registered_is_found_without_one():
    def host(x):
        torch.ops.aten.add.Tensor(x, torch.ops._c10d_functional.wait_tensor(x))
        return torch.ops.opforge_nowhere.missing(x)

    (op,) = opforge.find_kernels(host).nested_ops
    assert (op, op.op, op.called) == ("opforge_nowhere::missing", None, True)
    assert op.location == here(host, 2)
    assert "opforge_nowhere" not in vars(torch.ops)


@pytest.mark.parametrize("mode", ["auto", "custom_op"])
def test_an_operator_is_read_by_the_function_it_was_made_of(op_name, mode):
    @opforge.op(name := op_name(), mode=mode)
    def op(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        launch(x)
        return x * n

    packet = getattr(torch.ops.opforge_tests, name.partition("::")[2])
    for asked in (op, packet, packet.default, double):
        found = opforge.find_kernels(asked)
        assert ([ref.kernel for ref in found], found.nested_ops) == ([double_kernel], ())
    assert opforge.find_kernels(lambda x: op(x)).nested_ops == (name,)


def explode(*args, **kwargs):
    raise AssertionError("run while reading")


SPECIAL = ["getattribute", "getattr", "getitem", "eq", "hash", "bool", "call", "iter", "len"]
EVERY = {f"__{name}__": explode for name in SPECIAL}
computing = {"given": property(explode), "cached": functools.cached_property(explode)}
computing |= dict.fromkeys(["__class__", "__dict__", "values"], property(explode))
Explosive = type("Explosive", (), {**EVERY, "__get__": explode})
Exploding = type("Meta", (type,), {**EVERY, "__instancecheck__": explode})("Exploding", (), {})
explosive, of_a_metaclass = Explosive(), object.__new__(Exploding)
computed = type("Computed", (dict,), {**EVERY, **computing, "kernel": explosive})(a=explosive)
lazy = type("Lazy", (types.ModuleType,), EVERY)("opforge_lazy")


def touches(x):
    launch(x)
    explosive.kernel[(1,)](x, {explosive: [explosive[0], explosive(x), explosive == x]})
    computed.kernel[(1,)](x, computed.given[0](x), computed.cached(x), computed[0](*computed))
    Exploding.kernel[(1,)](x, Exploding(x), of_a_metaclass.run(x), of_a_metaclass[0](x))
    lazy.kernel[(1,)](x, getattr(lazy, x)[0])
    return torch.ops.opforge_nowhere.touched(x)


@pytest.mark.parametrize("name", ["touches", "explosive", "computed", "of_a_metaclass", "lazy"])
def test_nothing_of_the_users_runs(name):
    assert kernels_of(globals()[name]) == [double_kernel] * (name == "touches")
    assert "opforge_nowhere" not in vars(torch.ops)


ODD = [
    print, operator.add, torch.add, torch.Tensor.add, "".join, int, type, None, 3, "text", sys, {},
    object(), property(), functools.partial(print, 1), classmethod(other_local), torch.ops,
    torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.autograd.Function.apply, other_local,
    lambda x, double_kernel: double_kernel[x], eval(f"lambda x: {' + '.join(['x'] * 2000)}"),
    eval(f"lambda x: x{'.f()' * 80}"), eval(f"lambda x: x{'[0]' * 80}(0)"),
]  # fmt: skip


@pytest.mark.parametrize("fn", ODD, ids=range(len(ODD)))
def test_what_leads_to_no_kernel_gives_none(fn):
    assert len(opforge.find_kernels(fn)) == 0


def test_reading_loads_neither_triton_nor_inductor_nor_dynamo():
    code = """
import json, sys, opforge
def read(*hosts):
    before = {*sys.modules}
    [opforge.find_kernels(host) for host in hosts]
    return sorted({*sys.modules} - before)
alone = read(lambda x, k: (k[(1,)](x), torch.ops.my.op(x)))
from support.launch_patterns import PATTERNS
print(json.dumps([alone, read(*(p.fn for p in PATTERNS))]))
"""
    alone, with_triton = json.loads(run_python(code))
    assert not [m for m in alone if m.startswith(("torch._inductor", "torch._dynamo", "triton"))]
    assert not [m for m in with_triton if m.startswith(("torch._inductor", "torch._dynamo"))]


def closure(kernel):
    return lambda x: kernel[(1,)](x)


kernel, home, by_cell = triple_kernel, types.ModuleType("home"), closure(triple_kernel)
home.step, home.table = nothing, {"step": nothing}
Plain = type("Plain", (), {"go": lambda self, x: self.step(x), "step": staticmethod(nothing)})
plain, by_default = Plain(), lambda x, first=nothing: first(x)


@pytest.mark.parametrize(
    ("fn", "change"),
    [
        (lambda x: kernel[(1,)](x), lambda m: m.setitem(globals(), "kernel", double_kernel)),
        (lambda x: home.step(x), lambda m: m.setattr(home, "step", launch)),
        (lambda x: plain.go(x), lambda m: m.setattr(plain, "step", launch, raising=False)),
        (lambda x: plain.go(x), lambda m: m.setattr(Plain, "step", staticmethod(launch))),
        (lambda x: plain + x, lambda m: m.setattr(Plain, "__add__", launch, raising=False)),
        (lambda x: home.table["step"](x), lambda m: m.setitem(home.table, "step", launch)),
        (by_cell, lambda m: m.setattr(by_cell.__closure__[0], "cell_contents", double_kernel)),
        (by_default, lambda m: m.setattr(by_default, "__defaults__", (launch,))),
        (nothing, lambda m: m.setattr(nothing, "__code__", launch.__code__)),
    ],
)
def test_what_changes_between_two_readings_is_seen(fn, change, monkeypatch):
    for _ in range(2):
        assert double_kernel not in kernels_of(fn)
        change(monkeypatch)
        assert double_kernel in kernels_of(fn)
        monkeypatch.undo()


def test_a_reading_keeps_no_function_and_no_module_alive(collect):
    module = types.ModuleType("short_lived")
    read = types.FunctionType(by_default.__code__, vars(module), argdefs=(closure(launch),))
    opforge.find_kernels(read)
    kept = [weakref.ref(thing) for thing in (module, read, read.__defaults__[0])]
    del module, read
    collect()
    assert [ref() for ref in kept] == [None, None, None]


def test_a_name_is_unbound_until_it_is_bound():
    def host(x):
        return lambda: (late[(1,)](x), of_global(x))

    names = {"__name__": "late"}
    of_global = types.FunctionType(launch.__code__, names)
    unbound = {u.name: u.location for u in opforge.find_kernels(host).unbound}
    assert unbound == {"late": here(host, 1), "double_kernel": here(launch, 1)}
    late = names["double_kernel"] = triple_kernel
    assert opforge.find_kernels(host).unbound == ()
    assert kernels_of(host) == [late]


def test_a_launch_of_what_only_the_caller_knows_is_unresolved():
    def host(kernel, x):
        kernel[(1,)](x)

    (lost,) = opforge.find_kernels(host).unresolved
    assert (lost.name, lost.location) == ("kernel[...]", here(host, 1))
    assert "parameter 'kernel'" in lost.why
    assert not opforge.find_kernels(functools.partial(host, double_kernel)).unresolved


level_1, level_2 = lambda x: level_2(x), lambda x: (level_1(x), launch(x))


@pytest.mark.parametrize("depth", range(4))
def test_depth_counts_calls(depth):
    found = opforge.find_kernels(level_1, max_depth=depth)
    assert [ref.kernel for ref in found] == [double_kernel] * (depth >= 2)
    assert [f"max_depth={depth}" in u.why for u in found.unresolved] == [True] * (depth < 2)


def test_decorators_cost_no_depth_and_the_shortest_way_counts():
    decorated = launch_patterns.logged(torch.no_grad()(launch_patterns.Decorator(launch)))
    assert kernels_of(decorated, max_depth=0) == [double_kernel]
    assert kernels_of(lambda x: (level_1(x), level_2), max_depth=2) == [double_kernel]


RING, HUGE = [launch], [*range(1_000_000), launch]
RING.append({"ring": RING})


def test_cycles_and_tables_of_data_end():
    assert kernels_of(lambda x: RING[0](x)) == [double_kernel]
    assert kernels_of(lambda x: (HUGE, triple_kernel)) == [triple_kernel]
