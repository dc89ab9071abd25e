"""What a program was served: as text, as JSON for `opforge report`, and of all its processes."""

import json
import subprocess
import sys

import pytest

from opforge.errors import BadOption
from opforge.serving.report import Served, from_content, joined
from support.processes import environment

SERVED = Served({"m:add": 5, "m:mul": 2}, {"m:add": 1}, {("m:odd", "it was edited"): 3})


def test_the_json_has_every_count_and_is_read_again():
    content = json.loads(SERVED.to_json())
    assert content["launches"] == {"m:add": 5, "m:mul": 2}
    assert content["handed_over"] == [{"kernel": "m:odd", "reason": "it was edited", "launches": 3}]
    assert from_content(content, "counts.json") == SERVED
    assert str(SERVED).startswith("7 launches served\n  m:add: 5, 1 by the general variant\n")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"served_format": 2}, "has format 2, but this opforge reads 1"),
        ({"launches": {"m:add": "5"}}, "m:add is '5', expected int"),
        ({"handed_over": [{"kernel": "m:odd"}]}, "handed_over[0].launches is missing"),
    ],
)
def test_a_wrong_field_is_named(change, found):
    with pytest.raises(BadOption) as raised:
        from_content({**json.loads(SERVED.to_json()), **change}, "counts.json")
    assert "counts.json" in raised.value.what
    assert found in str(raised.value)


# Every process counts for itself, however it was started and ends.
PROGRAM = """
import multiprocessing, os, sys, warnings
from pathlib import Path
from opforge.serving.report import Served, keep

warnings.simplefilter("ignore")
done = {"launches": 0, "handed": 0}
keep(Path(sys.argv[1]), lambda: Served(
    {"m:k": done["launches"]}, {"m:k": done["launches"] // 2},
    {("m:odd", "why"): done["handed"]} if done["handed"] else {},
))
done["launches"] = 10

def work():
    done["launches"] += 3
    done["handed"] += 1

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
child = os.fork()
if not child:
    done["launches"] += 100
    sys.exit(0)
os.waitpid(child, 0)
idle = os.fork()
if not idle:
    sys.exit(0)
os.waitpid(idle, 0)
done["launches"] += 1000
"""


def run(folder):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def test_every_process_leaves_its_own_counts(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    # The idle one leaves nothing.
    assert len(list(tmp_path.iterdir())) == 3
    assert joined(tmp_path) == Served({"m:k": 1113}, {"m:k": 556}, {("m:odd", "why"): 1})


def test_a_folder_that_is_gone_is_not_the_programs_error(tmp_path):
    done = run(tmp_path / "gone")
    assert done.returncode == 0
    assert "opforge: what was served is not written: " in done.stderr
