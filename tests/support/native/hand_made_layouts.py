"""Hand-made programs whose tensors have any strides: broadcast, strided, in windows."""

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
    Pointer,
    ScalarParam,
    ScalarValue,
    TensorCase,
    TensorParam,
    Var,
    Variant,
    make,
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
            arguments = [Pointer(f"{n}_ptr", n, 0, "fp32") for n in (*present, "out")]
            arguments += [
                ScalarValue(f"{n}{d}", v) for n in present for d, v in enumerate(strides[n])
            ]
            launch = Launch(
                "blend_kernel", "kernels.py:1", (1, 1, 1), tuple(arguments), (Variant(key, types),)
            )
            tensors = tuple(
                TensorCase(n, True, "fp32", shape, strides[n])
                if n in present
                else TensorCase(n, present=False)
                for n in names
            )
            paths = (Path((), (hand_made.out_like("fp32", shape),), (launch,)),)
            cases.append(Case(tensors, paths=paths))
    params = tuple(TensorParam(n, optional=n == "z", broadcast=True, group=1) for n in names)
    op = Op("blend", "demo::blend", "ops.py:1", params, ("out",), tuple(cases))
    return op, list(kernels.values())


def add_to() -> tuple[Op, list[Kernel]]:
    """state += x, where only x is broadcast."""
    m, n = Var("s[0]"), Var("s[1]")
    types = ("*fp32", "*fp32", "i64", "i64")
    steps = (Var("x.stride[0]"), Var("x.stride[1]"))
    tensors = (
        TensorCase("state", True, "fp32", (m, n)),
        TensorCase("x", True, "fp32", (m, n), steps),
    )
    launch = Launch(
        "add_to_kernel", "kernels.py:9", (1, 1, 1),
        (Pointer("state_ptr", "state", 0, "fp32"), Pointer("x_ptr", "x", 0, "fp32"),
         ScalarValue("row", steps[0]), ScalarValue("col", steps[1])),
        (Variant("add_to", types),),
    )  # fmt: skip
    params = (
        TensorParam("state", written=True, group=1),
        TensorParam("x", broadcast=True, group=1),
    )
    case = Case(tensors, paths=(Path((), (), (launch,)),))
    op = Op("add_to", "demo::add_to", "ops.py:9", params, (), (case,))
    return op, [hand_made.kernel("add_to", "add_to_kernel", types)]


def turned() -> tuple[Op, list[Kernel]]:
    """out [n, m] of x [m, n], which the body allocates column by column.

    A kernel of its own where rows of out are dense; otherwise one that gets both strides.
    """
    types = {"dense": ("*fp32", "*fp32", "i64"), "any": ("*fp32", "*fp32", "i64", "i64")}
    kernels = [hand_made.kernel(key, f"{key}_kernel", each) for key, each in types.items()]
    pointers = (Pointer("x_ptr", "x", 0, "fp32"), Pointer("out_ptr", "out", 0, "fp32"))
    numbers = [ScalarValue(f"stride{d}", stride) for d, stride in enumerate(STRIDES)]
    made = (Output("fp32", (N, M), (1, N), strided=True),)

    def path(condition, key, given):
        launch = Launch(
            f"{key}_kernel", "kernels.py:1", (1, 1, 1), (*pointers, *given),
            (Variant(key, types[key]),),
        )  # fmt: skip
        return Path((Guard(Expr(condition, (STRIDES[1], 1)), "ops.py:3"),), made, (launch,))

    case = Case(
        (TensorCase("x", True, "fp32", (M, N)),),
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
    launch = Launch(
        "dense_kernel", "kernels.py:1", (1, 1, 1),
        (*case.paths[0].steps[0].arguments[:2], ScalarValue("stride0", M)),
        case.paths[0].steps[0].variants,
    )  # fmt: skip
    first = Case(case.tensors, returns=(said,), paths=(Path((), made, (launch,)),))
    return Op("either", "demo::either", "ops.py:1", op.params, ("out",), (first, case)), kernels


def cube() -> tuple[Op, list[Kernel]]:
    """out [2, 3, 4] of x [2, 3, 4], by a kernel that gets no strides."""
    shape = (2, 3, 4)
    strides = tuple(Var(f"out.stride[{d}]") for d in range(3))
    pointers = (Pointer("x_ptr", "x", 0, "fp32"), Pointer("out_ptr", "out", 0, "fp32"))
    variant = Variant("cube", ("*fp32", "*fp32"))
    launch = Launch("cube_kernel", "kernels.py:1", (1, 1, 1), pointers, (variant,))
    case = Case(
        (TensorCase("x", True, "fp32", shape),),
        returns=(TensorCase("out", True, "fp32", shape, strides),),
        paths=(Path((), (Output("fp32", shape, (12, 4, 1), strided=True),), (launch,)),),
    )
    op = Op("cube", "demo::cube", "ops.py:1", (TensorParam("x"),), ("out",), (case,))
    return op, [hand_made.kernel("cube", "cube_kernel", ("*fp32", "*fp32"))]


def rotate() -> tuple[Op, list[Kernel]]:
    """q and k [m, n] are both written, and may be slices of one buffer."""
    strides = {name: tuple(Var(f"{name}.stride[{d}]") for d in (0, 1)) for name in "qk"}
    types = ("*fp32", "*fp32", *("i64",) * 4)
    launch = Launch(
        "rotate_kernel", "kernels.py:5", (1, 1, 1),
        (*(Pointer(f"{name}_ptr", name, 0, "fp32") for name in "qk"),
         *(ScalarValue(v.name, v) for name in "qk" for v in strides[name])),
        (Variant("rotate", types),),
    )  # fmt: skip
    tensors = tuple(TensorCase(name, True, "fp32", (M, N), strides[name]) for name in "qk")
    params = tuple(TensorParam(name, written=True) for name in "qk")
    case = Case(tensors, paths=(Path((), (), (launch,)),))
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
    pointers = [Pointer(f"{name}_ptr", name, 0, "i8") for name in ("x", "y", "ones", "tail", "out")]
    numbers = [ScalarValue(str(v), v) for v in (s, w, take, shift)]
    launch = Launch(
        "window_kernel", "kernels.py:7", (rows, 1, 1), (*pointers, *numbers),
        (Variant("window", types),), (), "ops.py:8",
    )  # fmt: skip
    steps = (
        Allocate("ones", size),
        Fill("ones", 0, size, 1, 0x5A),
        Allocate("tail", 32),
        Fill("tail", 0, 8, 2, 0x1234),
        Fill("tail", 16, 2, 4, 0x1234_5678),
        Fill("tail", 24, 1, 8, 0x0BAD_CAFE_0BAD_CAFE),
        launch,
    )
    product = make("*", take, shift)
    made = (Output("i8", (rows, w), (w, 1)),)
    small = Guard(Expr("<=", (product, 1000)), "ops.py:5")
    paths = (
        Path((small, Guard(Expr("<", (0, shift)), "ops.py:6")), made, steps),
        Path((small, Guard(Expr("<=", (shift, 0)), "ops.py:6")), refused="it goes backwards"),
    )
    tensors = tuple(TensorCase(name, True, "i8", (n, w), (s, 1)) for name in "xy")
    params = (
        TensorParam("x"), TensorParam("y"), ScalarParam("take", "u64"), ScalarParam("shift", "i64"),
    )  # fmt: skip
    op = Op("window", "demo::window", "ops.py:1", params, ("out",), (Case(tensors, paths=paths),))
    return op, [hand_made.kernel("window", "window_kernel", types)]
