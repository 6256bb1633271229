"""Packages compiled by AOTInductor: outputs, pipeline, and the C++ program that runs them without Python."""

import json
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.exported import MEAN, SIZE, STD, assert_same, eager, exported_net, picture, read_package_metadata
from support.networks import TINY, TINY_SEMANTIC

import seamseg
from seamseg.contrib.deploy.aoti import package_metadata, write_package
from seamseg.contrib.exported.package import PackageSession, requirements
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.maps.formats.metadata import Metadata

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
NAMES = ['sky "wide"', "road, [wet]", "car]\\", "Fußgänger\x01", "bus"]
CLASSES = Metadata(2, 3, NAMES, [(i, i, i) for i in range(5)], list(range(5)))
THRESHOLDS = {"score_threshold": 0.3, "overlap_threshold": 0.5, "min_stuff_area": 64}

CONFIG = f"""
[general]
{chr(10).join(f"{name} = {value}" for name, value in THRESHOLDS.items())}
[dataloader]
shortest_size = 120
longest_max_size = 400
{TINY.format(mode="bn", num_frozen=0)}{TINY_SEMANTIC}"""


def metadata(kind, size=SIZE, multiple=1, sides=None):
    thresholds = THRESHOLDS if kind == "panoptic" else {}
    config = CONFIG if kind == "panoptic" else f"[general]\nkind = {kind}\n"
    return ExportedMetadata(kind, config, CLASSES, size, multiple, sides, mean=MEAN, std=STD, thresholds=thresholds)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A panoptic network of fixed size; the compiler takes a minute."""
    path = tmp_path_factory.mktemp("aoti") / "net.pt2"
    write_package(exported_net("panoptic"), path, metadata("panoptic"), SIZE)
    return path


def run(path, image, size):
    session = PackageSession(path)
    found = session.run(session.outputs, {"image": image.numpy(), "size": size.numpy()})
    return dict(zip(session.outputs, map(torch.from_numpy, found), strict=True))


def test_outputs_are_those_of_the_eager_network(package):
    wanted = eager(exported_net("panoptic"), *picture())
    assert len(wanted["classes"]) >= 2
    assert_same(run(package, *picture()), wanted)
    nothing = (torch.zeros(1, 3, *SIZE, dtype=torch.uint8), torch.tensor([3, 5]))
    assert_same(run(package, *nothing), eager(exported_net("panoptic"), *nothing))
    assert [path.name for path in package.parent.iterdir()] == ["net.pt2"]


def code_of(path):
    with zipfile.ZipFile(path) as archive:
        return "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp"))


def test_what_a_package_states(package):
    found, code = read_package_metadata(package), code_of(package)
    stated = found.extra
    needed = requirements("cpu", stated["cpu_features"])
    assert {name: stated[name] for name in needed} == needed
    assert stated["outputs"] == list(exported_net("panoptic").output_names)
    assert found.to_json() == ExportedMetadata.from_json(found.to_json(), "").to_json()
    assert found.thresholds == THRESHOLDS
    flags = set(re.findall(r" -m(?!arch)([\w-]+)", code))
    assert flags == set(stated["cpu_features"])
    assert ("avx512f" in flags) == (stated["cpu"] == "AVX512")
    # and what each CPU of the capability has, not what this one has
    assert "-march=native" not in code


def test_free_sizes(tmp_path):
    path, net = tmp_path / "net.pt2", exported_net("detection")
    write_package(net, path, metadata("detection", None, 64, (64, 4096)), (128, 320))
    for size, valid in (((64, 64), (60, 64)), ((64, 320), (64, 301)), ((320, 448), (320, 448))):
        inputs = picture(size, valid)
        assert_same(run(path, *inputs), eager(net, *inputs))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The C++ program of `examples/cpp`, built by CMake as its README states, or by the compiler alone."""
    folder, torch_folder = tmp_path_factory.mktemp("cpp"), Path(torch.__file__).parent
    source = ROOT / "examples/cpp"
    if shutil.which("cmake"):
        subprocess.run(["cmake", "-S", source, "-B", folder, f"-DTORCH={torch_folder}"], check=True)
        subprocess.run(["cmake", "--build", folder], check=True)
    else:
        libraries = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'},--no-as-needed"]
        command = ["c++", "-std=c++20", f"-I{torch_folder / 'include'}", source / "main.cpp", *libraries]
        subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-o", folder / "panoptic"], check=True)
    return folder / "panoptic"


def start(program, *words):
    library = next(Path(seamseg.__file__).parent.glob("_C.*"))
    # no Python, and nothing of this environment
    return subprocess.run([program, library, *words], capture_output=True, text=True, env={})


def with_metadata(package, path, changes):
    """Copy a package, with other texts in its metadata; those that are None are left out."""
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(path, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            if member.filename.endswith("_metadata.json"):
                texts = json.loads(content) | changes
                content = json.dumps({name: text for name, text in texts.items() if text is not None}).encode()
            target.writestr(member, content)
    return path


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((240, 300), {}),
        # the longest side instead of the shortest
        ((101, 155), {"config": CONFIG.replace("shortest_size = 120", "longest_size = 155")}),
        # a package that states that its size is free: padded to what this one has
        ((120, 155), {"size": None, "sides": (32, 4096), "multiple": 32}),
    ],
)
def test_the_cpp_program_equals_predict(package, program, tmp_path, size, changes):
    if changes:
        changed = replace(read_package_metadata(package), **changes)
        package = with_metadata(package, tmp_path / "net.pt2", package_metadata(changed))
    height, width = size
    pixels = picture((height, width))[0][0].permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(tmp_path / "photo.ppm")
    done = start(program, package, tmp_path / "photo.ppm", tmp_path / "ids.pgm")
    assert done.returncode == 0, done.stderr

    wanted = seamseg.load(package).predict(tmp_path / "photo.ppm")
    ids = np.asarray(Image.open(tmp_path / "ids.pgm")).astype(np.int32)
    assert np.array_equal(ids, wanted.id_map)
    lines = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    assert len(lines) > 2
    found = [(label.split(" ", 1)[0], label.split(" ", 1)[1], int(area)) for label, _, area in lines]
    assert found == [(str(s.id), s.name, s.area) for s in wanted.segments]
    scores = [1.0 if s.score is None else s.score for s in wanted.segments]
    # a pixel in many is rounded to another side than by Pillow when the image is scaled
    assert [float(score) for _, score, _ in lines] == pytest.approx(scores, abs=1e-3)
