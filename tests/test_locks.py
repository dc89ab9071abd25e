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

def make(name):
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2
    return opforge.op(f"forked::{name}", mode="custom_op")(double)

def decorate():
    number = 0
    while not done.is_set():
        opforge.unregister(make(f"other_{number}"))
        number += 1

# What is imported on first use is imported before: Python's own locks are not the matter.
make("first")(torch.ones(2))
done = threading.Event()
other = threading.Thread(target=decorate)
other.start()
statuses = []
for number in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        worked = bool((make(f"own_{number}")(torch.ones(2)) == 2).all())
        os._exit(0 if worked else 1)
    statuses.append(os.waitpid(child, 0)[1])
    if statuses[-1]:
        break
done.set()
other.join()
print(statuses)
"""


def test_a_child_forked_while_another_thread_decorates_can_decorate_and_call():
    assert run_python(FORKING).split() == str([0] * 12).split()


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
