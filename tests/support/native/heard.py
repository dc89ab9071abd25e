"""What a build reports while it runs, kept for tests."""

from opforge.native.kernels.progress import Progress


class Heard(Progress):
    """Keeps what is reported."""

    def __init__(self):
        self.total = None
        self.compiled = []
        self.notes = []
        self.stopped = 0

    def start(self, total):
        self.total = total

    def done(self, compiled):
        self.compiled.append(compiled)

    def note(self, text):
        self.notes.append(text)

    def stop(self):
        self.stopped += 1
