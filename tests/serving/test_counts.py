"""What the processes of a program were served, added up."""

import json
import subprocess
import sys
from pathlib import Path

from opforge.serving.counts import joined
from opforge.serving.report import Served
from support.processes import environment

# Every process counts for itself, however it was started and ends.
PROGRAM = """
import multiprocessing, os, sys, warnings
from pathlib import Path
from opforge.serving import counts
from opforge.serving.report import Served

warnings.simplefilter("ignore")
done = {"launches": 0, "handed": 0}
counts.served = lambda: Served(
    {"m:k": done["launches"]}, {"m:k": done["launches"] // 2},
    {("m:odd", "why"): done["handed"]} if done["handed"] else {},
)
counts.keep(Path(sys.argv[1]))
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


def test_the_counts_of_one_process_are_what_served_returns(tmp_path):
    one = Served({"m:a": 2}, {"m:a": 1}, {("m:b", "why"): 4})
    for number in range(2):
        (tmp_path / f"served-{number}.json").write_text(one.to_json())
    (tmp_path / "served-3.part").write_text("{")
    assert joined(tmp_path) == Served({"m:a": 4}, {"m:a": 2}, {("m:b", "why"): 8})
    assert json.loads(Path(tmp_path / "served-0.json").read_text())["launches"] == {"m:a": 2}
