"""Source locations that are valid on another machine."""

import pickle
import sys
from pathlib import Path as File

import torch

from opforge import native
from opforge.native.ir.cases import Path
from opforge.native.ir.places import short, shortened, told
from opforge.native.ir.program import Kernel
from opforge.native.plan import plan
from support.native.traced_kernels import block


def test_folders_of_imports_are_left_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert short(f"{tmp_path}/lib/ops.py:12") == "lib/ops.py:12"
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "real")
    monkeypatch.syspath_prepend(str(linked))
    for folder in ("linked", "real"):
        assert short(f"{tmp_path}/{folder}/mylib/a.py:1") == "mylib/a.py:1"
    package = next(p for p in sys.path if p.endswith("site-packages"))
    assert short(f"{package}/mylib/a.py:1") == "mylib/a.py:1"


def test_elsewhere_only_the_file_is_named():
    assert short("/nowhere/near/ops.py:7") == "ops.py:7"
    assert short("ops.py:7") == "ops.py:7"
    assert short("unknown") == "unknown"


def test_a_text_that_looks_like_a_place_stays():
    path = Path((), refused="the body raises ValueError: no /dev/sda:3")
    assert shortened(path) == path
    kernel = Kernel("k", "k", "b.py:3", ("i32",), (("ROUTE", "'/from/here:1'"),))
    assert shortened(kernel) == kernel


def routed(x: torch.Tensor, route: str) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.numel() == 3:
        raise ValueError(route)
    block[(x.numel(),)](x, out, x.numel(), BLOCK=128)
    return out


def test_choices_that_look_like_places_are_the_declared_ones(make_op):
    values = ("/first/disk:3", "/second/disk:3")
    op = make_op(routed)
    native.declare(op, x=native.tensor("n", "fp32"), route=native.choice(*values))
    made = plan([op], (90,))
    (built,) = shortened(tuple(made.ops))
    route = next(a for a in built.arguments if a.name == "route")
    assert route.values == values
    assert built.params[1].values == tuple(map(repr, values))
    refused = [path for case in built.cases for path in case.paths if path.refused]
    assert [path.refused.rpartition(" ")[2] for path in refused] == list(values)
    here = short(f"{File(__file__)}:{routed.__code__.co_firstlineno + 3}")
    assert {path.refused_at for path in refused} == {here}
    assert not File(here).is_absolute()
    said = [note.partition("ValueError: ")[2] for note in shortened(tuple(made.notes))]
    assert said == [f"{value} ({here})" for value in values]
    assert all(f"({__file__}:" in note for note in made.notes)


def test_a_note_is_long_for_who_builds_and_short_for_others():
    note = told(lambda at: f"/dev/sda:3 is read at {at('/a/b.py:3')}")
    assert note == "/dev/sda:3 is read at /a/b.py:3"
    assert shortened((note,)) == ("/dev/sda:3 is read at b.py:3",)
    assert pickle.loads(pickle.dumps(note)).short == note.short
