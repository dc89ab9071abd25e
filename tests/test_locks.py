"""A forked child can take opforge's locks."""

import os
import signal
import threading

import pytest

from opforge import locks


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


def test_a_lock_that_another_thread_holds_is_free_in_the_child():
    lock, taken, over = locks.fork_safe_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait()

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    assert _status_of_child(lock.acquire) == 0
    assert not lock.acquire(blocking=False)
    over.set()
    other.join()


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
