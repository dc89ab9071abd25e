"""Runs a program at some sizes and keeps its results: `python run.py liger_program FILE 33 100`."""

import importlib
import sys

import torch

if __name__ == "__main__":
    _, name, file, *sizes = sys.argv
    program = importlib.import_module(name)
    kept = {}
    for size in map(int, sizes):
        torch.manual_seed(size)
        kept[size] = [result.detach().cpu() for result in program.results(size, "cuda")]
    torch.save(kept, file)
