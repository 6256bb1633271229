"""The bytes of decoded images that wait are limited, and the limit never blocks a run."""

import os
import threading
import time

import pytest
from PIL import Image

from seamseg.data.images import open_image
from seamseg.data.input_size import InputSize
from seamseg.inference.images import ImagePreparation
from seamseg.predicting import reader as reading
from seamseg.predicting import share
from seamseg.predicting.find import find_sources
from seamseg.predicting.reader import ProcessDecoders, ReadAheadBudget
from seamseg.predicting.share import DecoderShare, ThreadDecoders
from seamseg.predicting.source import Source
from seamseg.utils.errors import SeamsegError
from seamseg.utils.parallel import BackgroundWriter


def test_threads_of_huge_photos_hold_one_each(tmp_path, monkeypatch):
    monkeypatch.setattr(share, "READ_AHEAD_BYTES", 1)
    for name in "abcde":
        Image.new("RGB", (100, 100)).save(tmp_path / f"{name}.png")
    opened, received = [], []

    def open_(self):
        opened.append(self.name)
        return open_image(self.path)

    monkeypatch.setattr(Source, "open", open_)
    work = DecoderShare(find_sources(tmp_path), ImagePreparation(InputSize(), keep_rgb=True), {})
    for source, _, _ in ThreadDecoders(work, 2).read(()):
        received.append(source.name)
        time.sleep(0.2)
        assert len(opened) - len(received) <= 2
    assert sorted(received) == list("abcde")


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


def test_the_decoder_of_a_large_image_waits_until_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "ALONE_BYTES", 100)
    for name in "abcdef":
        Image.new("RGB", (20, 20)).save(tmp_path / f"{name}.png")
    share = DecoderShare(find_sources(tmp_path), ImagePreparation(InputSize(), keep_rgb=True), {})
    decoders = ProcessDecoders(share, 2)
    unwritten, late = [], []

    def write():
        time.sleep(0.3)
        late.extend(unwritten)
        for source in late[-len(unwritten) :]:
            decoders.written(source)
        unwritten.clear()

    names, writer = [], None
    for source, _, _ in decoders.read(()):
        names.append(source.name)
        unwritten.append(source)
        assert len(unwritten) <= 2
        if len(unwritten) == 2:
            writer = threading.Thread(target=write)
            writer.start()
    assert sorted(names) == list("abcdef")
    writer.join()


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
