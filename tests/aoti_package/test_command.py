"""`opforge package`: its output, its files and its refusals; OPFORGE_ACCEPT=1 rewrites golden."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from opforge.aoti_package.build import read_dynamic_texts, read_model
from opforge.aoti_package.package_record import (
    Package,
    PackagedInput,
    PackagedOp,
    cpp_needs,
    write_cpp,
)
from opforge.cli import main
from opforge.errors import BadOption
from support import packaged_ops

SOURCE = """
import opforge
import torch
import triton

@triton.jit
def plus_kernel(x_ptr, out_ptr):
    pass

@opforge.op("cli_packaged::plus")
def plus(x: torch.Tensor) -> torch.Tensor:
    if not x.is_cuda:
        return x + 1
    out = torch.empty_like(x)
    plus_kernel[(1,)](x, out)
    return out

class Model(torch.nn.Module):
    def forward(self, x, *, y):
        return plus(x) * y

class Untraceable(torch.nn.Module):
    def forward(self, x, *, y):
        return x if y.sum() > 0 else x + 1

model, untraceable = Model(), Untraceable()

def inputs():
    return (torch.randn(4, 3),), {"y": torch.randn(3)}
"""


def run(*arguments):
    return CliRunner().invoke(main, ["package", *map(str, arguments)])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "cli_packaged.py"
    path.write_text(SOURCE)
    return path


def test_a_model_of_transparent_ops_is_packaged_with_a_program_for_torch_alone(source, tmp_path):
    result = run(
        f"{source}:model",
        *("-o", tmp_path / "out" / "model.pt2"),
        *("--inputs", f"{source}:inputs"),
        *("--dynamic", "x:0=batch:1:32"),
        "--strict",
        *("--cpp", tmp_path / "app"),
        "--json",
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["path"] == str(tmp_path / "out" / "model.pt2")
    assert printed["strict"] is True
    assert [(op["name"], op["seen_through"]) for op in printed["ops"]] == [
        ("cli_packaged::plus", True)
    ]
    # The body launches nothing for CPU tensors, so the package has no kernel.
    assert (printed["needed_at_run_time"], printed["kernels"]) == ([], [])
    (loaded,) = (row["text"] for row in printed["report"] if row["name"] == "load")
    assert loaded.endswith("without importing opforge")
    assert (tmp_path / "out" / "model.pt2").exists()
    assert f"wrote {tmp_path / 'app' / 'main.cpp'}" in result.stderr
    assert "It needs only torch's own operators at run time." in result.stderr


def test_a_model_that_cannot_be_exported_is_reported_with_its_line(source, tmp_path):
    result = run(f"{source}:untraceable", "-o", tmp_path / "m.pt2", "--inputs", f"{source}:inputs")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"Error: {source}:24: Untraceable cannot be exported" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("target", "dynamic", "text"),
    [
        ("{}:modelx", "x:0=n", "did you mean model"),
        ("{}", "x:0=n", "names a module, not something in it"),
        ("{}:inputs", "x:0=n", "is neither a module nor an operator"),
        ("{}:model", "x=n", "--dynamic x=n does not name a dimension"),
        ("{}:model", "z:0=n", "dynamic names dimension 0 of 'z'"),
    ],
)
def test_mistakes_are_reported_on_stderr(target, dynamic, text, source, tmp_path):
    result = run(
        target.format(source),
        *("-o", tmp_path / "m.pt2"),
        *("--inputs", f"{source}:inputs"),
        *("--dynamic", dynamic),
    )
    assert result.exit_code == 1
    assert text in result.stderr


def test_dynamic_options_are_read_with_and_without_a_range():
    assert read_dynamic_texts(("x:0=batch", "x:1=n:1:64", "cfg.weight:0=batch")) == {
        "x": {0: "batch", 1: ("n", 1, 64)},
        "cfg.weight": {0: "batch"},
    }


@pytest.mark.parametrize("text", ["x=batch", "x:0=", ":0=n", "x:a=n", "x:0=n:1", "x:0=n:a:b"])
def test_an_invalid_dynamic_option_shows_a_valid_one(text):
    with pytest.raises(BadOption, match="x:0=batch:1:1024"):
        read_dynamic_texts((text,))


def test_the_target_may_be_a_model_an_op_or_a_factory_of_models():
    model = packaged_ops.Block()
    assert read_model(model, "m") is model
    assert read_model(packaged_ops.double, "m") is packaged_ops.double
    assert read_model(packaged_ops.shift, "m") is packaged_ops.shift
    assert isinstance(read_model(packaged_ops.Block, "m"), packaged_ops.Block)
    assert isinstance(read_model(lambda: model, "m"), packaged_ops.Block)


GOLDEN = Path(__file__).parent / "golden"


def packaged(*ops):
    inputs = (
        PackagedInput("x", "bfloat16", (8, 128), "cuda:0"),
        PackagedInput("cfg.index", "int64", (), "cpu"),
    )
    return Package(Path("/models/silu-v2.pt2"), "Model", False, (), (), ops, (), inputs)


@pytest.mark.parametrize("name", ["main.cpp", "CMakeLists.txt"])
def test_the_program_matches_the_golden_file(name, tmp_path):
    write_cpp(packaged(), tmp_path / "app")
    text = tmp_path.joinpath("app", name).read_text()
    if os.environ.get("OPFORGE_ACCEPT") == "1":
        GOLDEN.joinpath(name).write_text(text)
    assert text == GOLDEN.joinpath(name).read_text()


def test_opaque_ops_are_listed_with_what_to_do(tmp_path):
    python = PackagedOp("lib::python", False, "", "/ops.py:3", "ops", "/ops.py")
    library = PackagedOp("lib::library", False, "")
    seen = PackagedOp("lib::seen", True, "")
    text = cpp_needs(packaged(python, library, seen))
    assert "lib::python at run time, which /ops.py defines in Python" in text
    assert "lib::library at run time: link or dlopen" in text
    assert "lib::seen" not in text
    write_cpp(packaged(python, library, seen), tmp_path)
    assert text in tmp_path.joinpath("main.cpp").read_text()
