"""`opforge report` as people and CI run it."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from opforge.cli import main
from support.processes import environment


def run(*given):
    done = CliRunner().invoke(main, ["report", *map(str, given)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_page_is_written_and_a_summary_printed(dist, tmp_path):
    done = run(dist, "-o", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("demo_ops: library for sm_80, sm_90a\noperators: 2; cases: 8; ")
    assert done.output.endswith(f"wrote {tmp_path / 'report.html'}\n")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_json_is_printed_and_written_alike(dist, files, tmp_path):
    done = run(dist, *files.values(), "--json", "-o", tmp_path / "report.json")
    assert done.stdout == (tmp_path / "report.json").read_text()
    content = json.loads(done.stdout)
    assert content["totals"] == {
        "operators": 2, "cases": 8, "variants": 8, "images": 16,
        "bytes": content["builds"][0]["bytes"], "registers": 40, "shared": 1024, "spilling": 0,
        "uncovered": 7, "launches": 123, "general": 7, "tuned": 12, "checks": 2, "failed": 1,
    }  # fmt: skip


def test_a_baseline_is_kept_as_json(dist, spilling, tmp_path):
    baseline = tmp_path / "baseline.json"
    run(dist, "-o", baseline)
    limits = "new_spills>0,grown_bytes>1kB"
    assert run(baseline, dist, "--fail-on", limits).exit_code == 0
    done = run(baseline, spilling, "--json", "--fail-on", limits)
    assert done.exit_code == 1
    content = json.loads(done.stdout)
    assert content["since"] == str(baseline)
    kinds = [one["kind"] for one in content["changes"]]
    assert (kinds.count("spills"), kinds.count("registers")) == (8, 16)
    failed, kept = content["limits"]
    assert (failed["limit"], failed["ok"], len(failed["beyond"])) == ("new_spills>0", False, 8)
    assert kept == {"limit": "grown_bytes>1kB", "ok": True, "beyond": []}


def test_what_is_beyond_a_limit_is_printed_and_fails(spilling):
    done = run(spilling, "--fail-on", "spills>0,bytes>20MB")
    assert done.exit_code == 1
    assert (
        "spills>0: failed\n  add_kernel(*fp32, *fp32, *fp32, i32, BLOCK=128) sm_80: 12"
        in done.output
    )
    assert done.output.endswith("bytes>20MB: ok\n")


def test_changes_for_the_worse_are_printed(dist, spilling):
    done = run(dist, spilling)
    assert f"since {dist}: 24 changes, 24 for the worse\n" in done.output
    assert (
        "  registers: add_kernel(*fp16, *fp16, *fp16, i32, BLOCK=128) sm_80: 40 -> 48\n"
        in done.output
    )
    assert done.output.endswith("  and 12 more\n")


def test_builds_that_are_not_alike_are_said_to_be(dist, files, tmp_path):
    done = run(files["check"], "-o", tmp_path / "check.json")
    done = run(tmp_path / "check.json", dist, "-o", tmp_path / "report.html")
    assert "check.json has no build\n" in done.output
    page = (tmp_path / "report.html").read_text()
    assert "These are not two states of one build: " in page
    assert json.loads(run(dist, dist, "--json").stdout)["unlike"] == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-o", "report.pdf"), "-o report.pdf must end in .html or .json"),
        (("-o", "no/such/report.html"), "no/such/report.html cannot be written: No such file"),
        (("--fail-on", "spill>0"), "there is no metric 'spill'"),
    ],
)
def test_a_wrong_option_is_refused(dist, given, said):
    done = run(dist, *given)
    assert done.exit_code == 1
    assert said in done.output


def test_text_that_no_file_can_hold_is_escaped(tmp_path):
    row = {"name": "eager", "status": "fail", "reason": "\ud800"}
    check = {"outcome": "failed", "op": "a::b", "rows": [row]}
    (tmp_path / "check.json").write_text(json.dumps(check))
    assert run(tmp_path / "check.json", "-o", tmp_path / "report.html").exit_code == 0
    assert "\\ud800" in (tmp_path / "report.html").read_text()


def test_a_report_needs_neither_torch_nor_triton(dist, files, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from opforge.cli import main\n"
        "main()"
    )
    given = ["report", str(dist), *files.values(), "-o", str(tmp_path / "report.html")]
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
