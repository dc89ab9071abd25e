"""rotary of the operator tree: built for the stand-in driver, called by `calls_rotary.py`."""

from support.ops.operators import build, run_calls


def test_every_call_gives_what_torch_gives(tmp_path):
    said = run_calls(build(tmp_path, "rotary:fp32"), "calls_rotary.py")
    assert "skipped" not in said, said
