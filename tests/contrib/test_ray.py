"""The class for batch engines, called as they call it; and a local Ray."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import seamseg.contrib.ray as ray_data
from seamseg.contrib.ray import PanopticActor, _filesystem, _written
from seamseg.maps.formats.id_png import read_id_png
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def actor(micro_run):
    return PanopticActor(micro_run, device="cpu", min_stuff_area=0)


@pytest.fixture
def photos(micro):
    return sorted((micro / "img").glob("val*.png"))


def equal_to(row, result, folder):
    (folder / "row.png").write_bytes(row["panoptic_png"])
    annotation, ids = result.to_coco()
    ids.save(folder / "direct.png")
    entries = json.loads(row["segments_info"])
    assert [{k: v for k, v in e.items() if k != "name"} for e in entries] == annotation["segments_info"]
    assert [e["name"] for e in entries] == [s.name for s in result.segments if not s.iscrowd]
    assert (row["height"], row["width"]) == result.size
    return np.array_equal(read_id_png(folder / "row.png"), read_id_png(folder / "direct.png")) and len(entries) > 0


def rows_of(batch):
    return [dict(zip(batch, values)) for values in zip(*batch.values())]


def test_a_broken_photo_fills_its_error_only(actor, photos, tmp_path):
    data = [p.read_bytes() for p in photos]
    values = [data[0], b"", data[1], data[0][:90], None, data[2]]
    names = np.array(list("abcdef"))
    rows = rows_of(actor({"path": names, "bytes": np.array(values, object)}))
    assert [row["path"] for row in rows] == list("abcdef")
    assert [bool(row["error"]) for row in rows] == [False, True, False, True, True, False]
    assert rows[1]["error"].startswith("image: ")
    assert rows[4]["error"] == "no image"
    for k in (1, 3, 4):
        found = {name: rows[k][name] for name in ("panoptic_png", "segments_info", "height", "width")}
        assert found == {"panoptic_png": b"", "segments_info": "[]", "height": 0, "width": 0}
    for row, photo in zip((rows[0], rows[2], rows[5]), photos):
        assert equal_to(row, actor.model.predict(photo), tmp_path)


def test_arrays_of_any_size(actor, photos, tmp_path):
    images = [np.asarray(Image.open(p)) for p in photos]
    ragged = np.empty(5, object)
    ragged[:] = [images[0], images[1], np.zeros((4, 5), np.uint8), np.zeros((2, 2, 3)), Image.open(photos[0])]
    rows = rows_of(actor({"image": ragged}))
    assert [bool(row["error"]) for row in rows] == [False, False, False, True, False]
    assert "cannot be decoded" in rows[3]["error"]
    assert equal_to(rows[1], actor.model.predict(photos[1]), tmp_path)
    assert rows[4]["panoptic_png"] == rows[0]["panoptic_png"]
    assert (rows[2]["height"], rows[2]["width"]) == (4, 5)
    # one array of equal sizes
    stacked = actor({"image": np.stack([images[0]] * 3)})
    assert stacked["panoptic_png"].tolist() == [rows[0]["panoptic_png"]] * 3
    assert actor({"image": []})["error"].tolist() == []


def test_a_photo_that_the_network_cannot_take_fails_alone(actor, photos, monkeypatch):
    run = type(actor.model).raw

    def limited(self, images, *more):
        if any(image.shape[0] > image.shape[1] for image in images):
            raise SeamsegError("the GPU is out of memory")
        return run(self, images, *more)

    monkeypatch.setattr(type(actor.model), "raw", limited)
    data = [p.read_bytes() for p in photos]
    assert actor({"bytes": data})["error"].tolist() == ["", "the GPU is out of memory", ""]

    def broken(*_):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(type(actor.model), "raw", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        actor({"bytes": data})


def test_wrong_use(actor, micro_run, monkeypatch):
    with pytest.raises(InputError, match="columns 'path', none of them is 'bytes' or 'image'"):
        actor({"path": []})
    with pytest.raises(InputError, match="`batch_size=0`: must be at least 1"):
        PanopticActor(micro_run, batch_size=0)
    monkeypatch.setattr(ray_data, "build_predictor", lambda *_: SimpleNamespace(kind="semantic", result_type=None))
    with pytest.raises(InputError, match="a model of kind semantic; PanopticActor needs a panoptic one"):
        PanopticActor(micro_run, device="cpu")


JOB = """
import sys
import ray
from support.micro import narrow_body
from seamseg.contrib.ray import main

def narrow():
    sys.narrow = narrow_body()  # stays
    sys.narrow.__enter__()

if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"worker_process_setup_hook": narrow})
    sys.exit(max([main(words.split("|")) for words in sys.argv[1:]]))
"""
COUNT, BROKEN = 500, 7


def job(tmp_path, *runs):
    """A process that predicts once or several times with a local Ray of four processors, whatever the machine has."""
    tests = Path(__file__).parents[1]
    path = f"{tests.parent}:{tests}:{os.environ.get('PYTHONPATH', '')}"
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, tmp_path / "job.py"]
    command += ["|".join(map(str, (*words, "--actors", "2", "--device", "cpu"))) for words in runs]
    environment = {**os.environ, "PYTHONPATH": path, "RAY_TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process):
    out, err = process.communicate(timeout=280)
    assert process.returncode in (0, 1), err[-3000:]
    # Ray writes about workers into the same stream
    told = [line.partition(": ")[2] for line in out.splitlines() if " predicted, " in line]
    assert told, err[-3000:]
    return process.returncode, *told


def kill_after(process, out, files, name):
    """Kill the processes of Ray with a name in their command, or else the process itself, after some output files."""
    import psutil

    deadline = time.monotonic() + 200
    while len(list(out.glob("*.*"))) < files:
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    chosen = [child for child in children if name and name in child.name() + " ".join(child.cmdline())]
    for victim in chosen[:1] if name else [psutil.Process(process.pid)]:
        victim.kill()
    assert chosen or not name
    if not name:
        process.communicate()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


with_ray = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ray", "psutil"))), reason="`pip install 'ray[data]' psutil` for this test"
)


@pytest.mark.parametrize("place", ["http://169.254.169.254/a", "github://a/b"])
def test_urls_of_other_schemes_are_refused(place):
    with pytest.raises(InputError, match="supported are local folders, and URLs of s3, gs"):
        _filesystem(place)


ODD = ["a#b.png", "a?b.png", "100%.png", "local:x.png", "sub/1.left.png", "http:/h/a.png", "new\nline.png"]
"""Names that a library could take for URLs."""


def tar_of(path, images):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, data in images.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


class LocalFile(io.FileIO):
    def size(self):
        return os.fstat(self.fileno()).st_size


class LocalFiles:
    """What is used of pyarrow's filesystem, which the tests need not have."""

    delete_file = staticmethod(os.remove)
    open_input_file = LocalFile


RUN = "0123456789abcdef" * 2


@pytest.fixture
def out(tmp_path, monkeypatch):
    """An output folder with a result and two files that a killed run was writing."""
    filesystem, out = LocalFiles(), tmp_path / "out"
    monkeypatch.setattr(ray_data, "_filesystem", lambda place: (filesystem, place))
    monkeypatch.setattr(ray_data, "_files", lambda _, folder: [str(path) for path in Path(folder).iterdir()])
    monkeypatch.setattr(ray_data, "_read_names", lambda _, path: json.loads(Path(path).read_bytes()[:-4]).items())
    out.mkdir()
    (out / f"{RUN}_000000-0.parquet").write_bytes(b'{"a.jpg": ""}PAR1')
    (out / f"{RUN}_000001-0.parquet").write_bytes(b"PAR1 cut")
    (out / f"{RUN}_000002-0.parquet").touch()
    return out


def test_output_folders(out, capsys, monkeypatch):
    for name, content in (("theirs", b"no end"), (f"{RUN}_000003-0", b"other contentPAR1")):
        (out / f"{name}.parquet").write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}.parquet: not an output of this command, or damaged \("):
            _written(str(out), repair=True)
        assert len(list(out.iterdir())) == 4, "nothing is removed"
        (out / f"{name}.parquet").unlink()
    monkeypatch.setattr(ray_data, "require_packages", lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray.data", types.SimpleNamespace(ActorPoolStrategy=None))
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace())
    for inside in (".", "sub/../maps"):
        with pytest.raises(InputError, match="is in the input folder"):
            ray_data.predict("city.zip", str(out), f"{out}/{inside}")
    assert len(list(out.iterdir())) == 3
    # files that were being written are removed
    assert _written(str(out), repair=True) == [("a.jpg", "")]
    assert len(list(out.iterdir())) == 1
    assert capsys.readouterr().err.count("incomplete, removed") == 2


def test_lines_of_the_command(monkeypatch, capsys):
    assert ray_data.main(["m", "in", "out", "--actors", "0"]) == 2
    assert capsys.readouterr().err == "--actors 0: must be at least 1\n"

    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr(ray_data, "predict", fails)
    assert ray_data.main(["m", "in", "out"]) == 1
    assert capsys.readouterr().err == "out: ended early, run the command again: MemoryError\n"
    monkeypatch.setattr(ray_data, "predict", lambda *_, **__: ray_data.Counts(1, 0, 0))
    assert ray_data.main(["m", "in", "out"]) == 0
    assert capsys.readouterr().out == "out: 1 image predicted, 0 failed\n"


@with_ray
@pytest.mark.slow
def test_bad_and_odd_files_of_each_kind_of_input(micro_run, photos, tmp_path):
    """Each is a row, with an error if it is bad; names in data reach no library that opens URLs."""
    import pyarrow
    from pyarrow import parquet

    data = [photo.read_bytes() for photo in photos]
    images = {name: data[k % 3] for k, name in enumerate(ODD)} | {"bad.png": b"no", "empty.png": b""}
    folders = {kind: tmp_path / f"{kind}_in" for kind in ("images", "webdataset", "parquet")}
    for name, content in images.items():
        (folders["images"] / name).parent.mkdir(parents=True, exist_ok=True)
        (folders["images"] / name).write_bytes(content)
    for kind in ("webdataset", "parquet"):
        folders[kind].mkdir()
    more = {"notes.txt": b"x", "._a.png": b"x", "../up.png": data[0], "\udcff.png": data[0]}
    tar_of(folders["webdataset"] / "a.tar", images | more)
    tar_of(folders["webdataset"] / "b.tar.gz", {"0.png": data[0]})
    packed = (folders["webdataset"] / "a.tar").read_bytes()
    (folders["webdataset"] / "cut.tar").write_bytes(packed[: len(packed) // 2])
    (folders["webdataset"] / "no.tar").write_bytes(b"no tar")
    table = pyarrow.table({"path": [*images, "none.png"], "bytes": [*images.values(), None]})
    parquet.write_table(table, folders["parquet"] / "a.parquet")
    kinds = ("images", "parquet", "webdataset", "webdataset")
    code, *told = outcome(job(tmp_path, *((micro_run, folders[k], tmp_path / k, "--input", k) for k in kinds)))
    assert code == 1
    found, given, bad = {}, dict.fromkeys(folders, images.keys()), {"bad.png", "empty.png"}
    given["parquet"] = images.keys() | {"none.png"}
    for kind in folders:
        found[kind] = dict(_written(str(tmp_path / kind)))
    for kind in ("images", "parquet"):
        assert found[kind].keys() == given[kind]
        assert {name for name, error in found[kind].items() if error} == bad | (given[kind] & {"none.png"})
    rows = found["webdataset"]
    whole = {f"a/{name}" for name in images} | {"a/up.png", "a/\\xff.png", "b/0.png"}
    cut = {name for name in rows if name.startswith("cut/")}
    assert rows.keys() == whole | cut | {"cut.tar", "no.tar"}
    assert {name.replace("cut/", "a/") for name in cut} < whole
    failed = {name for name, error in rows.items() if error}
    assert failed - cut == {"a/bad.png", "a/empty.png", "cut.tar", "no.tar"}
    assert told[-1] == f"0 images predicted, 0 failed, {len(rows)} were there"


@with_ray
@pytest.mark.slow
def test_a_worker_and_a_driver_are_killed(micro_run, photos, tmp_path, seamseg_main):
    """Each image once, with the map of a prediction into a folder; a broken one is a row with its error."""
    from pyarrow import parquet

    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    images = [Image.open(photo).convert("RGB") for photo in photos]
    broken = {f"{k:03}.png" for k in range(3, COUNT, COUNT // BROKEN)}
    for k in range(COUNT):
        name = f"sub/{k:03}.a.png" if k % 10 == 1 else f"{k:03}.png"
        images[k % len(images)].rotate(k, fillcolor=(k % 256, 9, 9)).save(folder / name)
    for name in broken:
        (folder / name).write_bytes(b"no")
    readable = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.png") if p.name not in broken)
    words = ("predict", micro_run, folder, tmp_path / "out", "--format", "coco", "--quiet", "--device", "cpu")
    assert seamseg_main(*words) == 1

    for victim in ("MapWorker", None):
        out = tmp_path / f"killed {victim}"
        words = (micro_run, folder, out, "--rows-per-file", "20", "--batch-size", "4")
        process = job(tmp_path, words)
        kill_after(process, out, 3, victim)
        if victim is None:
            first = dict(_written(str(out), repair=True))
            assert 0 < len(first) < COUNT
            code, text = outcome(job(tmp_path, words))
            assert f"{len(first)} were there" in text
        else:
            code, text = outcome(process)
            assert text == f"{COUNT - len(broken)} images predicted, {len(broken)} failed"
        rows = list(_written(str(out)))
        assert sorted(name for name, error in rows if not error) == readable
        assert {name for name, error in rows if error} == broken
        assert code == 1
    table = parquet.read_table(out, columns=["name", "panoptic_png"])
    maps = dict(zip(table["name"].to_pylist(), table["panoptic_png"].to_pylist()))
    for name in readable:
        made = np.asarray(Image.open(tmp_path / "out" / "panoptic" / Path(name).with_suffix(".png")))
        assert np.array_equal(made, np.asarray(Image.open(io.BytesIO(maps[name])))), name
