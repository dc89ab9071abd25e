"""`sys.modules` leads to what a function looks up there, as far as its text shows it."""

import sys

import pytest

import opforge
from opforge.analysis.discovery.reach import Reach
from support.launch_patterns import double_kernel

CACHED = True


def reads_a_flag():
    return getattr(sys.modules.get("support.launch_patterns"), "BLOCK", CACHED)


def reads_a_flag_by_key():
    return sys.modules["support.launch_patterns"].BLOCK


def reads_a_kernel():
    return getattr(sys.modules.get("support.launch_patterns"), "double_kernel", None)


def reads_a_kernel_by_key():
    return sys.modules["support.launch_patterns"].double_kernel


def reads_a_name_it_is_given(name):
    return getattr(sys.modules["support.launch_patterns"], name)


def reads_a_module_it_is_given(name):
    return sys.modules[name].BLOCK


def reads_what_is_not_loaded():
    return getattr(sys.modules.get("support.not_loaded"), "BLOCK", None)


def reads_all():
    return [module.BLOCK for module in sys.modules.values()]


def passes_getattr_on():
    return map(getattr, [sys.modules["support.launch_patterns"]], ["BLOCK"])


@pytest.mark.parametrize("fn", [reads_a_flag, reads_a_flag_by_key])
def test_a_flag_leads_nowhere(fn):
    assert not Reach().leads_on(fn)


@pytest.mark.parametrize(
    "fn",
    [
        reads_a_kernel,
        reads_a_kernel_by_key,
        reads_a_name_it_is_given,
        reads_a_module_it_is_given,
        reads_what_is_not_loaded,
        reads_all,
        passes_getattr_on,
    ],
)
def test_a_kernel_and_what_the_text_does_not_show_lead_on(fn):
    assert Reach().leads_on(fn)


def launch(x):
    reads_a_kernel()[(1,)](x)


def launch_below(x):
    launch(x)


def test_a_kernel_that_is_looked_up_is_not_passed_over():
    found = opforge.find_kernels(launch_below)
    known = double_kernel in [ref.kernel for ref in found]
    assert known or [lost.name for lost in found.unresolved] == ["reads_a_kernel()[(1,)]"]
