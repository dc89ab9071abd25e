"""Texts of `--input`: an argument, or an error that says where it is wrong."""

import enum
import functools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from click.testing import CliRunner
from hypothesis import strategies as st
from torch import Tensor

import opforge
from opforge.check.inputs import arguments_from
from opforge.cli import main
from opforge.errors import OpforgeError
from opforge.registry import registry
from support.fuzzing import attack


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Inner:
    eps: float = 1e-6
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Config:
    scale: float
    inner: Inner
    mode: Literal["a", "b"] = "a"
    color: Color = Color.RED
    weight: Tensor | None = None

    def __post_init__(self):
        if self.scale < 0:
            raise ValueError("scale must not be negative")


class Pair(NamedTuple):
    count: int
    dtype: torch.dtype


def mixed(  # noqa: PLR0917  # a parameter of every kind
    x: Tensor,
    cfg: Config,
    pair: Pair,
    both: tuple[int, float],
    items: list[Tensor],
    device: torch.device,
    text: str = "x",
    number: torch.types.Number = 1,
    *,
    flag: bool = False,
    layout: torch.layout = torch.strided,
    sizes: list[int] | None = None,
) -> Tensor:
    return x.clone()


# By parameter, what makes the rest of a call complete.
GIVEN = {
    "x": "randn(2)", "cfg.scale": "1", "cfg.inner.eps": "1", "pair.count": "3", "pair.dtype": "f32",
    "both": "(1, 2.0)", "items": "[randn(2)]", "device": "cpu",
}  # fmt: skip
PATHS = [
    *GIVEN, "cfg", "cfg.inner", "cfg.inner.sizes", "cfg.mode", "cfg.color", "cfg.weight", "pair",
    "both.0", "both.1", "text", "number", "flag", "layout", "sizes", "x.y", "nope", "",
]  # fmt: skip
# Sizes are small or beyond all memory, and spaces keep them from becoming one number.
NUMBERS = [
    " 0 ", " 1 ", " 2 ", " 3 ", " -1 ", " 0.5 ", " 1e400 ", " 1j ", " 0x2 ",
    f" {2**63} ", f" {2**128} ", f" {10**400} ", " 1" + "0" * 5000 + " ", " True ", " None ",
    " nan ", " inf ",
]  # fmt: skip
VALUES = [
    *NUMBERS, "f32", "bf16", "complex64", "float8_e4m3fn", "cpu", "cuda", "'cuda:99'", "'cpu:-1'",
    "'meta'", "'nope'", "'a'", "'red'", "'RED'", "b'x'", "f'{x}'", "'\udcff'", "'\0'", "...",
    "dtype=", "device=", "shape=", "size=", "requires_grad=", "randn(2)", "[]", "()", "(1, )",
]  # fmt: skip
MAKERS = ["randn", "rand", "zeros", "ones", "arange", "randint", "eval"]
MARKS = [
    "(", ")", "[", "]", "{", "}", ",", ".", ":", "=", "'", '"', "-", "+", "*", "**", "#", "\\",
    "\n", "\t", "\0", " ", "\udcff", "\ud800", "\u00e9", "\u6f22", "lambda", " if ", " for ",
    " in ", "await ", "not ", ":=", "(" * 90, "(" * 300, "-" * 3000, "[" * 150 + "]" * 150,
]  # fmt: skip

calls = st.builds(
    "{}({})".format, st.sampled_from(MAKERS), st.lists(st.sampled_from(VALUES), max_size=5).map(
        ",".join
    )
)  # fmt: skip
values = st.one_of(
    calls,
    st.sampled_from(VALUES),
    st.lists(calls | st.sampled_from(VALUES + MARKS), max_size=8).map("".join),
    st.text(max_size=20),
)
pairs = st.tuples(st.sampled_from(PATHS) | st.text(max_size=5), values)


def texts_with(pairs):
    """A complete call, with these values in place of its own."""
    changed = [f"{path}={value}" for path, value in pairs]
    heads = [path for path, _ in pairs]
    kept = {p: v for p, v in GIVEN.items() if not any(_meets(p, head) for head in heads)}
    return [*(f"{path}={value}" for path, value in kept.items()), *changed]


def _meets(one, other):
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


@functools.cache
def entry():
    return registry.get(opforge.op("opforge_fuzz::mixed", mode="custom_op", fake=["x"])(mixed))


@attack(
    st.lists(pairs, min_size=1, max_size=3),
    examples=400,
    known=[
        ([("device", "'nope'")],),
        ([("cfg.scale", str(10**400))],),
        ([("cfg.scale", "-1")],),
        ([("x", "randn(\ud800)")],),
    ],
)
def test_an_input_becomes_an_argument_or_a_refusal(given):
    try:
        args, kwargs = arguments_from(entry(), texts_with(given))
    except OpforgeError as error:
        assert str(error)
    else:
        assert (len(args), set(kwargs)) == (8, {"flag", "layout", "sizes"})


SOURCE = """
import torch
import opforge

@opforge.op("opforge_fuzz::scaled", mode="custom_op", fake=["x"])
def scaled(x: torch.Tensor, n: int = 2, factor: float = 1.0, name: str = "a") -> torch.Tensor:
    return x * n * factor
"""


@functools.cache
def target():
    """The one operator that is checked: only inputs are drawn, never what is imported."""
    file = Path(tempfile.mkdtemp(prefix="opforge-fuzz-")) / "opforge_fuzz_scaled.py"
    file.write_text(SOURCE)
    return f"{file}:scaled"


inputs = st.builds("{}={}".format, st.sampled_from(["x", "n", "factor", "name"]), values)


@attack(inputs | values, examples=40)
def test_the_command_ends_without_a_traceback(text):
    given = [] if text.startswith("x=") else ["--input", "x=ones(2)"]
    # With =, because a text may look like an option.
    command = ["check", target(), "--only", "eager", *given, f"--input={text}"]
    done = CliRunner().invoke(main, command)
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert done.exit_code in {0, 1, 2}
    assert "Traceback" not in done.output
    assert "opforge_fuzz_scaled" in sys.modules
