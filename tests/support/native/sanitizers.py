"""Whether the compiler has a sanitizer."""

import subprocess


def has_sanitizer(flags, folder):
    """Asked with a program of nothing, so that no mistake of ours passes for a missing one."""
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    command = ["cc", *flags, str(empty), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
