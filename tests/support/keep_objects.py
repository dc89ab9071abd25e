"""keep_objects.py FOLDER COMPILER ...: run the compiler, unless FOLDER has its output from before.

Many libraries that tests build are the same, and every served folder has the same extension.
Nothing is optimized, which halves the time that is left, unless warnings are errors: some need
what the optimizer finds out. A test run has 4,000 calls. Each takes 25 ms as a program, so tests
themselves call `run`; `re` and `pathlib` would be 25 more.
"""

import hashlib
import itertools
import os
import sys
from _thread import get_ident


class Unknown(Exception):
    """The output depends on what is not seen here."""


class Inputs:
    """All that the output depends on: the compiler, its options, and sources with their headers."""

    def __init__(self, command, where):
        self.where = where
        self.digest = hashlib.sha256(command[0].encode())
        self.target, self.piped, self.folders, self.read = None, None, [], set()
        sources = []
        for before, option in itertools.pairwise(command):
            if before == "-o":
                self.target = option
                continue
            self.digest.update(option.encode() + b"\0")
            # Files that a linker finds by itself; with -M the compiler writes a second file.
            if option.startswith(("-L", "@", "-M")) or ("/" in option and option[:4] == "-Wl,"):
                raise Unknown
            if before in {"-I", "-isystem"} or (option.startswith("-I") and option != "-I"):
                self._add_folder(option.removeprefix("-I"))
            elif option == "-":
                self.piped = sys.stdin.buffer.read()
            elif not option.startswith("-") and os.access(self._at(option), os.R_OK):
                sources.append(option)
            elif before == "-include":
                raise Unknown
        if self.target is None or not (sources or self.piped):
            raise Unknown
        self._add_text("", self.piped or b"")
        for source in sources:
            self._add(source)

    def _add_folder(self, folder):
        # The system's headers, and torch's, do not change.
        if not folder.endswith("/torch/include") and not folder.startswith("/usr/"):
            self.folders.append(folder)

    def _at(self, path):
        return os.path.join(self.where, path)

    def _add(self, path):
        if path not in self.read:
            self.read.add(path)
            with open(self._at(path), "rb") as file:
                self._add_text(path, file.read())

    def _add_text(self, path, text):
        self.digest.update(b"%d\0" % len(text) + text)
        if b"\0" in text:  # an object
            return
        if b".incbin" in text:
            raise Unknown
        for line in text.split(b"\n"):
            directive = line.lstrip().removeprefix(b"#").lstrip()
            if b"#" not in line or not directive.startswith(b"include"):
                continue
            name = directive.removeprefix(b"include").lstrip()
            if name[:1] not in {b'"', b"<"}:  # a macro
                raise Unknown
            own = [os.path.dirname(path)] if name[:1] == b'"' else []
            name = name[1:].partition(b'"')[0].partition(b">")[0]
            self._add_header(os.fsdecode(name), [*own, *self.folders])

    def _add_header(self, name, folders):
        for folder in folders:
            place = os.path.join(folder, name)
            if os.access(self._at(place), os.R_OK):
                self._add(place)
                return


def copy(old, new):
    """Replace a file as linkers do: a process may have the old one loaded."""
    with open(old, "rb") as file:
        content, mode = file.read(), os.fstat(file.fileno()).st_mode
    written = f"{new}.{os.getpid()}.{get_ident()}"
    with open(os.open(written, os.O_WRONLY | os.O_CREAT, mode & 0o777), "wb") as file:
        file.write(content)
    os.rename(written, new)


def run(folder, command, where=""):
    """The exit status, and what the compiler says; raises `Unknown`."""
    if "-Werror" not in command:
        command = (*command, "-O0")
    inputs = Inputs(command, where)
    os.makedirs(folder, exist_ok=True)
    kept, target = f"{folder}/{inputs.digest.hexdigest()}", os.path.join(where, inputs.target)
    if os.access(kept, os.R_OK):
        copy(kept, target)
        return 0, b""
    import subprocess  # noqa: PLC0415

    done = subprocess.run(
        command, input=inputs.piped, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        cwd=where or None,
    )  # fmt: skip
    # What the compiler says must be said each time, so such an output is not kept.
    if done.returncode == 0 and not done.stdout:
        copy(target, kept)
    return done.returncode, done.stdout


def main(folder, *command):
    try:
        status, said = run(folder, command)
    except Unknown:
        os.execvp(command[0], (*command, *(() if "-Werror" in command else ("-O0",))))
    sys.stderr.buffer.write(said)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
