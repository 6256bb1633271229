"""The manifest of `predict`: after a kill at any byte its lines are correct, and the rest is processed."""

import errno
import gc
import json
import os
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.micro import narrow_body

from seamseg.maps.predictions import MANIFEST
from seamseg.predicting import folder as folder_module
from seamseg.predicting.find import find_sources
from seamseg.predicting.folder import ManifestWriter, OutputFolder, differences, header
from seamseg.predicting.job import predict_all
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.settings import PredictSettings
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

HEAD = header("model.zip", "ab12", {"format": "coco"})


def line(number, status="ok", **more):
    name = f"é{number:02}\n"
    here = {"stamp": "7", "outputs": [f"{number}.png"], "records": [{"id": number}], **more}
    return {"name": name, "relative": f"{name}.jpg", "status": status, **(here if status == "ok" else {"reason": "no"})}


def outputs(out, count):
    for number in range(count):
        (out / f"{number}.png").write_bytes(b"x")


def write(folder, lines, processes=1):
    """Append lines in turn by the writers of several processes."""
    writers = [ManifestWriter(folder.manifest) for _ in range(processes)]
    for number, one in enumerate(lines):
        writers[number % processes].add(one)
    for writer in writers:
        writer.close()


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
        first = folder.manifest.stat().st_size
        write(folder, [one for one in everything if one["name"] not in before], data.draw(st.integers(1, 3)))
        content = folder.manifest.read_bytes()
        folder.manifest.write_bytes(content[: data.draw(st.integers(first, len(content)))])
        assert before.items() <= folder.begin([]).items()
    done = folder.begin([])
    write(folder, [one for one in everything if one["name"] not in done])
    folder.finish()
    assert list(folder.lines()) == everything
    assert folder.manifest.read_bytes().count(b"\n") == 1 + count


def test_manifests_of_the_processes_of_a_run_of_0_1_0_are_joined(tmp_path):
    outputs(tmp_path, 4)
    folder = OutputFolder(tmp_path, [], HEAD)
    for rank in (0, 1):
        lines = (HEAD, line(rank), line(rank + 2))
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (tmp_path / f"predictions.rank{rank}.jsonl").write_text(text[: -9 * rank or None])
    assert list(folder.begin([])) == [line(n)["name"] for n in (0, 2, 1)]
    write(folder, [line(3)])
    folder.finish()
    assert list(folder.lines()) == [line(n) for n in range(4)]
    assert not list(tmp_path.glob("predictions.rank*"))
    (tmp_path / "predictions.rank0.jsonl").write_text(text)
    assert folder.begin([], restart=True) == folder.begin([]) == {}


def test_a_manifest_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "other").write_bytes(json.dumps(HEAD).encode() + b"\n")
    folder = OutputFolder(tmp_path / "out", [], HEAD)
    folder.out.mkdir()
    folder.manifest.symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match="is a link to"):
        folder.begin([])


def test_lost_outputs_and_unreadable_photos_are_tried_again_and_the_last_line_counts(tmp_path):
    outputs(tmp_path, 4)
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    write(folder, [line(0), line(1), line(2), line(3, "unreadable")])
    folder.finish()
    (tmp_path / "0.png").unlink()
    (tmp_path / "2.png").write_bytes(b"")
    assert list(folder.begin([])) == [line(1)["name"]]
    write(folder, [line(3)])
    folder.finish()
    assert [one["status"] for one in folder.lines()] == ["ok"] * 4


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
    assert list(other.lines()) == []
    # an unknown one is not changed
    (tmp_path / MANIFEST).write_text("my own notes\n")
    with pytest.raises(InputError, match="not a manifest"):
        OutputFolder(tmp_path, [], HEAD).begin([])
    assert (tmp_path / MANIFEST).read_text() == "my own notes\n"


def test_images_of_damaged_lines_are_processed_again(tmp_path):
    outputs(tmp_path, 3)
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    write(folder, [line(0), line(1), line(2)])
    first, second, third, fourth = folder.manifest.read_bytes().splitlines(keepends=True)
    folder.manifest.write_bytes(first + second[:9] + third + fourth)
    assert list(folder.begin([])) == [line(2)["name"]]


def test_a_full_disk_is_one_clear_error_and_costs_one_image(tmp_path, monkeypatch):
    outputs(tmp_path, 3)
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    writer = ManifestWriter(folder.manifest)
    writer.add(line(0))
    write_ = os.write

    def full(file, data):
        if not data.startswith(b"{"):  # the second attempt
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_(file, data[:5])

    monkeypatch.setattr(folder_module.os, "write", full)
    with pytest.raises(SeamsegError, match=r"predictions\.jsonl: cannot be written: No space left"):
        writer.add(line(1))
    assert list(writer.names) == [line(0)["name"]]
    monkeypatch.undo()
    writer.close()
    assert list(folder.begin([])) == [line(0)["name"]]
    write(folder, [line(1), line(2)])
    folder.finish()
    assert [one["name"] for one in folder.lines()] == [line(number)["name"] for number in range(3)]


WRONG = [
    None,
    True,
    "",
    "x",
    "\0",
    "\ud800",
    "../../x",
    "/etc",
    0,
    -1,
    1.5,
    10**30,
    float("nan"),
    [],
    {},
    [{}],
    {"a": 1},
]
WRONG += [json.loads("[" * 400 + "]" * 400), "n" * 5000, [None] * 3]


@pytest.fixture(scope="module")
def predicted(tmp_path_factory, micro_run):
    """A folder of two images in all formats with files about all images, and its writers."""
    folder = tmp_path_factory.mktemp("predicted")
    for name in "ab":
        Image.new("RGB", (48, 32), (90, 150, 220)).save(folder / f"{name}.png")
    with narrow_body():
        options = PredictOptions(micro_run, folder, folder / "out", "coco,vistas,cvat,labelstudio,overlay")
        chosen = PredictSettings(options)
        predictor, sources = chosen.load("cpu"), find_sources(folder)
        predict_all(predictor, sources, chosen.open_folder(folder / "out", predictor, sources), World())
        return chosen.open_folder(folder / "out", predictor, sources), sources


def places(value, path=()):
    """Iterate over the places in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


@settings(max_examples=200)
@given(st.data())
def test_a_manifest_of_another_hand_is_used_or_refused(predicted, data):
    """A mutated line ends in no other error; those of the network and of the disk are far from here."""
    folder, sources = predicted
    path = folder.manifest
    before = path.read_bytes()
    lines = [json.loads(one) for one in before.splitlines()]
    at = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.sampled_from(list(places(lines[at]))))
    value = data.draw(st.sampled_from(WRONG))
    if place:
        inside = lines[at]
        for key in place[:-1]:
            inside = inside[key]
        if data.draw(st.booleans()):
            inside[place[-1]] = value
        else:
            del inside[place[-1]]
    else:
        lines[at] = value
    refused = f"{folder.out} restart=True"
    try:
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        for _ in range(2):
            done = folder.begin(sources, restart=False)
            names = [one["name"] for one in lines[1:] if isinstance(one, dict) and "name" in one]
            assert all(name in names for name in done)
            folder.finish()
    except InputError as error:
        refused = str(error)
    finally:
        path.write_bytes(before)
    assert str(folder.out) in refused
    assert "restart=True" in refused


# --- One run at a time in an output folder: a lock that ends with its process, and that decoders do not keep


def test_a_killed_run_whose_decoder_survives(tmp_path):
    folder = OutputFolder(tmp_path / "out", [], {})
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        # nothing of the test may run on in this process, nor finalisers that wait for threads of the other
        gc.disable()
        try:
            with folder.lock():
                if os.fork() == 0:
                    os.write(writing, f"{os.getpid()}\n".encode())
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        child = int(file.readline())
    try:
        refused = f"in use by process {process} on .*another `seamseg predict`"
        with pytest.raises(InputError, match=refused), folder.lock():
            pass
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    try:
        with folder.lock():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, seamseg_main, refused):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    with OutputFolder(tmp_path / "out", [], {}).lock():
        assert "another `seamseg predict` is writing to this folder: wait until it ends" in refused(*words)
    assert seamseg_main(*words) == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
