"""`native.open`: operators of a built library in Python, on the stand-in driver."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from opforge import native
from opforge.errors import BadOption, NativeCallFailed, NotALibrary, WrongArgument
from opforge.native.ir.interface import SchemaArgument
from opforge.native.library import ctypes_ops
from support.native import hand_made
from support.native.hand_made_frameworks import execute

SCALARS = {f"s_{t}": 1 for t in hand_made.SCALARS} | {"s_u8": 3}


@pytest.fixture
def built(make_own, standin):
    yield make_own(hand_made.every_op()).folder
    assert standin.errors == []


@pytest.fixture
def demo(built, standin):
    standin.execute = execute
    return native.open(built, host_memory=True)


def test_torch_tensors_are_accepted_and_returned(demo):
    x = torch.arange(6.0).view(2, 3)
    made = demo.add(x, y=torch.ones(2, 3, requires_grad=True))
    torch.testing.assert_close(made, x + 1)


def test_numpy_arrays_are_accepted_and_written_to(demo):
    x = np.arange(4, dtype=np.float32)
    out = np.zeros(4, dtype=np.float32)
    assert demo.add(x, x, out=out) is out
    np.testing.assert_array_equal(out, 2 * x)


def test_work_is_put_on_the_stream_that_is_given(demo, standin):
    x = torch.ones(4)
    stream = standin.stream()
    demo.add(x, x, stream=stream)
    assert [launch.stream for launch in standin.launches] == [stream]


def test_choices_are_python_values_and_optionals_may_be_left_out(demo):
    x, state = torch.zeros(3, 8), torch.zeros(3)
    out, stats = demo.everything(x=x, state=state, mode="relu", **SCALARS)
    assert (out.shape, stats.dtype) == ((3, 8), torch.float64)
    assert state.tolist() == [1, 1, 1]
    out, stats = demo.everything(x, torch.zeros(8), state, mode=None, **SCALARS)
    assert stats is None
    assert demo.everything(x, None, state, mode=None, out=(out, None), **SCALARS)[0] is out
    assert demo.special(torch.zeros(4), "pdl") is None


def test_arguments_that_are_left_out_have_the_defaults_of_the_schema(demo, monkeypatch):
    operator = demo.everything
    arguments = [SchemaArgument(name, "int", default=(value,)) for name, value in SCALARS.items()]
    arguments.append(SchemaArgument("mode", "str?", ("relu", None), default=(None,)))
    changed = dataclasses.replace(operator._op, arguments=tuple(arguments))
    monkeypatch.setattr(operator, "_op", changed)
    x, state = torch.zeros(3, 8), torch.zeros(3)
    _, stats = operator(x, state=state)
    assert stats is None
    _, stats = operator(x, state=state, mode="relu")
    assert stats is not None
    with pytest.raises(WrongArgument, match="'state': is missing"):
        operator(x)


def test_a_failure_has_the_text_of_c(demo):
    with pytest.raises(NativeCallFailed) as failed:
        demo.add(torch.zeros(4), torch.zeros(3))
    assert str(failed.value) == "demo_add: y: size 3 in dimension 0, expected 4 as in x (m)"
    assert failed.value.status == "INVALID_ARGUMENT"
    with pytest.raises(NativeCallFailed, match="nothing was built for this call") as failed:
        demo.add(torch.zeros(2, 2), torch.zeros(8))
    assert failed.value.status == "UNCOVERED"
    with pytest.raises(NativeCallFailed, match="device 7 does not exist"):
        demo.load(7)


def test_memory_of_the_cpu_is_refused_where_it_was_not_asked_for(built):
    with pytest.raises(NativeCallFailed, match="demo_add: x: "):
        native.open(built).add(torch.zeros(4), torch.zeros(4))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"mode": "gelu"}, BadOption, "'mode': is 'gelu', expected 'relu' or None"),
        ({"s_i8": 200}, WrongArgument, "'s_i8': is 200, which i8 does not hold"),
        ({"s_i32": 1.5}, WrongArgument, "'s_i32': is 1.5, expected a number"),
        ({"x": [1.0]}, WrongArgument, "'x': list does not support DLPack"),
        ({"z": 1}, WrongArgument, "'z': is not one of x, bias"),
    ],
)
def test_an_argument_that_c_cannot_pass_is_refused_by_name(demo, changed, error, text):
    given = {"x": torch.zeros(3, 8), "state": torch.zeros(3), "mode": None} | SCALARS | changed
    with pytest.raises(error, match=text):
        demo.everything(**given)


def test_arguments_are_counted(demo):
    x = torch.zeros(4)
    with pytest.raises(WrongArgument, match="'y': is missing"):
        demo.add(x)
    with pytest.raises(WrongArgument, match="takes 2 arguments, not 3"):
        demo.add(x, x, x)
    with pytest.raises(WrongArgument, match="'x': is given twice"):
        demo.add(x, x=x)
    with pytest.raises(WrongArgument, match="out= has 2 tensors, and the operator 1 outputs"):
        demo.add(x, x, out=(x, x))


def test_a_notebook_shows_operators_and_what_they_cover(demo):
    assert repr(demo) == "<native library demo: add, matmul, everything, special, pick>"
    assert "add(x, y, out=, stream=, implementation=)" in demo._repr_html_()
    assert "demo::add" in demo.add._repr_html_()


def test_the_operators_are_attributes(demo):
    assert {"add", "matmul", "everything", "special", "pick", "load"} <= set(dir(demo))
    assert demo.add.__doc__ == "The sum of two tensors."
    with pytest.raises(AttributeError, match="no operator 'sub'; it has add, matmul"):
        demo.sub  # noqa: B018 - it is what raises


def test_a_path_that_is_not_a_library_is_refused(built, tmp_path):
    with pytest.raises(NotALibrary, match=r"no lib\*\.so"):
        native.open(tmp_path)
    (tmp_path / "none.so").write_text("text")
    with pytest.raises(NotALibrary, match=r"none\.so is not an opforge library"):
        native.open(tmp_path / "none.so")
    shutil.copy(built / "lib" / "libdemo.so", tmp_path / "libother.so")
    with pytest.raises(NotALibrary, match="other_abi_version"):
        native.open(tmp_path / "libother.so")


@pytest.mark.parametrize(
    ("cuda", "there", "loaded", "expected"),
    [
        (None, {"libcuda.so.1", "libamdhip64.so"}, set(), 2),
        (None, {"libcuda.so.1", "libamdhip64.so"}, {"libamdhip64.so"}, 10),
        (None, set(), set(), 2),
        ("13.2", {"libcuda.so.1", "libamdhip64.so"}, {"libamdhip64.so"}, 2),
    ],
)
def test_host_memory_of_a_library_for_both_vendors_is_of_the_driver_that_is_there(
    monkeypatch, cuda, there, loaded, expected
):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(
        ctypes_ops, "_opens", lambda file, mode=0: file in (loaded if mode else there)
    )
    assert ctypes_ops.gpu_type(["sm_90", "gfx942"]) == expected
    assert ctypes_ops.gpu_type(["gfx942"]) == 10
