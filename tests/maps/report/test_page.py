"""The report in a headless browser: drawing, tooltips, sorting and filters, by pointer and keyboard."""

from collections.abc import Callable
from typing import Any

import pytest
from support.browsers import PHONE, blocks, check_layout, watched_pages

from seamseg.cli.main import main
from seamseg.maps.report import find_evaluation

MINUS = "\u2212"
Open = Callable[..., Any]


@pytest.fixture
def open_page(browser):
    """Open a page; fails if it has written to the console or requested anything but itself."""
    with watched_pages(browser) as go:
        yield lambda path, **options: go(path.as_uri(), **options)


@pytest.fixture(scope="module")
def report(runs):
    out = runs[0] / "browser.html"
    assert main(["report", str(runs[0]), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def against(runs):
    out = runs[0] / "against.html"
    assert main(["report", str(runs[0]), "--against", str(runs[1]), "--out", str(out), "--quiet"]) == 0
    return out


def _column(page, number):
    return page.locator(f"#class-table tbody tr:not([hidden]) > :nth-child({number})").all_inner_texts()


def _names(page):
    return page.locator(".card h3").all_inner_texts()


def test_headline_and_table(report, open_page):
    page = open_page(report)
    scores = find_evaluation(report.parent).scores
    assert page.locator(".figure dd").first.inner_text() == f"{100 * scores['PQ']:.1f}"
    assert _column(page, 3) == [f"{100 * c['PQ']:.1f}" for c in scores["per_class"].values()]
    assert page.title() == page.locator("h1").inner_text() == "maps.json against truth.json"
    assert '</script><script>document.title="taken"</script>' in _column(page, 1)


@pytest.mark.slow
def test_classes_are_sorted_and_filter_the_images(report, open_page):
    page = open_page(report)
    evaluation = find_evaluation(report.parent)
    index = [c.name for c in evaluation.classes].index("truck")
    trucks = [
        (i.image_id, s.outcome)
        for i in evaluation.images()
        for s in (*i.ground_truth, *i.prediction)
        if s.category == index and s.outcome in ("matched", "missed", "false")
    ]
    assert 0 < len({name for name, _ in trucks}) < 10
    head = page.locator("th", has=page.get_by_role("button", name="PQ", exact=True))
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    numbers = [float(n) for n in _column(page, 3)]
    assert numbers == sorted(numbers, reverse=True)
    button = page.get_by_role("button", name="truck", exact=True)
    button.click()
    assert set(_names(page)) == {name for name, _ in trucks}
    assert button.get_attribute("aria-pressed") == "true"
    page.select_option("#by-outcome", "2")
    assert set(_names(page)) == {name for name, outcome in trucks if outcome == "missed"}
    page.click("#reset")
    assert len(_names(page)) == 10
    assert button.get_attribute("aria-pressed") == "false"


@pytest.mark.slow
def test_against_shows_both_runs_and_the_changes(against, runs, open_page):
    page = open_page(against)
    scores = [find_evaluation(run).scores for run in runs]
    change = 100 * (scores[0]["PQ"] - scores[1]["PQ"])
    assert page.locator(".figure .delta").first.inner_text() == f"{change:+.1f}".replace("-", MINUS)
    assert page.locator("h1").inner_text() == "run0 vs. run1"
    changes = [abs(i["pq"][0] - i["pq"][1]) for i in blocks(against)["summary"][0]["images"]]
    names = [i["name"] for i in blocks(against)["summary"][0]["images"]]
    by_change = dict(zip(names, changes))
    shown = [by_change[name] for name in _names(page)]
    assert shown == sorted(changes, reverse=True)
    page.evaluate("document.getElementById('images').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector(".card.drawn")
    assert page.locator(".card").first.locator("canvas").count() == 2
    page.set_viewport_size(PHONE)
    check_layout(page)
    page.locator(".card .open").first.click()
    page.wait_for_selector("#viewer[data-shown]")
    check_layout(page)
    assert page.locator("#viewer-segments h3.run").all_inner_texts() == ["run0", "run1"]
