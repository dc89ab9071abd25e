"""How a build refuses cases, outputs and paths."""

import inspect
import itertools

import pytest
import torch
import triton
from torch import Tensor

import opforge
from opforge import native
from opforge.errors import BadDeclaration, UnsupportedBody
from opforge.native.ir.expr import evaluate
from opforge.native.plan import plan
from opforge.native.symbolic import solve, symint
from support.archs import GFX942, sm
from support.native.torch_bodies import Program
from support.native.traced_kernels import block, launching, rows, take
from support.native.traced_oracle import Body, paths_for

T = native.tensor
X = {"x": T("m n", dtype="fp32")}


def built(fn, **specs):
    (found,) = Body(fn, specs or X).built
    return found


def refusal(error, fn, **specs):
    with pytest.raises(error) as caught:
        Body(fn, specs or X).built  # noqa: B018  # building is what fails
    return caught.value


def guards(found):
    return [" and ".join(str(g.condition) for g in p.guards) for p in found.case.paths]


def test_an_unbounded_power_of_two_says_how_to_declare_it():
    body = launching(
        lambda x, out: rows[(x.shape[0],)](
            x, out, 1, 1, 1, BLOCK=triton.next_power_of_2(x.shape[1])
        )
    )
    error = refusal(BadDeclaration, body)
    assert error.what == "next_power_of_2(n) is unbounded, so it would need infinitely many kernels"
    assert error.fix == "bound n: dims={'n': (1, 8192)}"
    assert f"used at {__file__}:" in error.found
    loose = refusal(BadDeclaration, body, x=T("...", dtype="fp32", ranks=2))
    assert "and give x.shape[1] a name in the declared shape" in loose.fix


def test_a_size_that_is_a_constant_says_how_to_declare_it():
    body = launching(lambda x, out: rows[(x.shape[0],)](x, out, 1, 1, 1, BLOCK=x.shape[1]))
    error = refusal(BadDeclaration, body)
    assert error.what.startswith("n must be a constant")
    assert error.fix == (
        "declare the values of n: dims={'n': [1024, 4096]}, or bound it: dims={'n': (1, 64)}"
    )
    found = built(body, dims={"n": [16, 64]}, **X)
    assert sorted(guards(found)) == ["n == 16", "n == 64"]


def test_a_missing_bound_is_that_of_the_size_that_lacks_it():
    power = launching(
        lambda x, out: rows[(1,)](
            x, out, 1, 1, 1, BLOCK=triton.next_power_of_2(x.numel() // x.shape[0])
        )
    )
    blocks = launching(
        lambda x, out: rows[(1,)](x, out, 1, 1, 1, BLOCK=triton.cdiv(x.numel() // x.shape[0], 128))
    )
    heads = {"x": T("t h d", dtype="fp32"), "dims": {"h": (1, 64)}}
    error = refusal(BadDeclaration, power, **heads)
    assert error.what.startswith("next_power_of_2(d * h) is unbounded")
    assert error.fix == "bound d: dims={'d': (1, 8192)}"
    error = refusal(BadDeclaration, power, x=heads["x"])
    assert error.fix == "bound d and h: dims={'d': (1, 8192), 'h': (1, 8192)}"
    error = refusal(BadDeclaration, blocks, **heads)
    assert error.fix == (
        "declare the values of d: dims={'d': [1024, 4096]}, or bound it: dims={'d': (1, 128)}"
    )
    # As the fix says.
    bound = {"h": (1, 64), "d": (1, 128)}
    assert built(blocks, x=heads["x"], dims=bound).case.paths
    shared = refusal(BadDeclaration, power, x=T("*s", dtype="fp32", ranks=2))
    assert shared.fix == "bound s[1]: dims={'s': (1, 8192)}"


def reduced(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    m = x.numel()
    while m > 1:
        m = triton.cdiv(m, 1024)
        block[(m,)](x, out, m, BLOCK=1024)
    return out


def test_a_loop_over_a_size_without_a_bound_says_how_to_declare_it(monkeypatch):
    # 24 take 4 s.
    monkeypatch.setattr(symint, "MOST_DIVIDED", 12)
    error = refusal(BadDeclaration, reduced)
    assert error.what == (
        "a loop may go round any number of times, because m and n have no upper bound"
    )
    line = inspect.getsourcelines(reduced)[1] + 3
    assert error.found == f"it branches again and again at {__file__}:{line}"
    assert error.fix == "bound m and n: dims={'m': (1, 8192), 'n': (1, 8192)}"
    # As the fix says.
    found = built(reduced, dims={"m": (1, 8192), "n": (1, 8192)}, **X)
    assert max(len(path.steps) for path in found.case.paths) == 3


def squared(m, n):
    q = 1
    while q < n:
        q = q * q + m


def divided_in_turns(m, n):
    while n:
        m, n = n, m % n


@pytest.mark.parametrize("loop", [squared, divided_in_turns])
def test_a_loop_whose_terms_grow_in_every_round_ends(loop, monkeypatch):
    # As they are, they take 5 s; without them there is no end.
    monkeypatch.setattr(symint, "MOST_DIVIDED", 6)
    monkeypatch.setattr(symint, "LARGEST", 64)

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        loop(*x.shape)
        block[(1,)](x, out, x.shape[0], BLOCK=64)
        return out

    error = refusal(BadDeclaration, body)
    assert "have no upper bound" in error.what
    line = inspect.getsourcelines(loop)[1] + (2 if loop is squared else 1)
    assert error.found == f"it branches again and again at {__file__}:{line}"


def test_a_path_with_too_many_branches_on_bounded_sizes(monkeypatch):
    monkeypatch.setattr(symint, "MOST_ON_A_PATH", 16)

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        start = 0
        while start < x.shape[0]:
            block[(1,)](x, out, start, BLOCK=64)
            start += 1
        return out

    error = refusal(BadDeclaration, body, x=T("n", dtype="fp32"), dims={"n": (1, 8192)})
    assert error.what == "a path has more than 256 branches on sizes"
    line = inspect.getsourcelines(body)[1] + 3
    assert error.found == f"the last at {__file__}:{line}"
    assert error.fix == "bound n lower: dims={'n': (1, 64)}"


def test_tracing_tells_how_far_it_is(make_op):
    op, heard = make_op(reduced), []
    native.declare(op, x=native.tensor("n", dtype=("fp16", "fp32")), dims={"n": (1, 2048)})
    plan([op], (80,), traced=lambda *told: heard.append(told))
    assert heard == [(opforge.info(op).name, count + 1) for count in range(6)]


def test_a_constant_that_depends_on_the_gpu_does_not_ask_for_sizes():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        count = torch.cuda.get_device_properties(x.device).multi_processor_count
        block[(count,)](x, out, 1, BLOCK=triton.cdiv(x.shape[0], count))
        return out

    error = refusal(BadDeclaration, body, x=T("n", dtype="fp32"), dims={"n": [64, 4096]})
    assert error.fix == (
        "remove tl.constexpr in the kernel, or put a number of your own in place of "
        "device.multi_processor_count, which differs from GPU to GPU"
    )


def test_a_float_that_is_a_constant_says_how_to_declare_it():
    def body(x: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        take[(1,)](x, out, A=eps)
        return out

    error = refusal(BadDeclaration, body, eps=native.scalar("fp32"), **X)
    assert error.what == "eps must be a constant, but it is a float that could have any value"
    assert "eps=native.choice(0.5, 1.0)" in error.fix


def test_a_body_that_raises_for_one_vendor_names_its_gpus():
    def body(x: Tensor) -> Tensor:
        if torch.version.hip:
            raise NotImplementedError("not for AMD")
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return out

    assert Body(body, X).built
    with pytest.raises(UnsupportedBody) as caught:
        Body(body, X, archs=(*sm(90), GFX942)).built  # noqa: B018  # building is what fails
    assert "cannot be built for x fp32 2-d, on gfx942" in str(caught.value)
    assert "the body raises NotImplementedError: not for AMD" in str(caught.value)


def test_a_refused_path_carries_the_bodys_message():
    def body(x: Tensor) -> Tensor:
        assert x.shape[0] % 8 == 0, "rows come in eights"
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return out

    found = built(body)
    refused = {guards(found)[i]: p.why for i, p in enumerate(found.case.paths)}
    assert refused["m % 8 == 0"] == ""
    (other,) = (text for text in refused.values() if text)
    line = inspect.getsourcelines(body)[1] + 1
    assert other.startswith("the body raises AssertionError: rows come in eights")
    assert other.endswith(f" ({__file__}:{line})")
    ((why, where),) = found.refused.items()
    assert why == other
    assert where == ["x fp32 2-d where m % 8 != 0"]


def test_a_reason_is_given_once_for_all_cases(make_op):
    def body(x: Tensor) -> Tensor:
        assert x.shape[0] % 8 == 0, "rows come in eights"
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return out

    op = make_op(body)
    native.declare(op, x=native.tensor("m n", dtype=("fp16", "bf16", "fp32")))
    (note,) = plan([op], (80,)).notes
    line = inspect.getsourcelines(body)[1] + 1
    assert note == (
        f"{opforge.info(op).name} is not built for x fp16 2-d where m % 8 != 0 (and 2 similar "
        f"cases): the body raises AssertionError: rows come in eights ({__file__}:{line})"
    )


def test_a_body_that_launches_nothing_is_an_error():
    def body(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    assert "neither a kernel launch nor a torch call" in refusal(UnsupportedBody, body).what


def test_too_many_paths_through_a_body(monkeypatch):
    # 512 paths take 12 s.
    monkeypatch.setattr(solve, "MOST", 64)

    def body(a: Tensor) -> Tensor:
        out = torch.empty_like(a)
        take[(1,)](a, out, A=tuple(bool(s > 5) for s in a.shape), B=[bool(s > 9) for s in a.shape])
        return out

    error = refusal(UnsupportedBody, body, a=T("...", dtype="fp32", ranks=8))
    assert "more than 512 paths" in error.what


def test_a_call_that_a_library_cannot_make_is_told_before_all_paths_are_traced():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        sums = x.median(-1)[0].view(x.shape[0])
        rest = x[1:].t().contiguous().median().expand(x.shape[1] - 3)
        take[(rest.shape[0],)](sums, out)
        return out

    error = refusal(UnsupportedBody, body)
    line = inspect.getsourcelines(body)[1] + 2
    assert f"aten.median.dim at {__file__}:{line}" in error.found


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x, _: x, "output out is the parameter x"),
        (lambda _, out: out[1:], "output out is only part of a tensor that the body allocates"),
        (lambda _, out: out[:, ::2], "output out is only part of a tensor that the body allocates"),
        (lambda _, __: 3, "the body returns a int, not a tensor"),
    ],
)
def test_outputs_that_a_caller_cannot_bring(make, said):
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return make(x, out)

    assert said in refusal(UnsupportedBody, body).found


@pytest.mark.parametrize(
    "make", [lambda out: out[:1].expand(2, 8), lambda out: out.as_strided((2, 8), (1, 1))]
)
def test_an_output_that_repeats_elements_is_refused(make):
    """It has as many elements as the allocation, but the caller would bring memory for fewer."""

    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return make(out)

    assert refusal(UnsupportedBody, body, x=native.tensor("2 8", dtype="fp32")).found == (
        "output out is an expanded or overlapping view; return a copy: .contiguous()"
    )


def test_an_output_of_many_dimensions_in_another_order_is_whole():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return out.permute(5, 0, 4, 1, 3, 2)

    (built,) = Body(body, {"x": native.tensor("a b c d e f", dtype="fp32")}).built
    assert not any(path.refused for path in built.case.paths)


def test_outputs_that_share_memory():
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(x)
        block[(1,)](x, out, 1, BLOCK=16)
        return out, out.view(-1)

    assert "output out1 shares its memory with out0" in refusal(UnsupportedBody, body).found


def test_only_architectures_that_reach_a_launch_get_its_kernels():
    def body(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        if torch.cuda.get_device_capability()[0] >= 9:
            block[(1,)](x, out, 1, BLOCK=128)
        else:
            block[(1,)](x, out, 1, BLOCK=64)
        take[(1,)](x, out)
        return out

    (found,) = Body(body, X, archs=sm(80, 86, 90, 100)).built
    archs = {dict(r.constants).get("BLOCK"): a for r, a in found.requests.values()}
    assert archs == {128: sm(90, 100), 64: sm(80, 86), None: sm(80, 86, 90, 100)}


def test_a_body_that_keeps_a_tensor_between_calls_is_refused():
    kept = {}

    def body(x: Tensor) -> Tensor:
        if "zeros" not in kept:
            kept["zeros"] = torch.zeros(4, device=x.device)
        out = torch.empty_like(x)
        take[(1,)](kept["zeros"], out, x.shape[0], 1)
        return out

    error = refusal(UnsupportedBody, body)
    assert "a tensor kept from an earlier call is used at" in error.found
    assert "make it a parameter" in error.found


def test_a_call_that_only_some_strides_lead_to_is_an_error_that_says_which():
    def body(x: Tensor) -> Tensor:
        x = x if x.is_contiguous() else x.sort(-1)[0]
        out = torch.empty_like(x)
        take[(1,)](x, out, x.shape[0], 1)
        return out

    error = refusal(UnsupportedBody, body, x=T("m n", dtype="fp32", layout="strided"))
    assert error.what.startswith("it cannot be built for x fp32 2-d where not (")
    assert "x.stride[1] == 1" in error.what
    assert f"aten.sort at {__file__}:" in error.found
    assert "a contiguous layout" in error.fix


def do_overlap(sizes, strides):
    at = [sum(map(int.__mul__, i, strides)) for i in itertools.product(*map(range, sizes))]
    return len(set(at)) < len(at)


@pytest.mark.parametrize("rank", [2, 3])
def test_each_combination_of_strides_has_one_path(rank):
    def body(x: Tensor) -> Tensor:
        return x + x

    dims = " ".join("abcd"[:rank])
    program = Program(body, x=T(dims, dtype="fp32", layout="strided"))
    for sizes in itertools.product((1, 2, 3), repeat=rank):
        for strides in itertools.product((0, 1, 2, 3, 6, 9), repeat=rank):
            if do_overlap(sizes, strides):
                continue
            x = torch.empty_strided(sizes, strides)
            case, values = program.matching({"x": x})
            (path,) = paths_for(case, values)
            found = [evaluate(stride, values) for stride in path.outputs[0].strides]
            wanted = (x + x).stride()
            assert all(n == 1 or a == b for n, a, b in zip(sizes, found, wanted, strict=True))


def test_a_path_that_no_sizes_are_found_for_is_refused_and_told():
    def body(x: Tensor) -> Tensor:
        if x.shape[0] * 2654435761 % 2**32 == 12345:
            return x * 2
        return x + 1

    case = built(body)
    rare = "2654435761 * m % 4294967296 == 12345"
    (refused,) = [path for path in case.case.paths if path.refused]
    assert [str(guard.condition) for guard in refused.guards] == [rare]
    ((why, where),) = case.refused.items()
    assert "no sizes" in why
    assert where[0].endswith(f"where {rare}")
