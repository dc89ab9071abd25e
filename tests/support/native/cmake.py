"""CMake projects that tests configure, build and run."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import opforge
from support.processes import environment, python, without_machine_code
from support.standin.driver import build_standin

CMAKE_DIR = Path(opforge.__file__).parent / "cmake"


@dataclass
class Project:
    """A source folder and its build folder; every command returns its output."""

    source: Path
    build: Path
    environment: dict[str, str]
    generator: str = "Ninja"
    arguments: list[str] = field(default_factory=list)

    def configure(self, *arguments, fails=False):
        given = ["-G", self.generator, "-S", self.source, "-B", self.build, *self.arguments]
        return self._run("cmake", *given, "-DCMAKE_BUILD_TYPE=Debug", *arguments, fails=fails)

    def make(self, *, fails=False):
        return self._run("cmake", "--build", self.build, "--parallel", "2", fails=fails)

    def install(self, prefix):
        return self._run("cmake", "--install", self.build, "--prefix", prefix)

    def run(self, program="program", *arguments):
        """On the stand-in driver."""
        found = {"LD_LIBRARY_PATH": str(build_standin().parent)}
        return self._run(self.build / program, *arguments, **found)

    def _run(self, *command, fails=False, **variables):
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout
        return done.stdout


def environment_of(cache):
    """A cache for projects, this Python first on the path, and no machine code."""
    drop = {"OPFORGE_PYTHON_EXECUTABLE", "VIRTUAL_ENV", "TRITON_INTERPRET"}
    kept = {name: value for name, value in environment().items() if name not in drop}
    return (
        kept
        | without_machine_code()
        | {
            "OPFORGE_CACHE_DIR": str(cache),
            "PATH": os.pathsep.join([str(Path(python()).parent), os.environ["PATH"]]),
        }
    )
