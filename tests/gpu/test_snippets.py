"""Pages with code that needs a GPU, run whole."""

import pytest

from support.pages import run_page
from support.snippets import all_pages


@pytest.mark.parametrize("page", [p for p in all_pages() if p.needs_gpu], ids=lambda p: p.name)
def test_the_blocks_of_a_page_run_on_a_gpu(page):
    run_page(page, gpu=True)
