"""What is compiled for a recording: the variants that were seen, and general ones."""

from dataclasses import replace

import pytest

from opforge._compat import kernel_hash
from opforge.errors import BadOption, NotFound
from opforge.native.ir.kernels import Choice
from opforge.recording.model import Recording, read
from opforge.serving.plan import parse_widening, plan
from support import served_kernels
from support.served_kernels import combine, doubles, plus_one, recorded, scaling, staged


def test_seen_variants_come_first_and_general_ones_last():
    recording = recorded(
        lambda x: combine[(1,)](x, x, x, 1000, BLOCK=64),
        lambda x: combine[(1,)](x, x, x, 1024, BLOCK=64),
        lambda x: combine[(1,)](x, x, x, 1, BLOCK=64),
        lambda x: combine[(1,)](x, x, x, 2**40 + 1, BLOCK=64),
    )
    made = plan(recording)
    (function,) = made.functions
    (instance,) = function.instances
    assert [variant.types for variant in instance.variants] == [
        ("p16", "p16", "p16", "1"),
        ("p16", "p16", "p16", "i32:16"),
        ("p16", "p16", "p16", "i32"),
        ("p", "p", "p", "i32"),
        ("p16", "p16", "p16", "i64"),
        ("p", "p", "p", "i64"),
    ]
    general = [v.types for v in instance.variants if v.kernel in made.spare]
    assert general == [("p", "p", "p", "i32"), ("p", "p", "p", "i64")]
    assert instance.kinds == ("*fp32", "*fp32", "*fp32", "int")


def test_options_and_constants_make_instances_of_their_own():
    recording = recorded(
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64),
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=128),
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=128, num_warps=8),
        lambda x: combine[(1,)](x.half(), x, x, 7, BLOCK=128),
    )
    made = plan(recording)
    assert len(made.functions[0].instances) == 4
    assert made.notes == [
        'combine: BLOCK was 64, 128; --widen "combine:BLOCK=64..512" covers more values'
    ]


def test_widening_is_not_proposed_for_what_an_autotuner_chooses():
    (kernel,) = recorded(
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64),
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=128),
    ).kernels
    choice = Choice((("n", 7),), ("float32",), (("BLOCK", 128),), "sm_80")
    assert plan(Recording((replace(kernel, choices=(choice,)),))).notes == []


def test_a_constant_is_widened():
    recording = recorded(lambda x: combine[(1,)](x, x, x, 16, BLOCK=64))
    made = plan(recording, [parse_widening("combine:BLOCK=64..256")])
    (function,) = made.functions
    blocks = {dict(i.constants)["BLOCK"]: len(i.variants) for i in function.instances}
    assert blocks == {64: 3, 128: 3, 256: 3}
    assert made.notes == []


def test_a_constant_that_is_an_option_too_is_widened_as_both():
    recording = recorded(
        lambda x: staged[(1,)](x, 7, 3, num_warps=4), lambda x: staged[(1,)](x, 7, 5, 4)
    )
    (function,) = plan(recording, [parse_widening("staged:num_warps=8")]).functions
    given = [(dict(i.constants), dict(i.options)) for i in function.instances]
    found = {(c["num_stages"], c["num_warps"], o.get("num_warps")) for c, o in given}
    assert found == {(3, 4, 4), (3, 8, 8), (5, 4, None), (5, 8, None)}


def test_each_choice_of_an_autotuner_is_built_with_the_constants_of_all_sizes():
    (kernel,) = recorded(
        lambda x: combine[(1,)](x, x, x, 7, BLOCK=64, num_warps=2),
        lambda x: combine[(1,)](x, x, x, 7, 64, plus_one, num_warps=2),
    ).kernels
    config = (("BLOCK", 128), ("num_warps", 4))
    choice = Choice((("n", 7),), ("float32",), config, "sm_80")
    (planned,) = plan(Recording((replace(kernel, choices=(choice,)),))).functions
    given = [(dict(i.constants), dict(i.options)) for i in planned.instances]
    found = {(c["BLOCK"], c["ACT"] is None, o["num_warps"]) for c, o in given}
    assert found == {(64, True, 2), (128, True, 4), (64, False, 2), (128, False, 4)}


def test_a_parameter_of_an_odd_type_is_noted():
    made = plan(recorded(lambda x: doubles[(1,)](x, 1.0)))
    assert made.notes == ["doubles is not served where n is annotated as fp64"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"source": "0" * 64}, NotFound, "combine is not the kernel that was recorded"),
        ({"name": "gone"}, NotFound, "served_kernels:gone was recorded, but cannot be"),
        ({"module": "no.such"}, NotFound, "ModuleNotFoundError: No module named 'no'"),
        ({"name": "recorded"}, NotFound, "found: a function"),
    ],
)
def test_a_kernel_must_be_the_recorded_one(change, error, said):
    (kernel,) = recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64)).kernels
    with pytest.raises(error) as caught:
        plan(Recording((replace(kernel, **change),)))
    assert said in str(caught.value)
    assert served_kernels.__file__ in str(caught.value)


def test_a_kernel_that_a_function_makes_is_made_again(tmp_path):
    recording = recorded(lambda x: scaling(2.5)[(1,)](x, 8, 64))
    recording.save(tmp_path / "launches.json")
    (fn,) = {request.fn for request, _ in plan(recording).requests.values()}
    assert fn.fn.__qualname__ == "scaling.<locals>.kernel"
    assert kernel_hash.digest(fn) == recording.kernels[0].source
    (kernel,) = read(tmp_path / "launches.json").kernels
    changed = dict(kernel.inside.closure) | {"more": {"constexpr": 3.5}}
    edited = replace(kernel, inside=replace(kernel.inside, closure=tuple(changed.items())))
    with pytest.raises(NotFound, match="is not the kernel that was recorded"):
        plan(Recording((edited,)))


def test_what_a_made_kernel_has_from_its_function_must_be_plain():
    recording = recorded(lambda x: scaling(2, {1})[(1,)](x, 8, 64))
    assert recording.kernels == ()
    (missed,) = recording.missed
    assert missed.reason == (
        "it is made inside a function, and more there is a builtins.set, which JSON cannot hold"
    )


def test_a_script_that_fails_is_run_once(tmp_path):
    script, runs = tmp_path / "fails.py", tmp_path / "runs"
    runs.write_text("")
    script.write_text(
        "import pathlib, sys\n"
        f"runs = pathlib.Path({str(runs)!r})\n"
        "runs.write_text(runs.read_text() + 'x')\n"
        "sys.exit()\n"
    )
    (kernel,) = recorded(lambda x: combine[(1,)](x, x, x, 8, BLOCK=64)).kernels
    lost = [replace(kernel, module=str(script), name=name) for name in ("one", "two", "three")]
    planned = plan(Recording((*lost, kernel)))
    assert runs.read_text() == "x"
    assert sum("cannot be imported" in note for note in planned.notes) == 3


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k:BLOCK=64..512", (64, 128, 256, 512)),
        ("k:BLOCK=60..300", (64, 128, 256)),
        ("k:BLOCK=48,96", (48, 96)),
        ("pack.ops.k:BLOCK=7", (7,)),
    ],
)
def test_values_are_powers_of_two_or_those_listed(text, values):
    assert parse_widening(text).values == values


@pytest.mark.parametrize("text", ["k:BLOCK=", "k:B=9..4", "k:B=1..x", "k:B=1,,2"])
def test_what_cannot_be_read_is_told_with_an_example(text):
    with pytest.raises(BadOption) as caught:
        parse_widening(text)
    assert text in caught.value.what
    assert "--widen" in caught.value.fix


def test_a_widening_must_name_a_constant_of_a_recorded_kernel():
    recording = recorded(lambda x: combine[(1,)](x, x, x, 7, BLOCK=64))
    plan(recording, [parse_widening("support.served_kernels:combine:BLOCK=64")])
    for text in ("other:BLOCK=64", "combine:BLCK=64"):
        with pytest.raises(BadOption) as caught:
            plan(recording, [parse_widening(text)])
        assert text in caught.value.what
        assert caught.value.found == "combine:ACT, combine:BLOCK"
