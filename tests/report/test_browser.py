"""The page in a real browser: it searches, sorts and fetches nothing."""

import re

import pytest

from opforge.report.command import make
from support.browser import MISSING, Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=MISSING)


@pytest.fixture(scope="module")
def page(dist, spilling, files, tmp_path_factory):
    """Everything that a report can show."""
    made = make([str(dist), str(spilling), *files.values()], "spills>0,bytes>20MB")
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(made.to_html())
    return f"file://{file}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(find_chromium(), tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def shown(browser, page):
    """The page on a large light screen, as it was opened."""
    browser.look()
    browser.open(page)
    return browser


def visible_rows(browser, table):
    return browser.ask(f"""
        [...document.querySelectorAll("#{table} > .scroll tbody tr")]
            .filter((row) => row.offsetHeight > 0)
            .map((row) => [...row.cells].map((cell) => cell.innerText))""")


def test_nothing_is_fetched_and_no_script_fails(shown):
    asked = [
        one["params"]["request"]["url"]
        for one in shown.events
        if one.get("method") == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    wrong = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert [one for one in shown.events if one.get("method") in wrong] == []


def test_typing_leaves_the_rows_that_have_every_word(shown):
    assert len(visible_rows(shown, "images-1")) == 16
    # A slash puts the cursor into the field.
    shown.press("/FP32 sm_90a")
    rows = visible_rows(shown, "images-1")
    assert len(rows) == 4
    assert all("*fp32" in row[1] and row[4] == "sm_90a" for row in rows)
    told = shown.ask('document.getElementById("found").innerText')
    counted = shown.ask('document.querySelectorAll("tbody tr:not(.filtered)").length')
    assert re.fullmatch(rf"{counted} of \d+ rows", told)
    assert shown.ask('document.querySelector("#images-1 .count").innerText') == "4 of 16"
    assert shown.ask("location.hash") == "#search=FP32%20sm_90a"


def test_an_address_opens_a_search(browser, page):
    browser.look()
    browser.open("about:blank")
    browser.open(f"{page}#search=autograd")
    assert [row[1] for row in visible_rows(browser, "check")] == ["autograd"]
    assert visible_rows(browser, "images-1") == []
    assert browser.ask('document.querySelector("#images-1 table").offsetHeight') == 0


def test_a_click_on_a_column_sorts_and_another_turns_it_round(shown):
    header = "#tuning-1 > .scroll th:nth-child(4)"

    def times():
        return [row[3] for row in visible_rows(shown, "tuning-1")]

    before = times()
    shown.click(f"{header} button")
    assert shown.ask(f'document.querySelector("{header}").ariaSort') == "descending"
    longest_first = ["170 us", "43.9 us", "12.5 us", "4.62 us", "2.65 us", "2.16 us"]
    assert times() == [time for time in longest_first for _mode in range(2)]
    shown.click(f"{header} button")
    assert shown.ask(f'document.querySelector("{header}").ariaSort') == "ascending"
    assert times()[0] == "2.16 us"
    assert sorted(times()) == sorted(before)
