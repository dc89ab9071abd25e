"""Runs a program on the stand-in driver, with launches by Triton's interpreter.

    TRITON_INTERPRET=1 python -m support.standin.run share/mylib/manifest.json program arguments...

The manifest is that of the library inside the program, and its kernels can be imported here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.standin.interpreter import Interpreter
from support.standin.remote import serving


def main(manifest: str, *command: str) -> int:
    with serving(Interpreter(json.loads(Path(manifest).read_text()))) as server:
        done = subprocess.run(command, env=os.environ | server.environment, check=False)
        for error in server.errors:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
