"""The reference has every public name."""

import re

import pytest

import opforge
from opforge import errors, native
from support.snippets import ROOT, read_page

DOCS = ROOT / "docs"
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def documented():
    pages = (DOCS / "reference").glob("*.md")
    return {name for page in pages for name in ENTRY.findall(page.read_text())}


@pytest.mark.parametrize(
    "name", sorted({*opforge.__all__} - {"__version__", "errors", "magi", "native"})
)
def test_a_name_of_opforge_is_in_the_reference(name, documented):
    assert f"opforge.{name}" in documented


@pytest.mark.parametrize("name", native.__all__)
def test_a_name_of_opforge_native_is_in_the_reference(name, documented):
    assert f"opforge.native.{name}" in documented


ERRORS = sorted(
    name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.OpforgeError)
)


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "OpforgeError"])
def test_an_error_has_an_example_that_raises_it(name):
    page = read_page(DOCS / "reference/errors.md")
    assert f"### {name}" in page.path.read_text().splitlines()
    assert name in [block.raises for block in page.blocks]
