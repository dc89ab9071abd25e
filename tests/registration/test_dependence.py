"""What Inductor's cache key and a library's source hash cover: all that an op depends on."""

import importlib.util
import itertools
import sys
import types

import pytest
import torch
import triton
from torch._library.triton import triton_ops_to_kernels

import opforge
from opforge.registration.dependence import op_fingerprint
from opforge.registry import registry
from support.cache_keys import key_of
from support.launching import CONFIGS, double, graph_of, guessed
from support.processes import OTHER_SEED, run_python

MODULE = """
import torch, triton, opforge
import triton.language as tl

UNREAD = {unread}
HOST_CONSTANT = {constant}
SIDE: tl.constexpr = tl.constexpr({side})
SIZES = ({size}, 2)
TABLE = {{"by": {entry}}}

@triton.jit
def scaled(value):
    return value * {scale} + SIDE

def guess(args):
    return {guess}

@triton.autotune([triton.Config({{"BLOCK": {block}}}, num_warps={warps})], key=["n"])
@triton.heuristics({{"EXTRA": guess}})
@triton.jit
def kernel(x_ptr, out_ptr, n, EXTRA: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, scaled(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)

def helper(x, by={default}, *, plus={keyword}):
    return x * by + {help}

class Scaler:
    factor = {member}

    def __init__(self, by):
        self.by = by

    def scale(self, x):
        return x * {method} * self.by * self.factor

scaler = Scaler({attribute})

def times(by):
    def apply(x):
        return x * by
    return apply

first, second = times({first}), times({second})

def backward(ctx, grad):
    return grad * {gradient}

def make(closed):
    def body(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
            helper(x) * closed + HOST_CONSTANT, out, x.numel()
        )
        return first(scaler.scale(out)) + {body} + second(SIZES[0] + TABLE["by"])
    return body

body = make({closed})
op = opforge.op({name!r}, backward=backward)(body)
"""
PLAIN = {
    "unread": 1,
    "constant": 1,
    "size": 1,
    "entry": 1,
    "scale": 2,
    "guess": 4,
    "block": 128,
    "warps": 4,
    "help": 1,
    "default": 1,
    "keyword": 1,
    "method": 1,
    "gradient": 1,
    "body": 1,
    "closed": 1,
    "side": 1,
    "member": 1,
    "attribute": 1,
    "first": 2,
    "second": 3,
}
numbers = itertools.count()


@pytest.fixture
def hashes(tmp_path, op_name):
    """The key and the source hash of an op in a module whose text differs in some places."""
    name = op_name()

    def load(**changes):
        above = changes.pop("above", "")
        module = loaded(above + MODULE.format(name=name, **{**PLAIN, **changes}), tmp_path)
        return both_of(name, module)

    return load


def loaded(text, folder):
    path = folder / f"keyed{next(numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("keyed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both_of(name, module):
    try:
        return key_of(name), op_fingerprint(module.body)
    finally:
        opforge.unregister(name)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"block": 256}, id="a config's block"),
        pytest.param({"scale": 3}, id="a device function"),
        pytest.param({"side": 3}, id="a constant of a device function"),
        pytest.param({"guess": 8}, id="a heuristic"),
        pytest.param({"body": 2}, id="the host body"),
        pytest.param({"constant": 2}, id="a constant that the host body reads"),
        pytest.param({"closed": 2}, id="a value that the host body closes over"),
        pytest.param({"first": 3, "second": 2}, id="values that two functions close over"),
        pytest.param({"help": 2}, id="a helper of the host body"),
        pytest.param({"default": 2}, id="a default of a helper"),
        pytest.param({"size": 5}, id="a tuple that the host body reads"),
        pytest.param({"entry": 2}, id="a dict that the host body reads"),
        pytest.param({"method": 2}, id="a method that the host body calls"),
        pytest.param({"member": 2}, id="a class's attribute that a method reads"),
    ],
)
def test_both_change_with(hashes, changes):
    assert not {*hashes()} & {*hashes(**changes)}


HOLDING = """
import dataclasses, functools, types
import numpy, torch, triton, opforge
from torch.nn import functional as F
from support.launching import double, with_defaults

@dataclasses.dataclass(frozen=True)
class Config:
    block: int = 64

@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    block: int = 64

class Names(types.SimpleNamespace):
    pass

def launch(block, x, out, dtype={default}):
    double[(8,)](x.to(dtype), out, x.numel(), BLOCK=block)

def closing(*held):
    first, second = held
    def use():
        return first.block + 2 * second.block
    return use

def tuned(block):
    return triton.autotune([triton.Config({{"BLOCK": block}})], key=[])(double)

SMALL, LARGE = Config(64), Config(128)
HELD = {held}

def body(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    launch(128, x, out)
    return {use}

op = opforge.op({name!r})(body)
"""


@pytest.mark.parametrize(
    ("use", "first", "second"),
    [
        ("x.to(HELD)", "torch.float16", "torch.bfloat16"),
        ("HELD(x)", "torch.sin", "torch.cos"),
        ("HELD['a'](x)", "{'a': F.silu, 'b': F.gelu}", "{'a': F.gelu, 'b': F.silu}"),
        ("x * HELD", "numpy.log2(3.0)", "numpy.log2(5.0)"),
        ("HELD(x, out)", "functools.partial(launch, 64)", "functools.partial(launch, 128)"),
        ("x * HELD.block", "Slots(64)", "Slots(128)"),
        ("x * HELD.inner.block", "Names(inner=Config(64))", "Names(inner=Config(128))"),
        ("x * HELD[0].block + HELD[1].block", "(SMALL, LARGE)", "(LARGE, SMALL)"),
        ("x * HELD['a'].block", "{'a': SMALL, 'b': LARGE}", "{'a': LARGE, 'b': SMALL}"),
        ("x * HELD()", "closing(SMALL, LARGE)", "closing(LARGE, SMALL)"),
        (
            "HELD[0][(8,)](x, out, 8, BLOCK=8) or HELD[1][(8,)](x, out, 8, BLOCK=8)",
            "(double, with_defaults)",
            "(with_defaults, double)",
        ),
        (
            "(HELD[0][(8,)](x, out, 8), HELD[1][(8,)](x, out, 8))",
            "(tuned(8), tuned(16))",
            "(tuned(16), tuned(8))",
        ),
        ("HELD['a'][(8,)](x, out, 8)", "{'a': double, 'b': Config}", "{'b': double, 'a': Config}"),
    ],
)
def test_both_change_with_what_a_name_holds(use, first, second, op_name, tmp_path):
    name = op_name()

    def hashes(held, default="torch.float16"):
        text = HOLDING.format(name=name, use=use, held=held, default=default)
        return both_of(name, loaded(text, tmp_path))

    assert hashes(first) == hashes(first)
    assert not {*hashes(first)} & {*hashes(second)}
    assert not {*hashes(first)} & {*hashes(first, default="torch.float32")}


def prune_first(configs, *_args, **_kwargs):
    return configs[:1]


def prune_last(configs, *_args, **_kwargs):
    return configs[-1:]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"reset_to_zero": ["out_ptr"]}),
        ({"restore_value": ["x_ptr"]}, {"restore_value": ["out_ptr"]}),
        (
            {"prune_configs_by": {"early_config_prune": prune_first}},
            {"prune_configs_by": {"early_config_prune": prune_last}},
        ),
    ],
    ids=["reset_to_zero", "restore_value", "early_config_prune"],
)
def test_the_key_changes_with_how_an_autotuner_chooses(first, second, op_name):
    def key(options):
        name = op_name()
        kernel = triton.autotune(CONFIGS, key=["n"], **options)(double)

        @opforge.op(name)
        def op(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            kernel[(8,)](x, out, x.numel())
            return out

        return key_of(name)

    assert key(first) == key(first) != key(second)


@pytest.mark.parametrize("define", [opforge.op, torch.library.triton_op])
def test_the_key_changes_with_the_body_of_a_transparent_op_that_is_called(
    define, op_name, monkeypatch
):
    options = {} if define is opforge.op else {"mutates_args": {}}
    inner, outer = op_name(), op_name()

    @define(inner, **options)
    def launching(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(double)[(8,)](x, out, x.numel(), BLOCK=SIZE)
        return out

    @opforge.op(outer)
    def op(x: torch.Tensor) -> torch.Tensor:
        return launching(x) + 1

    assert opforge.info(op).mode == "triton_op"
    before = key_of(outer)
    monkeypatch.setitem(globals(), "SIZE", 64)
    assert key_of(outer) != before


SIZE = 128


def test_the_key_changes_with_a_module_that_the_body_imports(op_name, monkeypatch):
    module = types.ModuleType("imported_by_a_body")
    module.SIZE = 128
    monkeypatch.setitem(sys.modules, module.__name__, module)
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        from imported_by_a_body import SIZE  # noqa: PLC0415  # what is tested

        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=SIZE)
        return out

    assert opforge.info(op).mode == "triton_op"
    before, fingerprint = key_of(name), op_fingerprint(registry.get(op).fn)
    module.SIZE = 64
    assert key_of(name) != before
    # The process that compares it may not have imported the module.
    assert op_fingerprint(registry.get(op).fn) == fingerprint


class Proxy:
    """As werkzeug's and Django's, outside of a request."""

    @property
    def __class__(self):
        raise RuntimeError("working outside of a context")

    __eq__ = __hash__ = __iter__ = __getattr__ = __class__.fget


class Counted(type):
    __eq__ = __hash__ = Proxy.__eq__


class Values(dict):
    __iter__ = items = keys = Proxy.__iter__


class Items(list):
    __iter__ = Proxy.__iter__


proxied = [Proxy(), Values(a=1), Items([1]), type.__call__(Counted, "Made", (), {})()]


def test_reading_what_a_name_holds_runs_nothing_of_it(op_name):
    first = proxied[0]

    def body(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out if first is None else proxied[x.numel()]

    op = opforge.op(body, name=op_name())
    assert key_of(opforge.info(op).name)
    assert op_fingerprint(body)


def test_the_key_changes_with_the_backward(hashes):
    assert hashes()[0] != hashes(gradient=2)[0]


@pytest.mark.parametrize("changes", [{}, {"unread": 2}, {"above": "# Moved down.\n\n"}])
def test_neither_changes_with_what_stands_around(hashes, changes):
    assert hashes() == hashes(**changes)


def test_they_are_the_same_in_every_process_and_under_the_interpreter(hashes, tmp_path):
    key, fingerprint = hashes()
    (file,) = tmp_path.glob("keyed*.py")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {file.stem} as keyed, opforge;"
        "from opforge.registration.dependence import op_fingerprint;"
        "from support.cache_keys import key_of; print({told})"
    )
    told = script.format(told="key_of(opforge.info(keyed.op).name)")
    assert run_python(told, **OTHER_SEED) == f"{key}\n"
    told = script.format(told="op_fingerprint(keyed.body)")
    assert run_python(told, TRITON_INTERPRET="1", **OTHER_SEED) == f"{fingerprint}\n"


def test_a_table_that_contains_itself_is_one_of_its_constants():
    table = {"scale": 2}
    table["all"] = [table]

    def scale(x):
        return x * table["all"][0]["scale"]

    before = op_fingerprint(scale)
    table["scale"] = 3
    assert op_fingerprint(scale) != before


def test_torch_can_read_every_entry_of_outermost_heuristics(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        guessed[(8,)](x, out, x.numel())
        return out

    assert opforge.info(op).mode == "triton_op"
    assert "def double(" in key_of(name)


def test_a_kernel_that_somebody_registers_changes_the_key(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    assert opforge.info(op).mode == "triton_op"
    before = key_of(name)
    torch.library.register_kernel(op, "cpu", lambda x: x * 2)
    assert key_of(name) != before


def test_unregistering_forgets_the_entry(op_name):
    name = op_name()

    @opforge.op(name)
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[(8,)](x, out, x.numel(), BLOCK=128)
        return out

    assert double in triton_ops_to_kernels[name]
    graph_of(op, torch.ones(8, 128))
    opforge.unregister(op)
    assert name not in triton_ops_to_kernels
