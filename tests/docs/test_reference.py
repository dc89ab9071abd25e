"""The reference has every public name."""

import re

import pytest

import opforge
from opforge import errors, native
from support.snippets import ROOT

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


def test_there_are_few_errors_and_each_lists_its_mistakes():
    assert len(ERRORS) + len([errors.OpforgeWarning]) <= 25
    assert sorted(cls.__name__ for cls in errors.mistakes) == sorted({*ERRORS} - {"OpforgeError"})


@pytest.mark.parametrize("cls", errors.mistakes, ids=lambda cls: cls.__name__)
def test_a_mistake_has_an_example_that_raises_it(cls):
    pages = (DOCS / "reference/errors.md", ROOT / "tests/docs/mistakes.md")
    sections = [
        page.read_text().partition(f"\n## {cls.__name__}\n")[2].partition("\n## ")[0]
        for page in pages
    ]
    examples = [example for section in sections for example in section.split("\n### ")[1:]]
    assert f"<!-- raises: {cls.__name__} -->" in sections[0]
    assert sorted(e.partition("\n")[0] for e in examples) == sorted(errors.mistakes[cls])
    assert all(f"<!-- raises: {cls.__name__} -->" in example for example in examples)
