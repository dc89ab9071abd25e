"""The extension on the stand-in driver."""

import pytest
from triton.runtime.jit import JITFunction

from opforge.serving import serve as serving_state
from opforge.serving.served_folder import load_extension
from support.archs import GFX942, SM_80
from support.native.compile_workers import lasting
from support.serving import Serving, extension
from support.standin.driver import AMD, NVIDIA, load_standin


@pytest.fixture(scope="module", autouse=True)
def _lasting_workers():
    with lasting():
        yield


@pytest.fixture
def vendor(request):
    """Whose stand-in a test runs on."""
    return getattr(request, "param", NVIDIA)


@pytest.fixture
def standin(vendor):
    """The driver, with one device and nothing recorded."""
    found = load_standin(vendor)
    found.reset()
    yield found
    found.reset()
    assert found.depth == 0


@pytest.fixture
def serving(standin):
    """Nothing of it stays loaded after the test."""
    made = Serving(extension(), standin)
    yield made
    assert standin.errors == []
    standin.fail(0)
    made.module.unload()
    assert standin.alive == {"modules": 0, "allocations": 0, "contexts": 0}


@pytest.fixture
def device(standin, vendor, monkeypatch):
    """A GPU as far as a served launch needs one; nothing is served or loaded after the test."""
    loaded = []

    def load(*given):
        loaded.append(load_extension(*given))
        return loaded[-1]

    monkeypatch.setattr("opforge.serving.served_folder.load_extension", load)
    functions = (lambda _device: 0, lambda: 0)
    monkeypatch.setattr("opforge._compat.served.device_functions", lambda: functions)
    if vendor is AMD:
        monkeypatch.setattr("torch.version.hip", "6.4")
    arch = GFX942 if vendor is AMD else SM_80
    monkeypatch.setattr("opforge._compat.device.device_arch", lambda: arch)
    yield standin
    serving_state.stop()
    for module in loaded:
        module.unload()


@pytest.fixture
def jit_of(monkeypatch):
    """Begins to list what Triton's own JIT is asked to launch; nothing is recorded from then on."""

    def begin():
        seen = []

        def run(self, *args, grid, warmup, **kwargs):
            seen.append((self, args, grid, kwargs))

        monkeypatch.setattr(JITFunction, "run", run)
        return seen

    return begin


@pytest.fixture
def jit(jit_of):
    """What Triton's own JIT is asked to launch."""
    return jit_of()
