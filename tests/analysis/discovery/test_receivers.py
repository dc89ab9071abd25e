"""A method that is called on one of several objects is read once for all of them, or for each."""

import ast

import pytest

import opforge
from opforge.analysis.discovery.frame_table import FrameTable
from opforge.analysis.discovery.receivers import serves_many
from opforge.analysis.discovery.scopes import scope_of
from support.launch_patterns import double_kernel, triple_kernel


class Backend:
    kernel = double_kernel

    def pick(self, name):
        return getattr(self, name, None)

    def use(self, kernel):
        kernel[(1,)]()

    def launch(self):
        self.use(self.kernel)


class Quiet(Backend):
    kernel = triple_kernel

    def use(self, kernel):
        pass


BACKENDS = [Backend(), Quiet()]


def picks(x):
    for backend in BACKENDS:
        kernel = backend.pick("kernel")
        kernel[(1,)](x)


def launches():
    for backend in BACKENDS:
        backend.launch()


def test_a_method_is_read_once_for_all_objects(monkeypatch):
    read = []
    real = FrameTable.of_function

    def of_function(table, caller, fn, *rest):
        frame = real(table, caller, fn, *rest)
        read.append((fn.__name__, id(frame)))
        return frame

    monkeypatch.setattr(FrameTable, "of_function", of_function)
    found = opforge.find_kernels(picks)
    assert {ref.name for ref in found} == {"double_kernel", "triple_kernel"}
    assert len({frame for name, frame in read if name == "pick"}) == 1


def test_one_object_does_not_launch_the_kernel_of_another():
    # Read once for both, `launch` would hand the kernel of `Quiet` to `Backend.use`.
    assert [ref.kernel for ref in opforge.find_kernels(launches)] == [double_kernel]


@pytest.mark.parametrize(
    "body",
    [
        "return self.table.get(name)",
        "found = self.chosen or getattr(self, name, None); return found(1)",
        "return environ.get(self.name, '1' if self.on else '0') != '0'",
        "return super().find(name)",
        "for one in self.table: one(name)",
    ],
)
def test_values_that_do_not_meet(body):
    assert serves_many(_scope(body))


@pytest.mark.parametrize(
    "body",
    [
        "self.use(self.kernel)",
        "kernel = self.kernel; use = self.use; use(kernel)",
        "return self.table[self.name]",
        "launch(self.kernel, grid=self.grid)",
        "return self.left @ self.right",
        "self.cached = self.kernel; return self.cached",
        "table = {}; table[self.name] = self.kernel; return table",
        "super().use(self.kernel)",
        "return lambda: self.use(self.kernel)",
        "return [use(self.kernel) for use in self.uses]",
        "pair = []; pair.append(self.use); pair.append(self.kernel); pair[0](pair[1])",
    ],
)
def test_values_that_meet(body):
    assert not serves_many(_scope(body))


def _scope(body):
    return scope_of(ast.parse(f"def method(self, name):\n    {body}").body[0])
