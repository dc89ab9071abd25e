"""The examples, through the whole check, on a machine without a GPU."""

import json
import subprocess
from pathlib import Path

from support.launching import no_gpu
from support.processes import environment, python

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def checked(target, *options, **variables):
    """The rows that the command prints in a fresh process."""
    command = [python(), "-c", "from opforge.cli import main; main()", "check"]
    env = environment()
    # "0" would mean the same, and start a preloaded Python of its own.
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [*command, str(EXAMPLES / target), *options, "--json"],
        env=env | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    assert done.stderr == ""
    found = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    failures = {n: r["reason"] for n, r in found.items() if r["status"] == "fail"}
    assert (done.returncode, failures) == (0, {})
    return found


def passing(rows):
    return {name for name, row in rows.items() if row["status"] == "pass"}


REAL = {"eager", "opcheck", "fake", "mutation", "determinism", "strided inputs"}
REAL |= {"autograd", "vmap", "compile", "compile dynamic"}
REAL |= {"export", "export strict", "save and load"}


def test_rms_norm_passes_every_row_that_a_cpu_has():
    rows = checked("rms_norm.py:rms_norm", "--input", "x=randn(8,128)", "--input",
                   "cfg.weight=ones(128)")  # fmt: skip
    assert passing(rows) == REAL | {"package"}
    assert rows["compile"]["reason"] == "inductor, 1 graph"
    assert rows["compile dynamic"]["reason"] == "inductor, one graph for batch 8 and 17"


def test_momentum_step_passes_with_what_it_writes():
    inputs = [f"{name}=randn(8)" for name in ("state.weight", "state.velocity", "grad")]
    options = [part for text in [*inputs, "lr=0.1"] for part in ("--input", text)]
    skipping = ("--skip", "package", "--skip", "compile")
    rows = checked("momentum_step.py:momentum_step", *options, *skipping)
    assert passing(rows) == REAL - {"autograd", "vmap", "compile"}
    assert rows["mutation"]["reason"] == "writes to state.weight, state.velocity, as declared"


def test_silu_runs_in_the_interpreter():
    rows = checked(
        "silu.py:silu", "--input", "x=randn(4,32)", "--skip", "package", TRITON_INTERPRET="1"
    )
    assert passing(rows) == REAL
    assert "no race shows here" in rows["determinism"]["notes"][0]
    reason = rows["kernels visible"]["reason"]
    assert reason == "Triton's interpreter runs the kernels, and no graph can hold that"


@no_gpu
def test_silu_is_traced_without_a_gpu():
    rows = checked("silu.py:silu", "--input", "x=randn(4,32)")
    graphs = {"compile", "compile dynamic", "kernels visible", "export", "export strict"}
    assert passing(rows) == graphs | {"mutation", "native", "save and load"}
    assert rows["kernels visible"]["reason"] == "the graph launches silu_kernel"
    assert rows["eager"]["reason"] == "needs a GPU: the op launches Triton kernels"
