"""A forked child can take opforge's locks."""

import os
import signal
import threading

import pytest

from opforge import locks
from support.processes import run_python

FORKING = """
import os, signal, threading
import opforge, torch
from opforge.registry import registry

def make(name):
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2
    return opforge.op(f"forked::{name}", mode="custom_op")(double)

def add_slowly(entry):
    half_done.set()
    go_on.wait()
    add(entry)

# What is imported on first use is imported before: Python's own locks are not the matter.
make("first")(torch.ones(2))
half_done, go_on = threading.Event(), threading.Event()
# The other thread holds the lock, torch has its operator, and the registry does not know it yet.
add, registry.add = registry.add, add_slowly
other = threading.Thread(target=make, args=("other",))
other.start()
half_done.wait()
registry.add = add
threading.Timer(0.5, go_on.set).start()
child = os.fork()
if child == 0:
    signal.alarm(10)
    whole = registry.find("forked::other") is not None
    worked = bool((make("own")(torch.ones(2)) == 2).all())
    os._exit(0 if whole and worked else 1)
status = os.waitpid(child, 0)[1]
go_on.set()
other.join()
print(status)
"""


def test_a_child_forked_while_another_thread_decorates_has_its_op_and_can_decorate_and_call():
    assert run_python(FORKING).strip() == "0"


def _status_of_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # pytest must not go on in the child
            os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.fixture
def held_elsewhere():
    """Takes a lock in another thread, until the test is over."""
    over, threads = threading.Event(), []

    def hold(lock):
        taken = threading.Event()

        def work():
            with lock:
                taken.set()
                over.wait()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        taken.wait()

    yield hold
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("waited_for", [False, True])
def test_a_lock_that_another_thread_holds_is_free_in_the_child(
    waited_for, held_elsewhere, monkeypatch
):
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)
    lock = locks.fork_safe_lock(waited_for=waited_for)
    held_elsewhere(lock)
    assert _status_of_child(lock.acquire) == 0
    assert not lock.acquire(blocking=False)


def test_a_lock_that_the_forking_thread_holds_stays_its_own():
    lock = locks.fork_safe_lock()

    def release_and_take_again():
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()
        assert lock.acquire(blocking=False)

    with lock:
        assert _status_of_child(release_and_take_again) == 0
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_lock_is_forgotten_with_its_owner():
    before = len(locks._locks)
    lock = locks.fork_safe_lock()
    assert len(locks._locks) == before + 1
    del lock
    assert len(locks._locks) == before
