"""A path's workspace is one allocation, in which buffers share memory one after the other."""

from opforge.native.ir.cases import Allocate, Fill, Launch, Path, Pointer
from opforge.native.ir.expr import Var, evaluate
from opforge.native.plan import planned

N = Var("n")


def launch(*buffers):
    pointers = tuple(Pointer(f"p{i}", b, 0, "fp32") for i, b in enumerate(buffers))
    return Launch("kernel", "k.py:1", (1, 1, 1), pointers, ())


def places(path, **values):
    """By launch, where each pointer of a plan lies; None for what is not workspace."""
    return [
        [evaluate(a.offset, values) if a.buffer == "workspace" else None for a in step.arguments]
        for step in path.steps
        if isinstance(step, Launch)
    ]


def size(path, **values):
    (only,) = [step for step in path.steps if isinstance(step, Allocate)]
    return evaluate(only.bytes, values)


def test_buffers_that_are_not_alive_together_share_memory():
    steps = (
        Allocate("a", N), launch("x", "a"), Allocate("b", 300), launch("a", "b"),
        Allocate("c", 4000), launch("b", "c"), launch("c", "out"),
    )  # fmt: skip
    path = planned(Path((), steps=steps))
    assert places(path, n=10) == [[None, 0], [0, 4096], [4096, 0], [0, None]]
    assert size(path, n=10) == 4096 + 512
    assert size(path, n=9000) == 9216 + 512


def test_buffers_that_are_alive_together_lie_side_by_side():
    steps = (Allocate("a", N), Allocate("b", N), launch("a", "b"))
    path = planned(Path((), steps=steps))
    assert places(path, n=1000) == [[0, 1024]]


def test_a_fill_moves_with_its_buffer():
    steps = (
        Allocate("a", 512),
        launch("a"),
        Fill("a", 8, 1, 4, 0),
        Allocate("b", 4),
        launch("b", "a"),
    )
    path = planned(Path((), steps=steps))
    (fill,) = [step for step in path.steps if isinstance(step, Fill)]
    assert (fill.buffer, fill.offset) == ("workspace", 8)
    assert places(path) == [[0], [512, 0]]


def test_one_allocation_stays_where_it_is():
    path = Path((), steps=(launch("x", "out"), Allocate("a", N), launch("a")))
    assert planned(path) is path
