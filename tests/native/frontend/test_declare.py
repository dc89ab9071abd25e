"""`native.declare`: what it accepts and what it keeps."""

# Fields are declared with dict(...), as in the documentation.
# ruff: noqa: C408

import contextlib
import importlib
import sys

import pytest
import torch
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import (
    BadDeclaration,
    BadSignature,
    NotFound,
    WrongArgument,
)
from opforge.native.frontend.declaration import declarations_of
from opforge.native.frontend.expand import expand
from opforge.registry import registry
from support.native.declared import X, configured, declarations, gemm, refusal, silu


@pytest.mark.parametrize("mode", ["custom_op", "none", "auto"])
def test_an_op_of_any_mode_can_be_declared(make_op, mode):
    # In mode none the function is the op itself, so this test has its own.
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    op = make_op(doubled, mode=mode)
    native.declare(op, x=X)
    assert [p.name for p in expand(op).params] == ["x"]


def test_an_op_is_named_by_its_handle_its_overload_or_its_name(make_op):
    op = make_op(gemm)
    entry = registry.get(op)
    for each, dtype in [(op, "fp16"), (entry.overload, "bf16"), (entry.name, "fp32")]:
        native.declare(each, a=native.tensor("m k", dtype), b=native.tensor("k n", dtype))
    assert len(declarations(op)) == 3


def test_a_function_in_mode_none_is_asked_for_its_annotations_when_it_is_declared(make_op):
    def bare(x):
        return x

    op = make_op(bare, mode="none")
    text = refusal(BadSignature, op, x=X)
    assert text.startswith("OP (HERE), parameter 'x': no type annotation on x, return")


def test_declaring_does_not_read_the_body(make_op):
    # The helper is bound later, so the mode is open until something needs it.
    def waits(x: Tensor) -> Tensor:
        return later(x)  # noqa: F821

    op = make_op(waits)
    assert registry.get(op).is_open()
    native.declare(op, x=X)
    expand(op)
    assert registry.get(op).is_open()


def test_declaring_the_same_twice_changes_nothing(make_op):
    op = make_op(configured)
    for _ in range(3):
        native.declare(op, x=X, cfg=dict(scale=1, inner=dict(k=native.choice(1, 2))))
        native.declare(op, x=X, cfg__scale=1.0, cfg__inner__k=native.choice(1, 2))
    assert len(declarations(op)) == 1


def test_equal_numbers_of_different_types_are_different_declarations(make_op):
    def scaled(x: Tensor, by: torch.types.Number) -> Tensor:
        return x * by

    op = make_op(scaled)
    native.declare(op, x=X, by=1)
    native.declare(op, x=X, by=1.0)
    assert expand(op).params[1].values == ("1", "1.0")


def test_unregistering_forgets_declarations(make_op):
    op = make_op(silu)
    native.declare(op, x=X)
    entry = registry.get(op)
    opforge.unregister(op)
    assert declarations_of(entry) == ()
    again = opforge.op(silu, name=entry.name)
    assert declarations(again) == []
    with pytest.raises(NotFound) as caught:
        expand(again)
    assert caught.value.op == entry.name


OPS = """
import opforge
from opforge import native
from torch import Tensor

@opforge.op("opforge_declare_reload::silu")
def silu(x: Tensor) -> Tensor:
    return x * 1
"""
DECLARED = "native.declare(silu, x=native.tensor('m', dtype='{}'))\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module, and imports it or reloads it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = []

    def load(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        made.append(name)
        if name in sys.modules:
            return importlib.reload(sys.modules[name])
        return importlib.import_module(name)

    yield load
    with contextlib.suppress(WrongArgument):
        opforge.unregister("opforge_declare_reload::silu")
    for name in made:
        sys.modules.pop(name, None)


def dtypes(op):
    return [case.tensors[0].dtype for case in expand(op).cases]


@pytest.mark.parametrize(
    "dtype", ["half", "float16", torch.float16, "fp16", ["fp16", torch.float16]]
)
def test_a_dtype_has_several_names(make_op, dtype):
    op = make_op(silu)
    native.declare(op, x=native.tensor("m", dtype))
    assert dtypes(op) == ["fp16"]


def test_reloading_the_module_of_an_op_does_not_double_its_declarations(module):
    for dtype in ("fp16", "fp16", "bf16"):
        loaded = module("reloaded_ops", OPS + DECLARED.format(dtype))
        assert dtypes(loaded.silu) == [dtype]


def test_reloading_a_module_of_declarations_replaces_them(module):
    ops = module("kept_ops", OPS + DECLARED.format("fp64"))
    head = "from opforge import native\nfrom kept_ops import silu\n"
    module("kept_declarations", head + DECLARED.format("fp16") + DECLARED.format("fp32"))
    assert dtypes(ops.silu) == ["fp64", "fp16", "fp32"]
    module("kept_declarations", head + DECLARED.format("bf16") + "\n")
    assert dtypes(ops.silu) == ["fp64", "bf16"]


@pytest.mark.parametrize(
    "spec",
    [
        native.tensor("m n", dtype="T", layout="strided"),
        native.tensor("*s", dtype="T", layout="strided", broadcast=True),
        native.scalar("fp32"),
        native.choice("relu", None, 1),
        native.optional(native.tensor("m", dtype="i1")),
    ],
)
def test_a_spec_is_shown_as_it_is_written(spec):
    assert eval(repr(spec), {"native": native}) == spec


S = native.tensor("*s", dtype="fp16", layout="strided", ranks=(1, 2))
B = native.tensor("*s", dtype="fp16", layout="strided", broadcast=True)


def accumulate(state: Tensor, x: Tensor, scale: Tensor) -> None:
    state += x * scale


def test_broadcast_tensors_form_a_group_with_those_that_share_their_shape(make_op):
    op = make_op(accumulate, mutates_args=("state",))
    native.declare(op, state=S, x=B, scale=native.tensor("one", dtype="fp16"))
    params = expand(op).params
    assert [(p.group, p.broadcast) for p in params] == [(1, False), (1, True), (0, False)]
    assert params[1].doc == "fp16, 1-d or 2-d (*s), any strides, broadcast"


def test_a_written_tensor_cannot_be_broadcast(make_op):
    op = make_op(accumulate, mutates_args=("state",))
    text = refusal(WrongArgument, op, state=B, x=S, scale=S)
    assert "parameter 'state': it is broadcast and written to" in text


def test_declarations_that_broadcast_different_parameters_are_refused(make_op):
    op = make_op(accumulate, mutates_args=("state",))
    native.declare(op, state=S, x=B, scale=S)
    first = declarations(op)[0].location
    text = refusal(BadDeclaration, op, state=S, x=S, scale=B)
    assert f"broadcast different parameters\n  found: x at {first}; scale at HERE" in text


@pytest.mark.parametrize("names", [("x", "count"), ("input", "n")])
def test_parameters_go_by_the_functions_names_or_the_schemas(names, op_name):
    def scale(x, count):
        return torch.empty_like(x)

    op = opforge.op(scale, name=op_name(), schema="(Tensor input, int n) -> Tensor")
    specs = dict(zip(names, (native.tensor("m", "fp16"), native.scalar("i64")), strict=True))
    native.declare(op, **specs, dims={names[1]: (1, 64)})
    found = expand(op)
    assert [param.name for param in found.params] == ["input", "n"]
    assert {bound.var for bound in found.cases[0].bounds} == {"m", "n"}
    assert found.arguments(found.cases[0], {"input": "tensor", "n": 3}) == (("tensor", 3), {})


def test_a_name_of_the_schema_is_the_schemas_where_the_function_has_it_elsewhere(op_name):
    op = opforge.op(lambda x, n: x * n, name=op_name(), schema="(Tensor n, int x) -> Tensor")
    native.declare(op, n=native.tensor("m", "fp16"), x=native.scalar("i64"))
    found = [(param.name, param.kind) for param in expand(op).params]
    assert found == [("n", "tensor"), ("x", "scalar")]


def test_a_parameter_under_both_of_its_names_is_declared_twice(op_name):
    op = opforge.op(lambda x: x * 1, name=op_name(), schema="(Tensor input) -> Tensor")
    spec = native.tensor("m", "fp16")
    with pytest.raises(WrongArgument, match="declared twice"):
        native.declare(op, x=spec, input=spec)


def test_a_parameter_called_backward_stays_a_parameter(make_op):
    def scan(x: Tensor, backward: bool) -> Tensor:
        return x

    op = make_op(scan)
    native.declare(op, x=X, backward=native.choice(False, True))
    assert [param.name for param in expand(op).params] == ["x", "backward"]
