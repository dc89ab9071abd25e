"""A small library, as `opforge build --torch --tvm-ffi --jax` would write it."""

import dataclasses
import hashlib

from opforge.native.artifacts.build_record import make
from opforge.native.artifacts.publish import write_output
from opforge.native.artifacts.toolchain import compile_adapter, compile_library
from support.native import hand_made
from support.standin.library import write

NAME = "shipped_ops"


def library(name=NAME):
    """`demo::add`, and `demo::plus`, which is the same with gradients."""
    whole = hand_made.every_op()
    (op,) = (op for op in whole.ops if op.name == "add")
    # They are not derivatives, so that it shows if others are called.
    formula = (("grad", 0), ("call", "demo::add", ("grad", 0), ("input", 0)))
    plus = dataclasses.replace(
        op, name="plus", torch_name="demo::plus", schema=op.schema.replace("add", "plus"),
        formula=formula,
    )  # fmt: skip
    return dataclasses.replace(whole, name=name, ops=(op, plus))


def build(program, folder, like=None):
    write(program, folder, torch=True, tvm_ffi=True, jax=True)
    compile_library(folder, program.name, flags=("-O0",))
    if like is None:
        compile_adapter(folder, program.name, flags=("-O0",))
    else:
        _copy_adapter(like, folder, program.name)
    return recorded(folder, program.name)


def _copy_adapter(like, folder, name):
    """That of `shipped_ops`, as if it were of this build, where nothing calls it: 3 s less."""
    content = (like / f"lib/lib{NAME}_torch.so").read_bytes()
    of_it, of_this = (
        hashlib.sha256(file.read_bytes()).hexdigest().encode()
        for file in (like / f"share/{NAME}/manifest.json", folder / f"share/{name}/manifest.json")
    )
    (folder / f"lib/lib{name}_torch.so").write_bytes(content.replace(of_it, of_this))


def recorded(folder, name):
    """The folder, with the record and the hashes of what is in it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    write_output(folder, contents, stamp=make(folder, {}, {}), name=name)
    return folder
