"""Names that mean something to C, to C++, to their headers or to the runtime."""

from __future__ import annotations

import re

# Of C99 to C23 and C++17.
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


def is_reserved(name: str) -> bool:
    """Whether a parameter or a field of that name would not compile, or hide what is used."""
    return name in _WORDS or _RESERVED.fullmatch(name) is not None


# Functions and types of C, POSIX and Linux that C++'s headers declare, or that programs include
# with ours. A parameter may hide them, but a namespace cannot have their names.
_NAMES = frozenset(
    """
    FILE DIR main abort abs accept access acos acosh alarm alloca asctime asin asinh asprintf atan
    atan2 atanh atexit atof atoi atol atoll basename bcmp bcopy bind brk bsearch btowc bzero cabs
    calloc cbrt ceil chdir chmod chown chroot clearenv clearerr clock clone close connect copysign
    cos cosh creat ctermid ctime daemon difftime div dprintf drand48 drem dup dup2 dup3 ecvt encrypt
    endpwent erand48 erf erfc err error execl execv execve exit exp exp10 exp2 expm1 fabs fchdir
    fclose fcvt fdim fdopen feof ferror ffs fflush fgetc fgetpos fgets fgetwc fgetws fileno finite
    flock floor fma fmax fmemopen fmin fmod fopen fork fprintf fputc fputs fputwc fputws fread free
    freopen frexp fscanf fseek fsetpos fsync ftell ftruncate fwide fwprintf fwrite fwscanf gamma
    gcvt getc getchar getcwd getdate getdelim getenv getgid getline getopt getpass getpid getppid
    gets getsubopt getuid getw getwc getwchar glob gmtime grantpt group htonl hypot ilogb index
    initgroups initstate insque ioctl isalnum isalpha isascii isatty isblank iscntrl isdigit isgraph
    isinf islower isnan isprint ispunct isspace isupper isxdigit itimerspec j0 j1 jn jrand48 kill
    l64a labs lchown lconv ldexp ldiv lgamma link listen llabs lldiv llrint llround localeconv
    localtime lockf log log10 log1p log2 logb longjmp lrand48 lrint lround lseek malloc mblen mbrlen
    mbrtowc mbsinit mbstowcs mbtowc memccpy memchr memcmp memcpy memmem memmove mempcpy memrchr
    mkdir mkdtemp mkfifo mkstemp mktemp mktime mmap modf mount mrand48 msync munmap nan nanosleep
    nearbyint nextafter nexttoward nice nrand48 ntohl on_exit open openat passwd pause pclose perror
    pipe pipe2 poll popen pow pow10 pread printf pselect ptrace ptsname putc putchar putenv puts
    putw putwc putwchar pwrite qsort quick_exit raise rand rand_r random read readlink realloc
    realpath reboot recv regex remainder remove remque remquo rename rewind rindex rint rmdir round
    rpmatch sbrk scalb scalbln scalbn scanf seed48 select send setbuf setenv setgid setjmp setlocale
    setns setstate setuid setvbuf shutdown sigaction sigevent siginfo signal significand sigval sin
    sincos sinh sleep snprintf socket splice sprintf sqrt srand srand48 srandom sscanf stat statfs
    strcasecmp strcat strchr strcmp strcoll strcpy strcspn strdup strerror strftime strlen strncat
    strncmp strncpy strndup strnlen strpbrk strptime strrchr strsep strsignal strspn strstr strtod
    strtof strtok strtol strtold strtoll strtoul strtoull strxfrm swab swprintf swscanf symlink sync
    sync_file_range syscall sysconf sysinfo system tan tanh tee tempnam tgamma time timegm times
    timespec timeval timex timezone tm tmpfile tmpnam toascii tolower toupper trunc truncate ttyname
    tzset uint ulong umask umount uname ungetc ungetwc unlink unlockpt unsetenv unshare ushort
    usleep utime utimes valloc vasprintf vfork vfprintf vprintf vscanf vsnprintf vsprintf vsscanf
    wait waitpid warn wcscat wcschr wcscmp wcscpy wcslen wcsncpy wcsstr wcstod wcstok wcstol
    wcstombs wctob wctomb wcwidth wmemchr wmemcpy wmemset wprintf write wscanf y0 y1 yn
    """.split()  # noqa: SIM905  # one a line would fill a page
)
# POSIX keeps these for itself: all types, and the functions of threads and schedulers.
_GLOBAL = re.compile(r"\w+_t|(pthread|sched|clock|timer|sem|posix)_\w+")


def is_global(name: str) -> bool:
    """Whether C++ knows something of that name outside of every namespace."""
    return name in _NAMES or _GLOBAL.fullmatch(name) is not None
