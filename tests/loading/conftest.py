"""A library of hand-made programs with its torch adapter, loaded on the stand-in driver."""

import dataclasses
import functools
import tempfile
from pathlib import Path

import pytest

import opforge
from opforge.native.artifacts.toolchain import compile_adapter, compile_library
from opforge.native.codegen import sources
from opforge.native.ir.interface import SchemaArgument
from opforge.registration.dependence import op_fingerprint
from support.loading import demo_source
from support.native import hand_made
from support.native.hand_made_frameworks import execute
from support.standin.driver import load_standin

_TYPES = {"fp": "float", "bf": "float", "i1": "bool"}


def scalar_type(dtype):
    return _TYPES.get(dtype[:2] if dtype != "i1" else "i1", "SymInt")


def torch_facts():
    """By operator: schema without the name, arguments, returns."""
    tensor = functools.partial(SchemaArgument, type="Tensor")
    scalars = [SchemaArgument(f"s_{t}", scalar_type(t)) for t in hand_made.SCALARS]
    written = ", ".join(f"{a.type} {a.name}" for a in scalars)
    rest = "str? mode='relu', *, bool fixed=False"
    labels = ("shared", "cluster", "cluster16", "cooperative", "pdl", "scratch", "profile", "huge")
    return {
        "add": ("(Tensor x, Tensor y) -> Tensor", [tensor("x"), tensor("y")], ("Tensor",)),
        "matmul": ("(Tensor a, Tensor b) -> Tensor", [tensor("a"), tensor("b")], ("Tensor",)),
        "pick": ("(Tensor x) -> Tensor", [tensor("x")], ("Tensor",)),
        "everything": (
            f"(Tensor x, Tensor? bias, Tensor(a!) state, {written}, {rest}) -> (Tensor, Tensor?)",
            [
                tensor("x"),
                SchemaArgument("bias", "Tensor?"),
                tensor("state"),
                *scalars,
                SchemaArgument("mode", "str?", ("relu", None), default=("relu",)),
                SchemaArgument(
                    "fixed", "bool", (False,), fixed=True, keyword_only=True, default=(False,)
                ),
            ],
            ("Tensor", "Tensor?"),
        ),
        "special": (
            "(Tensor(a0!) x, str what) -> ()",
            [tensor("x"), SchemaArgument("what", "str", (*labels, "late"))],
            (),
        ),
    }


NAME = "loaded"
TWICE = ("call", "demo::add", ("grad", 0), ("grad", 0))
# Not the gradients of a product, but something that the stand-in can compute.
FORMULAS = {"matmul": (TWICE, ("call", "demo::add", ("grad", 0), ("input", 1)))}


def program():
    """`hand_made.every_op()` with what torch must know."""
    facts = torch_facts()
    library = hand_made.every_op()
    ops = []
    for op in library.ops:
        schema, arguments, returns = facts[op.name]
        source = getattr(demo_source, op.name, None)
        ops.append(
            dataclasses.replace(
                op,
                schema=op.torch_name + schema,
                arguments=tuple(arguments),
                returns=returns,
                source_hash=op_fingerprint(source) if source else "0",
                formula=FORMULAS.get(op.name, ()),
            )
        )
    return dataclasses.replace(library, name=NAME, ops=tuple(ops))


def write(files, folder):
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@functools.cache
def built_once():
    folder = Path(tempfile.mkdtemp(prefix="opforge-loading-"))
    return build(program(), folder)


def build(library, folder):
    """A library and its adapter, as quickly as the compilers can."""
    write(sources(library, torch=True), folder)
    compile_library(folder, library.name, flags=("-O0",))
    compile_adapter(folder, library.name, flags=("-O0", "-Werror"))
    return folder


def namesake(space, name):
    """A library with the name of one of torch's, and one operator in a namespace of its own."""
    whole = program()
    (op,) = (op for op in whole.ops if op.name == name)
    schema = op.schema.replace("demo::", f"{space}::")
    op = dataclasses.replace(op, torch_name=f"{space}::{name}", schema=schema)
    return dataclasses.replace(whole, name="c10", ops=(op,))


@pytest.fixture(scope="session")
def namesakes(tmp_path_factory):
    """Two libraries of one name: one adds (`first::add`), one picks."""
    adding, picking = namesake("first", "add"), namesake("second", "pick")
    return [build(library, tmp_path_factory.mktemp("namesake")) for library in (adding, picking)]


@pytest.fixture(scope="session")
def versions(namesakes, tmp_path_factory):
    """The one that adds, and a later build of it, whose kernel is `later_kernel`."""
    library, kernels = namesake("first", "add"), []
    for kernel in library.kernels:
        images = [i._replace(function="later_kernel") for i in kernel.images]
        kernels.append(dataclasses.replace(kernel, images=tuple(images)))
    later = dataclasses.replace(library, kernels=tuple(kernels))
    return [namesakes[0], build(later, tmp_path_factory.mktemp("later"))]


@pytest.fixture
def dist():
    """The folder of the library: what `opforge build --torch -o` would have written."""
    return built_once()


@pytest.fixture
def standin():
    found = load_standin()
    found.reset()
    found.execute = execute
    yield found
    found.reset()


@pytest.fixture(params=["C++", "ctypes"])
def adapter(request):
    return request.param == "C++"


@pytest.fixture
def loading(dist, standin, adapter):
    """`loading(**options)` loads the library, which is removed again after the test."""
    loaded = []

    def load(**options):
        made = opforge.load(dist, host_memory=True, adapter=adapter, **options)
        loaded.append(made)
        return made

    yield load
    standin.fail(0)
    for made in loaded:
        made.close()
        made.unload()
    assert standin.errors == []
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}


@pytest.fixture
def register():
    """Registers a function of demo_source under its name in the library, for one test."""
    made = []

    def make(fn=demo_source.add, name="demo::add", **options):
        made.append(name)
        return opforge.op(fn, name=name, mode="custom_op", **options)

    yield make
    for name in set(made):
        opforge.unregister(name)
