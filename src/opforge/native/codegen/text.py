"""What generated files are made of: identifiers, literals, comments, and templates to fill."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from importlib import resources

# What would not compile as the name of a parameter or a field, or would hide what is used: words of
# C99 to C23 and C++17.
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
        # Python has these, too, but `class_` loses its underscore, and a choice may be "and".
        "and", "break", "class", "continue", "else", "for", "if", "not", "or", "return", "try",
        "while",
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


def part(name: str) -> str:
    """For the end of an identifier: `"größe"` -> `gr_u00f6_u00dfe`."""
    ascii_only = "".join(c if c.isascii() else f"_u{ord(c):04x}" for c in name)
    return re.sub(r"\W+", "_", ascii_only)


def identifier(name: str) -> str:
    """`"x.shape[0]"` -> `x_shape_0`, `"double"` -> `double_`."""
    return kept(part(name).rstrip("_") or "_")


def kept(name: str, taken: frozenset[str] = frozenset()) -> str:
    """A name as it is, even `"add_"`; `delete_` for a reserved one or one of `taken`."""
    plain = part(name)
    if plain[0].isdigit():
        plain = f"_{plain}"
    if plain in _WORDS or _RESERVED.fullmatch(plain):
        plain += "_"
    while plain in taken:
        plain += "_"
    return plain


def distinct(names: list[str], taken: frozenset[str] = frozenset()) -> dict[str, str]:
    """An identifier for each name, no two alike and none of `taken`."""
    chosen: dict[str, str] = {}
    for name in names:
        wanted = identifier(name)
        while wanted in taken or wanted in chosen.values():
            wanted += "_"
        chosen[name] = wanted
    return chosen


def packed(items: Sequence[str], closing: str, width: int) -> list[str]:
    """Items with commas between and `closing` behind them, on lines of this width."""
    lines: list[str] = []
    for i, item in enumerate(items):
        piece = item + (closing if i + 1 == len(items) else ",")
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def aligned(opening: str, items: Sequence[str], closing: str, width: int) -> list[str]:
    """Lines of `opening` and the items behind it, one below the other."""
    first, *rest = packed(items, closing, width - len(opening))
    return [opening + first, *(" " * len(opening) + line for line in rest)]


def function(head: str, body: Sequence[str]) -> str:
    """A function in C or C++ from its head and the lines of its body."""
    return "\n".join([head, "{", *(f"    {line}" for line in body), "}"])


def macro(*parts: str) -> str:
    """`("mylib", "silu", "RELU")` -> `MYLIB_SILU_RELU`."""
    return "_".join(part(p).upper() for p in parts)


def quoted(text: str) -> str:
    r"""A C string literal; question marks are escaped because of trigraphs.

    Python carries bytes of a file's name that are not UTF-8 as lone surrogates, which are shown as
    `\udcff`: whoever reads the literal expects UTF-8.
    """
    written = []
    for byte in text.encode(errors="backslashreplace"):
        char = chr(byte)
        if char in '"\\?':
            written.append(f"\\{char}")
        elif char == "\n":
            written.append("\\n")
        elif 32 <= byte < 127:
            written.append(char)
        else:
            written.append(f"\\{byte:03o}")
    return '"' + "".join(written) + '"'


def comment(text: str) -> str:
    r"""Text that cannot end the comment it is in.

    A compiler joins lines and reads trigraphs before it looks for the end: `*\` and, on the next
    line, `/` end a comment. So no text has lines, nor characters that show it in another order.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    # Where a long comment is wrapped, this trigraph would join two lines.
    return shown.replace("??/", "?? /").replace("*/", "* /").replace("/*", "/ *")


# Functions and types of C, POSIX and Linux that C++'s headers declare or that programs include with
# ours, as far as somebody may call a library so. A parameter may hide them, a namespace cannot.
_NAMES = frozenset(
    """
    FILE DIR main abort abs accept access alarm basename bind bsearch calloc cbrt ceil clock
    clone close connect copysign cos cosh creat ctime daemon div dup encrypt err error exit exp
    exp2 expm1 fabs finite flock floor fma fmax fmin fmod fork free frexp gamma getline glob
    grantpt group hypot ilogb index insque ioctl isinf isnan kill labs ldexp lgamma link listen
    log log10 log1p log2 logb lrint lround lseek malloc memchr memcmp memcpy memmove memset mmap
    modf mount nan nearbyint nextafter nice open passwd pause perror pipe poll popen pow pread
    printf putenv puts qsort raise rand random read realloc recv regex remainder remove remquo
    rename rewind rindex rint round scalbn scanf select send setenv setlocale shutdown sigaction
    signal significand sigval sin sincos sinh sleep socket splice sprintf sqrt srand stat strlen
    swab symlink sync syscall sysconf sysinfo system tan tanh tee tgamma time times timespec
    timeval timex timezone tm tmpfile tolower toupper trunc truncate uint ulong umask umount
    uname ungetc unlink ushort usleep utime utimes valloc vfork wait warn write y0 y1 yn j0 j1
    jn
    """.split()  # noqa: SIM905  # one a line would fill a page
)
# POSIX keeps these for itself: all types, and the functions of threads and schedulers.
_GLOBAL = re.compile(r"\w+_t|(pthread|sched|clock|timer|sem|posix)_\w+")


def is_global(name: str) -> bool:
    """Whether C++ knows something of that name outside of every namespace."""
    return name in _NAMES or _GLOBAL.fullmatch(name) is not None


# What is the same in every library.

_NATIVE = resources.files(__package__.rpartition(".")[0])


def fill(template: str, /, **values: object) -> str:
    """The template `templates/TEMPLATE.in` with its placeholders filled."""
    text = _NATIVE.joinpath("templates", f"{template}.in").read_text(encoding="utf-8")
    return string.Template(text).substitute({k: str(v) for k, v in values.items()})


def with_constants(module: str, **values: str) -> str:
    """A module's text with the constants at its top, `LIBRARY = "mylib"`, as given."""
    for name, value in values.items():
        before = next(line for line in module.splitlines() if line.startswith(f"{name} = "))
        module = module.replace(before, f'{name} = "{value}"', 1)
    return module


def runtime(folder: str = "") -> dict[str, str]:
    """The files of `runtime/FOLDER`, by name, as they are."""
    found = _NATIVE.joinpath("runtime", folder).iterdir()
    files = {f.name: f for f in found if f.name.endswith((".c", ".h", ".hpp", ".py"))}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}
