"""A library is closed while other threads call its operators."""

import threading
import time

import pytest
import torch

from opforge.errors import BadRegistration
from support.processes import wait_until

X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize("with_source", [False, True])
def test_threads_call_while_the_library_is_closed(loading, register, standin, with_source):
    if with_source:
        register()
    wrong = []

    def call(stop):
        try:
            while not stop.is_set():
                torch.testing.assert_close(torch.ops.demo.add(X, X), 2 * X)
        except (BadRegistration, AttributeError) as error:
            if with_source:
                wrong.append(error)
        except BaseException as error:  # noqa: BLE001 - the main thread looks
            wrong.append(error)

    for _ in range(8):
        ops, stop = loading(), threading.Event()
        torch.ops.demo.add(X, X)
        threads = [threading.Thread(target=call, args=(stop,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        ops.close()
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_calls_that_begin_while_the_library_is_closed_wait_for_the_source(
    loading, register, standin
):
    register()
    ops = loading()
    torch.ops.demo.add(X, X)
    entered, go_on, results = threading.Event(), threading.Event(), []
    run = standin.execute

    def slowly(launched):
        entered.set()
        assert go_on.wait(5)
        run(launched)

    def call():
        results.append(torch.ops.demo.add(X, X))

    standin.execute = slowly
    first, second = threading.Thread(target=call), threading.Thread(target=call)
    closer = threading.Thread(target=ops.close)
    first.start()
    assert entered.wait(5)
    closer.start()
    handle = torch.ops.demo.add
    wait_until(lambda: not isinstance(handle._op, type(len)))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert results == []
    go_on.set()
    for thread in (first, closer, second):
        thread.join()
    torch.testing.assert_close(results, [2 * X, 2 * X])
    # The second ran the source.
    assert len(standin.launches) == 2
