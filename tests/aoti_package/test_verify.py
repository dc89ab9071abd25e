"""Verification in the fresh process: imports and refusals."""

import json
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from opforge.aoti_package import fresh
from opforge.aoti_package.verify import EagerCall, in_fresh_process, verify
from opforge.errors import BadRegistration, BuildFailed, WrongResult
from support.processes import run_python


def eager_call(grad, *, expected):
    return EagerCall("as told", [torch.zeros(6), grad], [], [expected, grad])


def test_a_mutated_input_is_compared_and_the_call_is_named(built_op, tmp_path):
    package = tmp_path / built_op.path.name
    package.write_bytes(built_op.path.read_bytes())
    grad = torch.ones(6)
    found = verify(package, [eager_call(grad, expected=-0.5 * grad)], built_op.needed)
    assert found.calls == (("as told", 0),)
    with pytest.raises(WrongResult, match=r"as told: input after the call"):
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
