"""How long the fuzzers run, with which seed, and where what they find is kept."""

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("cases")


@dataclass(frozen=True)
class Budget:
    """`seconds` is 0 in `make test`, where a test has a fixed number of rounds and one seed."""

    seconds: float
    seed: int

    def rounds(self, short: int) -> Iterator[int]:
        """The seeds of the rounds: as many as `short` says, or until the time is up."""
        end = time.monotonic() + self.seconds
        for n in itertools.count():
            if n >= short if self.seconds == 0 else time.monotonic() >= end:
                return
            yield self.seed + n


@dataclass(frozen=True)
class Cases:
    """What was found: a small file each, tried again by every run."""

    folder: Path = CASES

    def kept(self, kind: str) -> list[str]:
        """The first line of each file, without the reason behind it."""
        files = sorted(self.folder.glob(f"{kind}-*"))
        return [file.read_text().splitlines()[0].partition("#")[0].strip() for file in files]

    def keep(self, kind: str, case: str, reason: str) -> Path:
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{kind}-{'-'.join(case.split())}"
        file.write_text(f"{case}  # {reason}\n")
        return file


@pytest.fixture(scope="session")
def budget() -> Budget:
    """OPFORGE_FUZZ_SECONDS for each test, from OPFORGE_FUZZ_SEED on; without it, a short run."""
    seconds = os.environ.get("OPFORGE_FUZZ_SECONDS", "0")
    return Budget(float(seconds), int(os.environ.get("OPFORGE_FUZZ_SEED", "0")))


@pytest.fixture(scope="session")
def cases() -> Cases:
    return Cases()
