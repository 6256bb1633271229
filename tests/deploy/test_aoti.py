"""Packages compiled by AOTInductor: outputs, pipeline, and the C++ program that runs them without Python."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.exported import MEAN, SIZE, STD, assert_same, eager, exported_net, picture
from support.networks import TINY, TINY_SEMANTIC

import seamseg
from seamseg.deploy.aoti import write_package
from seamseg.formats.exported import ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.package import PackageSession, read_package_metadata, requirements
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NAMES = ['sky "wide"', "road", "car", "person", "bus"]
CLASSES = Metadata(2, 3, NAMES, [(i, i, i) for i in range(5)], list(range(5)))
THRESHOLDS = {"score_threshold": 0.3, "overlap_threshold": 0.5, "min_stuff_area": 64}

CONFIG = f"""
[general]
{chr(10).join(f"{name} = {value}" for name, value in THRESHOLDS.items())}
[dataloader]
shortest_size = 120
longest_max_size = 400
{TINY.format(mode="bn", num_frozen=0)}{TINY_SEMANTIC}"""


def metadata(kind, size=SIZE, multiple=1):
    thresholds = THRESHOLDS if kind == "panoptic" else {}
    config = CONFIG if kind == "panoptic" else f"[general]\nkind = {kind}\n"
    return ExportedMetadata(kind, config, CLASSES, size, multiple, mean=MEAN, std=STD, thresholds=thresholds)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A panoptic network of fixed size; the compiler takes a minute."""
    path = tmp_path_factory.mktemp("aoti") / "net.pt2"
    write_package(exported_net("panoptic"), path, metadata("panoptic"), SIZE)
    return path


def run(path, image, size):
    session = PackageSession(path)
    found = session.run(session.exported.outputs, {"image": image.numpy(), "size": size.numpy()})
    return dict(zip(session.exported.outputs, map(torch.from_numpy, found), strict=True))


def test_outputs_are_those_of_the_eager_network(package):
    wanted = eager(exported_net("panoptic"), *picture())
    assert len(wanted["classes"]) >= 2
    assert_same(run(package, *picture()), wanted)
    nothing = (torch.zeros(1, 3, *SIZE, dtype=torch.uint8), torch.tensor([3, 5]))
    assert_same(run(package, *nothing), eager(exported_net("panoptic"), *nothing))
    assert [path.name for path in package.parent.iterdir()] == ["net.pt2"]


def test_what_a_package_states(package):
    stated = read_package_metadata(package)
    assert stated.extra.items() >= requirements("cpu").items()
    assert stated.extra["outputs"] == list(stated.outputs)
    assert stated.to_json() == ExportedMetadata.from_json(stated.to_json(), "").to_json()
    assert stated.thresholds == THRESHOLDS


def test_inputs_of_another_size(package):
    for size, valid in (((64, 64), (64, 64)), (SIZE, (SIZE[0] + 1, 5)), (SIZE, (0, 5))):
        with pytest.raises(InputError, match="image"):
            run(package, *picture(size, valid))
    model = seamseg.load(package)
    assert model.predict(np.zeros((500, 300, 3), np.uint8)).size == (500, 300)


@pytest.mark.parametrize("kind", ["semantic", "detection"])
def test_free_sizes(tmp_path, kind):
    path, net = tmp_path / "net.pt2", exported_net(kind)
    write_package(net, path, metadata(kind, None, 64), (256, 320))
    for size, valid in (((256, 320), (250, 301)), ((320, 448), (320, 448))):
        inputs = picture(size, valid)
        assert_same(run(path, *inputs), eager(net, *inputs))


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no space left")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fail)
    with pytest.raises(SeamsegError, match="no space left"):
        write_package(exported_net("detection"), tmp_path / "net.pt2", metadata("detection"), SIZE)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("size", [(101, 155), (240, 300)])
def test_the_cpp_program_equals_predict(package, program, tmp_path, size):
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
    assert found == [(str(s.id), s.name.replace('"', '\\"'), s.area) for s in wanted.segments]
    scores = [1.0 if s.score is None else s.score for s in wanted.segments]
    # a pixel in many is rounded to another side than by Pillow when the photo is scaled
    assert [float(score) for _, score, _ in lines] == pytest.approx(scores, abs=1e-3)


def test_errors_of_the_cpp_program(package, program, tmp_path):
    (tmp_path / "photo.ppm").write_bytes(b"P6\n4 4\n255\n123")
    (tmp_path / "other.pt2").write_bytes(b"no zip")
    for words in ((package, tmp_path / "photo.ppm"), (package, "none.ppm"), (tmp_path / "other.pt2", "photo.ppm")):
        done = start(program, *words, tmp_path / "ids.pgm")
        assert done.returncode == 1
        assert done.stderr.startswith("panoptic: ")
        assert done.stderr.count("\n") == 1
    assert subprocess.run([program], capture_output=True).returncode == 2
    assert not (tmp_path / "ids.pgm").exists()
