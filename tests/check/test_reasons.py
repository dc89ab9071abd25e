"""One useful line of an error, and a fix where one is known."""

import pytest
import torch

import opforge
from opforge.check.report import reason_of
from opforge.errors import BadOption, NeedsGpu


def raised(error, cause=None):
    error.__cause__ = cause
    return error


def test_the_first_line_is_taken():
    line, fix = reason_of(raised(ValueError("no\nFile x\n" * 60)))
    assert line == "ValueError: no"
    assert fix == ""


def test_an_opforge_error_is_found_among_its_causes_with_its_fix():
    inner = BadOption("it is bad", parameter="x", found="a frog", fix="kiss it")
    outer = raised(RuntimeError("backend failed"), raised(TypeError("wrapped"), inner))
    assert reason_of(outer) == ("parameter 'x': it is bad (a frog)", "kiss it")


def test_a_compilers_wrapper_is_looked_through():
    wrapper = type("BackendCompilerFailed", (RuntimeError,), {})
    error = raised(wrapper("backend='inductor' raised:\nKeyError: 3"), KeyError("the real one"))
    assert reason_of(error)[0] == "KeyError: 'the real one'"


def test_what_a_fake_raised_is_found_where_dynamo_hides_it(op_name):
    """Without the op's name, which a table has in its title, and with the error's own fix."""

    @opforge.op(op_name(), fake=lambda x: 5)
    def op(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(torch._dynamo.exc.TorchRuntimeError) as caught:
        torch.compile(lambda x: op(x) + 1, backend="eager", fullgraph=True)(torch.ones(3))
    line, fix = reason_of(caught.value)
    assert line == "the fake returned int, but the op's annotation says Tensor"
    assert fix == "return a tensor, or annotate Optional[Tensor]"


def test_a_graph_break_of_dynamo_is_one_line_with_its_explanation():
    @torch.compile(fullgraph=True, backend="eager")
    def breaks(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        breaks(torch.ones(1))
    line, fix = reason_of(caught.value)
    assert "graph_break" in line
    assert "\n" not in line
    assert "make what breaks the trace an op of its own" in fix


def test_a_long_line_is_cut():
    assert len(reason_of(raised(ValueError("x" * 500)))[0]) == 300


def test_a_cycle_of_causes_ends():
    first, second = ValueError("a"), NeedsGpu("b")
    first.__cause__, second.__cause__ = second, first
    assert reason_of(first)[0] == "b"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("wrong number of dimensions2 for op: torch.ops.a.b.default", "see row fake"),
        ("expected size 17==8, stride 128==128 at dim=0", "see row fake"),
        ("torch.* op returned non-Tensor", "return a tensor"),
    ],
)
def test_what_inductor_asserts_of_outputs_leads_to_the_fake(text, fix):
    assert fix in reason_of(AssertionError(text))[1]
