"""The table of patches: everything in it is used, is undone, and nothing is patched beside it."""

import ast
import functools
import math
import pkgutil
import threading
import types
from pathlib import Path

import pytest
import torch
import torch._inductor.runtime.triton_heuristics  # has kernel classes of its own
import triton
from triton.runtime.autotuner import Autotuner

import opforge
from opforge import native
from opforge._compat import (
    autotuning,
    checking,
    dispatcher,
    driver,
    launches,
    patches,
    tracing,
)
from opforge.native.ir.expr import Var
from opforge.native.kernels import workers
from opforge.native.symbolic.symint import Symbols
from opforge.serving import serve as serving
from opforge.serving.build import build as build_served
from support import launching
from support.served_kernels import chosen, recorded

SOURCE = Path(opforge.__file__).parent
# These are replaced on an instance: a fake mode, an exported program, an operator, a module.
ON_INSTANCES = {
    patches.FAKE_MODE,
    patches.EXAMPLE_INPUTS,
    patches.UNREGISTERED,
    patches.TAKEN_OVER,
    patches.DIRECT_CALL,
    patches.HOST_CACHE,
}
# Where Triton interprets, which another process tries.
INTERPRETING = {
    patches.INTERPRETER,
    patches.INTERPRETER_REDUCTION,
    patches.INTERPRETER_TENSORS,
}


def subclasses(cls):
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def owners(patch):
    if patch is patches.DEVICE_GUARD:
        return [driver._device_guards()] if torch.version.cuda is None else []
    if patch is patches.DYNAMO_STREAM and not hasattr(torch._C._dynamo.utils, *patch.names):
        return []
    found = pkgutil.resolve_name(patch.owner)
    if patch is patches.KERNEL_RUN:
        return [cls for cls in subclasses(found) if "run" in vars(cls)]
    return [found.fn if patch is patches.POWER_OF_TWO else found]


def objects():
    """What stands at every place in the table."""
    return {
        (patch.owner, id(owner), name): patches.read(owner, name)
        for patch in patches.table()
        if patch not in ON_INSTANCES | INTERPRETING
        for owner in owners(patch)
        for name in patch.names
    }


def is_ours(value):
    return str(getattr(value, "__module__", "")).startswith("opforge")


@pytest.fixture
def clean():
    """What every place has while nothing is patched."""
    patches.undo()
    yield objects()
    opforge.use_tuning(None)
    patches.undo()


@pytest.fixture
def used(monkeypatch):
    """The patches that were used since the test began."""
    seen = set()
    put, for_good = patches._put, patches.install_for_good

    def watched_put(replacement):
        seen.add(replacement.patch)
        return put(replacement)

    def watched_for_good(replacement):
        seen.add(replacement.patch)
        for_good(replacement)

    monkeypatch.setattr(patches, "_put", watched_put)
    monkeypatch.setattr(patches, "install_for_good", watched_for_good)
    return seen


@functools.cache
def block_size():
    return 64


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    launching.double[launching.blocks(x.numel())](x, out, x.numel(), BLOCK=block_size())
    return out


def torch_doubled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def test_after_everything_was_used_undo_brings_every_original_back(clean, used, op_name, tmp_path):
    assert not [place for place, value in clean.items() if is_ours(value)]

    op = opforge.op(doubled, name=op_name())
    native.declare(op, x=native.tensor("n", dtype="fp32"))
    launching.graph_of(op, torch.ones(8))
    launching.graph_of(opforge.op(doubled, name=op_name(), mode="custom_op"), torch.ones(8))
    native.build([op], tmp_path / "built", archs=["sm_80"], cache=None)
    with workers.start_pool(1) as pool:
        pool.submit(int).result()
    (tmp_path / "tuning.json").write_text('{"format": 1, "kernels": []}')
    opforge.use_tuning(tmp_path / "tuning.json")
    autotuning.take_first(triton.autotune([triton.Config({})] * 2, [])(launching.double))
    with opforge.target("sm_90"):
        assert torch.cuda.get_device_name() == "NVIDIA H100"
    build_served(recorded(lambda x: chosen[(1,)](x.bool(), x)), tmp_path / "served")
    opforge.serve(tmp_path / "served")
    serving.stop()
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with checking.without_example_inputs(exported):
        assert exported.example_inputs is None
    assert exported.example_inputs is not None
    with dispatcher.waiting(op, threading.Lock()):
        assert op(torch.ones(8, device="meta")).shape == (8,)
    called = opforge.op(torch_doubled, name=op_name())
    called(torch.ones(8))
    opforge.unregister(called)
    opforge.unregister(op)

    needless = set(INTERPRETING)
    if torch.version.cuda is not None:
        needless |= {patches.DEVICE_GUARD}
    if not hasattr(triton.knobs.language, "fp_fusion_enabled"):
        needless |= {patches.FUSION_ADVICE}
    if not hasattr(torch._C._dynamo.utils, "get_current_stream"):
        needless |= {patches.DYNAMO_STREAM}
    assert used == {*patches.table()} - needless
    patches.undo()
    assert objects() == clean
    assert block_size.cache_info().currsize == 1


def test_only_what_stands_for_longer_is_left_after_a_trace(clean, op_name):
    launching.graph_of(opforge.op(doubled, name=op_name()), torch.ones(8))
    left = {place for place, value in objects().items() if value is not clean[place]}
    assert {owner for owner, *_ in left} <= {patches.DEVICE_GUARD.owner}


def test_a_tuning_table_is_asked_until_it_is_forgotten(clean, tmp_path):
    (tmp_path / "tuning.json").write_text('{"format": 1, "kernels": []}')
    opforge.use_tuning(tmp_path / "tuning.json")
    assert "cache" in vars(Autotuner)
    with launches.routed_to(None):
        opforge.use_tuning(None)
        assert "cache" not in vars(Autotuner)
    assert "cache" not in vars(Autotuner)


def test_while_one_thread_traces_another_has_the_original_functions(clean):
    size = Symbols({"n": 9}, {"n": (8, 9)}).integer(Var("n"))
    answers = {}

    def ask(name):
        answers[name] = (triton.next_power_of_2(5), math.sqrt(4.0), type(math.sqrt(size)))

    with tracing.symbolic_host_functions(lambda _: 64):
        ask("tracing")
        assert triton.next_power_of_2(size) == 64
        thread = threading.Thread(target=ask, args=("other",))
        thread.start()
        thread.join()
    ask("after")
    assert answers == {
        "tracing": (8, 2.0, torch.SymFloat),
        "other": (8, 2.0, float),
        "after": (8, 2.0, float),
    }
    assert objects() == clean


class Owner:
    name = "original"


def named(text):
    return lambda original: f"{text}({original})"


ONE, OTHER = (patches.Patch("Owner", ("name",), "", "", "") for _ in range(2))


def test_patches_of_one_place_can_be_undone_in_any_order():
    patches.install(ONE.by("name", named("one"), Owner))
    patches.install(ONE.by("name", named("again"), Owner))
    patches.install(OTHER.by("name", named("other"), Owner))
    assert Owner.name == "other(one(original))"
    patches.undo(ONE)
    assert Owner.name == "other(original)"
    patches.undo(OTHER)
    assert Owner.name == "original"


def test_what_somebody_else_puts_over_a_patch_stays_theirs():
    scope = ONE.on(Owner, name="ours")
    with scope:
        Owner.name = "theirs"
    with scope:
        assert Owner.name == "theirs"
    Owner.name = "ours"
    with scope:
        pass
    assert Owner.name == "original"


def test_every_patch_says_what_why_for_how_long_and_how_it_is_undone():
    for patch in patches.table():
        assert patch.what
        assert patch.why.endswith(".")
        assert patch.scope
        assert patch.undone


# What may be stored into although it could be foreign, and why that patches nothing.
ALLOWED = {
    "call": "a function that was made a line before",
    "linecache.cache[filename]": "where tracebacks find generated code",
    "Node": "a class of opforge's own",
    "registration.handle": "the op that opforge hands out, which gets its methods",
    "self.module": "a graph that is opforge's to split",
    "sys.modules[__name__]": "the module itself, which shows its functions alone",
    "sys.modules['opforge']": "opforge itself, in a program that does not have it on its path",
    "sys.modules['sitecustomize']": "the user's own, which opforge's stands before",
    "sys.modules[name]": "a user's file, imported under a name of its own",
    "sys.path[:]": "the path of a fresh process",
    "wrapper": "the function that opforge hands out for an op",
}


def foreign_names(tree):
    """Names that a module imports from elsewhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {a.asname or a.name for a in node.names}
    return found


def stores(tree):
    """What is assigned to or deleted, with the object whose attribute or entry it is."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield node, node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "delattr"}:
            yield node, node.args[0]


def root(node):
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars" and node.args:
        return root(node.args[0])
    return ast.unparse(node)


def suspicious(source):
    """Stores into something that is imported."""
    tree = ast.parse(source)
    foreign = foreign_names(tree)
    for node, owner in stores(tree):
        is_foreign = root(owner) in foreign or isinstance(node, ast.Call)
        if is_foreign and not {ast.unparse(owner), ast.unparse(node)} & {*ALLOWED}:
            yield ast.unparse(node)


def test_nothing_is_patched_outside_of_the_table():
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name != "_compat/patches.py":
            assert list(suspicious(path.read_text())) == [], name


@pytest.mark.parametrize(
    "source",
    [
        "import math\nmath.sqrt = 1",
        "def f():\n    from triton.runtime.autotuner import Autotuner\n    Autotuner.run = 1",
        "setattr(owner, 'run', 1)",
        "import torch\ndel torch.__dict__['compile']",
    ],
)
def test_the_scan_sees_a_patch(source):
    assert list(suspicious(source))
    assert not list(suspicious("self.x = 1"))


def test_a_scope_that_finds_the_same_is_replaced_once_and_taken_back_by_the_last():
    owner, found = types.ModuleType("owner"), []
    owner.answer = lambda: "real"
    original = owner.answer

    def find():
        found.append(1)
        return [patches.Replacement(patches.HOST_CACHE, owner, "answer", lambda _: lambda: "ours")]

    scope = patches.PatchScope(find, finds_the_same=True)
    with scope:
        with scope:
            assert owner.answer() == "ours"
        assert owner.answer() == "ours"
    assert owner.answer is original
    assert len(found) == 1
    with scope:
        assert owner.answer() == "ours"
    assert owner.answer is original
