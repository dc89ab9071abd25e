"""add, mul and rotary of the operator tree on a GPU: in eager, compiled, exported and native.

The calls are those of tests/ops, in processes of their own, several at a time: much of their time
goes into compiling kernels.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.gpu.arch import arch_name
from support.ops import operators

PARTS = {
    "native": ("calls_elementwise.py", "native"),
    "compiled": ("calls_elementwise.py", "compiled"),
    "eager and exported": ("calls_elementwise.py", "not native and not compiled"),
    "strided outputs": ("calls_strided_outputs.py", ""),
    "rotary": ("calls_rotary.py", ""),
    "checked": ("calls_checked.py", "operator"),
    "add packaged": ("calls_checked.py", "packaged and add"),
    "rotary packaged": ("calls_checked.py", "packaged and rotary"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """All parts, started at once."""
    wanted = ("add", "mul", "rotary")
    folder = tmp_path_factory.mktemp("elementwise")
    built = operators.build(folder, *wanted, arch=arch_name())
    with ThreadPoolExecutor(len(PARTS)) as pool:
        yield {
            part: pool.submit(operators.run_calls, built, file, device="cuda", only=only)
            for part, (file, only) in PARTS.items()
        }


@pytest.mark.parametrize("part", PARTS)
def test_every_call_gives_what_torch_and_numpy_give(running, part):
    said = running[part].result()
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    if part == "native":
        assert int(passed[1]) >= 108
