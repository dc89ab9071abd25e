"""Source locations that are valid on another machine."""

import sys

from opforge.native.artifacts.portable_paths import everywhere, shown
from opforge.native.ir.cases import Guard, Path
from opforge.native.ir.program import Kernel


def test_folders_of_imports_are_left_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert shown(f"{tmp_path}/lib/ops.py:12") == "lib/ops.py:12"
    assert shown(f"aten.mm at {tmp_path}/ops.py:3, then {tmp_path}/ops.py:4") == (
        "aten.mm at ops.py:3, then ops.py:4"
    )
    package = next(p for p in sys.path if p.endswith("site-packages"))
    assert shown(f"{package}/mylib/a.py:1") == "mylib/a.py:1"


def test_elsewhere_only_the_file_is_named():
    assert shown("/nowhere/near/ops.py:7") == "ops.py:7"
    assert shown("what has no place 1:2 stays /x") == "what has no place 1:2 stays /x"


def test_all_texts_of_a_record_are_shown_that_way():
    path = Path((Guard(1, "/a/b.py:1"),), refused="see /a/b.py:2")
    assert everywhere(path) == Path((Guard(1, "b.py:1"),), refused="see b.py:2")
    kernel = Kernel("k", "k", "/a/b.py:3", ("i32",), (("N", "1"),))
    assert everywhere((kernel,))[0].location == "b.py:3"
