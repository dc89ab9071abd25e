"""How rows are run: chosen, isolated, and with the options kept apart from the op's."""

import dataclasses
import enum
import logging
import random
import warnings

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opforge
from opforge.check import check_call
from opforge.errors import BadOption, WrongArgument
from support.checking import row, statuses


class Mode(enum.Enum):
    ADD = "add"
    MULTIPLY = "multiply"


@dataclasses.dataclass(frozen=True)
class Config:
    weight: Tensor
    mode: Mode = Mode.ADD
    scale: float = 1.0


def add_one(x: Tensor) -> Tensor:
    return x + 1


def test_only_and_skip_choose_rows_in_their_order(op_name):
    op = opforge.op(op_name())(add_one)
    report = opforge.check(op, torch.ones(2), only=["fake", "eager", "vmap"], skip="vmap")
    assert [r.name for r in report] == ["eager", "fake"]
    assert len(report) == 2
    assert report.ok


def test_a_required_row_that_is_skipped_fails_with_the_reason_and_the_fix(op_name):
    op = opforge.op(op_name())(add_one)
    report = opforge.check(op, torch.ones(2), only=["eager", "numerics"], require="numerics")
    assert not report.ok
    found = report["numerics"]
    assert (found.status, found.reason) == ("fail", "required, but it did not run: no reference")
    assert found.fix.startswith("pass reference=fn")
    report = opforge.check(
        op,
        torch.ones(2),
        only=["eager", "numerics"],
        require=["eager", "numerics"],
        reference=add_one,
    )
    assert (report.ok, report.outcome) == (True, "passed")


def test_a_required_row_must_be_a_row_and_chosen(op_name):
    op = opforge.op(op_name())(add_one)
    with pytest.raises(BadOption, match="there is no row 'compiled'"):
        opforge.check(op, torch.ones(2), require="compiled")
    with pytest.raises(BadOption, match="require names eager, which only or skip leaves out"):
        opforge.check(op, torch.ones(2), skip="eager", require=["eager", "fake"])
    with pytest.raises(BadOption, match="require names eager"):
        opforge.check(op, torch.ones(2), only="fake", require="eager")


def test_rows_that_do_not_concern_an_op_are_skipped_with_the_reason(op_name):
    report = opforge.check(opforge.op(op_name())(add_one), torch.tensor(1.0), skip="package")
    reasons = {row.name: row.reason for row in report if row.status == "skipped"}
    assert reasons.pop("cuda graph") in {"needs a GPU", "the inputs are on the CPU"}
    assert reasons == {
        "strided inputs": "no tensor input can have gaps",
        "autograd": "no backward was given",
        "compile dynamic": "no tensor input has a batch dimension",
        "kernels visible": "the op launches no Triton kernels",
        "native": "the op has no native.declare",
        "dtensor": "no sharding rule was given",
        "numerics": "no reference",
    }


def test_the_report_names_the_op_its_place_and_inputs(op_name):
    op = opforge.op(name := op_name())(add_one)
    report = opforge.check(op, torch.ones(2, 3, dtype=torch.float16), only="eager")
    assert report.op == name
    assert report.location.endswith(f"test_run.py:{add_one.__code__.co_firstlineno}")
    assert report.inputs == ("x: float16 (2, 3) on cpu",)
    assert f"torch {torch.__version__}" in report.machine


def test_an_option_that_is_a_parameter_of_the_op_is_refused_with_the_way_out(op_name):
    @opforge.op(op_name())
    def skipping(x: Tensor, skip: int = 1) -> Tensor:
        return x[skip:].clone()

    with pytest.raises(
        WrongArgument, match=r"'skip' is both an option of opforge\.check"
    ) as caught:
        opforge.check(skipping, torch.ones(3), skip=2)
    assert "check_call" in caught.value.fix
    assert opforge.check(skipping, torch.ones(3), 2, only="eager").ok
    report = check_call(skipping, (torch.ones(3),), {"skip": 2}, only="eager", skip="fake")
    assert report.ok


def test_arguments_that_the_op_does_not_take_are_refused_with_its_signature(op_name):
    op = opforge.op(op_name())(add_one)
    with pytest.raises(WrongArgument, match="unexpected keyword argument 'y'") as caught:
        opforge.check(op, torch.ones(2), y=3)
    assert caught.value.found.startswith("add_one(x")


@pytest.mark.parametrize("tolerance", ["a", -1.0, (1e-3,), (1, 2, 3)])
def test_an_invalid_tolerance_is_refused(op_name, tolerance):
    op = opforge.op(op_name())(add_one)
    with pytest.raises(BadOption, match="tolerance must be a non-negative number"):
        opforge.check(op, torch.ones(2), tolerance=tolerance)


def test_tensors_without_contents_are_refused(op_name):
    op = opforge.op(op_name())(add_one)
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    for empty in (torch.ones(2, device="meta"), fake):
        with pytest.raises(WrongArgument, match="needs tensors with contents") as caught:
            opforge.check(op, empty)
        assert caught.value.parameter == "x"


def test_the_callers_tensors_are_never_changed(op_name):
    @opforge.op(op_name(), mutates_args=["x", "items"])
    def overwrite(x: Tensor, items: list[Tensor]) -> Tensor:
        x.zero_()
        items[0].add_(1)
        return items[0] * 2

    x, item = torch.randn(4, 3), torch.randn(4, 3)
    before = x.clone(), item.clone()
    versions = x._version, item._version
    assert set(statuses(overwrite, x, [item]).values()) == {"pass", "skipped"}
    assert torch.equal(x, before[0])
    assert torch.equal(item, before[1])
    assert (x._version, item._version) == versions
    assert not x.requires_grad


def test_random_states_are_as_before(op_name):
    @opforge.op(op_name())
    def noisy(x: Tensor) -> Tensor:
        random.random()
        return x + torch.rand_like(x)

    torch.manual_seed(7)
    random.seed(7)
    expected = torch.rand(3), random.random()
    torch.manual_seed(7)
    random.seed(7)
    found = statuses(noisy, torch.ones(4, 3))
    assert "fail" not in found.values()
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


def test_warnings_of_the_op_become_notes_and_go_nowhere_else(op_name):
    @opforge.op(op_name(), fake=torch.empty_like)
    def warns(x: Tensor) -> Tensor:
        warnings.warn("this op is slow\nvery", UserWarning, stacklevel=1)
        return x + 1

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = row("determinism", warns, torch.ones(2))
    assert found.notes == ("this op is slow",)
    assert heard == []


def test_torchs_logs_are_silent_unless_they_are_asked_for(op_name, monkeypatch, capsys):
    @opforge.op(op_name(), fake=torch.empty_like)
    def logs(x: Tensor) -> Tensor:
        logging.getLogger("torch.of_this_test").error("a page of details")
        return x + 1

    heard = []
    listening = logging.Handler()
    listening.emit = heard.append
    logger = logging.getLogger("torch")
    logger.addHandler(listening)
    before = list(logger.handlers)
    try:
        monkeypatch.delenv("TORCH_LOGS", raising=False)
        row("eager", logs, torch.ones(2))
        assert (heard, capsys.readouterr().err) == ([], "")
        assert logger.handlers == before
        monkeypatch.setenv("TORCH_LOGS", "dynamo")
        row("eager", logs, torch.ones(2))
        assert [record.getMessage() for record in heard] == ["a page of details"]
    finally:
        logger.removeHandler(listening)


def test_a_row_with_an_unexpected_error_fails_and_the_next_runs(op_name, monkeypatch):
    op = opforge.op(op_name())(add_one)

    def explode(*args, **kwargs):
        raise RuntimeError("boom\n" + "line\n" * 60)

    monkeypatch.setattr(torch.library, "opcheck", explode)
    report = check_call(op, (torch.ones(2),), only=["opcheck", "fake"])
    assert (report["opcheck"].status, report["opcheck"].reason) == ("fail", "RuntimeError: boom")
    assert report["fake"].status == "pass"


def test_records_enums_lists_and_several_outputs_pass_every_row(op_name):
    @opforge.op(op_name())
    def rich(xs: list[Tensor], cfg: Config, *, flag: bool = True) -> tuple[Tensor, Tensor | None]:
        total = xs[0] + xs[1]
        out = total + cfg.weight if cfg.mode is Mode.ADD else total * cfg.weight
        return out * cfg.scale, None

    inputs = [torch.randn(4, 3), torch.randn(4, 3)]
    found = statuses(rich, inputs, Config(torch.randn(3), Mode.MULTIPLY, 2.0), flag=False)
    assert [n for n, s in found.items() if s == "fail"] == []
    assert found["opcheck"] == found["compile dynamic"] == found["export strict"] == "pass"


def test_an_op_without_tensor_inputs_passes_what_it_can(op_name):
    @opforge.op(op_name())
    def allocate(n: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(n, dtype=dtype)

    found = statuses(allocate, 3, torch.float64)
    assert [n for n, s in found.items() if s == "fail"] == []
    assert found["compile"] == found["export"] == "pass"
