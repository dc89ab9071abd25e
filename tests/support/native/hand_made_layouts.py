"""Hand-made programs whose tensors have any strides: broadcast, strided, in windows."""

from dataclasses import replace

from opforge.native.ir.expr import Expr
from support.native import hand_made
from support.native.hand_made import (
    Allocate,
    Case,
    Fill,
    Guard,
    Kernel,
    Launch,
    Op,
    Output,
    Path,
    ScalarParam,
    ScalarValue,
    TensorCase,
    TensorParam,
    Var,
    Variant,
    launch,
    make,
    pointers,
    tensors,
)

M, N = Var("m"), Var("n")
STRIDES = (Var("out.stride[0]"), Var("out.stride[1]"))


def blend() -> tuple[Op, list[Kernel]]:
    """x, y and optionally z: the kernel gets their strides."""
    names, kernels, cases = ("x", "y", "z"), {}, []
    for rank in (0, 1, 2, 3):
        shape = tuple(Var(f"s[{d}]") for d in range(rank))
        for count in (2, 3):
            key = f"blend_{count}_{rank}"
            types = ("*fp32",) * (count + 1) + ("i64",) * (count * rank)
            kernels[key] = hand_made.kernel(key, "blend_kernel", types)
            strides = {n: tuple(Var(f"{n}.stride[{d}]") for d in range(rank)) for n in names}
            present = names[:count]
            numbers = (ScalarValue(f"{n}{d}", v) for n in present for d, v in enumerate(strides[n]))
            arguments = (*pointers("fp32", *present, "out"), *numbers)
            step = Launch(
                "blend_kernel", "kernels.py:1", (1, 1, 1), arguments, (Variant(key, types),)
            )
            given = tuple(
                TensorCase(n, True, "fp32", shape, strides[n])
                if n in present
                else TensorCase(n, present=False)
                for n in names
            )
            paths = (Path((), (hand_made.out_like("fp32", shape),), (step,)),)
            cases.append(Case(given, paths=paths))
    params = tuple(TensorParam(n, optional=n == "z", broadcast=True, group=1) for n in names)
    op = Op("blend", "demo::blend", "ops.py:1", params, ("out",), tuple(cases))
    return op, list(kernels.values())


def add_to() -> tuple[Op, list[Kernel]]:
    """state += x, where only x is broadcast."""
    m, n = Var("s[0]"), Var("s[1]")
    types = ("*fp32", "*fp32", "i64", "i64")
    steps = (Var("x.stride[0]"), Var("x.stride[1]"))
    given = (
        TensorCase("state", True, "fp32", (m, n)),
        TensorCase("x", True, "fp32", (m, n), steps),
    )
    numbers = (ScalarValue("row", steps[0]), ScalarValue("col", steps[1]))
    arguments = (*pointers("fp32", "state", "x"), *numbers)
    step = launch("add_to", arguments, types, place="kernels.py:9")
    params = (
        TensorParam("state", written=True, group=1),
        TensorParam("x", broadcast=True, group=1),
    )
    case = Case(given, paths=(Path((), (), (step,)),))
    op = Op("add_to", "demo::add_to", "ops.py:9", params, (), (case,))
    return op, [hand_made.kernel("add_to", "add_to_kernel", types)]


def turned() -> tuple[Op, list[Kernel]]:
    """out [n, m] of x [m, n], which the body allocates column by column.

    A kernel of its own where rows of out are dense; otherwise one that gets both strides.
    """
    types = {"dense": ("*fp32", "*fp32", "i64"), "any": ("*fp32", "*fp32", "i64", "i64")}
    kernels = [hand_made.kernel(key, f"{key}_kernel", each) for key, each in types.items()]
    numbers = [ScalarValue(f"stride{d}", stride) for d, stride in enumerate(STRIDES)]
    made = (Output("fp32", (N, M), (1, N), strided=True),)

    def path(condition, key, given):
        step = launch(key, (*pointers("fp32", "x", "out"), *given), types[key])
        return Path((Guard(Expr(condition, (STRIDES[1], 1)), "ops.py:3"),), made, (step,))

    case = Case(
        tensors("fp32", (M, N), "x"),
        returns=(TensorCase("out", True, "fp32", (N, M), STRIDES),),
        paths=(path("==", "dense", numbers[:1]), path("!=", "any", numbers)),
    )
    params = (TensorParam("x"),)
    return Op("turned", "demo::turned", "ops.py:1", params, ("out",), (case,)), kernels


def either() -> tuple[Op, list[Kernel]]:
    """The same, with a case before it where the output is declared as contiguous."""
    op, kernels = turned()
    (case,) = op.cases
    said = TensorCase("out", True, "fp32", (N, M))
    made = (Output("fp32", (N, M), (M, 1)),)
    step = case.paths[0].steps[0]
    step = replace(step, arguments=(*step.arguments[:2], ScalarValue("stride0", M)))
    first = Case(case.tensors, returns=(said,), paths=(Path((), made, (step,)),))
    return Op("either", "demo::either", "ops.py:1", op.params, ("out",), (first, case)), kernels


def cube() -> tuple[Op, list[Kernel]]:
    """out [2, 3, 4] of x [2, 3, 4], by a kernel that gets no strides."""
    shape = (2, 3, 4)
    strides = tuple(Var(f"out.stride[{d}]") for d in range(3))
    step = launch("cube", pointers("fp32", "x", "out"), ("*fp32", "*fp32"))
    case = Case(
        tensors("fp32", shape, "x"),
        returns=(TensorCase("out", True, "fp32", shape, strides),),
        paths=(Path((), (Output("fp32", shape, (12, 4, 1), strided=True),), (step,)),),
    )
    op = Op("cube", "demo::cube", "ops.py:1", (TensorParam("x"),), ("out",), (case,))
    return op, [hand_made.kernel("cube", "cube_kernel", ("*fp32", "*fp32"))]


def rotate() -> tuple[Op, list[Kernel]]:
    """q and k [m, n] are both written, and may be slices of one buffer."""
    strides = {name: tuple(Var(f"{name}.stride[{d}]") for d in (0, 1)) for name in "qk"}
    types = ("*fp32", "*fp32", *("i64",) * 4)
    numbers = (ScalarValue(v.name, v) for name in "qk" for v in strides[name])
    step = launch("rotate", (*pointers("fp32", "q", "k"), *numbers), types, place="kernels.py:5")
    given = tuple(TensorCase(name, True, "fp32", (M, N), strides[name]) for name in "qk")
    params = tuple(TensorParam(name, written=True) for name in "qk")
    case = Case(given, paths=(Path((), (), (step,)),))
    op = Op("rotate", "demo::rotate", "ops.py:1", params, (), (case,))
    return op, [hand_made.kernel("rotate", "rotate_kernel", types)]


def window() -> tuple[Op, list[Kernel]]:
    """Every `shift`-th row of x + y from row `take` on: x and y have one stride between rows.

    The number of rows is computed, with scalars of which one is unsigned; it may be negative or
    not exist. Workspace is filled with elements of every width.
    """
    n, w, s = Var("n"), Var("w"), Var("x.stride[0]")
    take, shift = Var("take"), Var("shift")
    rows = make("//", make("+", n, make("*", take, -1)), shift)
    size = make("*", rows, w)
    types = ("*i8",) * 5 + ("i64", "i64", "u64", "i64")
    numbers = [ScalarValue(str(v), v) for v in (s, w, take, shift)]
    arguments = (*pointers("i8", "x", "y", "ones", "tail", "out"), *numbers)
    step = launch(
        "window", arguments, types, (rows, 1, 1), place="kernels.py:7", location="ops.py:8"
    )
    steps = (
        Allocate("ones", size),
        Fill("ones", 0, size, 1, 0x5A),
        Allocate("tail", 32),
        Fill("tail", 0, 8, 2, 0x1234),
        Fill("tail", 16, 2, 4, 0x1234_5678),
        Fill("tail", 24, 1, 8, 0x0BAD_CAFE_0BAD_CAFE),
        step,
    )
    product = make("*", take, shift)
    made = (Output("i8", (rows, w), (w, 1)),)
    small = Guard(Expr("<=", (product, 1000)), "ops.py:5")
    paths = (
        Path((small, Guard(Expr("<", (0, shift)), "ops.py:6")), made, steps),
        Path((small, Guard(Expr("<=", (shift, 0)), "ops.py:6")), refused="it goes backwards"),
    )
    given = tuple(TensorCase(name, True, "i8", (n, w), (s, 1)) for name in "xy")
    params = (
        TensorParam("x"), TensorParam("y"), ScalarParam("take", "u64"), ScalarParam("shift", "i64"),
    )  # fmt: skip
    op = Op("window", "demo::window", "ops.py:1", params, ("out",), (Case(given, paths=paths),))
    return op, [hand_made.kernel("window", "window_kernel", types)]
