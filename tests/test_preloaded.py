"""The Python of tests that has torch imported: it runs programs as the real one would."""

import sys

from support.processes import OTHER_SEED, TORCH_ALONE, run_python


def test_strings_have_the_hashes_of_another_seed():
    code = "print(hash('opforge'))"
    # There is a server for other programs first.
    assert int(run_python(code, **TORCH_ALONE)) != int(run_python(code, **OTHER_SEED))
    assert run_python(code, **OTHER_SEED) == run_python(code, program=sys.executable, **OTHER_SEED)
    assert int(run_python(code, **OTHER_SEED)) != hash("opforge")
