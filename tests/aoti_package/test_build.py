"""`opforge.package` from end to end, on the CPU."""

import dataclasses
import json

import pytest
import torch

import opforge
from opforge.aoti_package import build
from opforge.aoti_package.export import export, read_exportable
from opforge.aoti_package.verify import eager_calls
from opforge.errors import (
    BadOption,
    BadSignature,
    BuildFailed,
    NeedsGpu,
    WrongArgument,
    WrongResult,
)
from support import packaged_ops


def rows(package, name):
    return [row for row in package.report if row.name == name]


def test_the_package_is_verified_at_the_traced_size_at_others_and_again_after_a_state_change(
    built,
):
    labels = [row.text.partition(":")[0] for row in rows(built, "verified")]
    assert labels == [
        "batch=4 (traced)",
        "batch=1",
        "batch=9",
        "also[0]",
        "batch=4 (traced), again",
    ]
    assert all(row.value < 1e-4 for row in rows(built, "verified"))


def skip_if_loading_would_crash_this_process(package):
    if package.preload:
        pytest.skip(f"this process was not started with LD_PRELOAD={package.preload}")


def test_the_package_computes_what_the_model_computes(built, model, arguments):
    args, kwargs = arguments
    skip_if_loading_would_crash_this_process(built)
    loaded = built.load()
    expected = model.linear(
        packaged_ops.scale(args[0] * 2, packaged_ops.Scale(model.block.weight, 0.25))
    )
    torch.testing.assert_close(loaded(*args, **kwargs)["y"], expected.detach() + 1 + kwargs["bias"])
    # A loaded package has state of its own.
    assert loaded(*args, **kwargs)["calls"].item() == 8
    assert model.calls.item() == 0


def test_ops_say_whether_the_compiler_saw_through_them(built):
    seen = {op.name: op.seen_through for op in built.ops}
    assert seen == {
        "packaged_ops::double": True,
        "packaged_ops::scale": False,
        "packaged_ops::shift": False,
    }
    assert [op.name for op in built.needed] == ["packaged_ops::scale", "packaged_ops::shift"]
    assert {op.module for op in built.needed} == {"support.packaged_ops"}
    assert built.ops[0].location.endswith("packaged_ops.py:20")


def test_the_printed_package_says_what_is_needed_at_run_time(built):
    text = str(built)
    assert text.startswith(f"{built.path}  (Model)\n  export ")
    assert "packaged_ops::double (" in text
    assert ", seen through: it launches double_kernel" in text
    assert "packaged_ops::shift at run time: import support.packaged_ops (" in text
    transparent = dataclasses.replace(built, ops=built.ops[:1])
    assert "nothing but torch at run time" in str(transparent)


def test_a_bare_op_that_writes_into_a_record_is_packaged_as_it_is_called(built_op):
    state, grad = packaged_ops.Scale(torch.ones(6), eps=0.5), torch.full((6,), 0.5)
    skip_if_loading_would_crash_this_process(built_op)
    built_op.load()(state, grad)
    torch.testing.assert_close(state.weight, torch.full((6,), 0.75))
    assert built_op.title == "packaged_ops::step"
    assert [value.name for value in built_op.inputs] == ["state.weight", "grad"]
    assert [row.text for row in rows(built_op, "verified")] == ["as given: max error 0"]


def test_traces_of_the_compiled_model_and_of_the_package_are_written(built_op, tmp_path):
    for file in built_op.profile(tmp_path / "traces", repeat=2):
        events = json.loads(file.read_text())["traceEvents"]
        assert [e["name"] for e in events if e.get("cat") == "user_annotation"].count("call") == 2
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [
        "compiled.json",
        "package.json",
    ]


class Sizes(torch.nn.Module):
    def forward(self, x):
        return x + 1, x.shape[0], None


def test_integer_results_are_compared_as_the_tensors_they_become():
    exportable = read_exportable(Sizes(), (torch.ones(3),), None)
    program = export(exportable, (), strict=False).program
    [call] = eager_calls(program, exportable, (), (), {})
    assert [t.tolist() for t in call.outputs] == [[2.0, 2.0, 2.0], 3]


class Plain(torch.nn.Module):
    def forward(self, x):
        return x + 1


def test_no_package_is_kept_if_it_does_not_agree_with_eager(built_op, tmp_path, monkeypatch):
    """A stand-in for the compiler returns the package of another op."""

    def wrong(_exported, path, _configs):
        path.write_bytes(built_op.path.read_bytes())
        return "set"

    class Undo(torch.nn.Module):
        def forward(self, state, grad):
            state.weight.add_(grad)

    monkeypatch.setattr(build._compat.aoti, "compile_package", wrong)
    state = packaged_ops.Scale(torch.randn(6))
    with pytest.raises(WrongResult) as raised:
        opforge.package(Undo(), (state, torch.randn(6)), tmp_path / "wrong.pt2")
    assert "as given: " in raised.value.found
    assert "call model.eval() first" in raised.value.fix
    assert list(tmp_path.iterdir()) == []


def test_the_compilers_message_is_in_the_error(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("g++: command not found\nsecond line")

    monkeypatch.setattr(build._compat.aoti, "compile_package", fail)
    with pytest.raises(BuildFailed) as raised:
        opforge.package(Plain(), (torch.randn(3),), tmp_path / "model.pt2")
    assert "RuntimeError: g++: command not found" in raised.value.found
    assert "second line" in raised.value.found
    assert "opforge doctor" in raised.value.fix


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_compiling_kernels_needs_a_gpu(tmp_path):
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return packaged_ops.launch(x)

    with pytest.raises(NeedsGpu):
        opforge.package(Doubled(), (torch.randn(3),), tmp_path / "model.pt2")


@pytest.mark.parametrize(
    ("model", "args", "path", "error", "text"),
    [
        (Plain(), (torch.ones(2),), "model.so", BadOption, "fix: model.pt2"),
        (Plain(), torch.ones(2), "model.pt2", WrongArgument, "fix: args=(x,)"),
        (Plain(), (), "model.pt2", WrongArgument, "missing a required argument: 'x'"),
        (Plain, (torch.ones(2),), "model.pt2", BadSignature, "Plain is neither a module nor an op"),
        (len, (torch.ones(2),), "model.pt2", BadSignature, "len is neither a module nor an op"),
    ],
)
def test_an_unusable_model_or_argument_is_refused_at_once(model, args, path, error, text):
    with pytest.raises(error) as raised:
        opforge.package(model, args, path)
    assert text in str(raised.value)
