"""Forged manifests: the library is refused with the field's name, or it loads."""

import ctypes
import dataclasses
import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
from hypothesis import strategies as st

import opforge
from opforge import native
from opforge.errors import NotALibrary, OpforgeError, StaleLibrary
from opforge.loading.attach import _fake
from opforge.native.codegen.manifest import manifest
from opforge.native.ir.interface import SchemaArgument
from opforge.native.library.manifest_reader import Manifest
from opforge.native.library.whole_file import refuse_damaged
from opforge.registry import registry
from support.archs import SM_90
from support.fuzzing import attack, damaged, forged
from support.native import hand_made

NAME = "forged"
# A library that says of itself what it is told to say.
C = """
int forged_abi_version(void) { return 1; }
const char *forged_text = "";
const char *forged_manifest(void) { return forged_text; }
const char *forged_last_error(void) { return ""; }
int forged_matmul_implementations(const void **first) { *first = 0; return 0; }
int forged_everything_implementations(const void **first) { *first = 0; return 0; }
"""


def small_library():
    """Two operators with all kinds of parameters, a backward, and one case each."""
    matmul, kernels = hand_made.matmul()
    everything, more = hand_made.everything()
    product = dataclasses.replace(
        matmul,
        schema="demo::matmul(Tensor a, Tensor b) -> Tensor",
        arguments=(SchemaArgument("a", "Tensor"), SchemaArgument("b", "Tensor")),
        returns=("Tensor",),
        formula=(("call", "demo::matmul", ("grad", 0), ("input", 1)), None),
    )
    kept = everything.params[:3], everything.params[3:5], everything.params[-1:]
    numbers = [SchemaArgument(p.name, "float") for p in kept[1]]
    written = ", ".join(f"float {n.name}" for n in numbers)
    mixed = dataclasses.replace(
        everything,
        params=tuple(param for part in kept for param in part),
        cases=everything.cases[:1],
        schema=f"demo::everything(Tensor x, Tensor? bias, Tensor(a!) state, {written}, "
        "str? mode='relu', *, ScalarType kind=6) -> (Tensor, Tensor?)",
        arguments=(
            SchemaArgument("x", "Tensor"),
            SchemaArgument("bias", "Tensor?"),
            SchemaArgument("state", "Tensor"),
            *numbers,
            SchemaArgument("mode", "str?", ("relu", None), default=("relu",)),
            SchemaArgument(
                "kind", "ScalarType", (("dtype", "float32"),), fixed=True, keyword_only=True,
                default=(("dtype", "float32"),),
            ),
        ),
        returns=("Tensor", "Tensor?"),
    )  # fmt: skip
    return hand_made.library((product, kernels[:1]), (mixed, more[:1]), name=NAME)


REAL = json.loads(manifest(small_library()))


@functools.cache
def library():
    """The shared object, and what sets its manifest."""
    folder = Path(tempfile.mkdtemp(prefix="opforge-fuzz-"))
    (folder / "forged.c").write_text(C)
    file = folder / f"lib{NAME}.so"
    subprocess.run(["cc", "-shared", "-fPIC", folder / "forged.c", "-o", file], check=True)
    text = ctypes.c_char_p.in_dll(ctypes.CDLL(str(file)), "forged_text")

    def say(content):
        text.value = content

    return file, say


def read_all(loaded):
    """Everything that is read on demand."""
    contents = loaded.contents
    assert isinstance(contents.runs_on(SM_90), bool)
    return [(op.op, op.cases) for op in contents.ops]


def refused_well(error):
    """Whether a person can see what is wrong, and it fits into a terminal."""
    said = str(error)
    told = re.search(r"found: (\S+) |nested too deeply|can't|Expecting|Extra|Exceeds|Invalid", said)
    return len(said) < 1500 and (isinstance(error, StaleLibrary) or told is not None)


def test_the_manifest_itself_loads():
    file, say = library()
    say(json.dumps(REAL).encode())
    ops = opforge.load(file, host_memory=True)
    assert [op.name for op in ops] == ["demo::matmul", "demo::everything"]
    ops.close()


@attack(forged(REAL), examples=150)
def test_a_forged_manifest_is_refused_or_opens(text):
    file, say = library()
    say(text)
    try:
        opened = native.open(file)
        read_all(opened)
        assert NAME in repr(opened) + opened._repr_html_()
    except (NotALibrary, StaleLibrary) as error:
        assert refused_well(error), error


@attack(forged(REAL), examples=120)
def test_a_forged_manifest_is_refused_or_loads(text):
    file, say = library()
    say(text)
    try:
        ops = opforge.load(file, host_memory=True)
        try:
            read_all(ops._library)
            assert NAME in repr(ops) + str(ops) + ops._repr_html_()
            assert all(opforge.explain(op.name) for op in ops)
        finally:
            ops.close()
    except (NotALibrary, StaleLibrary) as error:
        assert refused_well(error), error
    # Of a library that was refused, torch has nothing.
    assert not [entry.name for entry in registry if str(file) in entry.location]


X = torch.empty(3, 8, device="meta")
CALLS = [(X, X.new_empty(8, 2)), (X, X.new_empty(8), X.new_empty(3), 1.0, 1.0, "relu")]


@attack(
    st.sampled_from([0, 1]).flatmap(
        lambda which: st.tuples(st.just(which), forged(REAL["ops"][which]["cases"]))
    ),
    examples=150,
)
def test_the_fake_of_a_forged_case_is_refused_or_made(drawn):
    which, cases = drawn
    op = json.dumps(REAL["ops"][which] | {"cases": "@"}).encode().replace(b'"@"', cases)
    try:
        (described,) = Manifest(b'{"format": 3, "ops": [' + op + b"]}").ops
        made = _fake(described)(*CALLS[which])
    except (OpforgeError, ArithmeticError) as error:
        assert str(error)
    except RuntimeError as error:
        # Only of torch: no tensor has a negative size, or one with other strides.
        assert "negative" in str(error) or "size" in str(error)
    else:
        assert isinstance(made, torch.Tensor | tuple)


SUMS = f"{'0' * 64}  lib/lib{NAME}.so\n".encode()


@attack(damaged(library()[0].read_bytes()), damaged(SUMS), examples=100)
def test_a_damaged_library_or_hash_is_refused_before_it_is_opened(content, sums):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lib", f"lib{NAME}.so")
        place = Path(folder, "share", NAME, "SHA256SUMS")
        for path, data in ((file, content), (place, sums)):
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        try:
            refuse_damaged(file, NAME)
        except NotALibrary as error:
            assert str(file) in str(error)
