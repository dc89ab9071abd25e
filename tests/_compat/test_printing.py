"""What Inductor prints of a kernel: everything that the kernel uses, or the op is opaque."""

import importlib.util
import itertools
import re
import warnings

import pytest

pytest.importorskip("triton")

import torch
import triton
from torch._higher_order_ops.triton_kernel_wrap import generate_ttir
from torch._inductor.codegen.wrapper import (
    user_defined_triton_kernel_transitive_closure_source_code as inductor_prints,
)

import opforge
from opforge import _compat
from support import printed_alias, printed_kernels
from support.cache_keys import key_of
from support.launching import graph_of, innermost, launches

Tensor = torch.Tensor
x = torch.ones(64)
numbers = itertools.count()

# What Inductor writes above a kernel, as far as kernels use it.
ABOVE = "import triton\nimport triton.language as tl\n\n@triton.jit\n"


@pytest.fixture
def run_printed(tmp_path):
    """The kernel in the module that Inductor would write."""

    def load(kernel):
        text = ABOVE + inductor_prints(innermost(kernel))
        name = f"opforge_printed_{next(numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, innermost(kernel).__name__)

    return load


def ttir_of(kernel):
    """Triton's own code for a kernel, without the modules and lines that it names."""
    with opforge.target("sm_90"), torch._subclasses.FakeTensorMode():
        fakes = [torch.empty(64, device="cuda") for _ in range(2)]
        given = dict(zip(innermost(kernel).arg_names, (*fakes, 64, 64), strict=True))
        text = str(generate_ttir(innermost(kernel), given, {})[0])
    text = re.sub(r"^#loc.*\n| loc\(.*?\)|opforge_printed_\d+\.", "", text, flags=re.MULTILINE)
    text = text.replace("support.printed_kernels.", "").replace("made_around.<locals>.", "")
    return text.replace("support.printed_alias.", "")


@pytest.mark.parametrize("name", printed_kernels.LACKING)
def test_a_printed_kernel_compiles_to_what_the_kernel_itself_does(name, run_printed):
    kernel = printed_kernels.LACKING[name]
    # torch 2.15 prints these two by itself.
    if name not in {"by_attribute_of_a_module", "by_function_of_triton"}:
        with pytest.raises((AttributeError, NameError, SyntaxError, triton.CompilationError)):
            ttir_of(run_printed(kernel))
    assert ttir_of(run_printed(_compat.printing.printable(kernel))) == ttir_of(kernel)


@pytest.mark.parametrize("name", printed_kernels.LACKING)
def test_nothing_is_imported_that_may_not_be_there_in_a_worker(name):
    # flag_gems looks for a GPU when it is imported, which a forked worker cannot have.
    text = inductor_prints(innermost(_compat.printing.printable(printed_kernels.LACKING[name])))
    assert "support" not in text


def test_an_enum_whose_attributes_are_used_is_not_printed():
    assert _compat.printing.obstacle(printed_kernels.by_attribute_of_an_enum) == (
        "Inductor prints 'UP', which by_attribute_of_an_enum uses, as a number or text, and takes "
        "its attributes away; use the value alone"
    )


def test_a_kernel_that_lacks_nothing_is_printed_as_it_is():
    assert _compat.printing.printable(printed_kernels.plain) is printed_kernels.plain
    assert _compat.printing.added(printed_kernels.plain) == []


def test_the_copy_is_the_same_in_every_trace():
    kernel = printed_kernels.by_tuned
    copied = _compat.printing.printable(kernel)
    assert copied is _compat.printing.printable(kernel)
    assert copied.configs is kernel.configs
    assert kernel.fn.src == copied.fn._src
    assert hash(copied.fn) == hash(kernel.fn)


def launching(kernel):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](x, out, 64, 64)
        return out

    return body


def test_an_op_whose_kernel_lacks_something_stays_transparent(op_name, run_printed):
    kernel = printed_kernels.by_module
    op = opforge.op(launching(kernel), name=op_name())
    assert opforge.info(op).mode == "triton_op"
    (launch,) = launches(graph_of(op, x))
    assert ttir_of(run_printed(launch.kernel)) == ttir_of(kernel)
    assert [k.kernel for k in opforge.info(op).kernels] == [kernel]


class Thing:
    wanted = True


def test_an_op_whose_kernel_cannot_be_printed_is_opaque_with_one_warning(op_name):
    kernel = printed_kernels.made_with(Thing())
    with pytest.warns(opforge.OpforgeWarning) as warned:
        op = opforge.op(launching(kernel), name=op_name())
    assert opforge.info(op).mode == "custom_op"
    (text,) = [str(w.message) for w in warned]
    line = innermost(kernel).fn.__code__.co_firstlineno
    assert f"kernel with_a_thing ({printed_kernels.__file__}:{line}) cannot be seen through" in text
    assert "Inductor prints its source without 'thing', a Thing that with_a_thing uses" in text
    assert "make it a tl.constexpr of a number or text" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launches(graph_of(op, x)) == []
        assert "with_a_thing" in key_of(opforge.info(op).name)


def test_a_name_with_two_meanings_is_not_printed():
    # Inductor would print the first, and use it for both.
    assert inductor_prints(printed_kernels.with_two_halves).count("HALF = ") == 1
    assert _compat.printing.obstacle(printed_kernels.with_two_halves) == (
        "'HALF' is one thing in scaled and another in turned, and Inductor prints both into one "
        "module; rename one"
    )


def test_a_function_that_is_bound_anew_is_printed_in_the_next_trace(monkeypatch):
    kernel = printed_kernels.by_helper
    before = inductor_prints(_compat.printing.printable(kernel))
    monkeypatch.setattr(printed_kernels, "grown", printed_alias.turned)
    after = inductor_prints(_compat.printing.printable(kernel))
    assert "def grown(" in before
    assert "def turned(" in after
    assert "grown = turned" in after


def test_what_is_added_is_in_the_cache_key(op_name, monkeypatch):
    op = opforge.op(launching(printed_kernels.by_attribute_of_a_module), name=op_name())
    name = opforge.info(op).name
    before = key_of(name)
    monkeypatch.setattr(printed_kernels, "tle", printed_alias)
    assert key_of(name) != before
