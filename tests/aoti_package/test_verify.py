"""Verification in the fresh process: comparison, imports and refusals."""

import json
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from opforge.aoti_package import fresh
from opforge.aoti_package.verify import TOLERANCES, EagerCall, in_fresh_process, verify
from opforge.errors import BadRegistration, BuildFailed, WrongResult
from support.processes import run_python

SPEC = {"tolerances": TOLERANCES, "rtol": None, "atol": None}


def difference(found, expected, **tolerance):
    return fresh.difference(found, expected, {**SPEC, **tolerance})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_allowed_and_more_is_not(dtype):
    expected = torch.randn(1000, dtype=dtype)
    step = torch.finfo(dtype).eps
    error, wrong = difference(expected * (1 + step), expected)
    assert not wrong
    assert 0 < error < 8 * step
    assert difference(expected * 1.1, expected)[1]


def test_small_results_are_compared_at_their_own_size():
    expected = torch.full((8,), 1e-6)
    assert difference(expected * 2, expected)[1] == "tolerance 0.0001 of its size"


def test_integers_and_booleans_must_be_equal():
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == (
        1.0,
        "tolerance 0 of its size",
    )
    assert difference(torch.tensor([True]), torch.tensor([True])) == (0.0, "")


def test_infinities_and_nans_agree_only_with_themselves():
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.0])
    assert difference(odd, odd.clone()) == (0.0, "")
    assert difference(torch.tensor([float("nan")]), torch.tensor([1.0]))[1]
    assert difference(torch.tensor([1.0]), torch.tensor([float("inf")]))[1]


def test_given_tolerances_mean_what_they_mean_for_allclose():
    a, b = torch.tensor([1.05]), torch.tensor([1.0])
    assert difference(a, b, atol=0.1)[1] == ""
    assert difference(a, b, rtol=0.1)[1] == ""
    assert difference(a, b, rtol=0.01)[1] == "tolerance rtol=0.01, atol=0"


def test_a_different_shape_dtype_or_count_is_reported():
    one, two = torch.ones(1), torch.ones(2)
    assert fresh.compare(SPEC, [one], [two])["wrong"] == (
        "tensor 0 is torch.float32 (1,) instead of torch.float32 (2,)"
    )
    assert fresh.compare(SPEC, [one], [])["wrong"] == "1 tensors instead of 0"


def eager_call(grad, *, expected):
    return EagerCall("as told", [torch.zeros(6), grad], [], [expected, grad])


def test_a_mutated_input_is_compared_and_the_call_is_named(built_op, tmp_path):
    package = tmp_path / built_op.path.name
    package.write_bytes(built_op.path.read_bytes())
    grad = torch.ones(6)
    found = verify(package, [eager_call(grad, expected=-0.5 * grad)], built_op.needed)
    assert found.calls == (("as told", 0),)
    with pytest.raises(WrongResult, match=r"as told: tensor 0 differs by 1, tolerance 0\.0001"):
        verify(package, [eager_call(grad, expected=0.5 * grad)], built_op.needed)


def test_an_op_whose_module_cannot_be_imported_shows_the_modules_own_traceback(built_op, tmp_path):
    broken = tmp_path / "broken_ops.py"
    broken.write_text("1 / 0\n")
    [op] = built_op.needed
    lost = replace(op, module="broken_ops", file=str(broken))
    with pytest.raises(BadRegistration) as raised:
        in_fresh_process(built_op.path, [], [lost], tmp_path)
    assert "ZeroDivisionError" in str(raised.value)
    assert f'File "{broken}", line 1' in str(raised.value)


def test_a_module_that_does_not_define_the_op_is_reported(built_op, tmp_path):
    empty = tmp_path / "empty_ops.py"
    empty.write_text("")
    [op] = built_op.needed
    lost = replace(op, module="empty_ops", file=str(empty))
    with pytest.raises(BadRegistration) as raised:
        in_fresh_process(built_op.path, [], [lost], tmp_path)
    assert "Could not find schema for packaged_ops::step" in str(raised.value)


def test_an_op_inside_a_function_is_refused_with_its_location(built_op, tmp_path):
    [op] = built_op.needed
    with pytest.raises(BadRegistration) as raised:
        in_fresh_process(built_op.path, [], [replace(op, local=True)], tmp_path)
    assert str(raised.value).startswith(f"{op.location}: the package calls packaged_ops::step")


ENDLESS = """
import opforge
from torch import Tensor

@opforge.op("endless::op")
def op(x: Tensor) -> Tensor:
    return x + 1
"""


@pytest.mark.parametrize("call", ["package(op, (), 'op.pt2')", "check(op)"])
def test_a_module_that_checks_or_packages_on_import_is_told_so_instead_of_going_on_forever(
    call, tmp_path
):
    endless = tmp_path / "endless_ops.py"
    endless.write_text(f"{ENDLESS}\nopforge.{call}\n")
    said = run_python(
        textwrap.dedent(f"""
        import sys
        from opforge.aoti_package import fresh
        sys.modules["__main__"].__file__ = fresh.__file__
        try:
            fresh.import_module("endless_ops", {str(endless)!r})
        except Exception as error:
            print(error)
        """)
    )
    name = call.partition("(")[0]
    assert said.startswith(f"opforge.{name} was called by a module that is only imported to verify")
    assert 'fix: put the call under `if __name__ == "__main__":`' in said


def test_a_script_is_imported_without_running_as_one(tmp_path):
    script = tmp_path / "some_script.py"
    script.write_text("name = __name__\nif __name__ == '__main__':\n    1 / 0\n")
    before = list(sys.path)
    fresh.import_module("__main__", str(script))
    sys.path[:] = before
    assert sys.modules.pop("some_script").name == "some_script"


def test_a_package_that_needs_a_preload_is_not_loaded_without_it(built_op, monkeypatch):
    fragile = replace(built_op, preload="/lib/libstdc++.so.6")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(BuildFailed, match=r"start Python with LD_PRELOAD=/lib/libstdc\+\+"):
        fragile.load()
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/other.so:/usr/lib/libstdc++.so.6")
    assert fragile.load() is not None
    assert json.loads(fragile.to_json())["preload"] == "/lib/libstdc++.so.6"
