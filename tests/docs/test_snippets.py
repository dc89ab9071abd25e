"""Every code block of README, of the site and of mistakes.md runs, page by page."""

from pathlib import Path

import pytest

from support.pages import run_page
from support.snippets import all_pages, read_page

PAGES = [*all_pages(), read_page(Path(__file__).with_name("mistakes.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if p.runs], ids=lambda p: p.name)
def test_the_blocks_of_a_page_run(page, pytestconfig):
    run_page(page, accept=pytestconfig.getoption("--accept"))


def test_a_block_that_is_not_run_has_a_reason():
    unexplained = [
        f"{page.name}:{block.line}"
        for page in PAGES
        for block in page.blocks
        if block.not_run is not None and not block.not_run.strip()
    ]
    assert not unexplained


def test_a_page_is_read_as_its_comments_say(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- interpret -->\n"
        "<!-- needs-gpu -->\n```python\nx = 1\n```\n"
        "Text ends what a comment says.\n"
        '```python title="ops.py"\ny = 2\n```\n'
        '<!-- append -->\n\n```python title="ops.py"\nz = 3\n```\n'
        "```console\n$ opforge list \\\n    ops\nsilu\n$ true\n```\n"
        "```text\noutput\n```\n"
        "<!-- output -->\n```text\noutput\n```\n"
        "<!-- hidden: python\nw = 4\n-->\n"
        "<!-- needs-package: numpy -->\n```python\nv = 5\n```\n"
        "<!-- not-run: needs the network -->\n```bash\npip install opforge\n```\n"
    )
    read = read_page(page)
    assert read.interpret
    gpu, written, appended, console, shown, output, hidden, packaged, skipped = read.blocks
    assert (gpu.needs_gpu, gpu.text, gpu.line) == (True, "x = 1\n", 4)
    assert (written.needs_gpu, written.title, written.append) == (False, "ops.py", False)
    assert (appended.title, appended.append) == ("ops.py", True)
    assert console.commands == "opforge list \\\n    ops\ntrue"
    assert not shown.runs
    assert (output.is_output, output.text) == (True, "output\n")
    assert (hidden.text, hidden.runs) == ("w = 4\n", True)
    assert (packaged.package, hidden.package) == ("numpy", None)
    assert (skipped.not_run, skipped.runs) == ("needs the network", False)


def test_what_a_page_shows_is_compared_with_what_it_prints(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```bash\necho two\n```\n<!-- output -->\n```text\none\n```\n")
    with pytest.raises(pytest.fail.Exception, match="is not what was printed:\ntwo"):
        run_page(read_page(page))
    run_page(read_page(page), accept=True)
    run_page(read_page(page))
