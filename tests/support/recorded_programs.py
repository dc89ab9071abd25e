"""Programs to record: they launch on fake tensors, for a GPU that is not there."""

import multiprocessing
import os
import sys

import torch
import triton
import triton.language as tl
from torch._subclasses import FakeTensorMode

import opforge


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    pass


def work(n, block):
    with opforge.target("sm_90"), FakeTensorMode():
        x = torch.empty(1000, device="cuda")
        for _ in range(5):
            scale[(1,)](x, n, BLOCK=block)


def forked():
    process = os.fork()
    if process == 0:
        work(1, 512)
        os._exit(0)
    os.waitpid(process, 0)


if __name__ == "__main__":
    work(16, 64)
    for number, kind in enumerate(("fork", "spawn"), 1):
        child = multiprocessing.get_context(kind).Process(target=work, args=(17, 64 << number))
        child.start()
        child.join()
    forked()
    sys.exit(3)
