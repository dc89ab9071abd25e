"""Tables for products of matrices that a body calls: `x @ w`, `F.linear` and the like."""

import functools

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional

import opforge
from opforge import _compat, native
from opforge.cli import main
from opforge.commands.build import BuildArguments, listing
from opforge.errors import BadOption
from opforge.native.device.gemm import FULL_TUNER, HALF_TUNER, gemm_kernel
from opforge.native.ir.cases import Launch
from opforge.native.tracing.launches import by_table
from opforge.tuning.choose import config_of
from opforge.tuning.table import TunedKernel, TuningRow, TuningTable, save
from support import product_ops
from support.archs import SM_90
from support.native import torch_bodies

# The tables are for this GPU alone.
Program = functools.partial(torch_bodies.Program, archs=(SM_90,))

KEY = ("m", "n", "k", "A_COLUMNS", "B_COLUMNS")


def config(tuner, m, n):
    """The stored configuration of an autotuner with such a tile."""
    wanted = {"BLOCK_M": m, "BLOCK_N": n}
    found = [c for c in tuner.configs if {**c.kwargs, **wanted} == c.kwargs]
    return config_of(found[0])


@pytest.fixture
def table_of(tmp_path):
    """`table_of({(16, 64, 64): (16, 64)})`: the file of a table, the tile by the sizes m, n, k."""

    def write(tiles, *, dtype="float16", tuner=HALF_TUNER, columns=(False, False), source=None):
        source = source or _compat.autotuning.source_hash(gemm_kernel)
        kernel = TunedKernel("gemm_kernel", source, "sm_90", (dtype,) * 4, KEY)
        table = TuningTable()
        for sizes, tile in tiles.items():
            table.add(kernel, TuningRow((*sizes, *columns), config(tuner, *tile), 1.5))
        save(table, tmp_path / "tuning.json")
        return tmp_path / "tuning.json"

    return write


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


SPECS = {"x": native.tensor("m k", dtype="fp16"), "w": native.tensor("k n", dtype="fp16")}
MORE = {(16, 512, 512): (16, 64), (4096, 512, 512): (128, 256)}
SHAPES = {"mm": ("m k", "k n"), "bmm": ("b m k", "b k n")}
CALLS = {
    "mm": (torch.mm, SHAPES["mm"]),
    "matmul": (torch.matmul, SHAPES["mm"]),
    "rows of a stack": (torch.matmul, ("b m k", "k n")),
    "bmm": (torch.bmm, SHAPES["bmm"]),
    "addmm": (lambda x, w: torch.addmm(w[0], x, w), SHAPES["mm"]),
    "baddbmm": (lambda x, w: torch.baddbmm(w[:, :1], x, w), SHAPES["bmm"]),
}


def tiles_of(program):
    """`{"m <= 256": ("16", "64"), ...}` of the only case."""
    (built,) = program.body.built
    found = {}
    for path in built.case.paths:
        under = " and ".join(str(g.condition) for g in path.guards)
        for step in path.steps:
            if isinstance(step, Launch) and step.kernel_name == "gemm_kernel":
                given = dict(step.constants)
                found[under] = (given["BLOCK_M"], given["BLOCK_N"])
    return found


def test_a_table_becomes_conditions_on_the_sizes_of_a_product(table_of):
    program = Program(product, choose=by_table(table_of(MORE)), **SPECS)
    found = tiles_of(program)
    assert found == {"m <= 256": ("16", "64"), "256 < m": ("128", "256")}


@pytest.mark.parametrize("name", CALLS)
def test_every_product_takes_its_tiles_from_the_table(name, table_of):
    call, (x, w) = CALLS[name]

    def body(x: Tensor, w: Tensor) -> Tensor:
        return call(x, w)

    path = table_of({(16, 512, 512): (16, 64)})
    specs = {"x": native.tensor(x, dtype="fp16"), "w": native.tensor(w, dtype="fp16")}
    assert set(tiles_of(Program(body, choose=by_table(path), **specs)).values()) == {("16", "64")}


def test_a_linear_layer_has_rows_of_its_own(table_of):
    def body(x: Tensor, w: Tensor) -> Tensor:
        return functional.linear(x, w)

    specs = {"x": native.tensor("m k", dtype="fp16"), "w": native.tensor("n k", dtype="fp16")}
    specs["dims"] = {"k": (2, 8192)}
    dense = by_table(table_of({(16, 512, 512): (16, 64)}))
    assert set(tiles_of(Program(body, choose=dense, **specs)).values()) == {("128", "128")}
    turned = by_table(table_of({(16, 512, 512): (16, 64)}, columns=(False, True)))
    assert set(tiles_of(Program(body, choose=turned, **specs)).values()) == {("16", "64")}


def test_programs_of_all_tiles_compute_the_product(table_of):
    tiles = {(2, 9, 9): (16, 64), (8, 9, 9): (32, 32), (40, 9, 9): (128, 64)}
    choose = by_table(table_of(tiles, dtype="float32", tuner=FULL_TUNER))
    specs = {name: native.tensor(spec.dims, dtype="fp32") for name, spec in SPECS.items()}
    program = Program(product, choose=choose, **specs)
    assert len(set(tiles_of(program).values())) == 3
    for m in (1, 7, 70):
        x, w = torch.randn(m, 9), torch.randn(9, 5)
        torch.testing.assert_close(program(x, w), x @ w)


def note_of(program):
    (built,) = program.body.built
    (note,) = [n for n in built.notes if "gemm_kernel" in n]
    return note.partition(" became ")[2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dtype": "bfloat16"}, "no rows for tensors of float16, float16, float16, float16"),
        ({"source": "other"}, "2 rows for it, all stale: its source has changed (tune it again)"),
        ({"columns": (True, False)}, "no row for these values of its key on sm_90"),
    ],
)
def test_a_table_without_a_fitting_row_leaves_the_fixed_tiles(given, why, table_of):
    program = Program(product, choose=by_table(table_of(MORE, **given)), **SPECS)
    assert set(tiles_of(program).values()) == {("128", "128")}
    assert note_of(program) == (
        f"kernel gemm_kernel, with fixed tiles of 128 x 128 x 64 for fp16: the tuning table "
        f"has {why}"
    )


def test_the_listing_and_explain_say_which_tiles_are_taken(table_of):
    given = BuildArguments((f"{product_ops.__name__}:gated",), "dist", ("sm_90",))
    assert "gemm_kernel, with fixed tiles of 128 x 128 x 64 for fp16; `opforge tune`" in listing(
        given
    )
    assert "gemm_kernel, with fixed tiles of" in opforge.explain(product_ops.gated)
    tuned = BuildArguments(
        given.targets, "dist", ("sm_90",), tuning=str(table_of(MORE, columns=(False, True)))
    )
    said = listing(tuned)
    assert "gemm_kernel, with tiles of 16 x 64 x 128 for fp16 on sm_90, from tuning.json" in said
    assert "m <= 256" in said


def test_explain_takes_a_table(table_of):
    path = str(table_of(MORE, columns=(False, True)))
    tiles = "with tiles of 16 x 64 x 128 for fp16 on sm_90"
    expected = f"{tiles}, from tuning.json where m <= 256"
    assert expected in opforge.explain(product_ops.gated, tuning=path)
    target = f"{product_ops.__name__}:gated"
    assert expected in CliRunner().invoke(main, ["explain", target, "--tuning", path]).stdout
    with pytest.raises(BadOption, match=r"absent\.json cannot be read"):
        opforge.explain(product_ops.gated, tuning="absent.json")
    opforge.use_tuning(path)
    try:
        assert "on sm_90, from tuning.json" in opforge.explain(product_ops.gated)
    finally:
        opforge.use_tuning(None)
    assert "with fixed tiles of" in opforge.explain(product_ops.gated)
