"""Names of operators, libraries, parameters and choices: refused, or they work and compile."""

import functools
import itertools
import keyword
import math
import subprocess
import tempfile
import unicodedata
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import OpforgeError
from opforge.native.frontend.declaration import declarations_of
from opforge.native.frontend.expand import merge
from opforge.native.ir.cases import Case, Guard, TensorCase
from opforge.native.ir.cases import Path as TracedPath
from opforge.native.ir.expr import Expr, Var
from opforge.native.ir.interface import ChoiceParam, Op, ScalarParam
from opforge.native.plan import check_name
from opforge.registry import registry
from support.fuzzing import SECONDS, attack
from support.native import hand_made
from support.standin.library import write

numbers = itertools.count()
X = torch.ones(2)

# Of Python, C, C++, their headers, torch, the runtime and the generated code.
WORDS = [
    "x", "y", "self", "cls", "out", "stream", "present", "name", "new", "delete", "int", "double",
    "auto", "register", "restrict", "inline", "default", "typename", "this", "and_",
    "class_", "if_", "return_", "NULL", "NAN", "EOF", "errno", "stdin", "I", "complex",
    "memset", "printf", "size_t", "int64_t", "std",
    "opforge", "Tensor", "of_call", "of_values", "OF_LIBRARY", "load", "unload", "manifest",
    "last_error", "abi_version", "outputs", "implementations", "with_", "main", "linux", "unix",
    "__init__", "__x", "_", "_X", "__LINE__", "x_", "x__present", "_of_target", "_of_default_x",
    "torch", "aten", "op", "overloads", "prim", "gr\u00f6\u00dfe", "\u6570", "\u00aa", "a" * 300,
]  # fmt: skip
MARKS = [".", "::", "-", " ", "/", "..", "\0", "\n", '"', "'", "\\", "*/", "??/", "%s", "${x}", "@"]
words = st.sampled_from(WORDS)
pieces = st.lists(words | st.sampled_from(MARKS) | st.text(max_size=4), min_size=1, max_size=3)
texts = pieces.map("".join)
# As Python reads them: it takes two spellings of one name for the same.
identifiers = (
    st.one_of(words, st.from_regex(r"[^\W\d]\w{0,5}", fullmatch=True))
    .map(functools.partial(unicodedata.normalize, "NFKC"))
    .filter(lambda name: name.isidentifier() and not keyword.iskeyword(name))
)


@attack(st.builds("{}::{}".format, texts | words, texts | words) | texts, examples=80)
def test_an_operator_s_name_is_refused_or_reaches_it(name):
    try:
        op = opforge.op(name, mode="custom_op", fake=["x"])(double)
    except OpforgeError as error:
        assert name[:20].strip() in str(error) or repr(name)[1:20] in str(error)
        return
    try:
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), base)
        found = getattr(packet, overload or "default")
        assert torch.equal(found(X), 2 * X)
        assert torch.equal(op(X), 2 * X)
        assert name in opforge.explain(op)
    finally:
        opforge.unregister(op)


def double(x: Tensor) -> Tensor:
    return x * 2


def function_of(names, kinds):
    """`def f(first, NAME: KIND, ...)`, which returns twice its tensor and keeps the rest."""
    space = {"seen": []}
    exec(f"def f({', '.join(names)}):\n    seen.append(({', '.join(names)},))\n"
         f"    return {names[0]} * 2\n", space)  # fmt: skip
    made = space["f"]
    made.__annotations__ = dict(zip(names, kinds, strict=True)) | {"return": Tensor}
    return made, space["seen"]


@attack(st.lists(identifiers, min_size=1, max_size=4, unique=True), examples=60)
def test_a_parameter_s_name_is_refused_or_takes_its_argument(names):
    kinds = [Tensor, int, tuple[int, float], str][: len(names)]
    fn, seen = function_of(names, kinds)
    given = (X, 3, (4, 0.5), "text")[: len(names)]
    try:
        op = opforge.op(f"opforge_fuzz::named{next(numbers)}", mode="custom_op", fake=None)(fn)
    except OpforgeError as error:
        assert str(error)
        return
    try:
        assert torch.equal(op(*given), 2 * X)
        assert seen[-1] == given
        op(**dict(zip(names, given, strict=True)))
        assert seen[-1] == given
    finally:
        opforge.unregister(op)


choices = st.one_of(
    st.lists(options, min_size=1, max_size=4)
    for options in (
        st.none() | words | texts | st.sampled_from(["", "1", "-1", "a-b", "a_b", "A_B", "A_B_2"]),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats() | st.sampled_from([0.0, -0.0, math.inf, 1e-300, 1e300]),
    )
)


def declared_params(names, values):
    """The C parameters of an op with a tensor, a choice and some integers."""
    kinds = [Tensor, _kind_of(values), *[int] * (len(names) - 2)]
    fn, _ = function_of(names, kinds)
    op = opforge.op(f"opforge_fuzz::chosen{next(numbers)}", mode="custom_op", fake=None)(fn)
    try:
        specs = [native.tensor("n", dtype="fp32"), native.choice(*values)]
        specs += [native.scalar("i64") for _ in names[2:]]
        native.declare(op, **dict(zip(names, specs, strict=True)))
        entry = registry.get(op)
        return merge(entry.flat(), declarations_of(entry)).params
    finally:
        opforge.unregister(op)


def _kind_of(values):
    if all(isinstance(value, str | None) for value in values):
        return str | None
    return float | None if any(isinstance(value, float) for value in values) else int | None


def op_of(name, names, values):
    """A hand-made operator that compares its integers with a size, and launches nothing."""
    n, params = Var("n"), declared_params(names, values)
    scalars = [p.name for p in params if isinstance(p, ScalarParam)]
    guards = tuple(Guard(Expr("<=", (Var(s), n)), f"{name}.py:1") for s in scalars)
    picked = tuple((p.name, 0) for p in params if isinstance(p, ChoiceParam))
    out = "out_" if "out" in names else "out"
    path = TracedPath(guards, (hand_made.out_like("fp32", (n,)),))
    case = Case((TensorCase(params[0].name, True, "fp32", (n,)),), picked, paths=(path,))
    return Op(name, f"demo::{name}", f"{name}.py:1", params, (out,), (case,), f"*/ ??/ {name} \\")


# In `make test` all libraries are compiled by two commands, and in `make fuzz` each by itself.
BATCH = 1 if SECONDS else 1000
_written = []


@attack(
    words | st.just("demo"),
    st.lists(identifiers, min_size=1, max_size=2, unique=True),
    # Others have no schema.
    st.lists(identifiers.filter(str.isascii), min_size=2, max_size=5, unique=True),
    choices,
    examples=25,
    known=[
        ("printf", ["x"], ["x", "y"], ["a"]),
        ("x", ["x"], ["x", "with_"], ["a"]),
        ("and_", ["for_"], ["class_", "if_", "int_"], ["and", "or", "not", "class", ""]),
    ],
)
def write_library(name, ops, names, values):
    try:
        check_name(name)
        made = hand_made.library(*((op_of(op, names, values), []) for op in ops), name=name)
        folder = write(made, Path(tempfile.mkdtemp(prefix="opforge-fuzz-")))
    except OpforgeError as error:
        assert str(error)
        return
    _written.append((folder, name))
    if len(_written) >= BATCH:
        compile_written()


def compile_written():
    """The operators as C99, and headers in C++17 for a few of them; they take longer."""
    flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    operators = [str(file) for folder, _ in _written for file in folder.rglob("op_*.c")]
    programs = []
    for folder, name in _written[:3]:
        programs.append(str(folder / "main.cpp"))
        header = folder / "include" / f"{name}.hpp"
        (folder / "main.cpp").write_text(f'#include "{header}"\nint main() {{ return 0; }}\n')
    count = len(_written)
    include = [f"-I{folder / 'include'}" for folder, _ in _written[:1]]
    _written.clear()
    subprocess.run(["cc", "-std=c99", *flags, *operators], check=True)
    subprocess.run(
        ["c++", "-std=c++17", "-DOPFORGE_NO_LINK_CHECK", *flags, *include, *programs], check=True
    )
    return count


def test_a_library_s_names_are_refused_or_compile():
    write_library()
    assert SECONDS or compile_written() >= 5
