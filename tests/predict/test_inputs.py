"""Inputs of `predict` other than folders of photos: lists, shards, videos, URLs; and errors in them."""

import builtins
import gzip
import io
import json
import os
import tarfile
import time
import zlib
from pathlib import Path

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
    # relative to the working folder if the file does not exist beside the list
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "frames").write_text(f"photos/a/1.png\n{photos / 'b' / '1.png'}\n")
    monkeypatch.chdir(tmp_path)
    assert names(find_sources("@lists/frames")) == ["a/1", "b/1"]
    assert find_sources("@lists/frames")[0].path == Path("photos/a/1.png")


def test_lists_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")
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


def test_photos_of_equal_names_in_a_shard():
    shard, seen = Shard("x.tar", "x", "x.tar"), {}
    before = time.process_time()
    found = [shard._source(name, seen).name for name in ("a.png", "A.png", "a.png.2.png", *["a.png"] * 20_000)]
    assert found[:6] == ["x/a", "x/A.png", "x/a.png.2", "x/a.png.3", "x/a.png.4", "x/a.png.5"]
    assert len(set(found)) == len(found)
    assert time.process_time() - before < 30  # minutes, if each tried all numbers


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


@pytest.mark.parametrize("keep", [0, 100, 700, 1100, 4096])
def test_a_truncated_shard_yields_complete_photos_and_an_error(tmp_path, keep):
    path = make_shard(tmp_path / "part.tar", [(f"{k}.png", png(k)) for k in range(4)])
    path.write_bytes(path.read_bytes()[:keep])
    items = list(Shard(str(path), "part", "part.tar").items())
    for item in items[:-1]:
        item.open()
    with pytest.raises(UnreadableImage, match=rf"part\.tar: broken tar after {len(items) - 1} images"):
        items[-1].open()


@pytest.mark.parametrize(("name", "ending"), [("b.png", ".tar"), ("b.txt", ".tar.gz")])
def test_a_member_of_a_shard_that_states_any_size(tmp_path, name, ending):
    """`tarfile` would read as often as it takes to skip it."""
    whole = make_shard(tmp_path / "whole.tar", [("a.png", png())]).read_bytes()
    header = tarfile.TarInfo(name)
    header.size = 1 << 80
    data = whole[: 512 + -(-len(png()) // 512) * 512] + header.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / f"part{ending}"
    path.write_bytes(gzip.compress(data) if ending == ".tar.gz" else data)
    *photos, last = Shard(str(path), "part", "part.tar").items()
    assert names(photo.source for photo in photos)[:1] == ["part/a"]
    with pytest.raises(UnreadableImage, match=r"broken tar after . images: EOFError: it ends in the middle of a file"):
        last.open()


@pytest.mark.parametrize("at", [-8, -4, 40])
def test_a_compressed_shard_that_is_damaged(tmp_path, at):
    """Its checksum is at the end; its content may be stored, so that a changed byte is no error of the compression."""
    photos = [(f"{k}.png", png(k)) for k in range(2)]
    data = bytearray(gzip.compress(make_shard(tmp_path / "p.tar", photos).read_bytes(), 0))
    data[at] ^= 1
    (tmp_path / "part.tar.gz").write_bytes(data)
    *_, last = Shard(str(tmp_path / "part.tar.gz"), "part", "part.tar.gz").items()
    with pytest.raises(UnreadableImage, match=r"part\.tar\.gz: (cannot be read|broken tar) after \d images: "):
        last.open()


def test_a_truncated_compressed_shard_gives_all_that_is_inflated(tmp_path):
    photos = [(f"{k}.png", png(k)) for k in range(50)]
    data = gzip.compress(make_shard(tmp_path / "p.tar", photos).read_bytes())
    (tmp_path / "part.tar.gz").write_bytes(data[: len(data) * 3 // 4])
    inflated = zlib.decompressobj(31).decompress(data[: len(data) * 3 // 4])
    *whole, last = Shard(str(tmp_path / "part.tar.gz"), "part", "part.tar.gz").items()
    (tmp_path / "plain.tar").write_bytes(inflated)
    assert len(whole) == len(list(Shard(str(tmp_path / "plain.tar"), "plain", "plain.tar").items())) - 1 > 10
    with pytest.raises(UnreadableImage):
        last.open()
    # bytes after it are ignored
    (tmp_path / "part.tar.gz").write_bytes(data + b"garbage")
    assert len([item.open() for item in Shard(str(tmp_path / "part.tar.gz"), "part", "part.tar.gz").items()]) == 50


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
    load = builtins.__import__

    problems = {
        r"drive\.mp4: needs PyAV \(.*\): pip install 'seamseg\[video\]'": ModuleNotFoundError("av"),
        r"PyAV, which is installed but cannot be loaded: libavformat\.so\.61": ImportError("libavformat.so.61: no"),
    }

    def failing(name, *more):
        if name == "av":
            raise problems[message]
        return load(name, *more)

    monkeypatch.setattr(builtins, "__import__", failing)
    for message in problems:
        with pytest.raises(InputError, match=message):
            find_sources(tmp_path / "drive.mp4")


@pytest.fixture
def video(tmp_path):
    """Ten frames of increasing brightness in MPEG-4, which every build of PyAV supports."""
    av = pytest.importorskip("av")
    write_video(av, tmp_path / "drive.mp4")
    return tmp_path / "drive.mp4"


def write_video(av, path, codec="mpeg4", rate=10, title="drive"):
    with av.open(str(path), "w") as container:
        container.metadata["title"] = title
        stream = container.add_stream(codec, rate=rate)
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


def test_files_that_are_no_video(video):
    """FFmpeg would open the files that a list names, and wait for a writer of a pipe."""
    video.with_name("text.mp4").write_text("no video at all")
    video.with_name("list.mp4").write_text("ffconcat version 1.0\nfile drive.mp4\n")
    os.mkfifo(video.with_name("pipe.mp4"))
    no_video = "cannot be read as a video"
    for name, reason in (("text", no_video), ("list", no_video), ("pipe", "is not a file")):
        (item,) = Video(str(video.with_name(f"{name}.mp4")), name, f"{name}.mp4").items()
        with pytest.raises(UnreadableImage, match=rf"{name}\.mp4 \(frame 0\): {reason}"):
            item.open()


@pytest.mark.parametrize("ending", [".mkv", ".avi", ".mov", ".mpg", ".flv", ".m2ts", ".wmv"])
def test_containers_and_their_titles(tmp_path, ending):
    """Each documented kind is read; a title of another encoding than UTF-8, which nobody needs, is no error."""
    av = pytest.importorskip("av")
    path = tmp_path / f"other{ending}"
    codec = {".mpg": "mpeg2video", ".m2ts": "mpeg2video", ".flv": "flv"}.get(ending, "mpeg4")
    write_video(av, path, codec, 25, "TITLE")
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
        ("nonsense://x/a.png", "fsspec cannot read this URL: Protocol not known"),
        (f"{bucket}/nothing", "0 images found in this folder|cannot be listed"),
        (f"{bucket}/*.png", "0 images match"),
    ):
        with pytest.raises(InputError, match=message):
            find_sources(url)
    gone = find_sources(f"{bucket}/city")[0]
    fsspec.filesystem("memory").rm("/bucket/city/a.png")
    with pytest.raises(UnreadableImage, match=r"a\.png: cannot be read: no such file"):
        gone.open()
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(InputError, match=r"city: needs fsspec \(.*\): pip install 'seamseg\[urls\]'"):
        find_sources(f"{bucket}/city")


@pytest.mark.usefixtures("narrow")
def test_all_kinds_of_inputs_through_the_command(micro_run, photos, tmp_path, bucket, seamseg_main, capsys):
    shard = make_shard(tmp_path / "part.tar", [("k1.png", png()), ("k1.json", b"{}"), ("k2\nskipped x.png", b"broken")])
    entries = [photos / "a" / "1.png", photos / "none.png", shard, f"{bucket}/city/a.png"]
    (tmp_path / "list.txt").write_text("\n".join(map(str, entries)))
    words = ("predict", micro_run, tmp_path / "list.txt", tmp_path / "out", "--format", "coco", "--device", "cpu")
    assert seamseg_main(*words, "--workers", "2", "--quiet") == 1
    errors = capsys.readouterr().err
    assert "none.png: no such image" in errors
    assert "part.tar:k2 skipped x.png: " in errors  # in one line
    content = json.loads((tmp_path / "out" / "panoptic.json").read_text())
    ends = sorted(i["id"].split("/")[-1] for i in content["images"])
    assert ends == ["1", "a", "k1"]
    lines = [json.loads(x) for x in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[1:]]
    assert sorted(x["status"] for x in lines) == ["ok", "ok", "ok", "unreadable", "unreadable"]


@pytest.mark.usefixtures("narrow")
def test_a_format_without_folders_refuses_several_shards(micro_run, tmp_path, seamseg_main, capsys):
    for number in range(2):
        make_shard(tmp_path / f"p{number}.tar", [("a.png", png())])
    words = ("predict", micro_run, f"{tmp_path}/p*.tar", tmp_path / "out", "--device", "cpu")
    assert seamseg_main(*words, "--format", "vistas") == 2
    assert "has no sub-folders; predict each into an output folder of its own" in capsys.readouterr().err
    assert seamseg_main(*words, "--format", "coco", "--quiet") == 0
