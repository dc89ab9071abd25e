"""What a build reports while it runs, kept for tests."""

from types import SimpleNamespace

from opforge.native.kernels.compile import Progress


class Heard(Progress):
    """Keeps what is reported."""

    def __init__(self):
        super().__init__()
        self.compiled = []
        self.notes = []
        self.stopped = 0

    def done(self, label, *, cached=False, failed=False):
        self.compiled.append(SimpleNamespace(label=label, cached=cached, failed=failed))

    def note(self, text):
        self.notes.append(text)

    def stop(self):
        self.stopped += 1
