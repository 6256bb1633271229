"""The maps of heads in all that a prediction goes to: files, results, servers, reports, exported networks."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.browsers import blocks
from support.components import EDGES, VECTORS, imported_for_a_module
from support.serving import serving
from support.small_models import write_run

import seamseg
from seamseg.components import resize_map
from seamseg.config import components
from seamseg.contrib.deploy.export import ExportReport, export_model
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.inference.options import Tiling
from seamseg.maps.predictions import RESERVED_NAMES, MapFormat
from seamseg.models.custom import resized
from seamseg.results import ImageResult
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

NAMES = ("edge", "vector", "best", "span", "far")
SIZE = (64, 96)
"""Of the images, and of the input of the network."""


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    files = [tmp_path_factory.mktemp("heads") / f"map_{name}.py" for name in ("edges", "vectors")]
    for file, text in zip(files, (EDGES, VECTORS)):
        file.write_text(text)
    return ", ".join(map(str, files))


@pytest.fixture(scope="module")
def run(tmp_path_factory, heads) -> str:
    with imported_for_a_module(*map(Path, heads.split(", "))) as overrides:
        return str(write_run(tmp_path_factory.mktemp("maps") / "run", overrides=overrides))


@pytest.fixture(scope="module")
def report(run, heads) -> ExportReport:
    files = heads.split(", ")
    with imported_for_a_module(*map(Path, files)):
        return seamseg.export(run, Path(run).with_name("net.onnx"), dynamic=True, components=files)


@pytest.fixture
def network(report):
    return str(report.path)


@pytest.fixture
def photo(micro):
    return micro / "img" / "val0.png"


@pytest.fixture
def predictor(run, heads):
    return seamseg.load(run, device="cpu", overrides={"general.components": heads})


@pytest.mark.slow
@pytest.mark.parametrize("tiles", ["off", 256])
def test_an_exported_network_has_the_same_maps(predictor, report, network, photo, tiles):
    (differences,) = report.differences.values()
    assert differences.maps.keys() == set(NAMES)
    assert max(differences.maps.values()) <= 1e-4
    assert "edge " in str(differences)
    assert report.metadata.maps["vector"] == MapFormat(2, "nearest", "core", mirror=(-1.0, 1.0))
    exported = seamseg.load(network)
    assert exported.network.map_formats == predictor.network.map_formats
    rgb = np.array(Image.open(photo))
    large = np.ascontiguousarray(np.tile(rgb, (7, 6, 1))[:448, :512])
    (found,), (wanted,) = (model.raw([large], Tiling(tiles)) for model in (exported, predictor))
    assert found.maps.keys() == wanted.maps.keys() == set(NAMES)
    for name in ("edge", "vector"):
        assert found.maps[name].shape == wanted.maps[name].shape
        assert np.abs(found.maps[name] - wanted.maps[name]).max() <= 1e-4
        assert wanted.maps[name].std() > 0.01
    assert found.maps["best"].dtype == wanted.maps["best"].dtype == np.int64
    assert (found.maps["best"] != wanted.maps["best"]).mean() < 1e-3
    if tiles == "off":
        # exported with overrides, and read without: what they state is not that of the training
        result = seamseg.load(network, shortest_size=320).predict(np.tile(rgb, (7, 7, 1)))
        assert np.allclose(result.maps["span"], 96 * 7, rtol=1e-5)
        assert np.allclose(result.maps["far"], 9600 / 96, rtol=1e-5)


def test_the_sign_of_a_mirrored_channel(predictor, run, heads, photo):
    rgb = np.array(Image.open(photo))
    flipped = seamseg.load(run, device="cpu", tta="flip", overrides={"general.components": heads}).raw([rgb])[0]
    plain, mirror = (predictor.raw([np.ascontiguousarray(x)])[0].maps["vector"] for x in (rgb, rgb[:, ::-1]))
    back = mirror[..., ::-1] * np.float32([-1, 1])[:, None, None]
    assert np.allclose(flipped.maps["vector"], (plain + back) / 2, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"tta": "flip,0.5,1,1.5"}, {"preview": True}, {"size": 70}, {"overrides": ["dataloader.shortest_size=32"]}],
)
def test_lengths_and_distances_at_any_size(run, heads, options):
    # an oracle of the width of its input, and of distances that shrink with it, gives those of the image
    given = {"device": "cpu", **options, "overrides": [f"general.components={heads}", *options.get("overrides", ())]}
    model = seamseg.load(run, **given)
    for size in ((64, 96), (50, 200), (30, 180), (150, 100)):
        result = model.predict(Image.new("RGB", size[::-1]))
        # of an input whose shortest side has the 64 pixels of the training, and the longest at most 256
        scale_1 = min(64 / min(size), 256 / max(size)) * size[1]
        assert np.allclose(result.maps["span"], size[1], rtol=1e-5), size
        assert np.allclose(result.maps["far"], 9600 / scale_1, rtol=0.02), "both sides are whole pixels"


@pytest.mark.slow
def test_a_server_sends_the_files_of_predict(network, photo, tmp_path, seamseg_main):
    words = ("--workers", "0", "--quiet", "--format", "coco,edge,vector,best")
    assert seamseg_main("predict", network, photo, tmp_path, *words) == 0
    assert np.array(Image.open(tmp_path / "val0_best.png")).max() <= 1
    written = np.load(tmp_path / "val0_vector.npy")
    assert (written.shape, written.dtype) == ((2, *SIZE), np.float32)
    data = photo.read_bytes()
    with serving(seamseg.load(network)) as client:
        assert client.request("GET", "/health").json["formats"][-len(NAMES) :] == list(NAMES)
        edge, vector = (client.predict(data, f"?format={name}") for name in ("edge", "vector"))
        view = client.predict(data, "?format=view").json
        assert "maps" not in client.predict(data).json
    assert edge.headers["content-type"] == "image/png"
    assert edge.body == (tmp_path / "val0_edge.png").read_bytes()
    assert vector.headers["content-type"] == "application/octet-stream"
    assert vector.body == (tmp_path / "val0_vector.npy").read_bytes()
    assert set(view["maps"]) == set(NAMES)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(view["maps"]["edge"]))).convert("L")).astype(int)
    assert np.abs(shown - np.asarray(Image.open(tmp_path / "val0_edge.png"))).mean() < 8


@pytest.mark.slow
def test_a_report_has_a_panel_of_each_map(network, micro, tmp_path, seamseg_main):
    assert seamseg_main("evaluate", network, micro, "--out", tmp_path / "eval", "--quiet") == 0
    assert seamseg_main("report", tmp_path / "eval", "--out", tmp_path / "report.html", "--quiet") == 0
    found = blocks(tmp_path / "report.html")
    assert found["summary"][0]["maps"] == sorted(NAMES)
    for image in found["image"]:
        assert image["results"][0]["maps"].keys() == set(NAMES)
    records = [json.loads(line) for line in (tmp_path / "eval" / "images.jsonl").read_text().splitlines()]
    assert {record["maps"]["edge"] for record in records} == {f"edge/val{n}.png" for n in range(3)}


def test_resized_maps():
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    assert resize_map(values, (2, 3)).dtype == np.float32
    assert np.array_equal(resize_map(values, (2, 3)), values)
    large = resize_map(np.stack((values, -values)).astype(np.int16), (4, 6), "nearest")
    assert (large.shape, large.dtype) == ((2, 4, 6), np.int16)
    assert np.array_equal(large[1], -values.repeat(2, 0).repeat(2, 1))
    ids = 2**31 - 1 - torch.arange(6, dtype=torch.int32).reshape(1, 1, 2, 3)
    exact = resized(ids, (4, 6), MapFormat(resize="nearest"))
    assert torch.equal(exact, ids.repeat_interleave(2, 2).repeat_interleave(2, 3)), "float32 would round them"


SUMMED = 'int(outputs["vector"].sum()); return {"vector": out'
NOT_TRACED = r"cannot be exported to ONNX with the heads mistake: leave out .* \(head mistake, .*line 33"


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('return {"vector": out', SUMMED, SeamsegError, NOT_TRACED),
        ("    outputs = {", "    exportable = False\n    outputs = {", InputError, "head mistake cannot be exported: "),
        ('"best"', '"coco"', InputError, "output coco: the name has another meaning"),
        ('"best"', '"../x"', InputError, "output '../x': a name has lower-case letters"),
    ],
)
def test_mistakes(old, new, error, message, tmp_path):
    file = tmp_path / "map_mistake.py"
    file.write_text(VECTORS.replace('@head("vectors")', '@head("mistake")').replace(old, new))
    given, out = (f"general.components={file}",), tmp_path / "a.onnx"
    with pytest.raises(error, match=message) as caught:
        export_model(ExportOptions(write_run(tmp_path / "run", overrides=given), out, size=SIZE, overrides=given))
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_names_with_another_meaning():
    taken = {name for result in ImageResult.__subclasses__() for name in result.outputs}
    taken |= {component.name for component in components.registered("format") if component.built_in}
    assert {name for name in taken if name.isidentifier()} <= RESERVED_NAMES | {"logits"}
