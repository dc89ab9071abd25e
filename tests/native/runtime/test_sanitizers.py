"""The runtime under AddressSanitizer and ThreadSanitizer, called from C."""

import subprocess
from pathlib import Path

import pytest

from opforge.native.artifacts.toolchain import as_unit
from opforge.native.codegen.templates import runtime
from support.native import hand_made
from support.native.sanitizers import has_sanitizer
from support.standin.library import write

PROGRAM = Path(__file__).with_name("sanitized.c")


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitized(request, tmp_path_factory):
    """Flags, and a library for both vendors that was compiled with them."""
    folder = tmp_path_factory.mktemp("sanitized")
    flags = ["-std=c99", "-g", f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    if not has_sanitizer(flags, folder):
        pytest.skip(f"this compiler has no sanitizer for {request.param}")
    write(hand_made.for_both(hand_made.every_op()), folder)
    sources = sorted(folder.glob("src/*/*.c"))
    unit = as_unit([f for f in sources if f.name in runtime()])
    subprocess.run(["cc", *flags, "-c", *unit, "-o", "runtime.o"], cwd=folder, check=True)
    generated = [str(f) for f in sources if f.name not in runtime()]
    subprocess.run(["cc", *flags, "-c", *generated], cwd=folder, check=True)
    return [*flags, f"-I{folder / 'include'}"], sorted(map(str, folder.glob("*.o")))


def test_no_sanitizer_complains(tmp_path, sanitized, vendor):
    flags, objects = sanitized
    standin = tmp_path / vendor.file
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{vendor.file}", *vendor.sources]
    subprocess.run(["cc", *flags, *shared, "-o", str(standin)], check=True)
    program = tmp_path / "program"
    own = [f"-DDEVICE_TYPE={vendor.device_type}", str(PROGRAM)]
    link = [f"-Wl,-rpath,{tmp_path}", "-o", str(program), "-ldl", "-lpthread", "-lm"]
    subprocess.run(["cc", *flags, *own, *objects, str(standin), *link], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address space is too random for ThreadSanitizer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls failed" in done.stdout
