"""Packages that nobody here wrote: recorded without a GPU, built, and served on the stand-in.

Their kernels are not run here; tests/gpu/test_wild.py looks at results.
"""

import contextlib
import importlib

import pytest

import opforge
from opforge.serving import serve as serving
from opforge.serving.build import build
from support.archs import SM_80

PROGRAMS = {"liger_program": "liger_kernel", "fla_program": "fla", "flag_gems_program": "flag_gems"}


@pytest.fixture
def gpu(standin, monkeypatch):
    """A GPU as far as packages and served launches ask for one."""
    monkeypatch.setattr(
        "opforge._compat.served.device_functions", lambda: (lambda _device: 0, lambda: 0)
    )
    monkeypatch.setattr("opforge._compat.device.device_arch", lambda: SM_80)
    monkeypatch.setenv("GEMS_VENDOR", "nvidia")
    with opforge.target("sm_80"):
        # Tensors are on the CPU, where the stand-in can read them.
        monkeypatch.setattr("torch.cuda.device", lambda _device: contextlib.nullcontext())
        yield standin
    serving.stop()


# fla says so when it is first imported, unless flash-attn is installed.
@pytest.mark.filterwarnings("ignore:Flash Attention is not installed:ImportWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_package_is_served_at_other_sizes(program, gpu, tmp_path):
    pytest.importorskip(PROGRAMS[program], reason="pip install -e .[wild]")
    results = importlib.import_module(f"support.wild.{program}").results

    def launch(*rows):
        for count in rows:
            for _ in results(count, "cpu"):
                pass

    with opforge.record() as session:
        launch(64, 100)
    folder = build(session.recording, tmp_path / "kernels", archs=["sm_80"]).folder
    opforge.serve(folder, strict=True)
    # Other sizes, also because wrappers have kept what the launches above returned.
    launch(48, 37)
    assert {name for name, count in opforge.served().launches.items() if count} == {
        f"{kernel.module}:{kernel.name}" for kernel in session.recording.kernels
    }
