"""Lets torch count as a build for ROCm, whose `cuda` tensors are AMD's."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch


def pretend_rocm() -> None:
    """For the rest of the process: what opforge asks torch, and the library that adapters find."""
    torch.version.hip = "6.4"
    # In place of libtorch_cuda.so, empty.
    file = Path(tempfile.mkdtemp(prefix="opforge-rocm-")) / "libtorch_hip.so"
    command = ["cc", "-shared", "-fPIC", "-xc", "/dev/null", "-Wl,-soname,libtorch_hip.so"]
    subprocess.run([*command, "-o", str(file)], check=True)
    ctypes.CDLL(str(file))
