"""What stops serving while it is so."""

import pytest

from support.serving import param


def test_watches_hand_launches_over_while_they_hold(serving):
    hooks, space = [], {"other": 1}
    serving.configure((hooks, "launch hooks are set"), (space, "debug", (False, None), "debugging"))
    per_kernel = []
    kernel = serving.kernel(param("n"), watch=((per_kernel, "pre_run_hooks are set"),))
    kernel.add((), ("int",), {}, [(("i32",), serving.image())])
    launch = kernel.bind((1,))
    assert launch(1) is None
    hooks.append(print)
    assert launch(1) == "handed over"
    hooks.clear()
    space["debug"] = True
    assert launch(1) == "handed over"
    space["debug"] = None
    assert launch(1) is None
    space["debug"] = 0
    assert launch(1) == "handed over"
    del space["debug"]
    per_kernel.append(print)
    assert launch(1) == "handed over"
    assert [reason for *_, reason in serving.handed] == [
        "launch hooks are set", "debugging", "debugging", "pre_run_hooks are set",
    ]  # fmt: skip


def test_an_attribute_of_an_object_is_watched_wherever_it_comes_from(serving):
    class Base:
        n = 1

    class Sizes(Base):
        @property
        def odd(self):
            raise OSError("no such place")

    kernel = serving.kernel(watch=((Sizes, "n", (1,), "n is another"),))
    kernel.add((), (), {}, [((), serving.image())])
    launch = kernel.bind((1,))
    assert launch() is None
    Base.n = 2
    assert launch() == "handed over"
    Sizes.n = 1
    assert launch() is None
    del Sizes.n, Base.n
    assert launch() == "handed over"
    kernel = serving.kernel(watch=((Sizes(), "odd", (1,), "n is another"),))
    with pytest.raises(OSError, match="no such place"):
        kernel.bind((1,))()
