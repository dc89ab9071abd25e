"""The runtime under AddressSanitizer and ThreadSanitizer, called from C."""

import subprocess
from pathlib import Path

import pytest

from support.native import hand_made
from support.native.sanitizers import has_sanitizer
from support.standin.library import write

PROGRAM = Path(__file__).with_name("sanitized.c")


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_complains(tmp_path, sanitizer, vendor):
    folder = write(hand_made.for_both(hand_made.every_op()), tmp_path / "dist")
    flags = ["-std=c99", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    if not has_sanitizer(flags, tmp_path):
        pytest.skip(f"this compiler has no sanitizer for {sanitizer}")
    flags.append(f"-DDEVICE_TYPE={vendor.device_type}")
    standin = tmp_path / vendor.file
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{vendor.file}", *vendor.sources]
    subprocess.run(["cc", *flags, *shared, "-o", str(standin)], check=True)
    sources = sorted(str(f) for f in (folder / "src").glob("*/*.c"))
    program = tmp_path / "program"
    command = ["cc", *flags, f"-I{folder / 'include'}", str(PROGRAM), *sources, str(standin)]
    link = [f"-Wl,-rpath,{tmp_path}", "-o", str(program), "-ldl", "-lpthread", "-lm"]
    subprocess.run([*command, *link], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address space is too random for ThreadSanitizer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls failed" in done.stdout
