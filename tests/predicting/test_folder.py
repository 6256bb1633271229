"""The manifest of `predict`: after a kill at any byte its lines are correct; one run at a time in a folder."""

import errno
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seamseg.maps.predictions import MANIFEST
from seamseg.predicting import folder as folder_module
from seamseg.predicting.folder import LOCK_NAME, OutputFolder, differences, read_lines
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import lock_file


def header(model, digest, settings):
    return {"seamseg_predictions": 1, "model": model, "sha256": digest, "settings": settings}


HEAD = header("model.zip", "ab12", {"format": "coco"})


def line(number):
    name = f"é{number:02}\n"
    here = {"stamp": "7", "outputs": [f"{number}.png"], "records": [{"id": number}]}
    return {"name": name, "relative": f"{name}.jpg", "status": "ok", **here}


def outputs(out, count):
    for number in range(count):
        (out / f"{number}.png").write_bytes(b"x")


def write(folder, lines, processes=1):
    folders = [OutputFolder(folder.out, [], HEAD) for _ in range(processes)]
    for number, one in enumerate(lines):
        folders[number % processes].add(one)


def listed(folder):
    return [one for _, one in read_lines(folder.out / MANIFEST)]


@settings(max_examples=60)
@given(st.data())
def test_after_any_kills_every_photo_has_one_line(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("out")
    count = data.draw(st.integers(1, 8))
    outputs(out, count)
    folder = OutputFolder(out, [], HEAD)
    everything = [line(n) for n in range(count)]
    for _ in range(data.draw(st.integers(0, 4))):
        before = folder.begin([])
        first = (folder.out / MANIFEST).stat().st_size
        write(folder, [one for one in everything if one["name"] not in before], data.draw(st.integers(1, 3)))
        content = (folder.out / MANIFEST).read_bytes()
        (folder.out / MANIFEST).write_bytes(content[: data.draw(st.integers(first, len(content)))])
        assert before.items() <= folder.begin([]).items()
    done = folder.begin([])
    write(folder, [one for one in everything if one["name"] not in done])
    folder.finish()
    assert listed(folder) == everything
    assert (folder.out / MANIFEST).read_bytes().count(b"\n") == 1 + count


def test_another_model_or_other_settings_are_refused(tmp_path):
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    write(folder, [line(0)])
    for other, message in (
        (header("model.zip", "ab12", {"format": "raw"}), r"format coco \(now raw\)"),
        (header("model.zip", "ab12", {"format": "coco", "tta": True}), r"tta None \(now True\)"),
        (header("model.zip", "cd34", {"format": "coco"}), r"the model model\.zip before it changed"),
        (header("other.zip", "cd34", {"format": "coco"}), r"the model model\.zip \(now other\.zip\)"),
    ):
        with pytest.raises(InputError, match=message + ".*start over with `restart=True`"):
            OutputFolder(tmp_path, [], other).begin([])
        assert (tmp_path / MANIFEST).exists()
    labels = header("model.zip", "ab12", {"format": "coco", "set": ["format overlay.labels=yes", "a.b=1"]})
    assert differences(HEAD, labels) == ["set None (now --labels a.b=1)"]
    # the same file under another name is the same model
    assert not differences(HEAD, header("copy.zip", "ab12", {"format": "coco"}))
    other = OutputFolder(tmp_path, [], header("other.zip", "cd34", {}))
    assert other.begin([], restart=True) == {}
    assert listed(other) == []
    # an unknown one is not changed
    (tmp_path / MANIFEST).write_text("my own notes\n")
    with pytest.raises(InputError, match=r"damaged, or not a manifest .*`restart=True` replaces it"):
        OutputFolder(tmp_path, [], HEAD).begin([])
    assert (tmp_path / MANIFEST).read_text() == "my own notes\n"


def test_a_full_disk_is_one_clear_error_and_costs_one_image(tmp_path, monkeypatch):
    outputs(tmp_path, 3)
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    folder.add(line(0))

    class Full(io.FileIO):
        def write(self, data):
            if not data.startswith(b"{"):  # the second attempt
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:5])

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "open", lambda path, *rest, **more: Full(path, "ab"), raising=False)
        with pytest.raises(SeamsegError, match=r"predictions\.jsonl: cannot be written: No space left"):
            folder.add(line(1))
    assert list(folder.names) == [line(0)["name"]]
    assert list(folder.begin([])) == [line(0)["name"]]
    write(folder, [line(1), line(2)])
    folder.finish()
    assert [one["name"] for one in listed(folder)] == [line(number)["name"] for number in range(3)]


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, seamseg_main, refused):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    (tmp_path / "out").mkdir()
    with lock_file(tmp_path / "out" / LOCK_NAME, "locked"):
        assert "another `seamseg predict` is writing to this folder: wait until it ends" in refused(*words)
    assert seamseg_main(*words) == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
