"""Names that C, C++, their headers or the runtime have already, and names that two things want."""

import subprocess
from dataclasses import replace

import pytest

from opforge.errors import BadOption
from opforge.native.codegen import sources
from support.native import hand_made
from support.native.hand_made import Case, ChoiceParam, Op, Path, ScalarParam, TensorCase, Var
from support.standin.library import write


def chosen(name, *params, labels=("RELU",)):
    """An operator that takes x and choices, and writes nothing."""
    n = Var("n")
    choices = tuple(
        ChoiceParam(param, labels, tuple(map(repr, map(str.lower, labels)))) for param in params
    )
    picked = tuple((param, 0) for param in params)
    case = Case((TensorCase("x", True, "fp32", (n,)),), picked, paths=(Path(()),))
    return Op(
        name, f"demo::{name}", f"{name}.py:1", (hand_made.TensorParam("x"), *choices), (), (case,)
    )


def refusal(*ops):
    with pytest.raises(BadOption) as refused:
        sources(hand_made.library(*((op, []) for op in ops)))
    return str(refused.value)


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        ((chosen("a", "b_c"), chosen("a_b", "c")), "would be called demo_a_b_c"),
        ((chosen("a", "b"), chosen("A", "b")), "would be called DEMO_A_B_RELU"),
        ((chosen("a", "b"), chosen("a_b")), "would be called demo_a_b"),
        ((chosen("a"), chosen("a_with")), "would be called demo_a_with"),
        ((chosen("new"), chosen("new_")), "would be called new_ in C++"),
        ((chosen("a", "mode", "mode_"),), "would be called a_mode in C++"),
        ((chosen("a", "with_"),), "would be called a_with in C++"),
    ],
)
def test_two_things_that_would_share_a_name(ops, name):
    assert name in refusal(*ops)
    assert name in refusal(*ops[::-1])


def test_who_has_the_name_already_is_told():
    text = refusal(chosen("a", "b_c"), chosen("a_b", "c"))
    assert text.startswith("demo::a_b (a_b.py:1), parameter 'c': ")
    assert "found: an enum of demo::a (a.py:1)" in text


def test_two_enums_of_python_that_have_one_name():
    first, second = chosen("a", "b"), chosen("c", "d")
    mode = replace(first.params[1], enum="Mode")
    other = replace(mode, name="d", labels=("SILU", *mode.labels[1:]))
    first = replace(first, params=(first.params[0], mode))
    second = replace(second, params=(second.params[0], other))
    text = refusal(first, second)
    assert "would be called demo_Mode" in text
    assert "fix: rename the Enum Mode" in text


@pytest.mark.parametrize("name", ["of_call", "of_lock", "abi_check", "load"])
def test_functions_that_the_runtime_has(name):
    text = refusal(chosen(name))
    assert f"would be called demo_{name}\n  found: the library's own" in text


WORDS = [
    "class_", "if_", "for_", "not_", "return_",
    "NAN", "INFINITY", "HUGE_VAL", "INT64_MAX", "INT64_C", "UINT8_MAX", "SIZE_MAX", "M_PI",
    "memset",
    "Values", "of_call", "of_values", "OF_LIBRARY", "OPFORGE_API", "OpforgeAllocate", "_Bool",
    "__LINE__", "__attribute__", "intptr_t", "EOF", "errno", "I", "demo_words_mode", "offsetof",
]  # fmt: skip


def words() -> Op:
    """Every word as a scalar, which sizes are computed from."""
    n = Var("n")
    params = (
        hand_made.TensorParam("x"),
        *(ScalarParam(word, "i64") for word in WORDS),
        ChoiceParam("mode", ("RELU", "AND", "IF", "TRY"), ("'relu'", "'and'", "'if'", "'try'")),
    )
    guards = tuple(hand_made.Guard(hand_made.Expr("<=", (Var(word), n))) for word in WORDS)
    case = Case(
        (TensorCase("x", True, "fp32", (n,)),),
        (("mode", 0),),
        paths=(Path(guards, (hand_made.out_like("fp32", (n,)),)),),
    )
    return Op("words", "demo::words", "ops.py:1", params, ("of_described",), (case,))


def test_parameters_may_have_any_name(tmp_path):
    folder = write(hand_made.library((words(), [])), tmp_path)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{folder / 'include'}", "-c", "-o", "/dev/null"]
    source = str(folder / "src" / "demo" / "op_words.c")
    subprocess.run(["cc", "-std=c99", *flags, source], check=True)
    first = "#include <errno.h>\n#include <math.h>\n#include <stdio.h>\n"
    for language, standard, header in (("c", "c99", "demo.h"), ("c++", "c++17", "demo.hpp")):
        program = tmp_path / f"main.{language}"
        more = "#include <complex.h>\n" if language == "c" else ""
        program.write_text(f'{first}{more}#include "{header}"\nint main(void) {{ return 0; }}\n')
        wanted = ["-x", language, f"-std={standard}", "-DOPFORGE_NO_LINK_CHECK"]
        subprocess.run(["cc", *wanted, *flags, str(program)], check=True)


def test_no_doc_or_value_ends_a_comment_or_its_line(tmp_path):
    texts = ("*/ int x; /*", "??/", "*??/", "\\", "// \\")
    op = replace(
        chosen("a", "mode", labels=tuple(f"L{i}" for i in range(len(texts)))),
        doc="\n".join(texts),
    )
    x, mode = op.params
    op = replace(op, params=(x, replace(mode, values=tuple(map(repr, texts)), doc=" ".join(texts))))
    folder = write(hand_made.library((op, [])), tmp_path)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{folder / 'include'}", "-fsyntax-only"]
    (tmp_path / "main.cpp").write_text('#include "demo.hpp"\n')
    for language, file in (
        ("c99", folder / "src" / "demo" / "op_a.c"),
        ("c++17", tmp_path / "main.cpp"),
    ):
        subprocess.run(["cc", f"-std={language}", *flags, str(file)], check=True)


def test_a_library_may_be_called_like_something_of_the_system(tmp_path):
    headers = ["<cstdlib>", "<ctime>"]
    for name in ("printf", "random", "timespec", "and_", "std", "opforge", "main"):
        write(hand_made.library(hand_made.overlapping(), name=name), tmp_path)
        headers.append(f'"{name}.hpp"')
    program = tmp_path / "main.cpp"
    included = "".join(f"#include {header}\n" for header in headers)
    program.write_text(f"{included}int main() {{ return 0; }}\n")
    flags = ["-std=c++17", "-Wall", "-Werror", "-fsyntax-only", f"-I{tmp_path / 'include'}"]
    subprocess.run(["c++", "-DOPFORGE_NO_LINK_CHECK", *flags, str(program)], check=True)
