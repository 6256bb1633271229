"""The class for batch engines, called as they call it; and a local Ray."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seamseg.formats.coco_panoptic import read_id_png
from seamseg.integrations.ray import PanopticActor
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def actor(micro_run):
    return PanopticActor(micro_run, device="cpu", min_stuff_area=0)


@pytest.fixture
def photos(micro):
    return sorted((micro / "img").glob("val*.png"))


def equal_to(row, result, folder):
    """Whether a row holds a result."""
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
    # one array of equal sizes, under another name
    actor.column = "frames"
    stacked = actor({"frames": np.stack([images[0]] * 3)})
    assert stacked["panoptic_png"].tolist() == [rows[0]["panoptic_png"]] * 3
    assert actor({"frames": []})["error"].tolist() == []


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
    monkeypatch.setattr(type(actor.model), "kind", "semantic")
    with pytest.raises(InputError, match="a model of kind semantic; PanopticActor needs a panoptic one"):
        PanopticActor(micro_run, device="cpu")


RAY = """
import json, sys
import ray
from support.micro import narrow_body
from seamseg.integrations.ray import PanopticActor

class Narrow(PanopticActor):
    def __init__(self, **options):
        with narrow_body():
            super().__init__(**options)

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)  # two for the actors, the others read
images = ray.data.read_binary_files(sys.argv[2], include_paths=True)
made = photos.map_batches(
    Narrow, fn_constructor_kwargs={"model": sys.argv[1], "device": "cpu", "min_stuff_area": 0}, batch_size=2,
    compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1,
)
rows = [{k: v.hex() if isinstance(v, bytes) else v for k, v in row.items() if k != "bytes"}
        for row in made.take_all()]
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_a_local_ray(micro_run, photos, actor, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray[data] takes 400 MB: install it for this test")
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in photos:
        (folder / photo.name).write_bytes(photo.read_bytes())
    (folder / "broken.png").write_bytes(b"no")
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}", "RAY_TMPDIR": "/tmp", "RAY_DEDUP_LOGS": "0"}
    words = [sys.executable, "-c", RAY, str(micro_run), str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {Path(row["path"]).stem: row for row in json.loads(done.stdout.splitlines()[-1])}
    assert len(rows) == len(photos) + 1
    assert rows["broken"]["error"].startswith("image: ")
    for photo in photos:
        row = {**rows[photo.stem], "panoptic_png": bytes.fromhex(rows[photo.stem]["panoptic_png"])}
        assert row["error"] == ""
        assert equal_to(row, actor.model.predict(photo), tmp_path)
