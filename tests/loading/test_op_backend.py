"""What an adapter is told of its operator, by several threads."""

import threading
from types import SimpleNamespace

from opforge.loading.op_backend import Service


class SlowAdapter:
    """Takes its time to hear for the first time."""

    def __init__(self):
        self.heard, self.hears, self.go_on = [], threading.Event(), threading.Event()

    def configure(self, _op, *, unseen, **_rest):
        if not self.hears.is_set():
            self.hears.set()
            self.go_on.wait()
        self.heard.append(unseen)


def test_the_adapter_hears_last_what_is_so_last(tmp_path):
    """A call that has seen the source while `attach` says that nobody has."""
    file = tmp_path / "lib/libdemo.so"
    library = SimpleNamespace(file=file, contents=SimpleNamespace(archs=("sm_80",)))
    entry = SimpleNamespace(registration=SimpleNamespace(runs_natively=lambda _key, _how: None))
    op = SimpleNamespace(torch_name="demo::add", location="ops.py:1")
    adapter = SlowAdapter()
    service = Service(op, None, library, adapter, key="CPU", strict=False, entry=entry)
    service._unseen = True
    attaching = threading.Thread(target=service.configure)
    attaching.start()
    adapter.hears.wait()
    service._unseen = False
    calling = threading.Thread(target=service.configure)
    calling.start()
    calling.join(0.1)
    adapter.go_on.set()
    attaching.join()
    calling.join()
    assert adapter.heard == [True, False]
