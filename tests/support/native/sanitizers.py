"""Whether the compiler has a sanitizer."""

import subprocess


def has_sanitizer(flags, folder):
    """Tested with an empty program, so that no mistake of ours looks like a missing sanitizer."""
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    command = ["cc", *flags, str(empty), "-o", str(folder / "empty")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
