"""The language of --input: what it makes, and how it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opforge.check.language import ALLOWED, MAKERS, SHORT_DTYPES, parse_input
from opforge.errors import BadOption


def value(text, **options):
    return parse_input(f"x={text}", **options).value


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("randn(8,128,bf16)", (8, 128), torch.bfloat16),
        ("randn((8, 128), dtype=f16)", (8, 128), torch.float16),
        ("rand([3], float64)", (3,), torch.float64),
        ("zeros(2, 0, i32)", (2, 0), torch.int32),
        ("ones(shape=(4,), dtype=bool)", (4,), torch.bool),
        ("ones()", (), torch.float32),
        ("arange(5)", (5,), torch.int64),
        ("arange(1, 2, 0.5)", (2,), torch.float32),
        ("randint(0, 9, 4, 5)", (4, 5), torch.int64),
        ("randint(0, 9, (4, 5), u8, cpu)", (4, 5), torch.uint8),
        ("randn(2, float8_e4m3fn)", (2,), torch.float8_e4m3fn),
        ("randn(2, complex64)", (2,), torch.complex64),
    ],
)
def test_tensors_have_the_shape_and_dtype_that_is_asked_for(text, shape, dtype):
    made = value(text)
    assert (tuple(made.shape), made.dtype, made.device.type) == (shape, dtype, "cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-6", 1e-6),
        ("-3", -3),
        ("True", True),
        ("None", None),
        ("'input'", "input"),
        ("[1, 2.5]", [1, 2.5]),
        ("(1, None)", (1, None)),
        ("inf", float("inf")),
        ("bf16", torch.bfloat16),
        ("cuda", torch.device("cuda")),
    ],
)
def test_plain_values_are_parsed(text, expected):
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_lists_may_hold_tensors():
    assert [t.shape for t in value("[ones(2), zeros(3)]")] == [(2,), (3,)]


def test_random_values_are_the_same_every_time_and_differ_between_inputs():
    assert torch.equal(value("randn(4)"), value("randn(4)"))
    generator = torch.Generator().manual_seed(0)
    one, two = (value("randn(4)", generator=generator) for _ in range(2))
    assert not torch.equal(one, two)


def test_reading_leaves_torchs_random_state_alone():
    before = torch.get_rng_state()
    value("randn(4)")
    assert torch.equal(before, torch.get_rng_state())


def test_the_device_comes_from_the_text_or_else_from_the_default():
    assert value("ones(2, 'meta')").device.type == "meta"
    assert value("ones(2)", device="meta").device.type == "meta"
    assert value("ones(2, device='cpu')", device="meta").device.type == "cpu"


def test_an_input_may_require_grad():
    assert value("randn(2, requires_grad=True)").requires_grad


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        ("x", "an input must look like path=value", 1),
        ("3x=1", "'3x' is not a parameter or field", 0),
        ("x=", "there is no value after the =", 2),
        ("x=randn(8,128", "this does not parse: '(' was never closed", 7),
        ("x= ]", "this does not parse: unmatched ']'", 3),
        ("x=ones(3)\udcff", "this does not parse: 'utf-8' codec can't encode", 2),
        ("x='\udcff'", "this does not parse: 'utf-8' codec can't encode", 2),
        ("x=ones(3, device='nope')", "'nope' is not a device", 17),
        ("x=foo(3)", "'foo' cannot be called here", 2),
        ("x=[1, os]", "'os' is not a known name", 6),
        ("x=os.system('rm')", "attribute access cannot be called here", 2),
        ("x=torch.float32", "attribute access is not allowed here", 2),
        ("x=(1).real", "attribute access is not allowed here", 2),
        ("x=2*3", "arithmetic is not allowed here", 2),
        ("x=[i for i in (1,)]", "a comprehension is not allowed here", 2),
        ("x=lambda: 1", "a lambda is not allowed here", 2),
        ("x={1: 2}", "a dict or set is not allowed here", 2),
        ("x=f'{1}'", "an f-string is not allowed here", 2),
        ("x=b'a'", "b'a' is not allowed here", 2),
        ("x=randn", "randn needs a shape", 2),
        ("x=randn(8, 1.5)", "randn takes numbers, not 1.5", 11),
        ("x=randn(8, 'tpux')", "'tpux' is not a device", 11),
        ("x=randn(8, 'hpu')", "randn: torch has nothing here for devices of type 'hpu'", 2),
        ("x=randn(8, names=3)", "randn does not take names=3", 17),
        ("x=randn(*[8])", "a starred value is not allowed here", 8),
        ("x=randn(-1)", "randn: Trying to create tensor with negative dimension -1", 2),
        ("x=randn(8, f16, bf16)", "dtype is given twice", 16),
        ("x=randn(8, f16, dtype=f16)", "dtype is given twice", 22),
        ("x=randn(8, cpu, device='cpu')", "device is given twice", 23),
        ("x=ones(8, i32, requires_grad=True)", "ones: only Tensors of floating point dtype", 2),
        ("x=randint(3)", "randint: it takes low, high and a shape", 2),
        ("x=arange()", "arange: it takes (end)", 2),
        ("größe=['ä', os]", "'os' is not a known name", 12),
    ],
)
def test_an_unsupported_expression_is_refused_with_its_position(text, what, column):
    with pytest.raises(BadOption) as caught:
        parse_input(text)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(what)
    assert lines[1] == f"    {text}"
    assert lines[2] == "    " + " " * column + "^"
    assert lines[3].startswith("  fix: ")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("x=randn(8, fp33)", "did you mean fp32"),
        ("x=torch.randn(8)", "randn(...), without a prefix"),
        ("x=up", "text needs quotes: 'up'"),
    ],
)
def test_a_near_miss_gets_its_own_fix(text, fix):
    with pytest.raises(BadOption) as caught:
        parse_input(text)
    assert f"  fix: {fix}" in str(caught.value)


def test_dtypes_may_be_spelled_as_for_native_libraries():
    assert parse_input("x=zeros(2, fp16)").value.dtype == torch.float16


def test_a_refusal_lists_what_is_allowed():
    with pytest.raises(BadOption) as caught:
        parse_input("x=open('/etc/passwd')")
    assert caught.value.fix == f"allowed: {ALLOWED}"
    assert all(name in ALLOWED for name in (*MAKERS, *SHORT_DTYPES, "cuda"))


def test_a_quoted_dtype_is_refused_with_the_unquoted_form():
    with pytest.raises(BadOption) as caught:
        parse_input("x=randn(8, 'bf16')")
    assert caught.value.fix == "a dtype has no quotes: bf16"


def test_a_bare_word_is_refused_with_the_quoted_form():
    with pytest.raises(BadOption, match="text needs quotes: 'input'"):
        parse_input("cfg.rounding=input")


@settings(deadline=None)  # the first call of a torch function is slow
@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(sorted(SHORT_DTYPES)),
    st.sampled_from(["zeros", "ones"]),
)
def test_every_shape_and_dtype_is_made(shape, dtype, maker):
    made = value(f"{maker}({', '.join(map(str, [*shape, dtype]))})")
    assert list(made.shape) == shape
    assert made.dtype == SHORT_DTYPES[dtype]


@settings(deadline=None)  # the first call of a torch function is slow
@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.booleans(), st.none()))
def test_plain_values_survive_their_repr(plain):
    assert value(" ".join(repr(plain).splitlines())) == plain


@settings(deadline=None)  # the first call of a torch function is slow
@given(st.text())
def test_any_text_is_read_or_refused_with_a_caret_inside_it(text):
    try:
        parse_input(text)
    except BadOption as error:
        what, shown, caret = error.what.rsplit("\n", 2)
        assert what
        assert len(caret) <= len(shown) + len("^")
