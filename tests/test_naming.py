"""Names of ops: given, made from the function, refused, taken, replaced and freed."""

import importlib
import itertools
import pathlib
import runpy
import sys
import types

import pytest
import torch

import opforge
from opforge.errors import (
    BadDeclaration,
    BadRegistration,
    BadSignature,
    WrongArgument,
)
from opforge.op import check_name

numbers = itertools.count()
HERE = pathlib.Path(__file__).name


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def line_of(fn):
    return f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An importable folder whose modules and ops are gone after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            for value in vars(module).values():
                if opforge.is_op(value):
                    opforge.unregister(value)
            del sys.modules[name]


@pytest.fixture
def module_name():
    return f"naming_sample_{next(numbers)}"


def write(folder, name, body, head="import opforge\nimport torch\n"):
    (folder / f"{name}.py").write_text(head + body)
    importlib.invalidate_caches()


BARE = "@opforge.op\ndef f(x: torch.Tensor) -> torch.Tensor:\n    return -x\n"
ONE = """
@opforge.op("{space}::f")
def f(x: torch.Tensor) -> torch.Tensor:
    return x + {add}
"""


def test_a_bare_decorator_names_the_op_after_file_and_function(folder, module_name):
    write(folder, module_name, BARE)
    module = importlib.import_module(module_name)
    assert opforge.info(module.f).name == f"{module_name}::f"
    assert getattr(torch.ops, module_name).f.default is module.f


def test_a_file_name_is_made_an_identifier(folder):
    path = folder / "3d-ops.v2.py"
    path.write_text(f"import opforge\nimport torch\n{BARE}")
    spec = importlib.util.spec_from_file_location("odd_file_name", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["odd_file_name"] = module
    spec.loader.exec_module(module)
    assert opforge.info(module.f).name == "_3d_ops_v2::f"


def test_a_package_gives_its_own_name_and_not_init(folder, module_name):
    (folder / module_name).mkdir()
    write(folder / module_name, "__init__", BARE)
    assert opforge.info(importlib.import_module(module_name).f).name == f"{module_name}::f"


def test_an_interactive_session_is_namespace_main(monkeypatch):
    session = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", session)
    exec("import opforge, torch", vars(session))
    run_cell(
        session, "@opforge.op\ndef in_a_session(x: torch.Tensor) -> torch.Tensor:\n    return -x\n"
    )
    try:
        assert opforge.info(session.in_a_session).name == "main::in_a_session"
    finally:
        opforge.unregister(session.in_a_session)


@pytest.mark.parametrize(
    ("name", "why", "right"),
    [
        ("scale", "it has no namespace", "'mylib::scale'"),
        ("my-lib::scale", "'my-lib' is not an identifier", "'my_lib::scale'"),
        ("mylib::2d", "'2d' is not an identifier", "'mylib::_2d'"),
        ("mylib::a.b.c", "'b.c' is not an identifier", "'mylib::a.b_c'"),
        ("mylib::", "'' is not an identifier", "'mylib::op'"),
        ("mylib::class", "'class' is not an identifier", "'mylib::class_'"),
        ("mylib::straße", "'straße' is not an identifier", "'mylib::stra_e'"),
        ("aten::scale", "namespace 'aten' belongs to PyTorch", "'mylib::scale'"),
        ("mylib::__init__", "'__init__' is an attribute of torch.ops", "'mylib::my_init'"),
        ("mylib::name", "'name' is an attribute of torch.ops", "'mylib::my_name'"),
        ("mylib::f.overloads", "'overloads' is an attribute", "'mylib::f.my_overloads'"),
        ("mylib::f.", "'' is not an identifier", "'mylib::f'"),
        ("mylib::f.default", "an op without an overload name is the default", "'mylib::f'"),
        ("load_library::f", "'load_library' is an attribute", "'my_load_library::f'"),
    ],
)
def test_a_bad_name_is_refused_with_the_right_form(name, why, right):
    with pytest.raises(BadDeclaration) as caught:
        opforge.op(name)(plain)
    text = str(caught.value)
    assert f"{name!r} is not an operator name: {why}" in text
    assert "use the form" in text
    assert right in text
    assert line_of(plain) in text


def test_every_attribute_of_torch_ops_is_known():
    packet = torch.ops.aten.relu
    overloads = {*packet.overloads(), "default"}
    levels = (
        ({"import_module", "load_library", "loaded_libraries"}, "{}::f"),
        ({*vars(torch._ops._OpNamespace("new")), *vars(torch._ops._OpNamespace)}, "mylib::{}"),
        ({*vars(packet), *vars(type(packet))} - overloads, "mylib::f.{}"),
    )
    for names, form in levels:
        for name in names:
            with pytest.raises(BadDeclaration):
                check_name(form.format(name))


class Callable:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x


def rows(x: torch.Tensor) -> list[torch.Tensor]:
    yield from x


class Model:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Callable(), "takes a plain Python function, got Callable"),
        (Callable, "takes a plain Python function, got type"),
        (3, "takes a plain Python function, got int"),
        (torch.add, "takes a plain Python function, got builtin"),
        (coroutine, "coroutine is async"),
        (rows, "rows is a generator"),
        (Model.method, "Model.method is a method, and methods cannot be ops"),
        (Model().method, "Model.method is a method"),
        (Model.of_class, "Model.of_class is a method"),
        (vars(Model)["of_class"], "Model.of_class is a method"),
    ],
)
def test_what_is_no_plain_function_is_refused(op_name, thing, text):
    with pytest.raises(BadSignature, match=text) as caught:
        opforge.op(op_name())(thing)
    assert "fix: " in str(caught.value)


def test_a_call_takes_the_name_as_an_option(op_name):
    name = op_name()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert opforge.info(opforge.op(f, name=name)).name == name
    with pytest.raises(TypeError, match="was given two names"):
        opforge.op(name, name=name)


def test_a_taken_name_is_refused_with_both_locations(op_name):
    name = op_name()
    opforge.op(name)(plain)

    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(BadRegistration) as caught:
        opforge.op(name)(other)
    text = str(caught.value)
    assert f"{name} is defined twice" in text
    assert f"already defined at {line_of(plain)}, again at {line_of(other)}" in text
    assert "opforge.unregister" in text
    assert isinstance(caught.value, RuntimeError)


def lambda_like(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_name_that_torch_knows_from_elsewhere_is_refused(op_name):
    name = op_name()

    @torch.library.custom_op(name, mutates_args=())
    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with pytest.raises(
        BadRegistration, match=f"{name} is already registered, and not by opforge"
    ) as caught:
        opforge.op(name)(plain)
    assert "registered at" in caught.value.found
    assert HERE in caught.value.location
    assert torch.equal(theirs(torch.ones(2)), torch.ones(2))


def test_a_file_that_is_loaded_under_two_names_is_told_so(folder, module_name):
    write(folder, module_name, ONE.format(space=module_name, add=1))
    module = importlib.import_module(module_name)
    with pytest.raises(BadRegistration, match=f"{module_name}::f is defined twice") as caught:
        runpy.run_path(module.__file__, run_name="other_name")
    assert f"found: its file is loaded twice, as {module_name} and as other_name" in str(
        caught.value
    )
    assert "fix: import it under one name" in str(caught.value)


def test_a_local_function_of_a_reloaded_module_is_refused(folder, module_name):
    write(
        folder,
        module_name,
        f"""
def make():
    @opforge.op("{module_name}::f")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.clone()
    return f
f = make()
""",
    )
    module = importlib.import_module(module_name)
    with pytest.raises(BadRegistration, match=f"{module_name}::f is defined twice"):
        importlib.reload(module)


def test_unregister_takes_a_name_a_packet_and_a_flattened_callable(op_name):
    def pair(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return x.new_zeros(size)

    flattened = opforge.op(op_name())(pair)
    opforge.unregister(flattened)
    assert not opforge.is_op(flattened)
    name = op_name()
    opforge.op(name)(plain)
    opforge.unregister(name)
    opforge.op(name)(plain)
    opforge.unregister(getattr(torch.ops.opforge_tests, name.partition("::")[2]))
    assert opforge.registry.registry.find(name) is None


def test_unregistering_twice_is_refused(op_name):
    op = opforge.op(op_name())(plain)
    opforge.unregister(op)
    with pytest.raises(WrongArgument, match="it was unregistered or replaced"):
        opforge.unregister(op)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "flattened"])
def test_calling_a_stale_handle_raises(direct, op_name):
    def pair(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return x.new_zeros(size)

    name = op_name()
    op = opforge.op(name)(plain if direct else pair)
    args = (torch.ones(2),) if direct else (torch.ones(2), (1, 2))
    op(*args)
    opforge.unregister(op)
    again = opforge.op(name)(lambda_like)
    assert again(torch.ones(2)).tolist() == [2.0, 2.0]
    assert not opforge.is_op(op)
    with pytest.raises(BadRegistration) as caught:
        op(*args)
    text = str(caught.value)
    assert text.startswith(f"{name} (")
    assert line_of(plain if direct else pair) in text
    assert "was unregistered" in text
    assert "use the new handle" in text


def test_a_compiled_function_that_holds_a_removed_op_raises(op_name):
    name = op_name()
    op = opforge.op(name)(plain)
    compiled = torch.compile(lambda x: op(x) + 1, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    opforge.unregister(op)
    # torch's own generated code looks the op up by name before it would call the handle.
    with pytest.raises((BadRegistration, AttributeError), match=name.partition("::")[2]):
        compiled(torch.ones(2))


def test_a_failure_in_the_middle_of_registering_leaves_the_name_free(op_name, monkeypatch):
    def refuse(*args):
        raise RuntimeError("not today")

    name = op_name()
    with monkeypatch.context() as patch:
        patch.setattr(opforge._compat, "register_fake", refuse)
        with pytest.raises(RuntimeError, match="not today"):
            opforge.op(name)(plain)
    op = opforge.op(name)(plain)
    assert torch.equal(op(torch.ones(2)), torch.ones(2))


def test_a_reloaded_module_replaces_its_ops(folder, module_name):
    write(folder, module_name, ONE.format(space=module_name, add=1))
    module = importlib.import_module(module_name)
    old = module.f
    write(folder, module_name, ONE.format(space=module_name, add=2))
    importlib.reload(module)
    assert torch.equal(module.f(torch.zeros(2)), torch.full((2,), 2.0))
    assert opforge.info(f"{module_name}::f").overload is module.f
    with pytest.raises(BadRegistration, match="was replaced by a new definition"):
        old(torch.zeros(2))


def test_a_module_reloaded_from_its_bytecode_replaces_its_ops(folder, module_name, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(folder, module_name, ONE.format(space=module_name, add=1))
    module = importlib.import_module(module_name)
    importlib.reload(module)
    assert torch.equal(module.f(torch.zeros(2)), torch.ones(2))


def test_a_module_whose_import_failed_half_way_can_be_imported_again(folder, module_name):
    write(folder, module_name, ONE.format(space=module_name, add=1) + "\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(module_name)
    write(folder, module_name, ONE.format(space=module_name, add=2))
    assert importlib.import_module(module_name).f(torch.zeros(1)).item() == 2.0


def test_a_reload_that_is_refused_leaves_the_old_op(folder, module_name):
    write(folder, module_name, ONE.format(space=module_name, add=1))
    module = importlib.import_module(module_name)
    old = module.f
    write(folder, module_name, ONE.format(space=module_name, add=2).replace(" -> torch.Tensor", ""))
    with pytest.raises(BadSignature):
        importlib.reload(module)
    assert torch.equal(old(torch.zeros(2)), torch.ones(2))


def run_cell(session, text):
    """Run text as a notebook does: compiled again, in one namespace that lives on."""
    exec(compile(text, f"<cell {next(numbers)}>", "exec"), vars(session))


@pytest.fixture
def session(op_name):
    made = types.ModuleType("__main__")
    made.name = op_name()
    exec("import opforge, torch", vars(made))
    return made


CELL = """
@opforge.op(name)
def f(x: torch.Tensor) -> torch.Tensor:
    return x + {add}
"""


def test_a_notebook_cell_run_again_replaces_its_op(session):
    run_cell(session, CELL.format(add=1))
    old = session.f
    run_cell(session, CELL.format(add=2))
    assert torch.equal(session.f(torch.zeros(2)), torch.full((2,), 2.0))
    with pytest.raises(BadRegistration, match="was replaced by a new definition"):
        old(torch.zeros(2))


def test_a_replaced_dataclass_op_takes_the_new_class(session):
    cell = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Config:
    scale: float

@opforge.op(name)
def f(x: torch.Tensor, config: Config) -> torch.Tensor:
    assert type(config) is Config
    return x * config.scale
"""
    for _ in range(2):
        run_cell(session, cell)
        assert torch.equal(session.f(torch.ones(2), session.Config(3.0)), torch.full((2,), 3.0))
