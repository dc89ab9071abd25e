"""Element types: Triton's name, torch's, DLPack's and C's for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """`code` and `bits` are DLPack's; `c` is how C passes a scalar of the type.

    Half precision scalars are passed as float and rounded once, on the way to the kernel; 8-bit
    floats exist in memory only.
    """

    name: str
    torch: str
    code: int
    bits: int
    c: str = ""

    @property
    def bytes(self) -> int:
        return self.bits // 8


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("fp16", "float16", _FLOAT, 16, "float"),
        DType("bf16", "bfloat16", _BFLOAT, 16, "float"),
        DType("fp32", "float32", _FLOAT, 32, "float"),
        DType("fp64", "float64", _FLOAT, 64, "double"),
        DType("fp8e4nv", "float8_e4m3fn", 10, 8),
        DType("fp8e4b8", "float8_e4m3fnuz", 11, 8),
        DType("fp8e5", "float8_e5m2", 12, 8),
        DType("fp8e5b16", "float8_e5m2fnuz", 13, 8),
        DType("i8", "int8", _INT, 8, "int8_t"),
        DType("i16", "int16", _INT, 16, "int16_t"),
        DType("i32", "int32", _INT, 32, "int32_t"),
        DType("i64", "int64", _INT, 64, "int64_t"),
        DType("u8", "uint8", _UINT, 8, "uint8_t"),
        DType("u16", "uint16", _UINT, 16, "uint16_t"),
        DType("u32", "uint32", _UINT, 32, "uint32_t"),
        DType("u64", "uint64", _UINT, 64, "uint64_t"),
        # Triton's one-bit integer, a byte in memory.
        DType("i1", "bool", _BOOL, 8, "uint8_t"),
    )
}
# Other names: torch's, Triton's for a bool in signatures, and what people write.
ALIASES = {"bool": "i1", "u1": "i1", "fp8e4m3": "fp8e4nv", "fp8e5m2": "fp8e5"} | {
    d.torch: d.name for d in DTYPES.values()
}


def named(name: str) -> DType | None:
    """`"fp16"`, `"float16"`, `"bool"` -> the type; None for an unknown name."""
    return DTYPES.get(ALIASES.get(name, name))
