"""The text behind a status, which has a limit."""

import pytest
import torch

from opforge.native.ir.expr import Expr
from support.native import hand_made
from support.standin.library import Refused


@pytest.mark.parametrize("shift", range(4))
def test_a_text_that_is_cut_off_ends_with_a_whole_character(make, shift):
    n = hand_made.Var("n")
    place = "x" * shift + "äß€😀" * 1000
    path = hand_made.Path((hand_made.Guard(Expr("<", (n, 1)), place),))
    case = hand_made.Case((hand_made.TensorCase("x", True, "i8", (n,)),), paths=(path,))
    op = hand_made.Op("long", "", "", (hand_made.TensorParam("x", True),), (), (case,))
    library = make(hand_made.library((op, [])))
    with pytest.raises(Refused) as refused:
        library.call("long", torch.zeros(1, dtype=torch.int8))
    assert refused.value.status == "UNCOVERED"
    assert 8187 <= len(refused.value.text.encode()) <= 8191
