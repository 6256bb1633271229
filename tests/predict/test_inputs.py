"""Inputs of `predict` other than folders of images: lists, shards, videos, URLs; and errors in them."""

import gzip
import io
import itertools
import os
import struct
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from seamseg.predict.sources.find import find_sources
from seamseg.predict.sources.shards import Shard
from seamseg.predict.sources.video import Video
from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.urls import expand_numbers, relative_names

fsspec = pytest.importorskip("fsspec")


def png(value=90, size=(48, 32)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, 150, 220)).save(buffer, "PNG")
    return buffer.getvalue()


def make_shard(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def names(sources):
    return [s.name for s in sources]


@pytest.fixture
def photos(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    return tmp_path / "photos"


@pytest.fixture
def bucket():
    """A folder at memory://, emptied afterwards."""
    system = fsspec.filesystem("memory")
    for name in ("city/a.png", "city/sub/b.png", "city/.hidden/c.png", "city/readme.txt"):
        system.pipe(f"/bucket/{name}", png())
    yield "memory://bucket"
    system.store.clear()


def test_a_list_keeps_its_order_and_relative_folders(photos, tmp_path, monkeypatch):
    text = "photos/b/1.png\n\nphotos/a/2.png\nphotos/a/2.png\n  photos/none.png  \n"
    (tmp_path / "list.txt").write_text(text)
    expected = ["b/1", "a/2", "none"]
    assert names(find_sources(tmp_path / "list.txt")) == expected
    assert names(find_sources(f"@{tmp_path / 'list.txt'}")) == expected
    for changed in (
        text.encode("utf-16"),
        text.encode("utf-16-be"),
        text.replace("/", "\\").encode("utf-8-sig"),
        "\r\n".join(f'"{line.strip()}"' for line in text.splitlines()).encode(),
    ):
        (tmp_path / "list.txt").write_bytes(changed)
        found = find_sources(tmp_path / "list.txt")
        assert [s.path.is_file() for s in found] == [True, True, False]
        assert names(found) == expected
    # relative to the working folder if the file does not exist beside the list
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "frames").write_text(f"photos/a/1.png\n{photos / 'b' / '1.png'}\n")
    monkeypatch.chdir(tmp_path)
    assert names(find_sources("@lists/frames")) == ["a/1", "b/1"]
    assert find_sources("@lists/frames")[0].path == Path("photos/a/1.png")


def test_names_in_a_list_that_no_file_can_have(tmp_path):
    for name, reason in (("nul\0.png", "has a NUL character"), ("n" * 5000 + ".png", "is longer than")):
        (tmp_path / "list.txt").write_text(name)
        with pytest.raises(UnreadableImage, match=f"its name {reason}"):
            find_sources(tmp_path / "list.txt")[0].open()


def test_lists_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x80\x00")
    for inputs, message in (
        (tmp_path / "empty.txt", "this list names 0 images"),
        (tmp_path / "binary.txt", "cannot be read as a list"),
        (f"@{tmp_path / 'none'}", "no such list"),
    ):
        with pytest.raises(InputError, match=message):
            find_sources(inputs)


def test_numbers_are_expanded():
    assert expand_numbers("a{08..11}.tar") == ["a08.tar", "a09.tar", "a10.tar", "a11.tar"]
    assert expand_numbers("{0..1}/{0..1}") == ["0/0", "0/1", "1/0", "1/1"]
    for text in ("a{b..c}", "a{}", "a{1,2}", "plain"):
        assert expand_numbers(text) == [text]


def test_a_shard_gives_every_photo_of_each_key(tmp_path):
    members = [("1.left.png", png()), ("1.json", b"{}"), ("1.cls", b"3"), ("s/2.png", png()), ("s/2.jpg", png())]
    members += [("s/._2.png", b"what a Mac keeps beside it")]
    shard = find_sources(make_shard(tmp_path / "part.tar", members))[0]
    items = list(shard.items())
    assert names(i.source for i in items) == ["part/1.left", "part/s/2", "part/s/2.jpg"]
    assert all(i.open().size == (48, 32) for i in items)
    assert [i.source.name for i in shard.items()] == [i.source.name for i in items]


def test_names_in_a_malicious_shard_stay_inside_the_output_folder(tmp_path):
    shard = make_shard(tmp_path / "x.tar", [("../../etc/a.png", png()), ("/b.png", png()), ("a/../c.png", png())])
    assert names(i.source for i in Shard(str(shard), "x", "x.tar").items()) == ["x/etc/a", "x/b", "x/a/c"]


@pytest.mark.parametrize("keep", [0, 700, 1100])
def test_a_truncated_shard_yields_complete_photos_and_an_error(tmp_path, keep):
    path = make_shard(tmp_path / "part.tar", [(f"{k}.png", png(k)) for k in range(4)])
    path.write_bytes(path.read_bytes()[:keep])
    items = list(Shard(str(path), "part", "part.tar").items())
    for item in items[:-1]:
        item.open()
    with pytest.raises(UnreadableImage, match=rf"part\.tar: broken tar after {len(items) - 1} images"):
        items[-1].open()


def test_a_shard_with_too_many_headers_of_one_file(tmp_path):
    longer = tarfile.TarInfo("././@LongLink")
    longer.type, longer.size = tarfile.GNUTYPE_LONGNAME, 5
    (tmp_path / "deep.tar").write_bytes((longer.tobuf() + b"name".ljust(512, b"\0")) * 2000)
    (item,) = Shard(str(tmp_path / "deep.tar"), "deep", "deep.tar").items()
    with pytest.raises(UnreadableImage, match="too many extended headers of one file"):
        item.open()


def test_a_compressed_shard_that_is_damaged_truncated_or_padded(tmp_path):
    """What can be inflated is read; its checksum is at the end, bytes after it are ignored."""
    path = tmp_path / "part.tar.gz"
    data = gzip.compress(make_shard(tmp_path / "p.tar", [(f"{k}.png", png(k)) for k in range(50)]).read_bytes())
    for content in (data[:-4] + bytes(4), data[: len(data) * 3 // 4]):
        path.write_bytes(content)
        *whole, last = Shard(str(path), "part", "part.tar.gz").items()
        assert len(whole) > 10
        with pytest.raises(UnreadableImage, match=r"part\.tar\.gz: (cannot be read|broken tar) after \d+ images: "):
            last.open()
    path.write_bytes(data + b"garbage")
    assert len([item.open() for item in Shard(str(path), "part", "part.tar.gz").items()]) == 50


def test_missing_shards(tmp_path):
    for number in (0, 2):
        make_shard(tmp_path / f"p{number}.tar", [("a.png", png())])
    with pytest.raises(InputError, match=r"p1\.tar: no such file"):
        find_sources(f"{tmp_path}/p{{0..2}}.tar")
    assert names(find_sources(f"{tmp_path}/p*.tar")) == ["p0", "p2"]
    with pytest.raises(UnreadableImage, match="cannot be read after 0 images: no such file"):
        next(Shard(str(tmp_path / "none.tar"), "n", "n").items()).open()


def test_without_a_decoder_the_message_names_it(tmp_path, monkeypatch):
    (tmp_path / "drive.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"drive\.mp4: needs PyAV \(.*\): pip install 'seamseg\[video\]'"):
        find_sources(tmp_path / "drive.mp4")
    monkeypatch.delitem(sys.modules, "av")
    (tmp_path / "av.py").write_text("raise ImportError('libavformat.so.61: no')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"PyAV, which is installed but cannot be loaded: libavformat\.so\.61"):
        find_sources(tmp_path / "drive.mp4")
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(__version__="16.1.0"))
    with pytest.raises(InputError, match=r"need PyAV 17 or later, this is 16\.1\.0"):
        find_sources(tmp_path / "drive.mp4")


@pytest.fixture
def video(tmp_path):
    """Ten frames of increasing brightness in MPEG-4, which every build of PyAV supports."""
    av = pytest.importorskip("av")
    write_video(av, tmp_path / "drive.mp4")
    return tmp_path / "drive.mp4"


def write_video(av, path, codec="mpeg4"):
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * k + 20, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_frames_of_a_video(video):
    (source,) = find_sources(video)
    frames = [(i.source.name, np.asarray(i.open())) for i in source.items()]
    assert [name for name, _ in frames] == [f"drive/frame_{k:06}" for k in range(10)]
    for k, (_, pixels) in enumerate(frames):
        assert pixels.shape == (48, 64, 3)
        assert abs(pixels.mean() - 20 * k - 20) < 4


def test_the_colours_of_a_video_are_of_its_own_matrix(tmp_path):
    """Red of BT.709, at full range: as BT.601 it would be 20 off."""
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "red.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = 1, 2
        planes = np.broadcast_to(np.array([66, 109, 213], np.uint8)[:, None, None], (3, 32, 32))
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(planes), format="yuv444p")
        frame.colorspace, frame.color_range = 1, 2
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    (item,) = Video(str(tmp_path / "red.mkv"), "red", "red.mkv").items()
    assert np.abs(np.asarray(item.open())[16, 16] - np.array([200.0, 30, 30])).max() <= 2


def test_rotated_and_mirrored_videos(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        pixels = np.zeros((48, 64, 3), np.uint8)
        pixels[:24, :32] = 200
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    data = path.read_bytes()
    at = data.index(b"tkhd") + 44
    for one, other in itertools.product((1, -1), repeat=2):
        for a, b, c, d in ((one, 0, 0, other), (0, one, other, 0)):
            numbers = (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
            path.write_bytes(data[:at] + struct.pack(">9i", *numbers) + data[at + 36 :])
            (item,) = Video(str(path), "turned", path.name).items()
            found = np.asarray(item.open())[..., 0]
            assert found.shape == ((48, 64) if a else (64, 48))
            x, y = -a - c, -b - d  # of the bright quarter, from the middle
            height, width = found.shape
            assert found[height // 2 + y * height // 4, width // 2 + x * width // 4] > 150


def test_files_that_are_no_video(video):
    """FFmpeg would open the files that a list names, and wait for a writer of a pipe."""
    data = video.read_bytes()
    video.with_name("half.mp4").write_bytes(data[: len(data) * 5 // 8])
    video.with_name("text.mp4").write_text("no video at all")
    video.with_name("list.mp4").write_text("ffconcat version 1.0\nfile drive.mp4\n")
    os.mkfifo(video.with_name("pipe.mp4"))
    reasons = dict.fromkeys(("text", "list", "none"), "cannot be read as a video")
    reasons |= {"half": "cannot be read as a video: the description of its frames", "pipe": "is not a file"}
    for name, reason in reasons.items():
        (item,) = Video(str(video.with_name(f"{name}.mp4")), name, f"{name}.mp4").items()
        with pytest.raises(UnreadableImage, match=rf"{name}\.mp4 \(frame 0\): {reason}"):
            item.open()


@pytest.mark.parametrize("ending", [".mkv", ".avi", ".mov", ".mpg", ".flv", ".m2ts", ".wmv"])
def test_containers_and_their_titles(tmp_path, ending):
    """Each documented kind is read; a title of another encoding than UTF-8, which nobody needs, is no error."""
    av = pytest.importorskip("av")
    path = tmp_path / f"other{ending}"
    codec = {".mpg": "mpeg2video", ".m2ts": "mpeg2video", ".flv": "flv"}.get(ending, "mpeg4")
    write_video(av, path, codec)
    path.write_bytes(path.read_bytes().replace(b"TITLE", b"\xff\xe9\xe8\xff\xff"))
    assert sum(item.open().size == (64, 48) for item in Video(str(path), "other", path.name).items()) == 10


def test_urls_of_a_folder_a_file_and_a_glob(bucket):
    assert names(find_sources(f"{bucket}/city")) == ["a", "sub/b"]
    assert names(find_sources(f"{bucket}/city/sub/b.png")) == ["b"]
    assert "sub/b" in names(find_sources(f"{bucket}/city/**/*.png"))
    assert names(find_sources(f"{bucket}/city/a.*")) == ["a"]
    assert find_sources(f"{bucket}/city")[0].open().size == (48, 32)
    urls = ["https://h.org/x/a.jpg?size=2#top", "s3://b/x/../c.png"]
    assert relative_names(urls, "") == ["h.org/x/a.jpg", "b/x/c.png"]


def test_shards_at_urls_are_read_as_a_stream(bucket, tmp_path):
    shard = make_shard(tmp_path / "x.tar", [("a.png", png()), ("b.png", png())])
    for number in range(3):
        fsspec.filesystem("memory").pipe(f"/bucket/s/x{number}.tar", shard.read_bytes())
    sources = find_sources(f"{bucket}/s/x{{0..2}}.tar")
    assert names(i.source for s in sources for i in s.items()) == [f"x{n}/{k}" for n in range(3) for k in "ab"]
    missing = find_sources(f"{bucket}/s/x{{2..3}}.tar")[1]
    with pytest.raises(UnreadableImage, match=r"x3\.tar: cannot be read: no such file"):
        next(missing.items()).open()


def test_urls_that_cannot_be_read(bucket, monkeypatch):
    for url, message in (
        ("nonsense://x/a.png", "this kind of URL is not opened; supported are s3, gs"),
        (f"{bucket}/nothing", "0 images found in this folder|cannot be listed"),
        (f"{bucket}/*.png", "0 images match"),
    ):
        with pytest.raises(InputError, match=message):
            find_sources(url)
    gone = find_sources(f"{bucket}/city")[0]
    fsspec.filesystem("memory").rm("/bucket/city/a.png")
    with pytest.raises(UnreadableImage, match=r"a\.png: cannot be read: no such file"):
        gone.open()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"city: needs fsspec \(.*\): pip install 'seamseg\[urls\]'"):
        find_sources(f"{bucket}/city")


@pytest.mark.usefixtures("narrow")
def test_a_format_without_folders_refuses_several_shards(micro_run, tmp_path, seamseg_main, capsys):
    for number in range(2):
        make_shard(tmp_path / f"p{number}.tar", [("a.png", png())])
    words = ("predict", micro_run, f"{tmp_path}/p*.tar", tmp_path / "out", "--device", "cpu")
    assert seamseg_main(*words, "--format", "vistas") == 2
    assert "has no sub-folders; predict each into an output folder of its own" in capsys.readouterr().err
    assert seamseg_main(*words, "--format", "coco", "--quiet") == 0
