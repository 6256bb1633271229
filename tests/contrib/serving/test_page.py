"""The page of the server in a headless browser: choosing and dropping images, hover, errors, its policy."""

import time

import numpy as np
import pytest
from support.browsers import HOSTILE, PHONE, canvas_pixels, check_layout, watched_pages
from support.onnx_scenes import record, scene, write_network
from support.serving import FAILS, photo, png, ready_network, red_predictor, serving

import seamseg
from seamseg.maps.formats.metadata import Metadata

SIZE = (90, 140)
DROP = """([name, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name));
    for (const kind of ["dragenter", "dragover", "drop"])
        document.getElementById("drop").dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
}"""  # noqa: E501


@pytest.fixture(scope="module")
def panoptic(tmp_path_factory):
    path = write_network(tmp_path_factory.mktemp("page") / "net.onnx", record())
    with serving(seamseg.load(path, shortest_size=90, min_stuff_area=0)) as client:
        yield client


@pytest.fixture
def open_page(browser):
    """Open the page of a server; fails if it has broken its policy or asked for anything but the server."""
    with watched_pages(browser) as go:
        yield lambda client, **options: go(f"http://127.0.0.1:{client.port}/", **options)


NO_IMAGE = "not an image, or not of a format that is read (JPEG, PNG, WebP, BMP, TIFF, GIF, PPM, AVIF)"


def choose(page, data, name="a.png"):
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})


def until(page, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        page.wait_for_timeout(30)


def until_shown(page, name):
    page.wait_for_selector(f'body[data-shown="{name}"]')


def at(page, x, y):
    """The point of the window where a pixel of the picture is."""
    box = page.locator("#canvas").bounding_box()
    width, height = page.locator("#canvas").evaluate("c => [c.width, c.height]")
    scale = min(box["width"] / width, box["height"] / height)
    left = box["x"] + (box["width"] - width * scale) / 2
    return left + (x + 0.5) * scale, box["y"] + (box["height"] - height * scale) / 2 + (y + 0.5) * scale


def colour(page, x, y):
    return canvas_pixels(page.locator("#canvas"))[int(y), int(x)].astype(int)


def test_a_photo_is_shown_with_its_segments(panoptic, open_page):
    page = open_page(panoptic)
    assert page.title() == "test.onnx · seamseg"
    assert "up to 32 MiB, 50 megapixels" in page.locator("#drop").inner_text()
    assert page.locator("#result").is_hidden()
    choose(page, png(scene(SIZE)))
    until_shown(page, "a.png")
    assert page.locator("#status").inner_text().startswith("a.png: 140 x 90, 4 segments, ")
    listed = page.locator(".segment").all_inner_texts()
    assert [text.split("\n")[0] for text in listed] == ["car", "person", "road", "sky"]
    assert ["score 0.90" in listed[0], "score" in listed[3]] == [True, False]
    # the pointer describes a segment and darkens the others
    before = colour(page, 5, 80), colour(page, 30, 20)
    page.mouse.move(*at(page, 30, 20))
    tooltip = page.locator("#tooltip").inner_text().split("\n")
    result = panoptic.predict(png(scene(SIZE))).json["segments"][0]
    said = f"score {result['score']:.2f} · {result['area']:,} px".replace(",", "\u202f")
    assert (tooltip[0], tooltip[1][: len(said)]) == ("car", said)
    assert page.locator(".segment.highlighted").inner_text().startswith("car")
    assert colour(page, 5, 80).sum() < before[0].sum()
    assert abs(colour(page, 30, 20) - before[1]).max() <= 1
    page.mouse.move(5, 5)
    assert page.locator("#tooltip").is_hidden()
    assert page.locator(".segment.highlighted").count() == 0
    assert (colour(page, 5, 80) == before[0]).all()
    # by keyboard
    page.locator(".segment").nth(2).focus()
    assert page.locator(".segment.highlighted").inner_text().startswith("road")
    assert colour(page, 100, 5).sum() < 250
    page.locator(".segment").nth(2).blur()
    page.locator("#opacity").fill("0")
    # the image itself, after its JPEG
    assert abs(colour(page, 100, 80) - scene(SIZE)[80, 100]).max() <= 6
    page.locator("#opacity").fill("255")
    assert (colour(page, 100, 80) == [128, 64, 128]).all()


def test_buttons_save_the_files_that_the_server_sends(panoptic, open_page):
    page = open_page(panoptic)
    choose(page, png(scene(SIZE)), "street.a.png")
    until_shown(page, "street.a.png")
    assert page.locator("#downloads button").all_inner_texts() == ["json", "png", "overlay"]
    for name, ending in (("json", "json"), ("png", "png"), ("overlay", "jpg")):
        with page.expect_download() as waited:
            page.locator("#downloads button", has_text=name).click()
        assert waited.value.suggested_filename == f"street.a_{name}.{ending}"
        assert waited.value.path().read_bytes() == panoptic.predict(png(scene(SIZE)), f"?format={name}").body


def test_a_dropped_photo_and_errors(open_page, capfd):
    with serving(red_predictor(ready_network()), max_upload=0.01) as client:
        page = open_page(client)
        for data, status in (
            (b"text", f"a.png: image: {NO_IMAGE}"),
            (bytes(20_000), "a.png: image: is larger than 10.24 KiB, the limit of an upload"),
            (png(photo(red=FAILS)), "a.png: the prediction failed; the log of the server has the reason"),
        ):
            choose(page, data)
            page.wait_for_selector("#status.problem")
            until(page, lambda status=status: page.locator("#status").inner_text() == status)
        page.evaluate(DROP, ["<b>b.tif", list(png(photo(red=2), "TIFF"))])
        until_shown(page, "<b>b.tif")
        assert page.locator("#status").inner_text().startswith("<b>b.tif: 20 x 12, 1 segment, ")
        assert page.locator(".segment").inner_text().startswith("tree")
        assert page.locator("#status.problem").count() == 0
        assert page.locator("#result").is_visible()
        choose(page, b"text")
        page.wait_for_selector("#status.problem")
        assert page.locator("#result").is_hidden(), "the result of an earlier image"
    capfd.readouterr()


@pytest.mark.slow
def test_names_stay_text(open_page):
    names = list(HOSTILE.values())
    network = ready_network(Metadata(len(names), 0, names, [(9, 9, 9)] * len(names), list(range(len(names)))))
    bands = np.concatenate([photo(red=red, size=(40, 20)) for red in range(len(names))], 1)
    with serving(red_predictor(network), name="".join(names)) as client:
        page = open_page(client, viewport=PHONE)
        assert page.locator("h1").inner_text().startswith(names[0] + names[1])
        assert page.locator("h1").text_content().count("{{limit}}") == 1
        check_layout(page)
        for name in names:
            page.evaluate(DROP, [name, list(png(bands))])
            until(page, lambda name=name: page.evaluate("document.body.dataset.shown") == name)
            assert page.locator("#status").text_content().startswith(f"{name}: 220 x 40, {len(names)} segments, ")
            check_layout(page)
        assert page.locator(".segment > :nth-child(2)").all_text_contents() == names
        for k, name in enumerate(names):
            page.locator("#canvas").scroll_into_view_if_needed()
            page.mouse.move(*at(page, 20 * k + 10, 20))
            assert page.locator("#tooltip > div").first.text_content() == name
            check_layout(page)
