"""Numerics without a GPU: a real cubin in the library, Triton's interpreter in its place."""

import subprocess

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from support.archs import SM_80, sm
from support.native import hand_made, row_sums
from support.processes import environment, python
from support.standin.library import build

BLOCK = 32


def row_sum():
    """out = x.sum(1) * scale, with a cubin per dtype as the compiler writes it."""
    rows, cols = hand_made.Var("rows"), hand_made.Var("cols")
    cases, kernels = [], []
    for dtype in ("fp16", "fp32"):
        types = {"x_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "cols": "i32", "scale": "fp32"}
        source = ASTSource(
            fn=row_sums.row_sum_kernel,
            signature={**types, "BLOCK": "constexpr"},
            constexprs={(4,): BLOCK},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        meta = compiled.metadata
        image = hand_made.Image(
            SM_80, compiled.asm["cubin"], meta.name, meta.num_warps, meta.shared
        )
        key = f"row_sum_{dtype}"
        kernels.append(
            hand_made.Kernel(
                key, "row_sum_kernel", "row_sums.py:16", tuple(types.values()),
                (("BLOCK", str(BLOCK)),), (image,),
                qualified_name="support.native.row_sums.row_sum_kernel",
            )
        )  # fmt: skip
        launch = hand_made.Launch(
            "row_sum_kernel",
            "row_sums.py:16",
            (rows, 1, 1),
            (
                hand_made.Pointer("x_ptr", "x", 0, dtype),
                hand_made.Pointer("out_ptr", "out", 0, dtype),
                hand_made.ScalarValue("cols", cols),
                hand_made.ScalarValue("scale", hand_made.Var("scale", is_float=True)),
            ),
            (hand_made.Variant(key, tuple(types.values())),),
        )
        cases.append(
            hand_made.Case(
                (hand_made.TensorCase("x", True, dtype, (rows, cols)),),
                (),
                (hand_made.Bound("cols", 1, BLOCK),),
                (hand_made.Path((), (hand_made.out_like(dtype, (rows,)),), (launch,)),),
            )
        )
    params = (hand_made.TensorParam("x"), hand_made.ScalarParam("scale", "fp32"))
    return hand_made.Op("row_sum", "sums::row_sum", "", params, ("out",), tuple(cases)), kernels


def test_a_launch_runs_through_tritons_interpreter(tmp_path):
    build(hand_made.library(row_sum(), name="sums", archs=sm(80)), tmp_path)
    done = subprocess.run(
        [python(), "-m", "support.native.row_sums", tmp_path],
        env=environment(TRITON_INTERPRET="1"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
