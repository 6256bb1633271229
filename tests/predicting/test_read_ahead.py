"""The bytes of decoded images that wait are limited, and the limit never blocks a run."""

import threading
import time

import pytest
from PIL import Image

from seamseg.data.input_size import InputSize
from seamseg.maps.images import open_image
from seamseg.predicting import job
from seamseg.predicting.job import ImageReader
from seamseg.predicting.source import Source, find_sources
from seamseg.utils.errors import SeamsegError
from seamseg.utils.parallel import BackgroundWriter


def test_threads_of_huge_photos_hold_one_each_and_larger_ones_are_decoded_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "READ_AHEAD_BYTES", 1)
    for name in "abcde":
        Image.new("RGB", (51 if name == "c" else 50, 50)).save(tmp_path / f"{name}.png")
    opened, running, threads = [], [], {}

    def open_(self):
        opened.append(self.name)
        running.append(self.name)
        threads[self.name] = threading.current_thread(), list(running)
        time.sleep(0.1)
        running.remove(self.name)
        return open_image(self.path)

    monkeypatch.setattr(Source, "open", open_)
    images, received = ImageReader(find_sources(tmp_path), InputSize(), True, {}), []
    for source, _, _ in images.read(2):
        received.append(source.name)
        time.sleep(0.2)
        assert len(opened) - len(received) <= 2
    assert received == list("abcde")
    assert threading.main_thread() not in [thread for thread, _ in threads.values()]
    monkeypatch.setattr(job, "ALONE_PIXELS", 50 * 50)
    assert [source.name for source, _, _ in images.read(2)] == list("abcde")
    assert threads["c"] == (threading.main_thread(), ["c"])
    assert threading.main_thread() not in [thread for name, (thread, _) in threads.items() if name != "c"]


@pytest.mark.parametrize(("limits", "jobs"), [({"waiting": 4, "most_bytes": 100}, 1), ({"waiting": 1}, 2)])
def test_background_limits_bytes_and_jobs(limits, jobs):
    background, go = BackgroundWriter(threads=1, **limits), threading.Event()
    for _ in range(jobs):
        background.submit(go.wait, size=500)
    late = threading.Thread(target=background.submit, args=(lambda: None,), kwargs={"size": 10})
    late.start()
    late.join(0.1)
    assert late.is_alive()
    go.set()
    late.join(60)
    assert not late.is_alive()
    background.finish()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SeamsegError("no room"), "no room"),
        (OSError(28, "No space left", "a.png"), "a.png: cannot be written: No space"),
    ],
)
def test_background_raises_errors_again(error, message):
    def fail():
        raise error

    background = BackgroundWriter(threads=1, waiting=1)
    background.submit(fail)
    with pytest.raises(SeamsegError, match=message):
        background.finish()
