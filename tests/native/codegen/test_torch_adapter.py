"""The C++ of the torch adapter: what it serves, and how values are written."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import torch

from opforge.native.codegen import sources
from opforge.native.codegen.bindings import unadapted
from opforge.native.ir.interface import ChoiceParam, SchemaArgument, TensorParam
from support.native import hand_made
from support.standin.library import write

X = SchemaArgument("x", "Tensor")


def with_arguments(*arguments, params=(), returns=("Tensor",)):
    op, kernels = hand_made.overlapping()
    op = dataclasses.replace(
        op, params=(TensorParam("x"), *params), arguments=(X, *arguments), returns=returns,
        schema=f"demo::pick({', '.join(f'{a.type} {a.name}' for a in (X, *arguments))}) -> Tensor",
    )  # fmt: skip
    return op, kernels


def text_of(op, kernels):
    library = hand_made.library((op, kernels))
    return sources(library, torch=True)["src/demo/torch/demo_torch.cpp"].decode()


def test_it_compiles_without_a_warning(tmp_path):
    folder = write(hand_made.every_op(), tmp_path, torch=True)
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    headers = ["-Iinclude", "-isystem", str(Path(torch.__file__).parent / "include")]
    command = ["c++", "-std=c++17", *warnings, *headers, "-fsyntax-only"]
    subprocess.run([*command, "src/demo/torch/demo_torch.cpp"], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("type_", "value", "written"),
    [
        ("SymInt", -(2**63), "of_int(INT64_MIN)"),
        ("SymInt", 5, "of_int(INT64_C(5))"),
        ("float", 2, "of_float(2.0)"),
        ("float", 1e-300, "of_float(1e-300)"),
        ("float", float("-inf"), "of_float(-std::numeric_limits<double>::infinity())"),
        ("float", float("nan"), "of_float(std::numeric_limits<double>::quiet_NaN())"),
        ("bool", False, "of_bool(false)"),
        ("str", 'a "b"?\n', r'of_text("a \"b\"\?\n")'),
        ("ScalarType", ("dtype", "bfloat16"), "of_dtype(aoti_torch_dtype_bfloat16)"),
        ("Tensor?", None, "none()"),
    ],
)
def test_values_are_written_as_cpp(type_, value, written):
    text = text_of(*with_arguments(SchemaArgument("n", type_, (value,), fixed=True)))
    assert f"static const Choice a1_values[] = {{{written}}};" in text


def test_a_choice_is_passed_as_its_enum():
    choice = ChoiceParam("mode", ("FAST", "EXACT"), ("'fast'", "'exact'"))
    argument = SchemaArgument("mode", "str", ("fast", "exact"))
    op, kernels = with_arguments(argument, params=(choice,))
    cases = tuple(dataclasses.replace(case, choices=(("mode", 0),)) for case in op.cases)
    text = text_of(dataclasses.replace(op, cases=cases), kernels)
    assert "demo_pick(a0_raw, static_cast<demo_pick_mode>(a1), out0.get(), call.stream())" in text
    assert "mode is not a value that the library was built for: 'fast' or 'exact'" in text


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        (SchemaArgument("n", "SymInt[]", (("list", 1),), fixed=True), "n is of type SymInt[]"),
        (SchemaArgument("d", "Device", (("device", "cuda"),), fixed=True), "d is of type Device"),
    ],
)
def test_an_operator_that_it_cannot_serve_is_left_out_with_the_reason(argument, why):
    op, kernels = with_arguments(argument)
    assert unadapted(op) == why
    text = text_of(op, kernels)
    assert "const int operator_count = 0;" in text
    assert "demo_pick(" not in text


def test_a_function_that_is_not_a_torch_operator_is_left_out():
    op, _ = hand_made.matmul()
    assert unadapted(op) == "it is not a torch operator (mode none)"


def test_a_backward_whose_name_another_operator_has_is_left_out():
    op, _ = hand_made.matmul()
    assert "another operator has its name" in unadapted(dataclasses.replace(op, torch_name=""))
