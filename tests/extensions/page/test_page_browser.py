"""The report page in headless Chromium: sorting, filters, figures, themes, phone, print, keyboard, hostile text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Visit, chromium
from cases import file_text
from face import Face, gpas
from live_source import Source, served

from gpas_cli.extensions.figures.figure import Figure
from gpas_cli.extensions.page.content import Content
from gpas_cli.extensions.page.document import to_html
from gpas_cli.structure import plain

pytest.importorskip("playwright", reason="needs playwright")
pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

HOSTILE = "</script><img src=http://evil.example/ onerror=alert(2)><script>alert(1)</script>"
GRIDS = file_text("experiments/browser.yaml")
TIMEOUT_MS = 3000
PERPLEXITIES = (31.0, 35.0, 30.0, 33.0, 41.0, 39.5)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about eleven cells: six are done, one has failed, four are missing."""
    project = Face(tmp_path_factory.mktemp("page") / "project", GRIDS)
    entries = project.cells()
    for entry, perplexity in zip(entries, PERPLEXITIES, strict=False):
        project.trained(entry, perplexity, host=HOSTILE)
    project.trained(entries[6], 33.0, cause=HOSTILE, stop=20)
    project("report", "quick", "other")
    return project.folder / "report.html"


@pytest.fixture(scope="module")
def window(report: Path) -> Iterator[Any]:
    """The one page of all tests, so that Chromium starts once."""
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        yield page


@pytest.fixture
def visit(window: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open the report; afterwards there must have been no error and no request but for the file."""
    look = getattr(request, "param", {})
    window.set_viewport_size({"width": look.get("width", 1280), "height": 800})
    window.emulate_media(color_scheme=look.get("scheme", "light"), media="screen")
    made = Visit(window)
    window.goto(report.as_uri())
    yield made
    window.evaluate("localStorage.clear()")
    made.close()
    assert made.errors == []
    assert [url for url in made.requests if not url.startswith("data:")] == [report.as_uri()]


phone = pytest.mark.parametrize("visit", [{"width": 360}], indirect=True)
dark = pytest.mark.parametrize("visit", [{"scheme": "dark"}], indirect=True)


def rows(visit: Visit) -> list[str]:
    return visit.texts(".cells tbody .open")


def column(visit: Visit, title: str) -> list[str]:
    place = visit.texts(".cells thead th").index(title) + 1
    return [text for text in visit.texts(f".cells tbody tr > :nth-child({place})") if text]


def test_cells_are_sorted_by_a_column_in_both_directions(visit: Visit) -> None:
    head = visit.page.get_by_role("button", name="perplexity", exact=True)
    head.click()
    up = [float(text) for text in column(visit, "perplexity")]
    assert up == sorted(PERPLEXITIES)
    assert visit.page.locator('.cells th[aria-sort="ascending"]').inner_text() == "perplexity"
    head.click()
    assert [float(text) for text in column(visit, "perplexity")] == up[::-1]
    head.click()
    assert rows(visit)[0] == "quick/pre-s1"
    visit.page.get_by_role("button", name="cell", exact=True).click()
    assert rows(visit)[:3] == ["other/lns-s1", "other/lns-s2", "other/lns-s10"]


def test_cells_are_filtered_by_words_state_and_grid(visit: Visit) -> None:
    visit.page.get_by_label("Filter").fill("norm=pre GATE=gpas")
    assert rows(visit) == ["quick/pre-gpas-s1", "quick/pre-gpas-s2"]
    visit.page.get_by_label("Filter").fill("")
    visit.page.get_by_role("button", name="1 failed").click()
    assert rows(visit) == ["quick/post-gpas-s1"]
    visit.page.get_by_role("button", name="1 failed").click()
    visit.page.get_by_role("combobox", name="Grid", exact=True).select_option("other")
    assert len(rows(visit)) == 3
    assert visit.page.get_by_role("status").inner_text() == "3 of 11 cells"


def test_an_opened_cell_shows_what_made_it(visit: Visit) -> None:
    visit.page.get_by_role("button", name="quick/pre-gpas-s1", exact=True).click()
    detail = visit.page.locator(".detail")
    for heading in ("Result", "Attempts", "End of the log", "Configuration"):
        assert detail.get_by_role("heading", name=heading).is_visible()
    assert "optim.steps" in detail.inner_text()
    assert HOSTILE in detail.inner_text()
    visit.page.get_by_role("button", name="other/lns-s2").click()
    assert "has not been run" in visit.page.locator(".detail").last.inner_text()


def test_text_of_others_is_shown_and_never_executed(visit: Visit) -> None:
    visit.page.get_by_role("button", name="quick/post-gpas-s1").click()
    visit.page.wait_for_timeout(50)
    assert visit.page.locator("img").count() == 0
    assert visit.page.get_by_role("heading", name="Quick <img src=x onerror=alert(3)>").is_visible()
    assert visit.texts("caption") == ["<script>alert(4)</script>", "other"]


def test_claims_are_one_line_below_tables_and_figures(visit: Visit) -> None:
    order = ["overview", "grid-quick", "grid-other", "claims", "cells"]
    assert visit.page.locator("section:visible").evaluate_all("all => all.map((one) => one.id)") == order
    assert visit.page.locator("#claims .summary").evaluate("one => one.clientHeight") < 60
    assert "1 claim with numbers: 0 supported, 0 contradicted, 1 undecided" in visit.texts("#claims summary")[0]
    assert visit.texts("header p")[0].startswith("Written 20")


def test_a_claim_opens_and_shows_its_parts(visit: Visit) -> None:
    visit.page.locator("#all-claims > summary").click()
    claim = visit.page.locator("#claim-gates-help")
    assert "undecided" in claim.locator("summary").inner_text()
    assert "GPAS <img src=x onerror=alert(5)> helps" in claim.locator("summary").inner_text()
    claim.locator("summary").click()
    assert visit.texts("#claim-gates-help tbody th")[0].startswith("Pre-LN")
    assert "-1.5" in claim.locator("tbody tr").first.inner_text().replace("\N{MINUS SIGN}", "-")
    assert claim.locator(".forest circle").count() == 1


def test_the_policy_stops_a_script_and_a_request_that_got_in(window: Any, report: Path) -> None:
    window.goto(report.as_uri())
    window.evaluate(
        """() => {
        document.body.insertAdjacentHTML("beforeend", '<img src="http://127.0.0.1:9/x" onerror="window.ran = 1">');
        const script = document.createElement("script");
        script.textContent = "window.ran = 2";
        document.body.append(script);
        }"""
    )
    window.wait_for_timeout(50)
    assert window.evaluate("window.ran") is None
    assert window.evaluate("fetch('http://127.0.0.1:9/').then(() => 1, (error) => error.name)") == "TypeError"


def test_a_figure_shows_values_hides_curves_and_zooms(visit: Visit) -> None:
    chart = visit.page.locator("#grid-quick .chart").first
    plot = chart.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 50)
    assert "update 40" in chart.locator(".tip").inner_text()
    assert "Pre-LN + GPAS" in chart.locator(".tip").inner_text()
    chart.get_by_role("button", name="Pre-LN + GPAS (2)").click()
    assert chart.locator("g.series").count() == 3
    chart.get_by_role("button", name="Pre-LN + GPAS (2)").click(modifiers=["Shift"])
    assert chart.locator("g.series").evaluate_all("all => all.map((one) => one.dataset.series)") == ["Pre-LN + GPAS"]
    before = visit.page.evaluate("document.querySelector('#grid-quick .position').max")
    box = plot.bounding_box()  # the clicks have scrolled
    visit.page.mouse.move(box["x"] + 80, box["y"] + 60)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 200, box["y"] + 60, steps=3)
    visit.page.mouse.up()
    assert float(visit.page.evaluate("document.querySelector('#grid-quick .position').max")) < float(before)
    chart.get_by_role("button", name="whole range").click()
    assert visit.page.evaluate("document.querySelector('#grid-quick .position').max") == before


def test_figures_are_smoothed_and_a_double_click_chooses_a_curve(visit: Visit) -> None:
    chart = visit.page.locator("#grid-quick .chart").first
    slider = visit.page.locator(".tools input[type=range]:visible")
    line = chart.locator('g.series[data-series="Pre-LN"] > path:not(.band)').last
    before = line.get_attribute("d")
    slider.fill("0.9")
    assert line.get_attribute("d") != before
    assert chart.locator('g.series[data-series="Pre-LN"] > .recorded').get_attribute("d") == before
    visit.page.get_by_label("Quantity").first.select_option("lr")
    chart.locator("path.recorded").nth(3).wait_for(state="attached")  # a busy browser draws later
    assert chart.locator("path.recorded").count() == 4
    assert slider.input_value() == "0.9"  # of all figures
    chart.get_by_role("button", name="Post-LN (2)").dblclick()
    assert chart.locator("g.series").evaluate_all("all => all.map((one) => one.dataset.series)") == ["Post-LN"]
    chart.get_by_role("button", name="Post-LN (2)").dblclick()
    assert chart.locator("g.series").count() == 4


def test_a_figure_has_other_quantities_logarithmic_axes_and_numbers(visit: Visit) -> None:
    figure = visit.page.locator("#grid-quick .figure").last
    figure.get_by_label("Quantity").select_option("gate")
    assert "gate value" in figure.locator(".titles").text_content()
    log = figure.get_by_role("button", name="log y")
    ticks = figure.locator(".axis text").all_text_contents()
    log.click()
    assert log.get_attribute("aria-pressed") == "true"
    figure.get_by_label("Quantity").select_option("activation_variance")
    assert figure.locator(".axis text").all_text_contents() != ticks
    figure.get_by_text("Numbers").click()
    figure.locator(".numbers table").wait_for()
    numbers = figure.locator(".numbers tbody tr").all_inner_texts()
    assert len(numbers) == 3
    assert "±" in numbers[0]


def test_everything_works_with_the_keyboard(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    position = visit.page.locator("#grid-quick .position").first
    position.focus()
    visit.page.keyboard.press("Home")
    visit.page.keyboard.press("ArrowRight")
    assert position.get_attribute("aria-valuetext").startswith("update 10: ")
    whole = position.get_attribute("max")
    visit.page.keyboard.press("+")
    assert position.get_attribute("max") != whole
    visit.page.keyboard.press("0")
    assert position.get_attribute("max") == whole
    cell = visit.page.get_by_role("button", name="quick/pre-s1", exact=True)
    cell.focus()
    visit.page.keyboard.press("Enter")
    assert cell.get_attribute("aria-expanded") == "true"
    assert visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    head = visit.page.get_by_role("button", name="state", exact=True)
    head.focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.textContent") == "state"


def test_a_heat_map_has_its_numbers_as_a_table(window: Any, tmp_path: Path) -> None:
    one = {"title": "Pre-LN", "colour": 0, "style": 0, "shade": None, "runs": 1, "columns": [1, 2]}
    series = [{**one, "rows": [[0.25, 0.5], [0.125, None]]}, {**one, "title": "LNS", "rows": [[1, 2], [3, 4]]}]
    panel = plain(Figure("", "first layer", "number of layers", heat_map="angular distance"))
    words = {"name": "f", "heading": "Figure 1", "missing": 0, "command": ""}
    figure = {**words, "panels": [{**panel, "series": series}]}
    path = tmp_path / "page.html"
    path.write_text(to_html(Content("demo", 0.0, {}, figures=[figure])).html)
    made = Visit(window)
    window.goto(path.as_uri())
    window.locator(".heat summary").focus()
    window.keyboard.press("Enter")
    window.locator(".heat .numbers table").first.wait_for()
    assert made.texts(".heat caption") == ["Pre-LN, by first layer", "LNS, by first layer"]
    assert [text.split() for text in made.texts(".heat .numbers tbody tr")] == [
        ["2", "0.125"], ["1", "0.25", "0.5"], ["2", "3", "4"], ["1", "1", "2"],
    ]  # fmt: skip
    assert made.violations() == []
    made.close()
    assert made.errors == []


def background(visit: Visit) -> str:
    return str(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit) -> None:
    light = background(visit)
    visit.page.emulate_media(color_scheme="dark")
    assert background(visit) != light
    visit.page.get_by_role("button", name="Light theme").click()
    assert background(visit) == light
    assert visit.page.get_by_role("button", name="Dark theme").is_visible()
    visit.page.emulate_media(color_scheme="dark", media="print")
    assert background(visit) == "rgb(255, 255, 255)"


def test_axe_has_no_serious_finding(visit: Visit) -> None:
    visit.page.get_by_role("button", name="quick/pre-gpas-s1", exact=True).click()
    visit.page.locator(".numbers summary").first.click()
    assert visit.violations() == []


@dark
def test_axe_has_no_serious_finding_in_the_dark(visit: Visit) -> None:
    visit.page.get_by_role("button", name="quick/post-gpas-s1").click()
    assert visit.violations() == []


@phone
def test_a_phone_needs_no_horizontal_scrolling(visit: Visit) -> None:
    plot = visit.page.locator("#grid-quick .plot").first
    plot.hover()
    box, tip = plot.bounding_box(), plot.locator(".tip").bounding_box()
    assert box["x"] <= tip["x"] < tip["x"] + tip["width"] <= box["x"] + box["width"] + 1
    visit.page.get_by_role("button", name="quick/pre-gpas-s1", exact=True).click()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.page.locator(".cells").evaluate("one => one.scrollWidth <= one.parentElement.clientWidth")
    assert visit.page.locator(".less").first.is_hidden()
    assert visit.violations() == []


def test_a_served_page_follows_the_grid_without_being_loaded_again(window: Any) -> None:
    source = Source()
    source.cells = tuple(cell(name, "running", 0.25) for name in ("a", "b"))
    with served(source) as server:
        window.goto(f"http://localhost:{server.server_port}{server.path}")
        window.evaluate("window.loaded = 1")
        window.get_by_text("live, updated 0 s ago").wait_for()
        window.get_by_label("Filter").fill("grid/b")
        window.locator(".cells .open", has_text="b").click()  # without the name of the only grid
        window.get_by_text("This page leaves out").wait_for()
        source.cells = (cell("a", "running", 0.5), cell("b", "done", 1.0), cell("c", "queued", None))
        window.locator(".cells .state", has_text="done").wait_for()
        assert window.evaluate("window.loaded") == 1
        assert window.locator(".cells .open", has_text="b").get_attribute("aria-expanded") == "true"
        assert window.locator(".cells .open").count() == 1
        assert window.get_by_role("button", name="1 done").is_visible()
    window.get_by_text("stale, the server does not answer").wait_for()


def cell(name: str, state: str, fraction: float | None) -> dict[str, Any]:
    """Return a line of the list of cells."""
    same = {"grid": "grid", "key": name, "axes": {"seed": 1}, "stage": "pretrain", "evidence": "", "cause": ""}
    return {"id": f"grid/{name}", "state": state, "fraction": fraction, "result": None, "since": None, **same}


@pytest.mark.parametrize("width", [718, 739], ids=["A4", "Letter"])  # within the margins
def test_the_widest_table_of_a_paper_is_whole_on_paper(window: Any, tmp_path: Path, width: int) -> None:
    gpas(tmp_path, "init", "--papers")
    gpas(tmp_path, "report", "table2", "quickstart", "-o", "wide.html")
    window.set_viewport_size({"width": width, "height": 1000})
    window.emulate_media(media="print")
    window.goto((tmp_path / "wide.html").as_uri())
    assert window.locator(".wide table").first.is_visible()
    assert window.locator("thead th", has_text="1b, GPAS poster").count() == 1
    assert window.evaluate("document.documentElement.scrollWidth") == width
