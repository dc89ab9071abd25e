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


@pytest.mark.parametrize(
    ("watch", "error"),
    [
        (3, TypeError), ((3,), TypeError), ((([], 3),), TypeError), ((((), "r"),), TypeError),
        ((({}, 3, (), "r"),), TypeError), ((({}, "n", [], "r"),), TypeError),
        ((([], "n", (), "r"),), TypeError), ((([], "r"), 3), TypeError),
    ],
)  # fmt: skip
def test_watches_that_are_none(serving, watch, error):
    text = r"^a watch is \(list, reason\) or \(dict, name, accepted values, reason\)$"
    with pytest.raises(error, match=text):
        serving.module.configure(print, print, print, watch)
    with pytest.raises(error, match=text):
        serving.kernel(watch=watch)
