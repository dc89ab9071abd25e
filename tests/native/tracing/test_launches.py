"""Launches as a trace sees them, and those that no library can hold."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from opforge import native
from opforge.errors import BadDeclaration, UnsupportedBody
from opforge.native.ir.case_text import conditions
from opforge.native.ir.cases import Descriptor, Fill, Launch
from opforge.native.ir.places import short
from support.archs import gfx, sm
from support.native.traced_kernels import (
    Reinterpreted,
    Wrapper,
    block,
    hooked,
    launching,
    take,
)
from support.native.traced_oracle import Body

T = native.tensor
X = {"x": T("m n", dtype="fp32")}


def refusal(fn, **specs):
    """The error of a build in which no case can be built."""
    with pytest.raises(UnsupportedBody) as caught:
        Body(fn, specs or X).built  # noqa: B018  # building is what fails
    return str(caught.value)


def built(fn, **specs):
    (found,) = Body(fn, specs or X).built
    return found


def launches(found):
    return [s for p in found.case.paths for s in p.steps if isinstance(s, Launch)]


def line_of(fn, text):
    """`file:line` of a function's line that contains a text."""
    lines, first = inspect.getsourcelines(fn)
    offset = next(i for i, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(fn)}:{first + offset}"


def test_all_calls_that_cannot_be_in_a_library_are_named_at_once():
    def body(x: Tensor) -> Tensor:
        y = x.sort(-1)[0]
        z = torch.fft.rfft(y)
        y.bernoulli_(0.5)
        out = torch.empty_like(x)
        block[(1,)](y, out, z.shape[0], BLOCK=16)
        return out

    said = refusal(body)
    for call, text in [
        ("aten.sort", "x.sort("),
        ("torch.fft.rfft", "rfft"),
        ("aten.bernoulli_.float", "bernoulli_"),
    ]:
        assert f"{call} at {line_of(body, text)}" in said
    assert "opforge.package" in said


def test_a_tensor_of_the_module_is_not_a_parameter():
    table = torch.arange(4)

    body = launching(lambda x, out: take[(1,)](x, out, table))
    assert "'a' is a tensor that is not a parameter" in refusal(body)


def test_a_descriptor_is_an_address_with_sizes_and_strides():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        described = TensorDescriptor(x[1:], [x.shape[0] - 1, 64], [64, 1], [16, 16], "nan")
        take[(1,)](described, out)
        return out

    found = built(body, x=T("m 64", dtype="fp16"))
    (launch,) = launches(found)
    base, *numbers = launch.arguments[:5]
    assert base == Descriptor("x", "x", 128, "fp16", 2, is_nan=True)
    assert [(n.name, str(n.value)) for n in numbers] == [
        ("x.shape[0]", "m - 1"), ("x.shape[1]", "64"),
        ("x.strides[0]", "64"), ("x.strides[1]", "1"),
    ]  # fmt: skip
    assert launch.variants[0].types[:5] == ("tensordesc<fp16[16, 16]>", "i32", "i32", "i64", "i64")
    refused = [path.refused for path in found.case.paths if path.refused]
    assert (
        "the body raises AssertionError: shape must be positive, of a tensor descriptor of x"
        in (refused)
    )


def in_blocks_of(rows):
    """A body with a descriptor whose block has as many rows as a function of its rows says."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        described = TensorDescriptor.from_tensor(x, [rows(x.shape[0]), 64])
        take[(1,)](described, out)
        return out

    return body


@pytest.mark.parametrize(
    ("rows", "what", "fix"),
    [
        (lambda m: m // 2, "m // 2 must be a constant", "dims={'m': [64, 128]}"),
        (triton.next_power_of_2, "next_power_of_2(m) is unbounded", "dims={'m': (1, 256)}"),
    ],
)
def test_a_descriptor_with_blocks_of_any_size_names_what_lacks_a_bound(rows, what, fix):
    body = in_blocks_of(rows)
    with pytest.raises(BadDeclaration) as caught:
        Body(body, {"x": T("m 64", dtype="fp16")}).built  # noqa: B018  # building is what fails
    assert caught.value.what.startswith(what)
    place = line_of(take.fn, "@triton.jit")
    assert f"a block of x, a tensor descriptor, of kernel take ({place})" in caught.value.what
    assert caught.value.found == f"launched at {line_of(body, 'take[')}"
    assert caught.value.fix.endswith(fix)


def test_a_descriptor_has_blocks_of_the_sizes_that_are_declared():
    declared = {"x": T("m 64", dtype="fp16"), "dims": {"m": [32, 64, 72]}}
    found = built(in_blocks_of(lambda m: m // 2), **declared)
    types = {launch.variants[0].types[0] for launch in launches(found)}
    assert types == {"tensordesc<fp16[16, 64]>", "tensordesc<fp16[32, 64]>"}
    (refused,) = [path for path in found.case.paths if path.refused]
    assert refused.refused == "the body raises ValueError: Shape element 0 must be a power of 2"
    assert conditions(refused) == "m // 2 == 36"


@gluon.jit
def made_with_gluon(x, out, n, BLOCK: gl.constexpr):
    at = gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(out + at, gl.load(x + at, mask=at < n), mask=at < n)


def test_gluon_kernels_are_launched():
    body = launching(lambda x, out: made_with_gluon[(1,)](x, out, x.numel(), BLOCK=128))
    (found,) = launches(built(body))
    assert found.kernel_name == "made_with_gluon"


@pytest.mark.parametrize("asked", ["launch_pdl=True", "num_ctas=2"])
def test_what_only_newer_gpus_have_is_refused_on_older_ones(asked):
    name, value = asked.split("=")
    option = {name: ast.literal_eval(value)}

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, x.shape[0], BLOCK=16, **option)
        return out

    both = Body(body, X, archs=sm(80, 90)).built
    older, newer = sorted(both[0].case.paths, key=lambda path: not path.refused)
    assert (conditions(older), conditions(newer)) == ("device.major < 9", "9 <= device.major")
    assert older.refused.startswith("kernel block (")
    assert older.refused.endswith(
        f": {asked} needs sm_90; launch it under a check of the capability"
    )
    assert f"launched at {line_of(body, 'BLOCK=16')}" in older.refused
    # A library has no folder of the machine that built it.
    assert str(Path(__file__).parent) not in older.refused.short
    assert {archs for _, archs in both[0].requests.values()} == {sm(90)}
    with pytest.raises(UnsupportedBody, match=f"{asked} needs sm_90"):
        Body(body, X, archs=sm(80)).built  # noqa: B018  # building is what fails
    # Its capability is 9.4, so a check of that would not help.
    said = rf"{asked} needs sm_90; launch it under a check of torch\.version\.hip"
    with pytest.raises(UnsupportedBody, match=said):
        Body(body, X, archs=gfx("942")).built  # noqa: B018


@pytest.mark.parametrize(
    ("option", "archs", "vendor"),
    [({"maxnreg": 64}, gfx("942"), "NVIDIA"), ({"waves_per_eu": 2}, sm(80, 90), "AMD")],
    ids=["maxnreg", "waves_per_eu"],
)
def test_an_option_of_the_other_vendor_is_refused_as_that(option, archs, vendor):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, x.shape[0], BLOCK=16, **option)
        return out

    with pytest.raises(UnsupportedBody) as caught:
        Body(body, X, archs=archs).built  # noqa: B018  # building is what fails
    (name,) = option
    said = f"{name} is an option of launches on {vendor} GPUs; launch it under a check of "
    assert f"launched at {line_of(body, 'BLOCK=16')}: {said}torch.version.hip" in str(caught.value)
    assert caught.value.fix == "make that check in the body, or build for other GPUs with --arch"


def test_what_the_pre_hook_of_a_configuration_fills_is_filled():
    body = launching(lambda x, out: hooked[(1,)](x, out, x.shape[0]))
    found = built(body)
    (path,) = found.case.paths
    assert [type(step) for step in path.steps] == [Fill, Launch]
    assert found.notes == []


def test_a_mistake_in_a_launch_is_told_with_its_line_and_the_parameters():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, ROWS=16)
        return out

    _, what, found, fix = re.split(r": kernel |\n  ", refusal(body))
    assert what.endswith("): it has no parameter 'ROWS'")
    assert found == f"found: launched at {line_of(body, 'ROWS')}"
    assert fix == "fix: correct the launch; the kernel's parameters are x, out, n, BLOCK"


def test_a_kernel_of_the_interpreter_asks_for_a_build_without_it():
    interpreted = InterpretedFunction(block.fn)

    body = launching(lambda x, out: interpreted[(1,)](x, out, 1, BLOCK=16))
    said = refusal(body)
    assert "it runs in Triton's interpreter, which compiles nothing" in said
    assert said.endswith("\n  fix: unset TRITON_INTERPRET for the build")


def test_a_body_that_always_raises_is_to_be_corrected():
    def body(x: Tensor) -> Tensor:
        return torch.empty_like(y)  # noqa: F821

    said = refusal(body)
    assert "the body raises NameError: name 'y' is not defined" in said
    assert said.endswith("\n  fix: correct the body, or declare inputs that it takes")


COUNTED = []


def count(*_):
    COUNTED.append(1)


class Counter:
    def __call__(self, *_):
        COUNTED.append(1)


def copies(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    block[(1,)](x, out, x.shape[0], BLOCK=16)
    block[(1,)](x, out, x.shape[0], BLOCK=16)
    return out


NOT_CALLED = "is Python, and the library's launches do not call it"


@pytest.mark.parametrize(
    "name",
    ["launch_enter_hook", "kernel_load_end_hook"],
)
def test_a_hook_of_all_launches_is_noted_once(name, monkeypatch):
    place = line_of(count, "def count")
    assert built(copies).notes == []
    for hook, who in ((count, f"count ({place})"), (Counter(), "Counter")):
        chain = knobs.HookChain()
        chain.add(hook)
        for value in (chain, hook):
            monkeypatch.setattr(knobs.runtime, name, value)
            expected = f"{who}, in triton.knobs.runtime.{name}, {NOT_CALLED}"
            assert built(copies).notes == [expected]
    monkeypatch.setattr(knobs.runtime, name, None)
    assert built(copies).notes == []


def test_the_hooks_of_a_kernel_are_noted_with_its_name(monkeypatch):
    monkeypatch.setattr(block, "pre_run_hooks", [count])
    place = line_of(count, "def count")
    (note,) = built(copies).notes
    assert note == f"count ({place}), in pre_run_hooks of block, {NOT_CALLED}"
    assert note.short == note.replace(place, short(place))


@triton.autotune([triton.Config({"BLOCK": 64}, pre_hook=count)], key=["n"])
@triton.jit
def counted(x, out, n, BLOCK: tl.constexpr):
    pass


def test_a_pre_hook_that_leaves_nothing_is_noted():
    body = launching(lambda x, out: counted[(1,)](x, out, x.shape[0]))
    (note,) = built(body).notes
    place = line_of(count, "def count")
    assert note == f"count ({place}), in pre_hook of a triton.Config of counted, {NOT_CALLED}"


def blocks_set(nargs):
    nargs["x"].block_shape = [nargs["A"], 64]


@triton.autotune([triton.Config({"A": 16}, pre_hook=blocks_set)], key=["n"])
@triton.jit
def blocked(x, out, n, A: tl.constexpr):
    pass


def test_a_pre_hook_that_sets_blocks_needs_no_note():
    body = launching(
        lambda x, out: blocked[(1,)](TensorDescriptor.from_tensor(x, [16, 64]), out, x.shape[0])
    )
    found = built(body, x=T("m 64", dtype="fp16"))
    assert found.notes == []
    assert launches(found)[0].variants[0].types[0] == "tensordesc<fp16[16, 64]>"


@triton.jit
def staged(x_ptr, out_ptr, num_stages: tl.constexpr, num_warps: tl.constexpr = 2):
    tl.store(out_ptr, tl.load(x_ptr) * num_stages * num_warps)


def test_a_parameter_that_a_launch_names_is_an_option_too():
    """As Triton has it; one that is given by its position is not."""

    body = launching(lambda x, out: staged[(1,)](x, out, 5, num_warps=8))
    for request, _ in built(body).requests.values():
        assert dict(request.options) == {"num_warps": 8}
        assert {"num_stages": 5, "num_warps": 8}.items() <= dict(request.constants).items()


def test_a_wrapper_that_asks_for_addresses_is_passed_over():
    class Aligned(Wrapper):
        def run(self, *args, grid, **kwargs):
            key = tuple(a.data_ptr() % 16 for a in args[:2])
            return self.cache.setdefault(key, self.fn).run(*args, grid=grid, **kwargs)

    wrapped = Aligned(block)

    body = launching(lambda x, out: wrapped[(1,)](x, out, 5, BLOCK=16))
    found = built(body)
    assert len(launches(found)) == 1
    assert "Aligned, a wrapper around block, was skipped" in found.notes[0]


def test_a_kernel_that_is_compiled_already_is_refused():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        compiled = block.warmup(x, out, 1, BLOCK=16, grid=(1,))
        compiled[(1, 1, 1)](x, out, 1)
        return out

    assert "the body uses the result of block.warmup(...)" in refusal(body)


def test_what_has_an_address_and_a_type_is_passed_as_a_tensor():
    body = launching(
        lambda x, out: take[(1,)](
            Reinterpreted(x, x.shape[1]), out, triton.reinterpret(x[2:], tl.float8e5)
        )
    )
    (launch,) = launches(built(body, x=T("8 n", dtype="i8")))
    assert [(p.buffer, str(p.offset), p.dtype) for p in launch.arguments] == [
        ("x", "n", "i8"), ("out", "0", "i8"), ("x", "2 * n", "fp8e5")
    ]  # fmt: skip


def test_a_branch_on_an_address_is_refused():
    of_an_allocation = launching(lambda x, out: take[(1,)](x, out, A=out.data_ptr() % 16 == 0))
    compared = launching(lambda x, out: take[(1,)](x, out, A=x.data_ptr() == 0))
    for body in (of_an_allocation, compared):
        assert "the body asks for a tensor's address" in refusal(body)
