"""Names that mean something to C, to C++, to their headers or to the runtime."""

from __future__ import annotations

import re

# Of C99 to C23 and C++17, if Python allows the name.
_WORDS = frozenset(
    [
        "alignas", "alignof", "asm", "auto", "bool", "case", "catch", "char", "char8_t", "char16_t",
        "char32_t", "const", "const_cast", "constexpr", "constinit", "consteval", "co_await",
        "co_return", "co_yield", "concept", "decltype", "default", "delete", "do", "double",
        "dynamic_cast", "enum", "explicit", "export", "extern", "false", "float", "friend", "goto",
        "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "nullptr", "operator",
        "private", "protected", "public", "register", "reinterpret_cast", "requires", "restrict",
        "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch",
        "template", "this", "thread_local", "throw", "true", "typedef", "typeid", "typename",
        "typeof", "typeof_unqual", "union", "unsigned", "using", "virtual", "void", "volatile",
        "wchar_t", "xor", "xor_eq", "and_eq", "bitand", "bitor", "compl", "not_eq", "or_eq",
        "linux", "unix",
        # Macros and types of headers that ours include, or that programs include before ours.
        "NULL", "offsetof", "size_t", "ptrdiff_t", "max_align_t", "NAN", "INFINITY", "HUGE_VAL",
        "HUGE_VALF", "HUGE_VALL", "math_errhandling", "EOF", "BUFSIZ", "RAND_MAX", "SIZE_MAX", "I",
        "complex", "imaginary", "assert", "errno", "stdin", "stdout", "stderr",
        # What the functions of an operator use by name.
        "Values", "memset",
    ]
)  # fmt: skip

_PATTERNS = (
    # The compiler's own.
    r"_[A-Z]\w*|__\w*",
    # The runtime's, and the locals of the functions of an operator.
    r"(of|OF|opforge|OPFORGE)_\w*|Opforge\w*",
    # Of stdint.h, limits.h, float.h and math.h.
    r"u?int(_least|_fast)?\d+_t|u?int(ptr|max)_t",
    r"U?INT(_LEAST|_FAST)?\d+_(MAX|MIN|C)|U?INT(PTR|MAX)_(MAX|MIN|C)",
    r"(PTRDIFF|WCHAR|WINT|SIG_ATOMIC)_(MAX|MIN)",
    r"(CHAR|SCHAR|UCHAR|SHRT|USHRT|INT|UINT|LONG|ULONG|LLONG|ULLONG)_(MAX|MIN|BIT|WIDTH)",
    r"(FLT|DBL|LDBL|FP|M|MATH)_[A-Z0-9_]+",
)
_RESERVED = re.compile("|".join(_PATTERNS))


def is_reserved(name: str) -> bool:
    """Whether a parameter or a field of that name would not compile, or hide what is used."""
    return name in _WORDS or _RESERVED.fullmatch(name) is not None
