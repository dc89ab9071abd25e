"""What `help`, editors and `inspect` show: of `opforge.op`, and of the ops that it makes."""

import dataclasses
import inspect
import pydoc
import re
from pathlib import Path

import pytest
import torch

import opforge
from opforge.errors import WrongArgument
from opforge.magi import magi_register_custom_op
from opforge.op import Options

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Config:
    factor: float = 2.0


def options_of(fn):
    parameters = inspect.signature(fn).parameters.values()
    return {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_the_signature_of_op_has_every_option_with_its_type_and_default():
    fields = {f.name: (f.type, f.default) for f in dataclasses.fields(Options)}
    assert options_of(opforge.op) == fields


def test_an_editor_completes_the_options():
    jedi = pytest.importorskip("jedi")
    source = str(Path(opforge.__file__).parents[1])
    project = jedi.Project(source, added_sys_path=[source])
    completed = jedi.Script("import opforge\nopforge.op(mod", project=project).complete()
    assert "mode=" in [one.name for one in completed]


def test_the_docstring_of_op_describes_every_option_in_order():
    described = re.findall(r"^ {8}(\w+): ", inspect.getsource(opforge.op), re.MULTILINE)
    assert described == ["target", *options_of(opforge.op), "OpforgeError"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mutate_args", "did you mean 'mutates_args'? "),
        ("kernel", "did you mean 'kernels'? "),
        ("zzz", ""),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(given, meant):
    with pytest.raises(WrongArgument) as caught:
        opforge.op("mylib::scale", **{given: ["x"]})
    text = str(caught.value)
    assert f"opforge.op has no option {given!r}" in text
    assert f"fix: {meant}options: name, mutates_args, " in text
    assert isinstance(caught.value, TypeError)


def direct(x: Tensor, factor: float = 2.0) -> Tensor:
    """Multiply."""
    return x * factor


def flattened(x: Tensor, config: Config = Config()) -> Tensor:  # frozen
    """Multiply."""
    return x * config.factor


def no_op(x: Tensor, factor: float = 2.0) -> Tensor:
    """Multiply."""
    return x * factor


@pytest.mark.parametrize(
    ("fn", "path", "decorator"),
    [
        (direct, "direct", opforge.op),
        (flattened, "flattened", opforge.op),
        (direct, "direct", magi_register_custom_op),
        (flattened, "flattened", magi_register_custom_op),
        (no_op, "direct", lambda name: opforge.op(name, mode="none")),
    ],
)
def test_an_op_shows_the_functions_signature_and_docstring(fn, path, decorator, op_name):
    op = decorator(op_name())(fn)
    try:
        assert opforge.info(op).path == path
        assert inspect.signature(op) == inspect.signature(fn)
        assert op.__doc__ == inspect.getdoc(op) == "Multiply."
        shown = pydoc.plain(pydoc.render_doc(op))
        assert "Multiply." in shown
        if not isinstance(op, torch._ops.OpOverload):
            assert (op.__name__, op.__module__) == (fn.__name__, __name__)
            assert op.__qualname__ == fn.__qualname__
            assert inspect.unwrap(op) is fn
    finally:
        opforge.unregister(op)


def test_an_overload_keeps_the_names_that_torch_serializes_it_by(op_name):
    name = op_name()
    op = opforge.op(name)(direct)
    namespace, own = name.split("::")
    assert (op.__module__, op.__name__) == (f"torch._ops.{namespace}", f"{own}.default")
    assert op.__qualname__ == name
    assert inspect.unwrap(op) is op


def test_a_function_without_a_docstring_does_not_show_torchs(op_name):
    @opforge.op(op_name())
    def silent(x: Tensor) -> Tensor:
        return x.clone()

    assert silent.__doc__ is None
