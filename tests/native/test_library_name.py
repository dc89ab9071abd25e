"""Names that no file could have are refused before anything is built."""

import pytest
import torch

import opforge
from opforge.errors import BadOption
from opforge.native.plan import check_name, refuse_namesakes
from opforge.registry import registry


def test_a_long_library_name_is_refused():
    check_name("a" * 200)
    with pytest.raises(BadOption, match="the library's name has 300 characters") as caught:
        check_name("a" * 300)
    assert len(str(caught.value)) < 250


def test_a_long_operator_name_is_refused_with_its_line():
    @opforge.op(f"library_name::{'a' * 300}", mode="custom_op")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    try:
        with pytest.raises(BadOption, match="an operator's name has 300 char") as caught:
            refuse_namesakes([registry.get(double)])
        assert "test_library_name.py" in caught.value.found
    finally:
        opforge.unregister(double)
