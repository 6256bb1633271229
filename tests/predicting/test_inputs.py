"""Inputs of `predict` other than folders of images: lists and videos; and errors in them."""

import io
import itertools
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from seamseg.inference.images import as_image
from seamseg.predicting import source
from seamseg.predicting.source import Source, Video, find_sources
from seamseg.utils.errors import InputError, UnreadableImage


def png(value=90, size=(48, 32)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, 150, 220)).save(buffer, "PNG")
    return buffer.getvalue()


def names(sources):
    return [s.name for s in sources]


@pytest.fixture
def photos(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    return tmp_path / "photos"


def test_a_list_keeps_its_order_and_relative_folders(photos, tmp_path, monkeypatch):
    text = "# the best\nphotos/b/1.png\n\nphotos/a/2.png\nphotos/a/2.png\n  photos/none.png  \n"
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


@pytest.mark.parametrize("line", ["https://h/a.png", "reference://a.png::file:///r"])
def test_urls_are_refused(photos, line):
    (photos / "list.txt").write_text(f"a/1.png\n{line}\n")
    refused = "a URL, where a local path is needed; `python -m seamseg.contrib.ray` predicts from and to"
    with pytest.raises(InputError, match=f"list.txt: {line}: {refused}"):
        find_sources(photos / "list.txt")
    with pytest.raises(InputError, match=f"^{line}: {refused}"):
        find_sources(line)
    with pytest.raises(InputError, match=f"^{line}: {refused}"):
        as_image(line)


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


def test_without_a_decoder_the_message_names_it(tmp_path, monkeypatch):
    (tmp_path / "drive.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"needs av, which is not installed; pip install .seamseg\[video\]"):
        find_sources(tmp_path / "drive.mp4")
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(__version__="16.1.0", __spec__=True))
    with pytest.raises(InputError, match=r"need PyAV 17 or later, this is 16\.1\.0"):
        find_sources(tmp_path / "drive.mp4")


@pytest.fixture
def video(tmp_path):
    """Ten frames of increasing brightness in MPEG-4, which every build of PyAV supports."""
    av = pytest.importorskip("av")
    write_video(av, tmp_path / "drive.mp4")
    return tmp_path / "drive.mp4"


def write_video(av, path, codec="mpeg4", pixels="yuv420p", options=None, skipped=0):
    with av.open(str(path), "w", options=options or {}) as container:
        container.metadata["title"] = "TITLE"
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixels
        packets = []
        for k in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * k + 20, np.uint8), format="rgb24")
            frame.pts = k
            packets += stream.encode(frame)
        for packet in packets + stream.encode():
            packet.pts, packet.dts = packet.pts - skipped, packet.dts - skipped
            container.mux(packet)


def test_frames_of_a_video(video):
    (source,) = find_sources(video)
    frames = [(i.name, np.asarray(i.open())) for i in source.items()]
    assert [name for name, _ in frames] == [f"drive/frame_{k:06}" for k in range(10)]
    for k, (_, pixels) in enumerate(frames):
        assert pixels.shape == (48, 64, 3)
        assert abs(pixels.mean() - 20 * k - 20) < 4


def test_a_damaged_frame_is_one_of_the_frames(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "drive.mkv"
    write_video(av, path, "mjpeg", "yuvj420p")
    with av.open(str(path)) as container:
        packet = [bytes(packet) for packet in container.demux() if packet.size][4]
    path.write_bytes(path.read_bytes().replace(packet, bytes(len(packet))))
    items = list(Video(str(path), "drive", "drive.mkv").items())
    assert [item.name[-1] for item in items] == list("0123456789")
    with pytest.raises(UnreadableImage, match=r"drive\.mkv \(frame 4\): cannot be decoded"):
        items[4].open()
    for k in (3, 5):
        assert abs(np.asarray(items[k].open()).mean() - 20 * k - 20) < 4


@pytest.mark.parametrize("name", ["drive.avi", "drive.mp4"])
def test_a_video_that_lacks_its_end(tmp_path, name):
    av = pytest.importorskip("av")
    path = tmp_path / name
    write_video(av, path, "mjpeg", "yuvj420p", {"movflags": "faststart"} if name.endswith("4") else {})
    with av.open(str(path)) as container:
        start = [packet.pos for packet in container.demux() if packet.size][6]
    path.write_bytes(path.read_bytes()[: start - 8])
    *frames, end = Video(str(path), "drive", name).items()
    assert [not frame.problem for frame in frames] == [True] * 6
    assert end.problem == "breaks off after 6 of 10 frames"


def test_an_edit_list_is_no_damage(tmp_path):
    """The first four frames are before the start, as in a video that was trimmed without encoding it again."""
    av = pytest.importorskip("av")
    path = tmp_path / "drive.mp4"
    write_video(av, path, skipped=4)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 10
    items = list(Video(str(path), "drive", "drive.mp4").items())
    assert [not item.problem for item in items] == [True] * 6


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


def test_a_video_of_large_frames(video, monkeypatch):
    monkeypatch.setenv("SEAMSEG_IMAGE_MEMORY", "0.0001")
    (item,) = Video(str(video), "drive", "drive.mp4").items()
    with pytest.raises(
        UnreadableImage, match=r"64 x 48 pixels are above the limit of 0\.0025 megapixels for a video; .*"
    ):
        item.open()


def test_files_that_are_no_video(video):
    data = video.read_bytes()
    video.with_name("half.mp4").write_bytes(data[: len(data) * 5 // 8])
    video.with_name("text.mp4").write_text("no video at all")
    video.with_name("list.mp4").write_text("ffconcat version 1.0\nfile drive.mp4\n")
    reasons = dict.fromkeys(("text", "list", "none"), "cannot be read as a video")
    reasons["half"] = "cannot be read as a video: the description of its frames"
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


def test_frames_of_another_size_are_scaled_to_the_first(tmp_path, video):
    for number, size in enumerate([(64, 48), (32, 24)]):
        Image.new("RGB", size, (200, 30, 30)).save(tmp_path / f"frame_{number:06}.jpg")
    source.write_video(tmp_path / "out.mp4", sorted(tmp_path.glob("*.jpg")), str(video))
    frames = [np.asarray(item.open()) for item in Video(str(tmp_path / "out.mp4"), "out", "out.mp4").items()]
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 2
    assert all(np.abs(frame - np.array([200.0, 30, 30])).max() < 12 for frame in frames)


# --- Which images are found, and the names of their outputs


@pytest.fixture
def tree(tmp_path):
    for name in ("b.JPG", "a.png", "a.jpg", "notes.txt", ".hidden.png", "sub/a.png", "sub/deep/c.tiff", ".git/x.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "photos"


def test_a_folder_with_its_sub_folders(tree, capsys):
    (tree / "sub" / "b.MP4").touch()
    sources = find_sources(tree)
    assert capsys.readouterr().err == f"{tree}: 1 video skipped; use a glob for videos, such as '*.mp4'\n"
    assert names(sources) == ["a.jpg", "a.png", "b", "sub/a", "sub/deep/c"]
    assert [s.relative for s in sources] == ["a.jpg", "a.png", "b.JPG", "sub/a.png", "sub/deep/c.tiff"]
    assert all(s.path == tree / s.relative for s in sources)
    # a named file is used whatever its name
    (tree / "a[1].dat").touch()
    assert find_sources(tree / "a[1].dat") == [Source(tree / "a[1].dat", "a[1]", "a[1].dat", str(tree / "a[1].dat"))]


def test_names_are_unique(tmp_path):
    for name in ("a.jpg", "a.png", "a.jpg.png", "b.png"):
        (tmp_path / name).touch()
    assert names(find_sources(tmp_path)) == ["a.jpg", "a.jpg.png", "a.png", "b"]


def test_a_glob_keeps_the_folders_below_its_fixed_part(tree):
    assert names(find_sources(f"{tree}/**/*.png")) == ["a", "sub/a"]
    assert names(find_sources(f"{tree}/su?/*.png")) == ["sub/a"]
    assert names(find_sources(f"{tree}/*.JPG")) == ["b"]


def test_outputs_inside_the_folder_are_not_inputs(tree, capsys):
    (tree / "out").mkdir()
    (tree / "out" / "old.jpg").touch()
    assert "out/old" not in names(find_sources(tree, tree / "out"))
    assert "out/old" in names(find_sources(tree))
    # those above the images hide none of them
    assert names(find_sources(tree, tree.parent)) == names(find_sources(tree))
    assert names(find_sources(f"{tree}/**/*.png", tree.parent)) == ["a", "sub/a"]
    assert names(find_sources(f"{tree}/*.JPG", tree)) == ["b"]
    for made in ("old/predictions.jsonl", "sub/data/metadata.bin"):
        (tree / made).parent.mkdir()
        (tree / made).touch()
        (tree / made).with_name("x.png").touch()
    for inputs, left in ((tree, 6), (f"{tree}/**/*.png", 2)):
        assert len(find_sources(inputs, tree / "new")) == left
        lines = capsys.readouterr().err.splitlines()
        assert sorted(line.partition(": left out")[0] for line in lines) == [str(tree / "old"), str(tree / "sub/data")]
    assert names(find_sources(tree / "old")) == ["x"]
    assert names(find_sources(f"{tree}/*/data/*.png")) == ["sub/data/x"]
    with pytest.raises(InputError, match="would mix; choose another output folder"):
        find_sources(tree, tree / "sub" / "..")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("{}/empty", "0 images found in this folder; looked for .jpg"),
        ("{}/missing", "no such image, video, folder or list"),
        ("{}/*.png", "0 images match"),
        ("{}/data", "a dataset folder, whose masks are images, too; name .*/data/img"),
        ("", "IN is empty, is a variable not set"),
        (["", "a.jpg"], "IN is empty"),
        ([], "`inputs` is empty: name images, videos"),
    ],
)
def test_missing_inputs(tmp_path, inputs, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data" / "msk").mkdir(parents=True)
    (tmp_path / "data" / "metadata.bin").touch()
    with pytest.raises(InputError, match=message):
        find_sources(inputs.format(tmp_path) if isinstance(inputs, str) else inputs)


def test_several_inputs(tree):
    both = names(find_sources([tree / "b.JPG", tree / "sub", tree / "b.JPG", str(tree / "sub" / ".." / "b.JPG")]))
    assert sorted(both) == sorted(["b", *(f"sub/{name}" for name in names(find_sources(tree / "sub")))])
    assert names(find_sources([tree])) == names(find_sources(tree))
