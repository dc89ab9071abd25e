"""Compile workers end with the process that started them."""

import os
import signal
import subprocess
import sys

import pytest

from support.processes import environment, is_running, wait_until

# One worker runs a tool, as it runs ptxas; the other waits for a job.
BUILD = """
import multiprocessing, subprocess, sys, time
from opforge.native.kernels.workers import start_pool

pool = start_pool(2)
tool = pool.submit(subprocess.run, ["sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 600"])
pool.submit(time.sleep, 0).result()
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
tool.result()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_workers_and_their_tools_end_when_a_signal_ends_the_build(number, tmp_path):
    tool = tmp_path / "tool"
    command = [sys.executable, "-c", BUILD, str(tool)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as build:
        started = [int(word) for word in build.stdout.readline().split()]
        assert len(started) == 2
        wait_until(lambda: tool.exists() and tool.read_text())
        started.append(int(tool.read_text()))
        assert all(map(is_running, started))
        build.send_signal(number)
        build.wait()
    try:
        wait_until(lambda: not any(map(is_running, started)))
    finally:
        for process in filter(is_running, started):
            os.kill(process, signal.SIGKILL)
