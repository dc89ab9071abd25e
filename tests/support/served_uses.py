"""Ways in which programs launch served kernels: `python served_uses.py FOLDER`."""

import os
import sys
import threading

import torch
from served_program import add_kernel

import opforge

SIZE = 5000


def launched(n=SIZE, device="cuda"):
    x = torch.arange(n, device=device, dtype=torch.float32)
    out = torch.empty_like(x)
    add_kernel[(-(-n // 1024),)](x, x, out, n, BLOCK=1024)
    return x, out


def in_a_forked_process():
    """Before this process has used the GPU: CUDA itself does not survive a fork."""
    process = os.fork()
    if process == 0:
        x, out = launched()
        os._exit(0 if torch.equal(out, x + x) else 1)
    assert os.waitpid(process, 0)[1] == 0


def in_a_graph():
    x, out = (torch.zeros(SIZE, device="cuda") for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_kernel[(5,)](x, x, out, SIZE, BLOCK=1024)
    x.fill_(3)
    graph.replay()
    assert torch.equal(out, torch.full_like(x, 6))


def in_threads():
    failed = []

    def work(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                x, out = launched(n)
            torch.cuda.current_stream().synchronize()
            if not torch.equal(out, x + x):
                failed.append(n)

    threads = [threading.Thread(target=work, args=(1000 + 16 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def on_every_gpu():
    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device):
            x, out = launched(device=f"cuda:{device}")
            assert torch.equal(out, x + x)


if __name__ == "__main__":
    opforge.serve(sys.argv[1], strict=True)
    in_a_forked_process()
    # Now with everything loaded, as a graph needs it.
    opforge.serve(sys.argv[1], strict=True, preload=True)
    in_a_graph()
    in_threads()
    on_every_gpu()
    sys.stdout.write(f"{torch.cuda.device_count()} GPUs\n")
