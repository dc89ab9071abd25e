"""Runs a program on the stand-in driver, with launches by Triton's interpreter.

    TRITON_INTERPRET=1 python -m support.standin.run nvidia share/mylib/manifest.json program ...

The manifest is that of the library inside the program, and its kernels can be imported here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.standin.driver import AMD, NVIDIA
from support.standin.interpreter import Interpreter
from support.standin.remote import serving

VENDORS = {vendor.name: vendor for vendor in (NVIDIA, AMD)}


def main(vendor: str, manifest: str, *command: str) -> int:
    interpreter = Interpreter(json.loads(Path(manifest).read_text()))
    with serving(interpreter, VENDORS[vendor]) as server:
        done = subprocess.run(command, env=os.environ | server.environment, check=False)
        for error in server.errors:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
