"""Names for ops that tests register, their removal afterwards, and a cache for the run.

The process that starts the workers reads this, too, and would import torch for 3 s before it does.
"""

import atexit
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys

import pytest

from support.processes import (
    HEADERS,
    aborts_without_optimization,
    is_torch_for_cuda,
    keeping,
    provide_compilers,
    provide_ptxas,
    provide_python,
)
from support.quickened import quicken_compiler
from support.quickened_interpreter import quicken_interpreter

numbers = itertools.count()

# The workers use every core already: pools of threads and compilers in each of their children
# cost 9% more CPU time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Packages are compiled to be compared, not to be fast. Inductor would compile and load ten
# libraries to find out which vector instructions there are.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
# A child that finds no bytecode compiles 170 modules of opforge, in 0.8 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Collections went through all that was imported, again after each graph that Dynamo compiled, and
# freed a quarter of what a worker holds. Tests that need one ask for it.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
gc.set_threshold(5_000_000, 20, 10_000)
gc.disable()


def pytest_addoption(parser):
    parser.addoption("--accept", action="store_true", help="write the golden files anew")


# Files that take longest go first, so that all workers end at about the same time.
LONG = (
    "tests/docs/", "tests/ops/", "tests/native/test_end_to_end", "tests/aoti_package/",
    "tests/fuzz/", "tests/loading/", "tests/check/test_examples", "tests/shipping/",
    "tests/native/test_template_dispatch", "tests/native/test_cmake_packages",
    "tests/test_examples",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config, specs):
    # Workers are forks of one process, which imports torch and its compiler for 4 s.
    if not is_torch_for_cuda():
        folder = config._tmp_path_factory.getbasetemp()
        for spec in specs:
            spec.python = provide_python(folder / "preloaded", os.getpid())


def pytest_sessionstart(session):
    if hasattr(session.config, "workerinput"):
        # One of the last things a worker does: taking torch down takes a second.
        atexit.register(os._exit, 0)
    if "PYTEST_XDIST_WORKER" not in os.environ and session.config.getoption("numprocesses", None):
        return
    import torch  # noqa: PLC0415

    # Without a GPU the stand-in driver interprets kernels, so that their code need not be good.
    if not torch.cuda.is_available() and not aborts_without_optimization():
        os.environ.setdefault("DISABLE_LLVM_OPT", "1")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    # pytest has collected all garbage, which takes a worker a second, and would do so once more.
    gc.freeze()


def pytest_collection_modifyitems(items):
    gc.enable()
    quicken_compiler()
    if "triton.runtime.interpreter" in sys.modules:
        quicken_interpreter()
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session", autouse=True)
def shared_by_workers(tmp_path_factory):
    """Caches for compiled kernels and C objects, and one preloaded Python, for all children."""
    if "OPFORGE_TEST_PYTHON" in os.environ:
        yield  # to a test's own pytest, which has them
        return
    import torch  # noqa: PLC0415

    from opforge.native.artifacts import toolchain  # noqa: PLC0415

    folder, session = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, session = folder.parent, os.getppid()
    with pytest.MonkeyPatch.context() as patch:
        # Builds start a worker per core, and tests run on every core already.
        patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
        patch.setenv("OPFORGE_CACHE_DIR", str(folder / "opforge-cache"))
        patch.setattr(toolchain, "_run", keeping(toolchain._run, folder / "compilers"))
        patch.setenv("PATH", provide_compilers(folder / "compilers"), prepend=os.pathsep)
        if not torch.cuda.is_available():
            patch.setenv("OPFORGE_TEST_PTXAS", provide_ptxas(folder / "compilers"))
            patch.setenv("CPLUS_INCLUDE_PATH", str(HEADERS), prepend=os.pathsep)
        # With a GPU, importing torch may start CUDA, which a fork cannot go on with.
        if not is_torch_for_cuda():
            preloaded = provide_python(folder / "preloaded", session)
            patch.setenv("OPFORGE_TEST_PYTHON", preloaded)
            # For the workers that compile kernels, which import Triton for 0.3 s.
            multiprocessing.set_executable(preloaded)
        yield


@pytest.fixture
def collect():
    """`gc.collect` of what a test has made. All that there is takes 0.4 s."""
    gc.freeze()
    yield gc.collect
    gc.unfreeze()


@pytest.fixture
def op_name():
    """A callable that returns an unused name; its op is unregistered after the test."""
    import opforge  # noqa: PLC0415
    from opforge.errors import WrongArgument  # noqa: PLC0415

    if dynamo := sys.modules.get("torch._dynamo"):
        # It recompiles one function for every op that it is given, at most 8 times by itself.
        dynamo.config.recompile_limit = 64
    given = []

    def name() -> str:
        given.append(f"opforge_tests::op{next(numbers)}")
        return given[-1]

    yield name
    for used in given:
        with contextlib.suppress(WrongArgument):
            opforge.unregister(used)
