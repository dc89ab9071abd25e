"""The static reader never raises and runs nobody's code, whatever it is given."""

import functools
import json
import math
import operator
import sys
import threading

import pytest
import torch

import opforge
from support import launch_patterns
from support.processes import run_python


class Explosive:
    """Every way of looking at it raises, except for static ones."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __getitem__(self, key):
        raise RuntimeError(key)

    def __eq__(self, other):
        raise RuntimeError(other)

    def __hash__(self):
        raise RuntimeError("hash")

    def __bool__(self):
        raise RuntimeError("bool")

    def __call__(self, x):
        raise RuntimeError("call")


class ExplosiveMeta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)

    def __instancecheck__(cls, instance):
        raise RuntimeError("instance")


def touching():
    explosive = Explosive()

    class Exploding(metaclass=ExplosiveMeta):
        pass

    def touches(x):
        explosive.kernel[(1,)](x)
        explosive[0](x)
        explosive(x)
        Exploding.kernel(x)
        Exploding(x)
        return {explosive: 1} if False else [explosive]

    return touches


class Property:
    @property
    def kernel(self):
        raise RuntimeError("never run")

    @functools.cached_property
    def cached(self):
        raise RuntimeError("never run")


with_property = Property()


def reads_a_property(x):
    with_property.kernel[(1,)](x)
    return with_property.cached(x)


def generator(x):
    yield from (yield x)


async def coroutine(x):
    async with x as y, y:
        return [z async for z in y if await z]


def deep(x):
    return x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x + x


def self_mention(x):
    x = x(x)
    f = lambda: f()  # noqa: E731
    g = f
    f = g
    return f() and x


def stars(*args, **kwargs):
    first, *rest = args
    return stars(*rest, *args, **kwargs, **dict(kwargs), first=first[0](*rest))


def matched(x):
    match x:
        case {"kernel": k, **rest}:
            return k(rest)
        case [a, *b] | (a, b):
            return a[0](b)
        case str() as s:
            return s()


space = {}
exec("def made(x): return x", space)
exec(compile("def off(x):\n    return x", __file__, "exec"), space)


ODD = [
    touching(), reads_a_property, generator, coroutine, deep, self_mention, stars, matched,
    space["made"], space["off"],
    print, len, math.sin, operator.add, torch.add, torch.Tensor.add, "".join, [].append,
    int, type, object, object(), None, 3, "text", Explosive, property(),
    functools.partial(print, 1), functools.partial(stars, 1), functools.lru_cache(stars),
    staticmethod(stars), classmethod(stars), threading.Thread, torch.nn.Linear(2, 2), sys, {},
    torch.ops, torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.autograd.Function.apply,
    torch.compile(deep), lambda: 0, (lambda: lambda: 1)(), type("Made", (), {"__call__": print})(),
]  # fmt: skip


@pytest.mark.parametrize("fn", ODD, ids=range(len(ODD)))
def test_odd_code_does_not_raise(fn):
    found = opforge.find_kernels(fn)
    assert len(found) == 0
    for record in found.unresolved:
        assert record.name
        assert record.why
        assert record.location


def test_objects_that_explode_are_looked_at_statically():
    found = opforge.find_kernels(touching())
    assert not any("failed" in record.why for record in found.unresolved)
    assert len(opforge.find_kernels(Explosive())) == 0


def test_text_that_moved_under_a_function_is_not_its_source():
    assert "no source" in opforge.find_kernels(space["off"]).unresolved[0].why


def test_an_expression_of_hundreds_of_terms_is_read(tmp_path, monkeypatch):
    module = tmp_path / "opforge_long_module.py"
    terms = " + ".join(["x"] * 400)
    module.write_text(f"def host(x):\n    return {terms}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import opforge_long_module

    assert len(opforge.find_kernels(opforge_long_module.host)) == 0


def test_many_calls_in_a_row_are_read(tmp_path, monkeypatch):
    module = tmp_path / "opforge_chained_module.py"
    module.write_text(f"def host(x):\n    return x{'.f()' * 80}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import opforge_chained_module

    assert len(opforge.find_kernels(opforge_chained_module.host)) == 0


def run(code, **variables):
    return json.loads(run_python(code, **variables).splitlines()[-1])


REPORT = """
heavy = ("torch._inductor", "torch._dynamo", "triton")
print(json.dumps(sorted(m for m in set(sys.modules) - before if m.startswith(heavy))))
"""


def test_reading_loads_neither_triton_nor_inductor_nor_dynamo():
    code = """
import json, sys, torch
import opforge
before = set(sys.modules)
def helper(x): return torch.empty_like(x)
def host(x, k):
    k[(1,)](x)
    torch.ops.my.op(x)
    return helper(x)
assert len(opforge.find_kernels(host).unresolved) == 1
"""
    assert run(code + REPORT) == []


def test_reading_kernels_loads_neither_inductor_nor_dynamo():
    pytest.importorskip("triton")
    code = """
import json, sys, torch
import opforge
from support import launch_patterns
before = set(sys.modules)
for pattern in launch_patterns.PATTERNS:
    assert len(opforge.find_kernels(pattern.fn)) == len(pattern.kernels), pattern.name
"""
    assert [m for m in run(code + REPORT) if not m.startswith("triton")] == []


def test_kernels_of_the_interpreter_count():
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    code = """
import json
import opforge
from support import launch_patterns
wrong = []
for pattern in launch_patterns.PATTERNS:
    found = opforge.find_kernels(pattern.fn)
    if {id(k.kernel) for k in found} != {id(k) for k in pattern.kernels} or found.unresolved:
        wrong.append(pattern.name)
kinds = {type(launch_patterns.double_kernel).__name__}
names = sorted({k.name for p in launch_patterns.PATTERNS for k in opforge.find_kernels(p.fn)})
print(json.dumps([wrong, sorted(kinds), names[:2]]))
"""
    wrong, kinds, names = run(code, TRITON_INTERPRET="1")
    assert wrong == []
    assert kinds == ["InterpretedFunction"]
    assert names == ["double_kernel", "heuristic_kernel"]


class Computed:
    def __get__(self, obj, cls):
        raise AssertionError("run while reading")


class WithComputed:
    kernel = Computed()


with_computed = WithComputed()


def launches_what_a_descriptor_gives(x):
    with_computed.kernel[(1,)](x)


def test_what_a_descriptor_gives_is_unresolved():
    (lost,) = opforge.find_kernels(launches_what_a_descriptor_gives).unresolved
    assert "__get__ of Computed" in lost.why


class Proxy:
    @property
    def __dict__(self):
        raise AssertionError("run while reading")


proxy = Proxy()


def asks_a_proxy(x):
    proxy.check(x)
    return launch_patterns.direct(x)


def test_a_dict_that_is_a_property_is_not_read():
    found = opforge.find_kernels(asks_a_proxy)
    assert [k.kernel for k in found] == [launch_patterns.double_kernel]
