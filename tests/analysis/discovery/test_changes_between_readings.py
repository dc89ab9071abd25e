"""What changes between two readings is seen by the second; nothing that was read stays alive."""

import types
import weakref

import pytest

import opforge
from support.launch_patterns import double_kernel, triple_kernel


def launches_double(x):
    double_kernel[(1,)](x)


def launches_triple(x):
    triple_kernel[(1,)](x)


def does_nothing(x):
    return x


class Backend:
    launch = staticmethod(does_nothing)

    def run(self, x):
        self.launch(x)


class Adds:
    def __add__(self, other):
        return launches_double(other)


class Plain:
    pass


step = does_nothing
table = {"step": does_nothing}
steps = [does_nothing]
backend = Backend()
plain = Plain()
home = types.ModuleType("home")
home.step = does_nothing


def by_global(x):
    step(x)


def by_helper(x):
    by_global(x)


def by_module(x):
    home.step(x)


def by_class(x):
    backend.run(x)


def by_instance(x):
    backend.run(x)


def by_table(x):
    table["step"](x)


def by_list(x):
    for one in steps:
        one(x)


def by_default(x, first=does_nothing):
    first(x)


def by_code(x):
    return x


def by_operator(x):
    return plain + x


def closing_over(inner):
    def by_closure(x):
        inner(x)

    return by_closure


def names(fn):
    return [ref.name for ref in opforge.find_kernels(fn)]


def test_another_global_is_seen(monkeypatch):
    assert names(by_helper) == []
    monkeypatch.setitem(globals(), "step", launches_double)
    assert names(by_helper) == ["double_kernel"]
    monkeypatch.setitem(globals(), "step", launches_triple)
    assert names(by_helper) == ["triple_kernel"]
    monkeypatch.undo()
    assert names(by_helper) == []


def test_another_attribute_of_a_module_is_seen(monkeypatch):
    assert names(by_module) == []
    monkeypatch.setattr(home, "step", launches_double)
    assert names(by_module) == ["double_kernel"]


def test_another_attribute_of_a_class_is_seen(monkeypatch):
    assert names(by_class) == []
    monkeypatch.setattr(Backend, "launch", staticmethod(launches_double))
    assert names(by_class) == ["double_kernel"]


def test_another_attribute_of_an_object_is_seen(monkeypatch):
    assert names(by_instance) == []
    monkeypatch.setattr(backend, "launch", launches_double, raising=False)
    assert names(by_instance) == ["double_kernel"]


def test_another_entry_of_a_table_is_seen(monkeypatch):
    assert names(by_table) == []
    monkeypatch.setitem(table, "step", launches_double)
    assert names(by_table) == ["double_kernel"]


def test_another_item_of_a_list_is_seen():
    assert names(by_list) == []
    steps.append(launches_double)
    try:
        assert names(by_list) == ["double_kernel"]
    finally:
        steps.pop()


def test_another_operator_of_a_class_is_seen(monkeypatch):
    assert names(by_operator) == []
    monkeypatch.setattr(Plain, "__add__", Adds.__add__, raising=False)
    assert names(by_operator) == ["double_kernel"]


def test_another_default_is_seen(monkeypatch):
    assert names(by_default) == []
    monkeypatch.setattr(by_default, "__defaults__", (launches_double,))
    assert names(by_default) == ["double_kernel"]


def test_another_code_is_seen(monkeypatch):
    assert names(by_code) == []
    monkeypatch.setattr(by_code, "__code__", launches_double.__code__)
    assert names(by_code) == ["double_kernel"]


def test_another_content_of_a_cell_is_seen():
    by_closure = closing_over(does_nothing)
    assert names(by_closure) == []
    by_closure.__closure__[0].cell_contents = launches_double
    assert names(by_closure) == ["double_kernel"]


def test_a_function_in_the_place_of_one_that_is_gone_is_told_from_it(monkeypatch):
    # The second has the memory, and so the id, of the first, which nobody holds any longer.
    for inner, found in ((does_nothing, []), (launches_double, ["double_kernel"])) * 3:
        monkeypatch.setitem(globals(), "step", closing_over(inner))
        assert names(by_helper) == found
        monkeypatch.setitem(globals(), "step", does_nothing)


@pytest.mark.parametrize("inner", [does_nothing, launches_double])
def test_a_reading_keeps_no_function_and_no_module_alive(inner, collect):
    module = types.ModuleType("short_lived")
    read = types.FunctionType(by_helper.__code__, vars(module))
    vars(module).update(by_global=closing_over(inner), own=read)
    names(read)
    kept = [weakref.ref(thing) for thing in (module, read, module.by_global)]
    del module, read
    collect()
    assert [ref() for ref in kept] == [None, None, None]


def measured(x, width):
    """Long enough that its result is not looked at, and it leads to no kernel."""
    total = 0
    for number, size in enumerate(x.shape):
        total += number * size + width * size - number // width + (size % width) * number
        total += number * size + width * size - number // width + (size % width) * number
        total += number * size + width * size - number // width + (size % width) * number
        total += number * size + width * size - number // width + (size % width) * number
    x.hook = width
    return total


def calls_what_it_is_given(x, fn):
    total = measured(x, 3)
    return measured(x, total), apply(fn, x), apply(launches_double, x)


def apply(fn, x):
    return fn(x)


def test_a_helper_that_does_nothing_alone_is_followed_when_given_a_launcher():
    assert names(calls_what_it_is_given) == ["double_kernel"]


def test_a_class_that_calls_what_it_is_given_is_handed_it():
    def maps(x):
        range(3)
        return list(map(launches_double, [x]))

    assert names(maps) == ["double_kernel"]
