"""Hand-made programs, as a trace would give them, whose kernels exist in the tests only."""

import struct
from dataclasses import replace

from opforge.arch import Arch
from opforge.native.ir.cases import (
    ONE,
    Allocate,
    Bound,
    Case,
    Fill,
    Guard,
    Launch,
    Output,
    Path,
    Pointer,
    ScalarValue,
    TensorCase,
    Variant,
)
from opforge.native.ir.expr import Expr, Var, make
from opforge.native.ir.interface import (
    ChoiceParam,
    Implementation,
    Op,
    ScalarParam,
    SchemaArgument,
    TensorParam,
)
from opforge.native.ir.kernels import Image
from opforge.native.ir.program import Kernel, Library
from support.archs import GFX942, SM_80, SM_90, sm

# ELF's numbers of the vendors' machines, and LLVM's of AMD's architectures.
_MACHINES = {"cuda": 190, "hip": 224}
_MACH = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F, "gfx1100": 0x41, "gfx1201": 0x4E}


def cubin(name: str, arch: Arch) -> bytes:
    """An ELF header with nothing but a name, which distinguishes it from others."""
    return elf(f"{name} {arch}".encode(), arch)


def elf(payload: bytes, arch: Arch) -> bytes:
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    # The section table begins where the payload ends, and has no entries.
    fields = struct.pack(
        "<HHIQQQIHHHHHH", 2, _MACHINES[arch.backend], 1, 0, 0, 64 + len(payload),
        _MACH.get(str(arch), 0), 64, 0, 0, 64, 0, 0,
    )  # fmt: skip
    return header + fields + payload


def kernel(
    key: str, name: str, types: tuple[str, ...], archs=(SM_80, SM_90), ptx="", **image
) -> Kernel:
    images = tuple(Image(arch, name, 4, **image).holding(cubin(key, arch), ptx) for arch in archs)
    return Kernel(key, name, f"kernels.py:{len(name)}", types, (("BLOCK", "128"),), images)


def for_both(library: Library, amd: Arch = GFX942) -> Library:
    """With an image for an AMD GPU of each kernel that has one for sm_80."""
    kernels = []
    for one in library.kernels:
        like = [image for image in one.images if image.arch == SM_80]
        added = [
            i._replace(arch=amd, pdl=False, maps=()).holding(cubin(one.key, amd)) for i in like
        ]
        kernels.append(replace(one, images=(*one.images, *added)))
    return replace(library, kernels=tuple(kernels), archs=(*library.archs, amd))


def for_amd(library: Library, arch: Arch = GFX942) -> Library:
    """With images for an AMD GPU alone."""
    both = for_both(library, arch)
    kernels = (
        replace(one, images=tuple(image for image in one.images if image.arch == arch))
        for one in both.kernels
    )
    return replace(both, kernels=tuple(kernels), archs=(arch,))


def times(*terms):
    return terms[0] if len(terms) == 1 else make("*", *terms)


def blocks(numel, block=128):
    return make("//", make("+", numel, block - 1), block)


def compact(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = make("*", size, step) if step != 1 else size
    return tuple(strides)


def out_like(dtype, shape):
    return Output(dtype, tuple(shape), compact(shape))


def pointers(dtype, *buffers):
    return tuple(Pointer(f"{buffer}_ptr", buffer, 0, dtype) for buffer in buffers)


def tensors(dtype, shape, *names):
    return tuple(TensorCase(name, True, dtype, shape) for name in names)


def launch(name, arguments, types, grid=(1, 1, 1), *, place="kernels.py:1", location=""):
    """Of `NAME_kernel`, which has one variant."""
    variants = (Variant(name, types),)
    return Launch(f"{name}_kernel", place, grid, tuple(arguments), variants, (), location)


def add() -> tuple[Op, list[Kernel]]:
    """out = x + y, of two types and ranks 1 and 2, with an empty path and i64 twins."""
    cases, kernels = [], {}
    for dtype in ("fp16", "fp32"):
        types = (f"*{dtype}",) * 3
        for kind, width in (("aligned", "i32"), ("plain", "i32"), ("wide", "i64")):
            key = f"add_{dtype}_{kind}"
            kernels[key] = kernel(key, "add_kernel", (*types, width))
        for rank in (1, 2):
            shape = tuple(Var(n) for n in "mn"[:rank])
            numel = times(*shape)
            variants = (
                Variant(f"add_{dtype}_aligned", (*types, "i32"), (0, 1, 2), (3,)),
                Variant(f"add_{dtype}_plain", (*types, "i32")),
                Variant(f"add_{dtype}_wide", (*types, "i64")),
            )
            arguments = (*pointers(dtype, "x", "y", "out"), ScalarValue("n", numel))
            launch = Launch(
                "add_kernel", "kernels.py:10", (blocks(numel), 1, 1), arguments, variants,
                (("BLOCK", "128"),), "ops.py:13",
            )  # fmt: skip
            output = (out_like(dtype, shape),)
            paths = (
                Path((Guard(Expr("==", (numel, 0)), "ops.py:12"),), output),
                Path((Guard(Expr("!=", (numel, 0)), "ops.py:12"),), output, (launch,)),
            )
            cases.append(Case(tensors(dtype, shape, "x", "y"), paths=paths))
    op = Op(
        "add", "demo::add", "ops.py:10", (TensorParam("x"), TensorParam("y")), ("out",),
        tuple(cases), "The sum of two tensors.", "0123", "demo::add(Tensor x, Tensor y) -> Tensor",
        (SchemaArgument("x", "Tensor"), SchemaArgument("y", "Tensor")), ("Tensor",),
    )  # fmt: skip
    return op, list(kernels.values())


def matmul() -> tuple[Op, list[Kernel]]:
    """out = a @ b of any strides; a stride of 1 is compiled in where it is one."""
    m, n, k = Var("m"), Var("n"), Var("k")
    strides = tuple(Var(f"{t}.stride[{d}]") for t in "ab" for d in (0, 1))
    types = ("*fp32",) * 3
    plain = (*types, "i32", "i32", "i32", "i32", "i32", "i32", "i32")
    ones = (*types, "i32", "i32", "i32", "i32", ONE, "i32", ONE)
    wide = (*types, *("i64",) * 7)
    kernels = [
        kernel("matmul_ones", "matmul_kernel", tuple(t for t in ones if t != ONE)),
        kernel("matmul_plain", "matmul_kernel", plain),
        kernel("matmul_wide", "matmul_kernel", wide),
    ]
    arguments = (
        *pointers("fp32", "a", "b", "out"),
        *(ScalarValue(str(v), v) for v in (m, n, k)),
        *(ScalarValue(s.name.replace(".", "_"), s) for s in strides),
    )
    variants = (
        Variant("matmul_ones", ones, (0, 1, 2)),
        Variant("matmul_plain", plain),
        Variant("matmul_wide", wide),
    )
    launch = Launch(
        "matmul_kernel", "kernels.py:30", (blocks(m, 16), blocks(n, 16), 1), arguments, variants
    )
    given = (
        TensorCase("a", True, "fp32", (m, k), strides[:2]),
        TensorCase("b", True, "fp32", (k, n), strides[2:]),
    )
    path = Path((), (out_like("fp32", (m, n)),), (launch,))
    params = (TensorParam("a"), TensorParam("b"))
    case = Case(given, (), (Bound("k", 1, 4096),), (path,))
    return Op("matmul", "demo::matmul", "ops.py:40", params, ("out",), (case,)), kernels


SCALARS = (
    "fp16", "bf16", "fp32", "fp64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "i1",
)  # fmt: skip


def everything() -> tuple[Op, list[Kernel]]:
    """Scalars of every width, a choice, an optional, workspace, a fill, two outputs."""
    rows, hidden = Var("rows"), 8
    scalars = tuple(ScalarParam(f"s_{t}", t) for t in SCALARS)
    params = (
        TensorParam("x", doc="The rows."),
        TensorParam("bias", optional=True),
        TensorParam("state", written=True),
        *scalars,
        ChoiceParam("mode", ("RELU", "NONE"), ("'relu'", "None"), "What comes last."),
    )
    types = ("*fp32", "*fp32", "*fp64", "*fp32", *SCALARS[:-1], "u1")
    kernels = [kernel("everything_first", "first_kernel", types)]
    kernels.append(kernel("everything_second", "second_kernel", ("*fp64", "*fp64", "i32")))
    cases = []
    for biased in (True, False):
        for mode in (0, 1):
            given = (
                TensorCase("x", True, "fp32", (rows, hidden)),
                TensorCase("bias", True, "fp32", (hidden,))
                if biased
                else TensorCase("bias", False),
                TensorCase("state", True, "fp32", (rows,)),
            )
            first = Launch(
                "first_kernel",
                "kernels.py:50",
                (make("min", rows, Var("device.multi_processor_count")), 1, 1),
                (
                    Pointer("x_ptr", "x", 0, "fp32"),
                    Pointer("bias_ptr", "bias" if biased else "x", 0, "fp32"),
                    Pointer("partial_ptr", "partial", 16, "fp64"),
                    Pointer("out_ptr", "out", 0, "fp32"),
                    *(
                        ScalarValue(s.name, Var(s.name, s.dtype[:2] in ("fp", "bf")))
                        for s in scalars
                    ),
                ),
                (Variant("everything_first", types, (2,)),),
            )
            second = Launch(
                "second_kernel",
                "kernels.py:60",
                (1, rows, 2),
                (
                    Pointer("partial_ptr", "partial", 16, "fp64"),
                    Pointer("stats_ptr", "stats", 0, "fp64"),
                    ScalarValue("rows", make("*", rows, 2)),
                ),
                (Variant("everything_second", ("*fp64", "*fp64", "i32")),),
            )
            steps = (
                Allocate("partial", make("+", make("*", rows, 8), 16)),
                Fill("partial", 16, rows, 8, 0x3FF0_0000_0000_0001),
                Fill("state", 0, rows, 4, 0x3F80_0000),
                first,
                *((second,) if mode == 0 else ()),
            )
            stats = out_like("fp64", (rows,)) if mode == 0 else None
            outputs = (out_like("fp32", (rows, hidden)), stats)
            paths = (
                Path((Guard(Expr("<=", (rows, 1000)), "ops.py:60"),), outputs, steps),
                Path(
                    (Guard(Expr("<", (1000, rows)), "ops.py:61"),), refused="aten.mm at ops.py:62"
                ),
            )
            bounds = (Bound("rows", 1), Bound("s_i32", -5, 5), Bound("s_u8", values=(0, 3, 200)))
            cases.append(Case(given, (("mode", mode),), bounds, paths))
    op = Op("everything", "demo::everything", "ops.py:50", params, ("out", "stats"), tuple(cases))
    return op, kernels


def special() -> tuple[Op, list[Kernel]]:
    """One launch per special requirement of a kernel image, each behind a choice."""
    images = {
        "shared": {"shared": 100_000},
        "cluster": {"num_ctas": 2},
        "cluster16": {"num_ctas": 16},
        "cooperative": {"cooperative": True},
        "pdl": {"pdl": True},
        "scratch": {"global_scratch_size": 64, "global_scratch_align": 128},
        "profile": {"profile_scratch_size": 32},
        "huge": {"shared": 200_000},
    }
    kernels = [kernel(f"special_{n}", f"{n}_kernel", ("*fp32",), **i) for n, i in images.items()]
    kernels.append(kernel("special_late", "late_kernel", ("*fp32",), archs=sm(90)))
    labels = (*images, "late")
    n = Var("n")

    def case(number, label):
        variants = (Variant(f"special_{label}", ("*fp32",)),)
        arguments = pointers("fp32", "x")
        launch = Launch(f"{label}_kernel", "kernels.py:70", (n, 3, 2), arguments, variants)
        paths = (Path((), steps=(launch,)),)
        return Case(tensors("fp32", (n,), "x"), (("what", number),), paths=paths)

    cases = tuple(case(number, label) for number, label in enumerate(labels))
    values = tuple(repr(label) for label in labels)
    params = (
        TensorParam("x", written=True),
        ChoiceParam("what", tuple(label.upper() for label in labels), values),
    )
    return Op("special", "demo::special", "ops.py:70", params, (), cases), kernels


def overlapping() -> tuple[Op, list[Kernel]]:
    """Two declarations of the same types: one of fixed size, one of small sizes with a guard."""
    n = Var("n")
    types = ("*i8", "*i8")
    kernels = [kernel(name, f"{name}_kernel", types) for name in ("fixed", "small")]

    def case(size, name, guards, bounds=()):
        step = launch(name, pointers("i8", "x", "out"), types, (size, 1, 1), place="kernels.py:80")
        path = Path(guards, (out_like("i8", (size,)),), (step,))
        return Case(tensors("i8", (size,), "x"), (), bounds, (path,))

    even = Guard(Expr("==", (Expr("%", (n, 2)), 0)), "ops.py:81")
    cases = (case(77, "fixed", ()), case(n, "small", (even,), (Bound("n", 1, 64),)))
    op = Op("pick", "demo::pick", "ops.py:80", (TensorParam("x"),), ("out",), cases)
    return op, kernels


def copying() -> tuple[Op, list[Kernel]]:
    """One operator with two implementations: a flat one for contiguous rows, and one for strides.

    The latter writes its output column by column.
    """
    m, n = Var("m"), Var("n")
    strides = (Var("x.stride[0]"), Var("x.stride[1]"))
    types = ("*fp32", "*fp32")
    kernels = [
        kernel("flat", "flat_kernel", (*types, "i32")),
        kernel("strided", "strided_kernel", (*types, "i32", "i32")),
    ]
    numel = times(m, n)

    def step(name, *values):
        numbers = (ScalarValue(str(v), v) for v in values)
        arguments = (*pointers("fp32", "x", "out"), *numbers)
        return launch(name, arguments, (*types, *("i32" for _ in values)), place="kernels.py:90")

    even = Guard(Expr("==", (Expr("%", (n, 2)), 0)), "ops.py:91")
    flat = Case(
        tensors("fp32", (m, n), "x"),
        paths=(Path((even,), (out_like("fp32", (m, n)),), (step("flat", numel),)),),
    )
    columns = Output("fp32", (m, n), (1, m))
    strided = Case(
        (TensorCase("x", True, "fp32", (m, n), strides),),
        bounds=(Bound("m", 1, 64),),
        paths=(Path((), (columns,), (step("strided", *strides),)),),
        implementation=1,
    )
    served = (
        Implementation("copy_flat", "demo::copy_flat", "ops.py:90", "Row after row."),
        Implementation("copy", "demo::copy", "ops.py:95"),
    )
    op = Op(
        "copy", "demo::copy", "ops.py:95", (TensorParam("x"),), ("out",), (flat, strided),
        implementations=served,
    )  # fmt: skip
    return op, kernels


def library(*parts, name="demo", archs=(SM_80, SM_90)) -> Library:
    parts = parts or (add(),)
    kernels = [k for _, ks in parts for k in ks]
    versions = (("opforge", "0.1.0"), ("triton", "3.7.1"))
    return Library(name, tuple(op for op, _ in parts), tuple(kernels), archs, versions)


def every_op() -> Library:
    return library(add(), matmul(), everything(), special(), overlapping())
