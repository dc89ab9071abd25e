"""How Triton's types of numbers are passed: what Python gives, and what an image takes."""

from __future__ import annotations

INTEGERS = ("i32", "i64", "u64")
# Types that no launch of the JIT has without an annotation, but Inductor's launches do.
PRINTED = ("i8", "i16", "u8", "u16", "u32", "fp64")
OTHERS = ("fp32", "u1")


# How a variant takes a tensor descriptor, whose kind is Triton's type: "tensordesc<fp16[64, 32]>".
DESCRIPTOR = "d"
# As many as the extension takes of one launch.
MOST_DESCRIPTORS = 32


def kind_of(type_name: str) -> str:
    """`"i64"` -> `"int"`: what tells instances apart; pointers and others as they are."""
    if type_name == "fp64":
        return "fp32"
    return "int" if type_name in (*INTEGERS, *PRINTED) else type_name
