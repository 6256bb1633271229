"""The bytes of decoded photos that wait are limited, and the limit never blocks a run."""

import os
import threading
import time

import pytest
from PIL import Image

from seamseg.data.images import open_image
from seamseg.data.input_size import InputSize
from seamseg.inference.images import ImagePreparation
from seamseg.predict.sources import reader as reading
from seamseg.predict.sources import share
from seamseg.predict.sources.base import Source
from seamseg.predict.sources.find import find_sources
from seamseg.predict.sources.reader import ProcessDecoders, ReadAheadBudget
from seamseg.predict.sources.share import DecoderShare, ThreadDecoders
from seamseg.utils.errors import SeamsegError
from seamseg.utils.parallel import BackgroundWriter


@pytest.fixture
def sources(tmp_path):
    for number in range(12):
        Image.new("RGB", (100, 100)).save(tmp_path / f"{number:02}.png")
    return find_sources(tmp_path)


PHOTO = 100 * 100 * (3 + 3)


def read_slowly(sources, tmp_path, monkeypatch, limit, decoders=ProcessDecoders):
    """Return the maximum number of photos that were decoded but not yet received."""
    for module in (reading, share):
        monkeypatch.setattr(module, "READ_AHEAD_BYTES", limit)
    mark = tmp_path / "opened"

    def opened(self):
        with open(mark, "a") as file:
            file.write(f"{self.name}\n")
        return open_image(self.path)

    monkeypatch.setattr(Source, "open", opened)
    counts, got = [], []
    for source, _, _ in decoders(DecoderShare(sources, ImagePreparation(InputSize(), keep_rgb=True), {}), 2).read(()):
        got.append(source.name)
        before = -1
        while before != (before := len(mark.read_text().split())):
            time.sleep(0.3)
        counts.append(before - len(got))
    assert sorted(got) == [s.name for s in sources]
    return max(counts)


@pytest.mark.slow
def test_decoders_of_huge_photos_hold_one_each(sources, tmp_path, monkeypatch):
    sources = sources[:7]
    assert read_slowly(sources, tmp_path, monkeypatch, PHOTO) == 2
    (tmp_path / "opened").unlink()
    # a part for each decoder, and one photo more
    assert read_slowly(sources, tmp_path, monkeypatch, 3 * PHOTO) == 4
    assert reading.READ_AHEAD_BYTES == 3 * PHOTO


def test_threads_of_huge_photos_hold_one_each(sources, tmp_path, monkeypatch):
    assert read_slowly(sources[:5], tmp_path, monkeypatch, PHOTO, ThreadDecoders) <= 2


def test_a_decoder_waits_only_for_its_own_photos_and_while_its_parent_lives(monkeypatch):
    monkeypatch.setattr(reading, "READ_AHEAD_BYTES", 20)
    budget = ReadAheadBudget(2)
    budget.parent = os.getppid()  # as in a decoder
    budget.add(0, 15)
    budget.wait(1)
    waiting = threading.Thread(target=budget.wait, args=(0,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    budget.remove(0, 15)
    waiting.join(60)
    assert not waiting.is_alive()
    budget.add(0, 99)
    budget.parent = -1
    budget.wait(0)
    budget.parent = os.getppid()
    budget.release()
    budget.wait(0)


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


def test_background_raises_errors_again():
    def fail():
        raise SeamsegError("no room")

    background = BackgroundWriter(threads=1, waiting=1)
    background.submit(fail)
    with pytest.raises(SeamsegError, match="no room"):
        background.finish()
