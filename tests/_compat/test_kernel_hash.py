"""The hash of a kernel: what changes it, what does not, and what is refused."""

import importlib
import itertools
import subprocess
import sys
import textwrap

import pytest

from opforge._compat import kernel_hash
from support.processes import OTHER_SEED, environment, python

_numbers = itertools.count()
HEAD = """
import enum
import functools
from collections import namedtuple
from dataclasses import dataclass
import triton
import triton.language as tl
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports a text as a module; names of earlier ones may be in it."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(text, name="", head=HEAD):
        name = name or f"hashed_{next(_numbers)}"
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(text))
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            made.append(name)
            return importlib.import_module(name)
        finally:
            sys.dont_write_bytecode = before

    yield make
    for name in made:
        sys.modules.pop(name, None)


def digest(fn):
    return kernel_hash.digest(fn)


KERNEL = """
{before}
@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, {value})
"""

CASES = {
    "attribute of a module": ("import {config} as config", "config.FACTOR"),
    "alias": ("exp = {alias}", "exp(tl.load(x_ptr))"),
    "dtype": ("DT = {dtype}", "tl.load(x_ptr).to(DT)"),
    "constexpr": ("C = tl.constexpr({number})", "C"),
    "member of an enum": (
        """
        class E(enum.IntEnum):
            A = {number}
        C = tl.constexpr(E.A)
        """,
        "C",
    ),
    "default of a helper": (
        """
        D = {number}
        @triton.jit
        def h(x, F: tl.constexpr = D):
            return x * F
        """,
        "h(1)",
    ),
    "global of a helper's helper": (
        """
        C = tl.constexpr({number})
        @triton.jit
        def g(x):
            return x * C
        @triton.jit
        def h(x):
            return g(x)
        """,
        "h(1)",
    ),
    "inlining of a helper": (
        """
        @triton.jit(noinline={flag})
        def h(x):
            return x
        """,
        "h(1)",
    ),
    "specialization of a helper": (
        """
        @triton.jit(do_not_specialize=["{name}"])
        def h(a, b):
            return a
        """,
        "h(1, 2)",
    ),
    "global that the kernel then sets": ("y = tl.constexpr({number})", "y)\n    y = (1"),
    "closure": (
        """
        C = tl.constexpr(1)
        def made(C):
            @triton.jit
            def h(x):
                return x * C
            return h
        h = made(tl.constexpr({number}))
        """,
        "h(1)",
    ),
    "class that a function makes": (
        """
        class Base:
            def twice(self):
                return {number} * self.n
        class Scale(Base):
            def __init__(self, n):
                self.n = n
        @triton.constexpr_function
        def f(n):
            return Scale(n).twice()
        """,
        "f(2)",
    ),
    "recursion": (
        """
        @triton.jit
        def f(x, N: tl.constexpr):
            return g(x, N) if N > 0 else x
        @triton.jit
        def g(x, N: tl.constexpr):
            return f(x, N - 1) * {number}
        """,
        "f(1, 2)",
    ),
    "method of an aggregate": (
        """
        @tl.core._aggregate
        class Scale:
            by: tl.tensor
            @triton.constexpr_function
            def __init__(self, by):
                self.by = by
            @triton.jit
            def scaled(self):
                return self.by * {number}
        """,
        "Scale(tl.load(x_ptr)).scaled()",
    ),
    "function at compile time": (
        """
        TABLE = [{number}]
        @triton.constexpr_function
        def f(n):
            return TABLE[0] * n
        """,
        "f(2)",
    ),
    "operation of a package": (
        """
        def other():
            return {number}
        @tl.core.builtin
        def f(x, _semantic=None):
            return x * other()
        """,
        "f(1)",
    ),
    "cached function at compile time": (
        """
        @functools.cache
        def cached(n):
            return {number} * n
        @triton.constexpr_function
        def f(n):
            return cached(n)
        """,
        "f(2)",
    ),
    "attribute of a function": (
        """
        def other(n):
            return other.factor * n
        other.factor = {number}
        @triton.constexpr_function
        def f(n):
            return other(n)
        """,
        "f(2)",
    ),
}
VALUES = {
    "alias": ("tl.exp", "tl.exp2"),
    "dtype": ("tl.float32", "tl.bfloat16"),
    "number": ("2", "20"),
    "flag": ("False", "True"),
    "name": ("a", "b"),
    "config": ("config_two", "config_twenty"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_code_depends_on_is_in_the_hash(module, case):
    for name, number in (("config_two", 2), ("config_twenty", 20)):
        text = f"""
            FACTOR = {number}
            @dataclass
            class Settings:
                factor: int
            settings = Settings({number})
            """
        module(text, name)
    before, value = map(textwrap.dedent, CASES[case])

    def made(at):
        values = {name: both[at] for name, both in VALUES.items()}
        return module(KERNEL.format(before=before.format(**values), value=value)).kernel

    assert digest(made(0)) == digest(made(0))
    assert digest(made(0)) != digest(made(1))


def test_the_order_of_hashing_does_not_matter(module):
    text = """
        LOG2E = tl.constexpr(1.44)
        @triton.jit
        def exp2(x):
            return tl.exp2(x * LOG2E)
        @triton.jit
        def softplus(x):
            return tl.log(1.0 + exp2(x))
        @triton.jit
        def a(x_ptr):
            tl.store(x_ptr, softplus(tl.load(x_ptr)))
        @triton.jit
        def b(x_ptr):
            tl.store(x_ptr, exp2(tl.load(x_ptr)))
        """
    one, other = module(text), module(text)
    # Triton keeps the hashes of functions that were hashed before; up to 3.8, theirs differed then.
    assert one.a.cache_key != one.b.cache_key
    assert other.b.cache_key != other.a.cache_key
    assert [digest(one.a), digest(one.b)] == [digest(other.b), digest(other.a)][::-1]


def test_lines_are_places_but_not_in_the_hash(module):
    text = "@triton.jit\ndef kernel(x_ptr):\n    tl.store(x_ptr, 1.0)\n"
    one, moved = module(text).kernel, module("# A comment.\n\n" + text).kernel
    assert digest(one) == digest(moved)
    (first,), (second,) = (kernel_hash.kernel_hash(fn).places for fn in (one, moved))
    assert int(second.rpartition(":")[2]) == int(first.rpartition(":")[2]) + 2


def test_local_names_are_not_globals(module):
    text = """
        import random
        x = {x}
        @triton.jit
        def kernel(x_ptr, n):
            x = tl.load(x_ptr)
            random = x * 2
            tl.store(x_ptr, random)
        n = {x}
        """
    assert digest(module(text.format(x="[1]")).kernel) == digest(module(text.format(x=2)).kernel)


FUNCTION = """
import os
def g(n=0):
    {called}
    return n
@triton.constexpr_function
def f(n):
    {itself}
    return g(n)
"""
REFUSED = {
    "a tensor": ("ones(2)", "odd.VALUE, a torch.Tensor"),
    "a lock": ("Lock()", "odd.VALUE, a _thread.lock"),
    "the environment": ("os.environ", "odd.VALUE, a os._Environ"),
    "a list in itself": ("inner", "a value that is nested too deeply"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_cannot_be_compared_has_no_hash(module, case):
    value, said = REFUSED[case]
    head = "import os\nfrom threading import Lock\nfrom torch import ones\n"
    module(f"inner = []\ninner.append(inner)\nVALUE = {value}", "odd", head)
    kernel = module(KERNEL.format(before="import odd", value="odd.VALUE")).kernel
    with pytest.raises(kernel_hash.NoText, match=f"it uses {said}"):
        digest(kernel)
    hashes = [kernel_hash.hash_or_unique(kernel).digest for _ in range(2)]
    assert hashes[0] != hashes[1]


def test_a_module_that_is_handed_on_has_no_hash(module):
    module("FACTOR = 2", "handed")
    kernel = module(KERNEL.format(before="import handed", value="getattr(handed, 'F')")).kernel
    with pytest.raises(kernel_hash.NoText, match="it uses handed, a module"):
        digest(kernel)


@pytest.mark.parametrize("where", ["called", "itself"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from somewhere import pi", "somewhere, which [fg] imports"),
        ("from .math import pi", r"\.math, which [fg] imports"),
        ("n = [*map(lambda x: __import__('os') and os.getenv('N'), (n,))]", r"os\.getenv, a "),
        ("n = os.environ['N']", r"os\.environ, a "),
        ("n = os.path.sep", None),
        ("from math import pi", None),
    ],
)
def test_what_only_this_process_has_is_refused_of_functions(module, where, line, said):
    text = FUNCTION.format(**{"called": "pass", "itself": "pass", where: line})
    if said is None:
        assert digest(module(text).f) == digest(module(text).f)
    else:
        with pytest.raises(kernel_hash.NoText, match=f"it uses {said}"):
            digest(module(text).f)


VALUES_OF_PYTHON = """
    class Base:
        def twice(self):
            return 2 * self.n
    @dataclass
    class Data(Base):
        n: int
        names: frozenset = frozenset(("a", "b", "c"))
    class Slots:
        __slots__ = ("n",)
    slots = Slots()
    slots.n = {n}
    class Colour(enum.Enum):
        RED = 1
        BLUE = {n}
    @triton.jit
    def f(x):
        return x
    data = Data({n})
    every = (
        data, slots, Colour, data.twice, functools.partial(max, {n}), {{"f": f}},
        namedtuple("P", "a b")(1, {n}), np.float32({n}), np.arange({n}), torch.float16, range({n}),
    )
    """


def test_values_of_python_are_the_same_in_every_process(module, tmp_path):
    head = f"{HEAD}import functools\nimport numpy as np\nimport torch\n"
    kernel = KERNEL.format(before="import every_value", value="every_value.every")
    found = []
    for n in (3, 4):
        module(textwrap.dedent(VALUES_OF_PYTHON.format(n=n)), "every_value", head)
        found.append(digest(module(kernel, "every_kernel").kernel))
    assert found[0] != found[1]
    code = (
        "import every_kernel; from opforge._compat import kernel_hash;"
        "print(kernel_hash.digest(every_kernel.kernel))"
    )
    made = subprocess.run(
        [python(), "-c", code], env=environment(tmp_path, **OTHER_SEED),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert made.stdout.strip() == found[1]


def test_an_object_that_cannot_be_copied_is_watched(module):
    config = module("@triton.jit\ndef f(x):\n    return x\nBY_NAME = {'f': f}", "config_by_name")
    text = KERNEL.format(before="import config_by_name", value="config_by_name.BY_NAME['f'](1)")
    watched = kernel_hash.kernel_hash(module(text).kernel).watched
    assert [w[:3] for w in watched if w.name == "BY_NAME"] == [
        (vars(config), "BY_NAME", {"f": config.f})
    ]


def test_the_files_of_helpers_and_constants_are_known(module):
    module("FACTOR = 2", "files_config")
    module("@triton.jit\ndef h(x):\n    return x", "files_helper")
    before = "import files_config\nfrom files_helper import h"
    found = module(KERNEL.format(before=before, value="h(files_config.FACTOR)"))
    files = kernel_hash.kernel_hash(found.kernel).files
    named = {sys.modules[name].__file__ for name in ("files_config", "files_helper")}
    assert files == {found.__file__, *named}


def test_values_that_programs_set_anew_are_watched(module):
    config = module("FACTOR = 2\nTABLE = [1]", "watched_config")
    before = "import watched_config as config\nfrom math import pi\nDT = tl.float32\nexp = tl.exp"
    value = "exp(config.FACTOR * config.TABLE[0] * tl.float32(pi)).to(DT)"
    found = module(KERNEL.format(before=before, value=value))
    watched = kernel_hash.kernel_hash(found.kernel).watched
    config.TABLE.append(2)
    assert {(id(w.holder), w.name): w.value for w in watched} == {
        (id(vars(found.kernel)), "_src"): found.kernel.src,
        (id(vars(config)), "FACTOR"): 2,
        (id(vars(config)), "TABLE"): [1],
        (id(vars(found)), "pi"): found.pi,
        (id(vars(found)), "DT"): found.DT,
    }


def test_source_that_is_set_anew_is_read_anew(module):
    found = module(KERNEL.format(before="A = tl.constexpr(1)", value="A"))
    before = digest(found.kernel)
    found.kernel._unsafe_update_src(found.kernel.src.replace("A", "A + A"))
    assert digest(found.kernel) != before
