"""Variables and knobs that change what Triton compiles."""

import pytest
import triton

from opforge._compat import compiling, settings
from support.archs import SM_80
from support.processes import run_python

# Named always: Triton 3.10 changes its default.
FUSED = ("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(autouse=True)
def optimized(monkeypatch):
    """The suite's kernels are compiled without, which is a setting."""
    monkeypatch.delenv("DISABLE_LLVM_OPT", raising=False)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("TRITON_F32_DEFAULT", "ieee", "ieee"),
        ("TRITON_DEFAULT_FP_FUSION", "0", "0"),
        ("DISABLE_LLVM_OPT", "1", "true"),
    ],
)
def test_a_variable_that_changes_code_is_a_setting(monkeypatch, name, value, found):
    before = compiling.environment_key(SM_80, {})
    monkeypatch.setenv(name, value)
    assert dict(settings.current()) == dict([FUSED]) | {name: found}
    assert compiling.environment_key(SM_80, {}) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRITON_DEFAULT_FP_FUSION", "1"),
        ("DISABLE_LLVM_OPT", "0"),
        ("TRITON_CACHE_DIR", "/elsewhere"),
    ],
)
def test_defaults_and_what_is_only_printed_are_none(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert settings.current() == (FUSED,)


@pytest.mark.parametrize(
    ("group", "knob", "value", "found"),
    [
        ("language", "fp32_default", "ieee", ("TRITON_F32_DEFAULT", "ieee")),
        ("runtime", "debug", True, ("TRITON_DEBUG", "1")),
        ("compilation", "instrumentation_mode", "gsan", ("TRITON_INSTRUMENTATION_MODE", "gsan")),
    ],
)
def test_a_knob_that_a_program_assigns_is_a_setting(monkeypatch, group, knob, value, found):
    owner = getattr(triton.knobs, group)
    before = compiling.environment_key(SM_80, {})
    monkeypatch.setattr(triton.knobs, "propagate_env", False)
    monkeypatch.setitem(vars(owner), knob, value)
    assert dict(settings.current()) == dict([FUSED, found])
    assert compiling.environment_key(SM_80, {}) != before


def test_the_first_difference_is_told():
    assert settings.difference((), ()) is None
    one, other = (("A", "1"), ("B", "2")), (("A", "1"), ("C", "3"))
    assert settings.difference(one, other) == ("B", "2", None)
    assert settings.difference(other, one) == ("B", None, "2")
    # A recording that does not name it is of a Triton that fuses.
    assert settings.difference((), (FUSED,)) is None


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_is_compiled_names_whether_products_are_fused_with_sums(monkeypatch, value):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", value)
    fuses = value == "1"
    assert settings.jit_options({}, debug=False)["enable_fp_fusion"] is fuses
    own = {"enable_fp_fusion": not fuses}
    assert settings.jit_options(own, debug=False)["enable_fp_fusion"] is not fuses


PROGRAM = """
import sys, warnings
warned = []
warnings.showwarning = lambda message, *_, **__: warned.append(str(message))
import opforge, torch
from opforge import native
from support import launching

def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    launching.double[launching.blocks(x.numel())](x, out, x.numel(), BLOCK=64)
    return out

op = opforge.op("advice::doubled")(doubled)
native.declare(op, x=native.tensor("n", dtype="fp32"))
launching.graph_of(op, torch.ones(8))
assert opforge.check(op, torch.ones(8)).ok
opforge.explain(op)
native.build([op], sys.argv[0] + ".dist", archs=["sm_80", "gfx942"], cache=None)
assert not any("FP_FUSION" in message for message in warned), warned
"""


def test_opforge_does_not_warn_of_what_it_names(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    run_python(str(tmp_path / "program.py"))
