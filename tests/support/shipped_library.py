"""A small library with its torch adapter, as `opforge build --torch` would write it."""

import dataclasses

from opforge.native.artifacts.toolchain import compile_adapter, compile_library
from opforge.native.ir.interface import SchemaArgument
from support.native import hand_made
from support.standin.library import write

NAME = "shipped_ops"


def library(name=NAME):
    """`demo::add` alone."""
    whole = hand_made.every_op()
    (op,) = (op for op in whole.ops if op.name == "add")
    tensors = tuple(SchemaArgument(tensor, "Tensor") for tensor in "xy")
    schema = "demo::add(Tensor x, Tensor y) -> Tensor"
    op = dataclasses.replace(op, schema=schema, arguments=tensors, returns=("Tensor",))
    return dataclasses.replace(whole, name=name, ops=(op,))


def build(program, folder):
    write(program, folder, torch=True)
    compile_library(folder, program.name, flags=("-O0",))
    compile_adapter(folder, program.name, flags=("-O0",))
    return folder
