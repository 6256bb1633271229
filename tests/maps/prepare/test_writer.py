"""The folder writer: atomic and resumable."""

import errno
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.source_files import classes

from seamseg.maps.formats.metadata import Metadata, read_metadata
from seamseg.maps.prepare.convert import ConversionOptions, convert_splits
from seamseg.maps.prepare.pairs import Instances
from seamseg.maps.prepare.writer import DatasetWriter, SourceFrame
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import cannot_write


def read(frame, crowd=0):
    """Count calls in a file beside the annotation; fail or kill the process on the texts "invalid" and "kill"."""
    text = frame.annotation.read_text()
    with frame.annotation.with_suffix(".calls").open("a") as calls:
        calls.write("x")
    if text == "invalid":
        raise InputError(f"{frame.annotation}: invalid")
    if text == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ids = np.zeros((6, 8), np.uint16)
    ids[2:4, 2:4], ids[5] = 1, 2
    return Instances(ids, [255, 2, 0], [0, crowd, 0])


def make_frames(root, count):
    root.mkdir(exist_ok=True)
    frames = []
    for k in range(count):
        photo, annotation = root / f"{k}.PNG", root / f"{k}.txt"
        Image.new("RGB", (8, 6), (k, 0, 0)).save(photo)
        annotation.write_text("fine")
        frames.append(SourceFrame(f"im{k}", photo, annotation, photo.name))
    return frames


def calls(frames):
    paths = [f.annotation.with_suffix(".calls") for f in frames]
    return [len(p.read_text()) if p.exists() else 0 for p in paths]


def run(out, frames, workers=1, **options):
    writer = DatasetWriter(out, classes(), workers, **options)
    writer.add_split("train", frames, read)
    return writer.finish()


@pytest.mark.parametrize("workers", [1, 2])
def test_images_that_fail_are_lines(tmp_path, workers, capsys):
    out, frames = tmp_path / "out", make_frames(tmp_path / "src", 30)
    frames[5].annotation.write_text("invalid")
    with pytest.raises(InputError, match=r"5\.txt: invalid"):
        run(out, frames, workers)
    assert not capsys.readouterr().err
    assert len(read_metadata(out / "metadata.bin").images) == 29
    assert (out / "lst" / "train.txt").read_text().splitlines() == [f.id for f in frames if f is not frames[5]]
    frames[8].annotation.write_text("invalid")
    with pytest.raises(InputError, match=r"^2 images fail, the first is .*5\.txt: invalid"):
        run(out, frames, workers)
    lines = capsys.readouterr().err.splitlines()
    assert [Path(line.partition(":")[0]).name for line in lines] == ["5.txt", "8.txt"]
    assert len((out / "lst" / "train.txt").read_text().splitlines()) == 28
    for frame in frames:
        frame.annotation.write_text("invalid")
    with pytest.raises(InputError, match=r"^20 images fail"):
        run(out, frames, workers)
    assert not (out / "lst" / "train.txt").exists()
    for frame in frames:
        frame.annotation.write_text("fine")
    assert len(run(out, frames, workers).images) == 30


def test_a_full_disk_ends_the_conversion(tmp_path, monkeypatch):
    frames = make_frames(tmp_path / "src", 4)
    error = cannot_write("a.png", OSError(errno.ENOSPC, "No space left on device"))
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("seamseg.maps.prepare.writer.store_image", mock.Mock(side_effect=error))
    with pytest.raises(SeamsegError, match=r"^a\.png: cannot be written: No space left on device$"):
        run(tmp_path / "out", frames)
    assert calls(frames) == [1, 0, 0, 0]


def test_what_is_converted_again(tmp_path):
    """What changed or was deleted, and what a truncated line of the journal stands for."""
    out, frames = tmp_path / "out", make_frames(tmp_path / "src", 6)
    frames[-1].annotation.write_text("invalid")
    DatasetWriter(out, classes(), 1).add_split("train", frames, read)  # killed before the end
    frames[1].annotation.write_text("changed")
    (out / "msk" / "im2.png").unlink()
    journal = out / ".prepare" / "train.jsonl"
    *lines, last, _ = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines, last[:-30]]))
    (out / "img" / ".im0.png.1.partial").write_bytes(b"half")
    DatasetWriter(out, classes(), 1).add_split("train", frames, read)
    assert calls(frames) == [1, 2, 2, 1, 2, 2]
    assert not list(out.rglob("*.partial"))


def test_killed_worker(tmp_path):
    out, frames = tmp_path / "out", make_frames(tmp_path / "src", 6)
    frames[4].annotation.write_text("kill")
    with pytest.raises(SeamsegError, match="worker processes was killed, probably for lack of memory"):
        run(out, frames, 2)
    frames[4].annotation.write_text("fine")
    assert len(run(out, frames, 2).images) == 6


def test_links_and_copies(tmp_path, monkeypatch):
    frames = make_frames(tmp_path / "src", 1)

    def is_link(out, link="hard"):
        run(out, frames, link=link)
        return os.path.samefile(out / "img" / "im0.png", frames[0].image)

    assert is_link(tmp_path / "a")
    assert is_link(tmp_path / "a")  # the target exists already
    assert not is_link(tmp_path / "b", "copy")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError("another disk")))
    assert not is_link(tmp_path / "c")


@pytest.mark.parametrize("name", ["a/../../x", "", " a", "a\udcff"])
def test_invalid_image_names(tmp_path, name):
    (frame,) = make_frames(tmp_path / "src", 1)
    with pytest.raises(InputError, match="is not a valid image name"):
        run(tmp_path / "out", [SourceFrame(name, frame.image, frame.annotation, "x")])
    assert not (tmp_path / "x.png").exists()


def test_folders_that_are_not_for_these_images(tmp_path):
    out, frames = tmp_path / "out", make_frames(tmp_path / "src", 2)
    with pytest.raises(InputError, match=r"two images of the source have the name 'im1': .*1\.PNG and .*1\.PNG"):
        run(out, [*frames, frames[1]])
    with pytest.raises(InputError, match="a file, not a folder"):
        run(frames[0].image, frames)
    run(out, frames)
    with pytest.raises(InputError, match="has a data set with other classes"):
        DatasetWriter(out, Metadata(1, 0, ["x"], [(0, 0, 0)], [0]))
    assert len(read_metadata(out / "metadata.bin").images) == 2


def test_a_changed_source_is_converted_again(tmp_path):
    out, frames, logged = tmp_path / "out", make_frames(tmp_path / "src", 3), []

    def convert(*, frames=frames, read=read, split="train"):
        logged.clear()
        options = ConversionOptions(1, log=logged.append).begin()
        return convert_splits(out, classes(), {split: frames}, read, options).metadata

    first = convert()
    assert logged == []
    assert convert() == first
    assert logged == ["train: 3 images, already prepared from the same files with the same options"]
    assert calls(frames) == [1, 1, 1]
    frames[1].annotation.write_text("other")
    (out / "msk" / "im1.png.1").write_bytes((out / "msk" / "im1.png").read_bytes())
    (out / "img" / "im1.jpg").write_bytes(b"old")
    before = (out / "coco" / "train.json").read_bytes()
    assert convert() == first
    assert "changed since the last conversion: 1 of 3 images converted again, 0 taken off the list" in logged[0]
    assert calls(frames) == [1, 2, 1]
    assert (out / "coco" / "train.json").read_bytes() == before
    assert {p.name for p in out.glob("*/im1*")} == {"im1.png"}
    convert(read=partial(read))
    assert calls(frames) == [1, 2, 1]
    convert(read=partial(read, crowd=1))
    assert calls(frames) == [2, 3, 2]
    assert "3 of 3 images" in logged[0]
    convert(frames=frames[:2], read=partial(read, crowd=1))
    assert "0 of 2 images converted again, 1 taken off the list" in logged[0]
    assert (out / "lst" / "train.txt").read_text() == "im0\nim1\n"
    frames[0].annotation.write_text("invalid")
    with pytest.raises(InputError, match="invalid"):
        convert()
    assert (out / "lst" / "train.txt").read_text() == "im1\nim2\n"  # without the old mask
    frames[0].annotation.write_text("fine")
    convert()
    assert (out / "lst" / "train.txt").read_text().split() == ["im0", "im1", "im2"]
    (out / ".prepare" / "train.jsonl").unlink()
    frames[0].annotation.write_text("unnoticed")
    mask = next((out / "msk").iterdir())
    mask.write_bytes(b"edited by hand")
    convert()
    assert "already prepared by a converter that keeps no record" in logged[0]
    assert mask.read_bytes() == b"edited by hand"
    (out / "lst" / "train.txt").unlink()
    convert()
    assert mask.read_bytes() != b"edited by hand"


def test_images_of_two_lists(tmp_path):
    out, frames, logged = tmp_path / "out", make_frames(tmp_path / "src", 2), []
    options = ConversionOptions(1, log=logged.append).begin()
    convert_splits(out, classes(), {"train": frames}, read, options)
    convert_splits(out, classes(), {"val": frames[1:]}, read, options)
    assert logged == ["val: 1 of its images are also in the list train"]
    moved = replace(frames[1], image=frames[1].image.rename(tmp_path / "src" / "moved.png"))
    convert_splits(out, classes(), {"more": [moved]}, read, options)
    other = replace(frames[0], image=moved.image)
    with pytest.raises(InputError, match=r"moved\.png: .*out has another image of the name 'im0', in the list train"):
        convert_splits(out, classes(), {"test": [other]}, read, options)
    assert not (out / "lst" / "test.txt").exists()
