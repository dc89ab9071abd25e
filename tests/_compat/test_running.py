"""Ops are removed while other threads call them: calls end, or raise; none reads what is freed."""

import gc
import sys
import threading

import pytest
import torch

import opforge
from opforge import _compat
from opforge.errors import BadRegistration
from opforge.registry import registry
from support.processes import run_python, wait_until

X = torch.ones(3)

# Without the wait, torch ends the process in the first rounds.
MANY = """
import dataclasses, sys, threading, time, torch, opforge

@dataclasses.dataclass(frozen=True)
class Config:
    scale: float

def plain(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.0005)
    return x * 2

def with_record(x: torch.Tensor, config: Config) -> torch.Tensor:
    return plain(x)

seen = set()

def call_until_it_is_gone(op, arguments):
    try:
        while True:
            op(*arguments)
    except opforge.errors.BadRegistration:
        seen.add("raised")
    except BaseException as error:
        seen.add(repr(error))

for round in range(10):
    for fn, arguments in ((plain, (torch.ones(3),)), (with_record, (torch.ones(3), Config(1.0)))):
        op = opforge.op(fn, name=f"many::{fn.__name__}{round}", mode="custom_op")
        threads = [
            threading.Thread(target=call_until_it_is_gone, args=(op, arguments)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        opforge.unregister(op)
        for thread in threads:
            thread.join()
print(seen)
"""


def test_threads_that_call_what_is_unregistered_end_or_raise():
    assert run_python(MANY) == "{'raised'}\n"


@pytest.fixture
def slow():
    """An op whose calls end when its event is set."""
    go_on = threading.Event()

    @opforge.op("opforge_running::slow", mode="custom_op")
    def slow(x: torch.Tensor) -> torch.Tensor:
        assert go_on.wait(20)
        return x * 2

    slow_entry = registry.get(slow)
    yield slow, slow_entry.registration, go_on
    go_on.set()
    if registry.find("opforge_running::slow") is slow_entry:
        opforge.unregister("opforge_running::slow")


def in_thread(call, *arguments):
    results = []
    thread = threading.Thread(target=lambda: results.append(call(*arguments)))
    thread.start()
    return thread, results


@pytest.mark.parametrize("handle", ["overload", "packet"])
def test_unregister_waits_for_a_call_of_another_thread(slow, handle):
    op, registration, go_on = slow
    called = op if handle == "overload" else torch.ops.opforge_running.slow
    assert not registration.is_called_elsewhere()
    caller, results = in_thread(called, X)
    wait_until(registration.is_called_elsewhere)
    remover, _ = in_thread(opforge.unregister, op)
    remover.join(0.1)
    assert remover.is_alive()
    with pytest.raises(BadRegistration):
        called(X)
    go_on.set()
    caller.join()
    remover.join()
    torch.testing.assert_close(results, [2 * X])


def test_a_thread_does_not_wait_for_its_own_call():
    found = []

    @opforge.op("opforge_running::own", mode="custom_op")
    def own(x: torch.Tensor) -> torch.Tensor:
        found.append(registry.get("opforge_running::own").registration.is_called_elsewhere())
        return x * 2

    own(X)
    opforge.unregister(own)
    assert found == [False]


def test_a_call_that_does_not_end_holds_nothing_up_for_ever(slow, monkeypatch):
    op, registration, go_on = slow
    ended = []
    monkeypatch.setattr("opforge.registration.register.PATIENCE", 0.05)
    caller, _ = in_thread(op, X)
    wait_until(registration.is_called_elsewhere)
    # Not unregister: the call is to come back to what it began in.
    registration.end_calls("tried")
    ended.append(registration.is_called_elsewhere())
    go_on.set()
    caller.join()
    assert ended == [True]


def test_a_call_that_waits_at_a_gate_has_not_begun(slow):
    op, registration, go_on = slow
    go_on.set()
    gate = _compat.running.Gate(20)
    with registration.without_calls(gate):
        caller, results = in_thread(op, X)
        caller.join(0.1)
        assert caller.is_alive()
        assert not registration.is_called_elsewhere()
        # Whoever keeps the gate passes.
        torch.testing.assert_close(op(X), 2 * X)
    gate.open()
    caller.join()
    torch.testing.assert_close(results, [2 * X])


def test_a_gate_that_nobody_opens_is_passed_in_the_end(slow):
    op, registration, go_on = slow
    go_on.set()
    with registration.without_calls(_compat.running.Gate(0.05)):
        caller, results = in_thread(op, X)
        caller.join()
    torch.testing.assert_close(results, [2 * X])


def test_a_stack_that_cannot_be_read_counts_as_a_call(monkeypatch):
    torn = {threading.get_ident() + 1: test_a_stack_that_cannot_be_read_counts_as_a_call.__code__}
    monkeypatch.setattr(sys, "_current_frames", lambda: torn)
    op = torch.ops.aten.relu.default
    assert _compat.running.is_called_elsewhere(op, [])
    torn.clear()
    assert not _compat.running.is_called_elsewhere(op, [])


def test_no_garbage_is_collected_while_stacks_are_read(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    assert not _compat.running.is_called_elsewhere(torch.ops.aten.add.Tensor, [])
    assert seen == [False]
    assert gc.isenabled()
