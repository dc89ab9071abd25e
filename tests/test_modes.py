"""Modes end to end: what `@opforge.op` makes of a body, what it says, and what it refuses."""

import importlib.util
import logging
import operator
import re
import textwrap
import warnings

import pytest
import torch
import triton
from torch.library import wrap_triton
from triton.experimental import gluon

import opforge
from opforge.errors import (
    BadOption,
    ModeRefused,
    OpforgeWarning,
    UnsupportedBody,
)
from support import launching
from support.launching import biased, blocks, double, graph_of, kernel_names, targets
from support.logs import heard
from support.processes import run_python

Tensor = torch.Tensor
x = torch.ones(8, 128)

library = torch.library.Library("modes_tests", "FRAGMENT")
library.define("wall(Tensor x) -> Tensor", tags=[torch.Tag.pt2_compliant_tag])
library.impl("wall", lambda x: x + 1, "CompositeExplicitAutograd")
torch.library.register_fake("modes_tests::wall", torch.empty_like, lib=library)
wall = torch.ops.modes_tests.wall.default


@torch.library.triton_op("modes_tests::theirs", mutates_args=())
def theirs_op(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(double)[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


theirs = torch.ops.modes_tests.theirs.default


@opforge.op("modes_tests::ours")
def ours(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


@opforge.op("modes_tests::closed", mode="custom_op")
def closed(x: Tensor) -> Tensor:
    return x + 1


def kernels_only(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def kernels_and_ours(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](ours(x), out, x.numel(), BLOCK=128)
    return out


def kernels_and_theirs(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](theirs(x), out, x.numel(), BLOCK=128)
    return out


def ours_only(x: Tensor) -> Tensor:
    return ours(x) + 1


def theirs_only(x: Tensor) -> Tensor:
    return theirs(x) + 1


def ours_and_wall(x: Tensor) -> Tensor:
    return wall(ours(x))


def wall_only(x: Tensor) -> Tensor:
    return wall(x) * 2


def wall_and_what_is_not_called(x: Tensor) -> Tensor:
    launchers = [kernels_only]
    return wall(x) * len(launchers)


def closed_only(x: Tensor) -> Tensor:
    return closed(x) * 2


def kernels_and_wall(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](wall(x), out, x.numel(), BLOCK=128)
    return out


def kernels_and_closed(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](closed(x), out, x.numel(), BLOCK=128)
    return out


def neither(x: Tensor) -> Tensor:
    return x * 2


# body: auto, triton_op
TABLE = {
    kernels_only: ("triton_op", "triton_op"),
    kernels_and_ours: ("triton_op", "triton_op"),
    kernels_and_theirs: ("triton_op", "triton_op"),
    ours_only: ("none", "triton_op"),
    theirs_only: ("none", "triton_op"),
    ours_and_wall: ("none", "refused"),
    wall_only: ("custom_op", "refused"),
    wall_and_what_is_not_called: ("custom_op", "refused"),
    closed_only: ("custom_op", "refused"),
    kernels_and_wall: ("refused", "refused"),
    kernels_and_closed: ("refused", "refused"),
    neither: ("custom_op", "refused"),
}
BARRIERS = {
    ours_and_wall: "modes_tests::wall",
    wall_only: "modes_tests::wall",
    wall_and_what_is_not_called: "modes_tests::wall",
    closed_only: "modes_tests::closed",
    kernels_and_wall: "modes_tests::wall",
    kernels_and_closed: "modes_tests::closed",
}
CELLS = [
    (body, asked, mode)
    for body, modes in TABLE.items()
    for asked, mode in zip(("auto", "triton_op", "custom_op"), (*modes, "custom_op"), strict=True)
]


def name_of(value):
    return getattr(value, "__name__", value)


@pytest.fixture
def make():
    """`opforge.op` without a name, undone afterwards."""
    made = []

    def make_op(fn, **options):
        made.append(opforge.op(fn, **options))
        return made[-1]

    yield make_op
    for op in made:
        opforge.unregister(op)


@pytest.mark.parametrize(
    ("body", "asked", "mode"), [c for c in CELLS if c[2] != "refused"], ids=name_of
)
def test_a_body_gets_the_mode_of_its_cell(make, body, asked, mode):
    op = make(body, mode=asked)
    assert opforge.info(op).mode == mode
    assert (op is body) == (mode == "none")
    assert opforge.info(op).name == f"test_modes::{body.__name__}"


@pytest.mark.parametrize(
    ("body", "asked"), [c[:2] for c in CELLS if c[2] == "refused"], ids=name_of
)
def test_a_refused_body_is_a_value_error_that_names_the_op_and_leaves_nothing(make, body, asked):
    with pytest.raises(ValueError, match=f"^test_modes::{body.__name__} ") as caught:
        make(body, mode=asked)
    assert isinstance(caught.value, ModeRefused)
    text = str(caught.value)
    assert f"{__file__}:{body.__code__.co_firstlineno}" in text
    assert "\n  fix: " in text
    if body in BARRIERS:
        assert f"calls {BARRIERS[body]} at {__file__}:" in text
        assert "mode='custom_op'" in text
    assert not hasattr(torch.ops.test_modes, body.__name__)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (kernels_only, ["double"]),
        (kernels_and_ours, ["double", "double"]),
        (kernels_and_theirs, ["double", "double"]),
        (ours_only, ["double"]),
        (theirs_only, ["double"]),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("asked", ["auto", "triton_op"])
def test_the_compiler_sees_every_kernel_of_a_transparent_op(make, body, expected, asked):
    assert kernel_names(graph_of(make(body, mode=asked), x)) == expected


@pytest.mark.parametrize("body", [kernels_only, kernels_and_wall, wall_only, neither], ids=name_of)
def test_the_compiler_sees_one_step_of_an_opaque_op(make, body):
    op = make(body, mode="custom_op")
    assert targets(graph_of(op, x)) == [op]


def test_mode_none_is_the_function_itself_and_the_log_says_so_once(make):
    with heard("opforge", logging.INFO) as records:
        op = make(ours_only)
        opforge.info(op)
        opforge.explain(op)
    assert op is ours_only
    [record] = records
    assert record.levelno == logging.INFO
    assert "test_modes::ours_only" in record.getMessage()
    assert f"{__file__}:{ours_only.__code__.co_firstlineno}" in record.getMessage()
    assert "mode none" in record.getMessage()
    assert "modes_tests::ours" in record.getMessage()


LOST = {
    "its backward": {"backward": lambda ctx, grad: grad * 2},
    "its vmap rule": {"vmap": "sequential"},
    "its mutates_args": {"mutates_args": ("x",)},
    "its name": {"name": "modes_tests::named"},
    "its autocast rule": {"autocast": torch.bfloat16},
    "its schema": {"schema": "(Tensor x) -> Tensor"},
    "its tags": {"tags": torch.Tag.needs_fixed_stride_order},
}


@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize(("body", "mode"), [(ours_only, "triton_op"), (ours_and_wall, "custom_op")])
def test_mode_none_is_not_chosen_where_an_option_would_be_lost(make, body, mode, what):
    op = make(body, **LOST[what])
    assert op is not body
    assert opforge.info(op).mode == mode
    assert f"mode 'none' would lose {what}" in opforge.info(op).reason


@pytest.mark.parametrize("found", [print, "double", None])
def test_something_that_is_not_a_kernel_is_refused(make, found):
    with pytest.raises(BadOption, match="which is not a Triton kernel") as caught:
        make(neither, kernels=[found])
    assert "test_modes::neither" in str(caught.value)
    assert repr(found) in str(caught.value)
    assert "@triton.jit" in str(caught.value)


def test_a_named_kernel_makes_the_op_transparent(make):
    op = make(neither, kernels=[double])
    [ref] = opforge.info(op).kernels
    assert (ref.kernel, ref.found_via) == (double, "kernels=")
    assert opforge.info(op).mode == "triton_op"


@gluon.jit
def on_gluon(out_ptr):
    pass


def launch_gluon(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    on_gluon[(1,)](out)
    return out


def test_a_gluon_kernel_makes_the_op_opaque_and_says_why(make):
    op = make(launch_gluon)
    info = opforge.info(op)
    assert info.mode == "custom_op"
    assert "kernel on_gluon" in info.reason
    assert "it is a Gluon kernel" in info.reason
    assert targets(graph_of(op, x)) == [op]


hooked = triton.autotune(launching.CONFIGS, key=["n"], pre_hook=lambda args, **_: None)(double)
hooked_config = triton.autotune(
    [triton.Config({"BLOCK": 32}, pre_hook=lambda args: None)], key=["n"]
)(double)


def launch_hooked(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    hooked[blocks(x.numel())](x, out, x.numel())
    return out


def launch_hooked_config(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    hooked_config[blocks(x.numel())](x, out, x.numel())
    return out


@pytest.mark.parametrize(
    ("body", "hook"),
    [
        (launch_hooked, "a pre_hook"),
        (launch_hooked_config, "a pre_hook of a triton.Config"),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("asked", ["auto", "triton_op"])
def test_an_autotuner_with_a_hook_makes_the_op_opaque_with_one_warning(make, body, hook, asked):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        op = make(body, mode=asked)
        opforge.info(op)
        graph = graph_of(op, x)
        graph_of(op, x)
    [warning] = [w for w in caught if issubclass(w.category, OpforgeWarning)]
    text = str(warning.message)
    assert f"test_modes::{body.__name__} ({__file__}:" in text
    assert "registered opaque (custom_op): kernel double" in text
    assert f"its autotuner has {hook}" in text
    assert opforge.info(op).mode == "custom_op"
    assert opforge.info(op).reason in text
    assert targets(graph) == [op]


def test_explain_shows_kernels_the_cell_and_what_would_change_the_mode(make):
    text = opforge.explain(make(kernels_and_ours))
    line = double.fn.__code__.co_firstlineno
    assert re.search(rf"kernel +double \({launching.__file__}:{line}\), launched by .*double", text)
    assert re.search(r"calls +modes_tests::ours at ", text)
    assert re.search(r"body has +kernels and transparent ops$", text, re.MULTILINE)
    assert re.search(r"mode +triton_op: the compiler sees through it: it launches double", text)
    assert re.search(r"change +mode='custom_op' makes it one opaque node", text)


def launches_with_options(x: Tensor) -> Tensor:
    once, out = torch.empty_like(x), torch.empty_like(x)
    double[blocks(x.numel())](x, once, x.numel(), BLOCK=128, num_warps=4, num_stages=2)
    double[blocks(x.numel())](x, once, x.numel(), BLOCK=128, launch_pdl=True)
    double[blocks(x.numel())](once, out, x.numel(), BLOCK=128, launch_pdl=True, num_ctas=2)
    return out


def test_explain_says_which_launch_options_make_traces_raise(make):
    first = launches_with_options.__code__.co_firstlineno
    named = [("launch_pdl", 3), ("launch_pdl", 4), ("num_ctas", 4)]
    shown = ", ".join(f"{name} ({__file__}:{first + line})" for name, line in named)
    op = make(launches_with_options)
    assert (
        f"\n  traces    raise where they launch double with {shown}, which Inductor would drop; "
        "leave it out, or mode='custom_op'\n"
    ) in opforge.explain(op)
    with pytest.raises(UnsupportedBody, match="'launch_pdl' is given at the launch, and Inductor"):
        graph_of(op, x)


def fetched(x: Tensor, which: str) -> Tensor:
    out = torch.empty_like(x)
    operator.attrgetter(which)(launching)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out


def test_explain_shows_what_could_not_be_read(make):
    op = make(fetched)
    [unread] = opforge.info(op).unresolved
    assert "test_modes.py:" in unread.location
    assert re.search(r"unread +.* at .*test_modes.py:\d+: ", opforge.explain(op))


INTERPRETED = """
import torch, triton, opforge
from support.launching import double, blocks, Module

@opforge.op("interpreted::double")
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out

@opforge.op("interpreted::asked", mode="triton_op")
def asked(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(double)[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
    return out

x = torch.arange(300.0)
for each in (op, asked):
    info = opforge.info(each)
    assert info.mode == "custom_op", info
    assert "Triton's interpreter is on (TRITON_INTERPRET=1)" in info.reason, info
    assert "without TRITON_INTERPRET=1" in opforge.explain(each)

def check(found):
    torch.testing.assert_close(found, 2 * x + 1)

def plus_one(x):
    return op(x) + 1

check(plus_one(x))
check(torch.compile(plus_one, backend="aot_eager", fullgraph=True)(x))
check(torch.compile(plus_one, backend="aot_eager", fullgraph=True, dynamic=True)(x))
for strict in (True, False):
    exported = torch.export.export(Module(plus_one), (x,), strict=strict)
    check(exported.module()(x))
    assert op in [n.target for n in exported.graph.nodes]
    check(exported.run_decompositions(decompose_custom_triton_ops=True).module()(x))
if torch.__version__ >= "2.12":  # before that wrap_triton refuses what the interpreter runs
    torch.testing.assert_close(asked(x), 2 * x)
print("done")
"""


def test_under_the_interpreter_the_op_is_opaque_and_its_numbers_are_right(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERPRETED)
    assert run_python(script, TRITON_INTERPRET="1").split()[-1] == "done"


AUTOTUNED = """
import torch, triton, opforge
from support.launching import tuned, blocks

@opforge.op("interpreted::tuned")
def op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    tuned[blocks(x.numel())](x, out, x.numel())
    return out

try:
    op(torch.ones(300))
except RuntimeError as error:
    print(error)
"""


def test_the_interpreter_is_not_suggested_while_it_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AUTOTUNED)
    printed = run_python(script, TRITON_INTERPRET="1")
    assert "start Python with TRITON_INTERPRET=1" not in printed


LATE = """
import torch, triton, opforge
from support.launching import double, blocks

@opforge.op({name!r}, mode={mode!r})
def op(x: torch.Tensor) -> torch.Tensor:
    {body}

def bind():
    global late
    from support.launching import double, blocks
    def late(x):
        out = torch.empty_like(x)
        double[blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        return out

def bind_kernel():
    global late
    from support.launching import double as late

def bind_plain():
    global late
    late = lambda x: x + 1
"""
CALLS = "return late(x)"
LAUNCHES = textwrap.indent(
    "out = torch.empty_like(x)\nlate[blocks(x.numel())](x, out, x.numel(), BLOCK=128)\nreturn out",
    "    ",
).lstrip()


@pytest.fixture
def late_module(tmp_path, op_name):
    """A module whose op reads a global that is bound by `bind()`."""

    def load(body, mode="auto"):
        path = tmp_path / "late_module.py"
        path.write_text(LATE.format(name=op_name(), body=body, mode=mode))
        spec = importlib.util.spec_from_file_location("late_module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize(
    ("body", "bind"), [(CALLS, "bind"), (LAUNCHES, "bind_kernel")], ids=["helper", "kernel"]
)
@pytest.mark.parametrize("asked", ["auto", "triton_op"])
def test_a_global_bound_after_the_op_resolves_the_mode_at_info(late_module, body, bind, asked):
    module = late_module(body, asked)
    getattr(module, bind)()
    info = opforge.info(module.op)
    assert info.mode == "triton_op"
    assert [ref.kernel for ref in info.kernels] == [double]


def test_a_global_bound_after_the_op_resolves_the_mode_at_the_first_call(late_module):
    module = late_module(CALLS, "triton_op")
    module.bind_plain()
    with pytest.raises(ValueError, match="no launch of a Triton kernel was found") as caught:
        module.op(x)
    assert "opforge_tests::op" in str(caught.value)
    assert "late_module.py:" in str(caught.value)


def test_a_plain_helper_bound_after_the_op_leaves_it_opaque(late_module):
    module = late_module(CALLS)
    module.bind_plain()
    torch.testing.assert_close(module.op(x), x + 1)
    assert opforge.info(module.op).mode == "custom_op"


def test_a_closure_variable_bound_after_the_op_resolves_the_mode_later(op_name):
    @opforge.op(op_name())
    def op(x: Tensor) -> Tensor:
        return launch(x)

    def launch(x):
        out = torch.empty_like(x)
        biased[blocks(x.numel())](x, None, out, x.numel(), BLOCK=128)
        return out

    assert kernel_names(graph_of(op, x)) == ["biased"]
    assert opforge.info(op).mode == "triton_op"


def test_an_op_that_waits_for_names_is_never_mode_none(op_name, late_module):
    module = late_module(CALLS)
    module.late = ours
    info = opforge.info(module.op)
    assert info.mode == "triton_op"
    assert "mode 'none' would lose" in info.reason


def test_an_op_that_calls_one_that_waits_for_its_names_waits_with_it(op_name):
    @opforge.op(op_name())
    def inner(x: Tensor) -> Tensor:
        return bound_later(x)

    @opforge.op(op_name())
    def outer(x: Tensor) -> Tensor:
        return inner(x) + 1

    def bound_later(x):
        out = torch.empty_like(x)
        launching.double[launching.blocks(x.numel())](x, out, x.numel(), BLOCK=128)
        return out

    assert opforge.info(outer).mode == "triton_op"
    assert opforge.info(inner).mode == "triton_op"


LATE_RULES = {
    "register_kernel": ("cpu",),
    "register_fake": (neither,),
    "register_autograd": (neither,),
    "register_vmap": ("sequential",),
    "register_autocast": ("cpu", torch.bfloat16),
    "set_kernel_enabled": ("cpu", False),
}


@pytest.mark.parametrize("rule", ["register_kernel", "register_autograd", "set_kernel_enabled"])
def test_a_function_in_mode_none_says_what_helps_it_to_a_rule(make, rule):
    op = make(ours_only)
    where = re.escape(f"{__file__}:{ours_only.__code__.co_firstlineno}")
    with pytest.raises(ModeRefused, match=rf"test_modes::ours_only \({where}\): {rule}") as raised:
        getattr(op, rule)(*LATE_RULES[rule])
    assert raised.value.fix == 'give it a name, as "test_modes::ours_only", which registers it'
    asked = make(neither, mode="none")
    with pytest.raises(ModeRefused) as raised:
        getattr(asked, rule)(*LATE_RULES[rule])
    assert raised.value.fix == "leave mode='none' out"


def test_a_function_in_mode_none_keeps_what_it_had_when_it_is_unregistered():
    def function(x: Tensor) -> Tensor:
        return x + 1

    function.register_fake = own = object()
    opforge.op(function, mode="none")
    assert function.register_fake is own
    opforge.op(function, mode="none")
    assert hasattr(function, "register_kernel")
    opforge.unregister(function)
    assert vars(function) == {"register_fake": own}


@pytest.mark.parametrize(
    ("depth", "text"),
    [
        (True, "max_depth must be an integer, got True"),
        ("5", "max_depth must be an integer, got '5'"),
        (-1, "max_depth must not be negative, got -1"),
    ],
)
def test_a_depth_that_is_not_a_count_is_refused(depth, text, op_name):
    def negate(x: torch.Tensor) -> torch.Tensor:
        return -x

    with pytest.raises(BadOption, match=text):
        opforge.op(negate, name=op_name(), max_depth=depth)
