"""The report in a headless browser: drawing, tooltips, sorting and filters, by pointer and keyboard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from support.browsers import HOSTILE, PHONE, canvas_pixels, check_layout, watched_pages
from support.report_pages import blocks, decode_index_map
from support.report_scenes import CLASSES, write_evaluation

from seamseg.cli.main import main
from seamseg.report import find_evaluation

MINUS = "\u2212"
Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a page; fails if it has written to the console or requested anything but itself."""
    with watched_pages(browser) as go:
        yield lambda path, **options: go(path.as_uri(), **options)


@pytest.fixture(scope="module")
def report(runs: tuple[Path, Path]) -> Path:
    out = runs[0] / "browser.html"
    assert main(["report", str(runs[0]), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def against(runs: tuple[Path, Path]) -> Path:
    out = runs[0] / "against.html"
    assert main(["report", str(runs[0]), "--against", str(runs[1]), "--out", str(out), "--quiet"]) == 0
    return out


def _until(page: Any, expression: str, seconds: float = 60) -> None:
    """Wait until an expression is true; the page's policy forbids `wait_for_function`."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"timeout: {expression}"
        page.wait_for_timeout(30)


def _scroll_to_images(page: Any) -> None:
    """Scroll to the images and wait until the first is painted."""
    page.evaluate("document.getElementById('images').scrollIntoView({behavior: 'instant'})")
    page.wait_for_selector(".card.drawn")


def _column(page: Any, number: int) -> list[str]:
    return page.locator(f"#class-table tbody tr:not([hidden]) > :nth-child({number})").all_inner_texts()


def _names(page: Any) -> list[str]:
    return page.locator(".card h3").all_inner_texts()


def _pixel(page: Any, selector: str, x: float, y: float) -> list[int]:
    """Red, green, blue of a canvas at fractions of its size."""
    pixels = canvas_pixels(page.locator(selector).first)
    return pixels[int(y * len(pixels)), int(x * pixels.shape[1])].tolist()


def test_headline_and_table(report: Path, open_page: Open) -> None:
    page = open_page(report)
    scores = find_evaluation(report.parent).scores
    assert page.locator(".figure dd").first.inner_text() == f"{100 * scores['PQ']:.1f}"
    assert _column(page, 3) == [f"{100 * c['PQ']:.1f}" for c in scores["per_class"].values()]
    assert page.title() == page.locator("h1").inner_text() == "maps.json against truth.json"
    assert '</script><script>document.title="taken"</script>' in _column(page, 1)


@pytest.mark.slow
def test_sorting_by_pointer_and_key(report: Path, open_page: Open) -> None:
    page = open_page(report)
    head = page.locator("th", has=page.get_by_role("button", name="PQ", exact=True))
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    numbers = [float(n) for n in _column(page, 3)]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 3
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(n) for n in _column(page, 3)] == sorted(numbers)
    page.get_by_role("button", name="Class", exact=True).click()
    assert head.get_attribute("aria-sort") == "none"
    assert [n.lower() for n in _column(page, 1)] == sorted(n.lower() for n in _column(page, 1))


@pytest.mark.slow
def test_filtering_classes(report: Path, open_page: Open) -> None:
    page = open_page(report)
    page.fill("#class-filter", "CLE")
    assert _column(page, 1) == ["bicycle"]
    page.fill("#class-filter", "")
    page.select_option("#class-kind", "thing")
    assert set(_column(page, 2)) == {"thing"}
    assert page.locator("#class-count").inner_text() == "5 of 11 classes"


@pytest.mark.slow
def test_selecting_a_class_filters_the_images(report: Path, open_page: Open) -> None:
    page = open_page(report)
    evaluation = find_evaluation(report.parent)
    index = [c.name for c in evaluation.classes].index("truck")
    missed = {
        i.image_id for i in evaluation.images() for s in i.ground_truth if s.category == index and s.outcome == "missed"
    }
    having = {
        i.image_id
        for i in evaluation.images()
        for s in (*i.ground_truth, *i.prediction)
        if s.category == index and s.outcome in ("matched", "missed", "false")
    }
    assert 0 < len(having) < 10
    button = page.get_by_role("button", name="truck", exact=True)
    button.click()
    assert set(_names(page)) == having
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("#image-count").inner_text() == f"{len(having)} of 10 images"
    page.select_option("#by-outcome", "2")
    assert set(_names(page)) == missed
    page.fill("#by-name", "nothing is called so")
    assert page.locator("#no-cards").is_visible()
    page.click("#reset")
    assert len(_names(page)) == 10
    assert button.get_attribute("aria-pressed") == "false"


@pytest.mark.slow
def test_sorting_images(report: Path, open_page: Open) -> None:
    page = open_page(report)
    images = list(find_evaluation(report.parent).images())
    worst = [i.image_id for i in sorted(images, key=lambda i: i.PQ or 0)]
    assert _names(page) == worst
    page.select_option("#sort", "best")
    assert _names(page) == worst[::-1]
    page.select_option("#sort", "name")
    assert _names(page) == sorted(worst)
    page.select_option("#sort", "misses")
    lost = {i["name"]: i["missed"][0] + i["false"][0] for i in blocks(report)["summary"][0]["images"]}
    counts = [lost[name] for name in _names(page)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["Prediction", "Ground truth", "Errors"])
def test_tooltips_are_exact(report: Path, open_page: Open, view: str) -> None:
    page = open_page(report)
    page.locator("#views").get_by_role("button", name=view).click()
    summary = blocks(report)["summary"][0]
    name = _names(page)[0]
    number = next(k for k, i in enumerate(summary["images"]) if i["name"] == name)
    picture = blocks(report)["image"][number]
    height, width, (result,) = picture["height"], picture["width"], picture["results"]
    maps = {
        key: decode_index_map(result[key], height, width, len(result[f"{key}_segments"]))
        for key in ("truth", "prediction")
    }
    _scroll_to_images(page)
    box = page.locator(".card canvas").first.bounding_box()
    scale = min(box["width"] / width, box["height"] / height)
    left, top = (box["x"] + (box["width"] - width * scale) / 2, box["y"] + (box["height"] - height * scale) / 2)
    seen = set()
    for index in range(len(result["prediction_segments"]) + 1):
        places = [(y, x) for y, x in zip(*(maps["prediction"] == index).nonzero())]
        if not places:
            continue
        y, x = places[len(places) // 2]
        page.mouse.move(left + (x + 0.5) * scale, top + (y + 0.5) * scale)
        predicted, truth, pixel = page.locator("#tooltip > div").all_inner_texts()
        assert pixel == f"pixel{_error_type(result, maps['truth'][y, x], index)}"
        for text, key in ((predicted, "prediction"), (truth, "truth")):
            at = maps[key][y, x]
            if at == 0:
                assert text.endswith("void")
                continue
            identity, category, area, outcome, _, iou, score = result[f"{key}_segments"][at - 1]
            known = [summary["classes"][category]["name"].replace("\u2028", "\n"), f"id {identity}"]
            known += [f"score {_hundredths(score)}"] if score is not None else []
            known += [f"IoU {_hundredths(iou)}"] if iou is not None else []
            known += [f"{area:,} px".replace(",", "\u202f"), outcome]
            assert _spaced(text).endswith(_spaced(" · ".join(known)))
            seen.add(outcome)
    assert {"matched", "false"} <= seen
    page.mouse.move(2, 2)
    assert page.locator("#tooltip").is_hidden()


def _error_type(result: dict[str, Any], truth: int, prediction: int) -> str:
    """The error type of a pixel, as documented."""
    of_truth = result["truth_segments"][truth - 1] if truth else None
    of_prediction = result["prediction_segments"][prediction - 1] if prediction else None
    false = of_prediction is not None and of_prediction[3] == "false"
    if of_truth is None or of_truth[3] == "crowd":
        return "false positive" if false else "not counted"
    if of_prediction is None:
        return "missed"
    if of_prediction[3] == "matched" and of_prediction[4] == truth:
        return "right"
    if of_truth[3] == "missed" and of_prediction[3] == "matched":
        return "missed"
    if of_truth[3] == "matched" and false:
        return "false positive"
    return "wrong segment" if of_truth[1] == of_prediction[1] else "wrong class"


def _hundredths(value: float) -> Decimal:
    """With two digits, a half rounded up, as browsers do."""
    return Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP)


def _spaced(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_the_error_view_has_a_legend(report: Path, open_page: Open) -> None:
    page = open_page(report)
    assert page.locator("#legend").is_hidden()
    _scroll_to_images(page)
    before = _pixel(page, ".card canvas", 0.3, 0.3)
    page.locator("#views").get_by_role("button", name="Errors").click()
    assert page.locator("#legend li").all_inner_texts() == [
        "right", "wrong class", "wrong segment", "missed", "false positive", "not counted",
    ]  # fmt: skip
    assert page.locator("#views [aria-pressed=true]").inner_text() == "Errors"
    assert _pixel(page, ".card canvas", 0.3, 0.3) != before
    page.locator("#views").get_by_role("button", name="Photo").click()
    assert page.locator("#legend").is_hidden()


@pytest.mark.slow
def test_keyboard_navigation(report: Path, open_page: Open) -> None:
    page = open_page(report)
    _scroll_to_images(page)
    page.locator("#reset").focus()
    page.keyboard.press("Tab")  # all images are one tab stop
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#viewer[data-shown]")
    first = page.locator("#viewer-title").inner_text()
    assert first == _names(page)[1]
    before = _pixel(page, "#viewer canvas", 0.01, 0.99)
    page.keyboard.press("3")
    assert page.locator("#viewer-views [aria-pressed=true]").inner_text() == "Errors"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('segment')"):
            break
    else:
        pytest.fail("Tab does not reach the segments")
    assert _pixel(page, "#viewer canvas", 0.01, 0.99) != before, "the segment in focus is highlighted"
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-title").inner_text() == _names(page)[2] != first
    assert page.locator("#viewer-position").inner_text().startswith("3 of 10")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('viewer').open")
    # the focus moves after the dialog has closed
    focus = "document.activeElement.closest('.card')?.querySelector('h3').textContent"
    _until(page, f"{focus} === {json.dumps(_names(page)[2])}")


@pytest.mark.slow
def test_the_viewer_lists_all_segments(report: Path, open_page: Open) -> None:
    page = open_page(report)
    _scroll_to_images(page)
    page.locator(".card .open").first.click()
    page.wait_for_selector("#viewer[data-shown]")
    picture = blocks(report)["image"][int(page.locator("#viewer").get_attribute("data-shown"))]
    (result,) = picture["results"]
    shown = len(result["prediction_segments"]) + sum(s[3] != "matched" for s in result["truth_segments"])
    assert page.locator(".segment").count() == shown > 3


@pytest.mark.slow
def test_cells_of_the_confusion_matrix(report: Path, open_page: Open) -> None:
    page = open_page(report)
    evaluation = find_evaluation(report.parent)
    page.locator("#confusion-canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    pixels = int(evaluation.confusion[1, 0])
    part = 100 * pixels / evaluation.confusion[1].sum()
    text = page.locator("#confusion-cell").inner_text()
    assert text.startswith("truth: sidewalk · predicted: road · ")
    assert text.endswith(f"{pixels:,} pixels, {part:.2f} % of the row".replace(",", "\u202f", 1))
    assert page.locator("#confusion-top li").count() == 12


@pytest.mark.slow
def test_dark_theme_of_the_system_and_by_the_button(report: Path, open_page: Open) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(report, color_scheme="light"), open_page(report, color_scheme="dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    was = _pixel(light, "#confusion-canvas", 0.99, 0.99), _pixel(light, "#confusion-canvas", 0.6, 0.6)
    light.click("#theme")
    light.click("#theme")
    assert light.locator("#theme").inner_text() == "Theme: dark"
    assert light.evaluate(ground) == dark.evaluate(ground)
    assert (_pixel(light, "#confusion-canvas", 0.99, 0.99), _pixel(light, "#confusion-canvas", 0.6, 0.6)) != was


@pytest.mark.slow
def test_a_narrow_phone_does_not_scroll_sideways(report: Path, open_page: Open) -> None:
    page = open_page(report, viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".card .open").first.click()
    page.wait_for_selector("#viewer[data-shown]")
    assert page.locator("#viewer canvas").bounding_box()["width"] <= 360


@pytest.mark.slow
def test_controls_are_not_printed(report: Path, open_page: Open) -> None:
    page = open_page(report)
    page.emulate_media(media="print")
    assert page.locator("#controls").is_hidden()
    assert page.locator("#class-table").is_visible()


@pytest.mark.slow
def test_against_shows_both_runs_and_the_changes(against: Path, runs: tuple[Path, Path], open_page: Open) -> None:
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
    page.get_by_role("button", name="Δ PQ", exact=True).click()
    numbers = [float(n.replace(MINUS, "-").replace("±", "")) for n in _column(page, 4)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] < 0 < numbers[0]
    _scroll_to_images(page)
    assert page.locator(".card").first.locator("canvas").count() == 2
    page.locator(".card .open").first.click()
    page.wait_for_selector("#viewer[data-shown]")
    assert page.locator("#viewer-segments h3.run").all_inner_texts() == ["run0", "run1"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pages of a run and of two, all of whose names are hostile."""
    root = tmp_path_factory.mktemp("hostile")
    names = list(HOSTILE.values())
    runs = [write_evaluation(root, len(names), (64, 128), seed, dict(zip(CLASSES, names))) for seed in (0, 1)]
    for run, word in zip(runs, ("first", "second")):
        summary, images = (run / "evaluation" / name for name in ("evaluation.json", "images.jsonl"))
        summary.write_text(json.dumps({**json.loads(summary.read_text()), "title": f"{''.join(names)} {word}"}))
        lines = [{**json.loads(line), "image_id": n} for line, n in zip(images.read_text().splitlines(), names)]
        images.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pages = [root / "one.html", root / "two.html"]
    assert main(["report", str(runs[0]), "--out", str(pages[0]), "--quiet"]) == 0
    assert main(["report", str(runs[0]), "--against", str(runs[1]), "--out", str(pages[1]), "--quiet"]) == 0
    return pages


@pytest.mark.slow
@pytest.mark.parametrize("runs_shown", [1, 2])
@pytest.mark.parametrize("window", [PHONE, {"width": 1300, "height": 900}])
def test_names_stay_text(hostile: list[Path], open_page: Open, window: dict[str, int], runs_shown: int) -> None:
    page = open_page(hostile[runs_shown - 1], viewport=window)
    names = list(HOSTILE.values())
    titles = [f"{''.join(names)} {word}" for word in ("first", "second")]
    check_layout(page)
    assert page.locator("h1").text_content() == " vs. ".join(titles[:runs_shown])
    assert page.title().startswith(names[0] + names[1])
    assert page.locator("#class-table tbody th").all_text_contents() == names
    assert sorted(page.locator(".card h3").all_text_contents()) == sorted(names)
    # what follows a name in its line is not reversed with it
    page.locator("#confusion-canvas").focus()
    for key in ("ArrowRight", *["ArrowDown"] * names.index(HOSTILE["reversed"])):
        page.keyboard.press(key)
    cell = page.locator("#confusion-cell")
    assert cell.text_content().startswith(f"truth: {HOSTILE['reversed']} · predicted: {names[0]} · ")
    assert _lefts_of_words(cell, "predicted: ") == sorted(_lefts_of_words(cell, "predicted: "))
    _scroll_to_images(page)
    page.locator(".card canvas").first.hover()
    assert page.locator("#tooltip > div").first.text_content().startswith("predicted")
    check_layout(page)
    page.locator(".card .open").first.click()
    for position in range(len(names)):
        page.wait_for_selector("#viewer[data-shown]")
        assert page.locator("#viewer-title").text_content() == page.locator(".card h3").nth(position).text_content()
        check_layout(page)
        sizes = "(e) => [e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth]"
        assert page.locator("#viewer").evaluate(sizes) == [0, 0]
        assert page.locator("#viewer-segments").evaluate(sizes)[1] == 0
        for canvas in page.locator("#viewer canvas").all():
            assert canvas.bounding_box()["height"] > 60
        page.keyboard.press("ArrowRight")


def _lefts_of_words(element: Any, text: str) -> list[float]:
    """Left edges of the characters of a text of its own in an element."""
    script = """(element, text) => {
        const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        const node = texts.find((node) => node.data.includes(text));
        const range = document.createRange();
        return [...text].map((_, k) => {
            const start = node.data.indexOf(text) + k;
            range.setStart(node, start);
            range.setEnd(node, start + 1);
            return range.getBoundingClientRect().left;
        });
    }"""
    return element.evaluate(script, text)


@pytest.mark.slow
def test_few_of_five_hundred_images_are_decoded(tmp_path: Path, open_page: Open) -> None:
    write_evaluation(tmp_path, 8, (64, 128))
    folder = tmp_path / "run0" / "evaluation"
    lines = (folder / "images.jsonl").read_text().splitlines()
    with open(folder / "images.jsonl", "w") as file:
        for k in range(500):
            file.write(json.dumps({**json.loads(lines[k % 8]), "image_id": f"image {k}"}) + "\n")
    assert main(["report", str(tmp_path / "run0"), "--quiet"]) == 0
    page = open_page(tmp_path / "run0" / "report.html")
    assert page.locator(".card").count() == 500
    page.select_option("#sort", "name")
    _scroll_to_images(page)
    for part in (0.25, 0.5, 0.75, 1):
        page.evaluate("part => scrollTo({top: part * document.body.scrollHeight, behavior: 'instant'})", part)
        _until(
            page,
            "[...document.querySelectorAll('.card')].some(card => card.classList.contains('drawn') && "
            "card.getBoundingClientRect().top > -200 && card.getBoundingClientRect().top < innerHeight)",
        )
        _until(page, "document.querySelectorAll('.card.drawn').length < 60")
    for index, width in ((-1, 128), (0, 0)):
        _until(page, f"[...document.querySelectorAll('.card canvas')].at({index}).width === {width}")
