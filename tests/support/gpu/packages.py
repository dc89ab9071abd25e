"""Tests that load an AOTInductor package, which may end a process: see opforge.libstdcxx."""

import functools

import pytest

from opforge.doctor import examine


@functools.cache
def why_not_loaded():
    """Why loading a package would end the process, and the command that helps; or nothing."""
    [finding] = [f for f in examine() if f.name == "AOTInductor packages"]
    if finding.status == "ok":
        return ""
    return f"{finding.detail}; {finding.fix.replace('your_script.py', '-m pytest tests/gpu')}"


def skip_unless_loaded():
    if why_not_loaded():
        pytest.skip(why_not_loaded())
