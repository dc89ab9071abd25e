"""How many times a function is read that is called with different arguments."""

import torch

import opforge
from opforge.analysis.discovery.frame_table import FrameTable
from support.launch_patterns import double_kernel


def launches(*args, **kwargs):
    shape = [arg.shape for arg in args]
    out = torch.empty(shape[0], dtype=args[0].dtype, device=args[0].device)
    for arg in args:
        size = arg.numel() + out.numel() + kwargs.get("extra", 0)
        stride = arg.stride(0) + out.stride(0) + kwargs.get("offset", 0)
        double_kernel[(size,)](arg, out, size, stride, arg.stride(-1), out.stride(-1))
    return out.reshape(shape[0]).to(args[0].dtype).contiguous()


def launches_many(x):
    a = torch.empty(1)
    launches(a)
    launches(a, a)
    launches(a, a, a)
    launches(a, a, a, a)
    launches(a, extra=a)
    launches(a, a, extra=a)
    launches(a, a, a, extra=a)
    launches(a, offset=a)
    launches(a, a, offset=a)
    launches(a, a, a, offset=a)


def calls_first(*args):
    shape = [arg.shape for arg in args]
    out = torch.empty(shape[0], dtype=args[0].dtype, device=args[0].device)
    for arg in args:
        double_kernel[(arg.numel(),)](arg, out, arg.stride(0), arg.stride(-1), out.stride(-1))
    out = out.reshape(shape[0]).to(args[0].dtype).contiguous()
    return args[0](out, shape[0], shape[-1], out.stride(0), out.stride(-1), out.numel())


def calls_many(fn):
    a = torch.empty(1)
    calls_first(a)
    calls_first(a, a)
    calls_first(a, a, a)
    calls_first(a, a, a, a)
    calls_first(a, a, a, a, a)
    calls_first(a, a, a, a, a, a)
    calls_first(fn, a)


def test_lists_of_tensors_are_not_told_apart_for_ever(monkeypatch):
    read = set()
    real = FrameTable.of_function

    def of_function(table, caller, fn, *rest):
        frame = real(table, caller, fn, *rest)
        if fn is launches:
            read.add(id(frame))
        return frame

    monkeypatch.setattr(FrameTable, "of_function", of_function)
    found = opforge.find_kernels(launches_many)
    assert [ref.name for ref in found] == ["double_kernel"]
    assert len(launches.__code__.co_code) >= 300
    assert len(read) == 6


def test_a_call_of_something_given_is_reported_beside_many_lists_of_tensors():
    assert len(calls_first.__code__.co_code) >= 300
    (lost,) = opforge.find_kernels(calls_many).unresolved
    assert lost.name == "args[0]"
