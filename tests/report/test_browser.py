"""The page as a person sees it, in a real browser: light, dark, narrow, and on paper."""

import base64
import re

import pytest

from opforge.report.command import make
from support.browser import MISSING, Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=MISSING)

# Colours as they are painted, whatever notation they are computed to.
PAINTED = """
const known = new Map();
const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
function painted(colour) {
  if (!known.has(colour)) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    known.set(colour, [...context.getImageData(0, 0, 1, 1).data]);
  }
  return known.get(colour);
}
function luminance([r, g, b]) {
  const linear = [r, g, b].map((c) => c / 255).map(
    (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
function behind(element) {
  for (let at = element; at; at = at.parentElement) {
    const found = painted(getComputedStyle(at).backgroundColor);
    if (found[3]) return found;
  }
  return [255, 255, 255, 255];
}
"""


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
        [...document.querySelectorAll("#{table} tbody tr")].filter((row) => row.offsetHeight > 0)
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
    header = "#tuning-1 th:nth-child(4)"

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser, page, scheme):
    browser.look(scheme=scheme)
    browser.open(page)
    worst = browser.ask(f"""(() => {{ {PAINTED}
        const read = "h1, h2, h3, .count, .about, .tiles b, .tiles li, a, th, td, figcaption";
        const texts = [...document.querySelectorAll(read)].map(
            (e) => [contrast(painted(getComputedStyle(e).color), behind(e)), e.innerText]);
        const marks = [...document.querySelectorAll("svg text")].map((e) => {{
            const cell = e.parentElement.querySelector("rect");
            const onCell = cell && e.closest(".heat");
            const back = onCell ? painted(getComputedStyle(cell).fill) : behind(e);
            return [contrast(painted(getComputedStyle(e).fill), back), e.textContent];
        }});
        return [...texts, ...marks].sort((one, other) => one[0] - other[0])[0];
    }})()""")
    assert worst[0] >= 4.5, worst


def seen(browser):
    """How many colours a screenshot has, and how light it is, from 0 to 255."""
    picture = base64.b64encode(browser.screenshot()).decode()
    return browser.ask(f"""(async () => {{
        const blob = await (await fetch("data:image/png;base64,{picture}")).blob();
        const image = await createImageBitmap(blob);
        const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
        context.drawImage(image, 0, 0);
        const data = context.getImageData(0, 0, image.width, image.height).data;
        const colours = new Set();
        let light = 0;
        for (let i = 0; i < data.length; i += 4) {{
            colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
            light += data[i] + data[i + 1] + data[i + 2];
        }}
        return [colours.size, light / (data.length / 4) / 3];
    }})()""")


def test_the_screen_is_light_or_dark_as_the_person_has_it(browser, page):
    found = {}
    for scheme in ("light", "dark"):
        browser.look(scheme=scheme)
        browser.open(page)
        # Among the heat maps, which have colours of their own.
        browser.ask('document.querySelector(".heat").scrollIntoView({block: "center"})')
        found[scheme] = seen(browser)
    assert found["light"][1] > 200
    assert found["dark"][1] < 70
    assert all(colours > 100 for colours, _ in found.values())


@pytest.mark.parametrize("width", [1400, 1000, 390])
def test_nothing_runs_off_the_side_of_the_screen(browser, page, width):
    browser.look(width=width)
    browser.open(page)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    # What is wider than the screen scrolls by itself.
    hidden = browser.ask("""[...document.querySelectorAll("body *:not(svg *)")].filter((e) =>
        e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "hidden").length""")
    assert hidden == 0


def test_paper_is_white_and_holds_every_row(browser, page):
    # A4 on its side without its margins, and a person who works in the dark.
    browser.look(scheme="dark", media="print", width=1032)
    browser.open(page)
    assert browser.ask("document.documentElement.scrollWidth") <= 1032
    cut = browser.ask("""[...document.querySelectorAll(".scroll, figure")]
        .filter((e) => e.scrollWidth > e.clientWidth + 1).length""")
    assert cut == 0
    colours = browser.ask("""[document.body, document.querySelector("td")]
        .map((e) => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color])""")
    assert colours[0] == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert browser.ask('document.querySelector(".search").offsetHeight') == 0
    assert len(visible_rows(browser, "images-1")) == 16
    pdf = browser.printed()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
