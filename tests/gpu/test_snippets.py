"""Pages with code that needs a GPU, run whole."""

import importlib.util

import pytest

from support.pages import run_page
from support.snippets import all_pages


@pytest.mark.parametrize("page", [p for p in all_pages() if p.needs_gpu], ids=lambda p: p.name)
def test_the_blocks_of_a_page_run_on_a_gpu(page):
    if page.name.endswith("wheel.md") and importlib.util.find_spec("auditwheel") is None:
        pytest.skip("opforge[wheel] is not installed")
    run_page(page, gpu=True)
