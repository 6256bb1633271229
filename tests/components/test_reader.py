"""A reader of the user: a data set in a zip file, read as if it were a folder."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.components import DEPTH, component_file, forget

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

ZIP = '''
from dataclasses import dataclass
from zipfile import ZipFile

from seamseg.components import Reader, key, open_image, open_map, open_mask, parse_metadata, reader


@dataclass(frozen=True)
class ZipKeys:
    """Keys of the section [reader zip]."""

    images: str = key("folder of the images", "img")


@reader("zip", keys=ZipKeys)
class ZipReader(Reader):
    """A dataset folder in a zip file."""

    def __init__(self, root, split, keys):
        super().__init__(root, split, keys)
        self.archive = None
        self.metadata = parse_metadata(self.content("metadata.bin"))
        listed = self.content(f"lst/{split}.txt").decode().split()
        images = {image.id: image for image in self.metadata.images}
        self.images = [images[name] for name in listed]

    def begin_worker(self):
        """Open the file again: processes must not share it."""
        self.archive = None

    def content(self, name):
        """Return the bytes of a member."""
        if self.archive is None:
            self.archive = ZipFile(self.root)
        return self.archive.read(name)

    def read_image(self, index, at_least=None):
        """Decode an image."""
        name = f"{self.keys.images}/{self.images[index].id}.png"
        return open_image(self.root / name, self.content(name))

    def read_masks(self, index):
        """Decode the only layer."""
        name = f"msk/{self.images[index].id}.png"
        return open_mask(self.root / name, self.content(name))[None]

    def read_map(self, index, folder):
        """Decode a map."""
        name = f"{folder}/{self.images[index].id}.png"
        return open_map(self.root / name, self.content(name)) if name in self.archive.namelist() else None
'''


file = component_file("my_zip.py", ZIP)


@pytest.fixture
def data(tmp_path, micro):
    """The data set in a file."""
    path = tmp_path / "micro.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in micro.rglob("*"):
            archive.write(member, member.relative_to(micro))
    return path


@pytest.fixture
def options(component_options, file, data):
    """Of a training on the file."""
    given = ("dataloader.reader=zip", "mix copy_paste.probability=.5", "dataloader.class_uniform=.5")
    return lambda run, *more, **others: replace(component_options(file, run, *given, *more, **others), data=data)


@pytest.mark.slow
def test_a_training_and_its_scores_equal_those_on_the_folder(options, micro, tmp_path, seamseg_main):
    run_training(options("zip", "dataloader.num_workers=2", "dataloader.fast_decode=yes"))
    folder = replace(options("folder", "dataloader.reader=folder", "dataloader.fast_decode=yes"), data=micro)
    run_training(folder)
    one, other = (load_snapshot(tmp_path / run / "model_last.pth.tar") for run in ("zip", "folder"))
    assert [record.name for record in one.components] == ["zip"]
    assert one.training_meta == other.training_meta, "the scores"
    leaves = [torch.utils._pytree.tree_leaves(snapshot.state_dict) for snapshot in (one, other)]
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*leaves, strict=True))

    words = ("--device", "cpu", "--quiet", "--split", "val", "--components", tmp_path / "my_zip.py")
    assert (
        seamseg_main("evaluate", tmp_path / "zip", tmp_path / "micro.zip", *words, "--json", tmp_path / "a.json") == 0
    )
    words = (*words, "--set", "dataloader.reader=folder")
    assert seamseg_main("evaluate", tmp_path / "zip", micro, *words, "--json", tmp_path / "b.json") == 0
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a == b


def test_a_model_is_evaluated_with_its_reader_only(options, data, micro, tmp_path, seamseg_main, capsys):
    run_training(options("run", "scheduler.epochs=1"))
    forget("my_zip")
    assert (
        seamseg_main("predict", tmp_path / "run", micro / "img" / "val0.png", tmp_path / "out", "--device", "cpu") == 0
    )
    assert seamseg_main("evaluate", tmp_path / "run", data, "--device", "cpu", "--split", "val") == 2
    assert "no reader 'zip'" in capsys.readouterr().err
    words = ("--device", "cpu", "--split", "val", "--set", "dataloader.reader=folder")
    assert seamseg_main("evaluate", tmp_path / "run", micro, *words) == 0


MISTAKES = {
    "no reader": ("class ZipReader(Reader)", "class ZipReader", SeamsegError, "reader zip"),
    "another key": (
        "self.keys.images",
        "self.keys.missing",
        SeamsegError,
        r"micro.zip: image \w+: reader zip, .*line 39: Attrib",
    ),
    "a mask without layers": (
        "))[None]",
        "))",
        SeamsegError,
        r"image \w+: reader zip, .*TypeError: read_masks.. must return integers L x H x W, returned int32 \(64, 96\)",
    ),
    "a mask that is a list": ("))[None]", ")).tolist()", SeamsegError, "reader zip, .*, returned list"),
    "its own InputError": (
        'name = f"{self.keys.images}/',
        "raise __import__('seamseg').utils.errors.InputError('a damaged row')\n        name = f\"{self.keys.images}/",
        InputError,
        r"micro.zip: image \w+: reader zip: a damaged row",
    ),
    "no image": ("listed = self.content", "listed = [] and self.content", InputError, "finds no image in split"),
}
"""What is replaced in the file, by what, and the error."""


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, file, options):
    old, new, error, message = MISTAKES[name]
    assert ZIP.count(old) == 1
    file.write_text(ZIP.replace(old, new))
    with pytest.raises(error, match=message) as caught:
        # an error of the reader ends the training whatever part of the images may be unreadable
        run_training(options("run", f"dataloader.broken_limit={0.9 if error is SeamsegError else 0}"))
    assert "\n" not in str(caught.value)


def test_an_unreadable_image_is_replaced(options, data, tmp_path):
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("bad/train0.png", b"no image")
        for name in ("train1", "train2", "train3", "val0", "val1", "val2"):
            archive.writestr(f"bad/{name}.png", archive.read(f"img/{name}.png"))
    given = ("reader zip.images=bad", "dataloader.broken_limit=.3", "dataloader.class_uniform=0")
    run_training(options("run", *given, "mix copy_paste.probability=0", "scheduler.epochs=1"))
    assert "micro.zip/bad/train0.png: not an image" in (tmp_path / "run" / "training.log").read_text()


def test_a_reader_without_maps_says_so(file, options, tmp_path):
    head = tmp_path / "my_head.py"
    head.write_text(DEPTH)
    text = ZIP[: ZIP.index("    def read_map")]
    file.write_text(text)
    with pytest.raises(InputError, match=r"micro.zip: its reader reads no maps, such as depth"):
        run_training(options("run", f"general.components={head}", "dataloader.broken_limit=0"))


def test_the_reader_of_the_page(options, data, tmp_path):
    """That of docs/how-to/extend_data.md reads with worker processes."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "extend_data.md").read_text()
    file = tmp_path / "zip_of_the_page.py"
    file.write_text(next(part for part in page.split("```python\n") if '@reader("zip")' in part).split("```")[0])
    overrides = [text for text in options("run").overrides if not text.startswith("general.components")]
    overrides += [f"general.components={file}", "scheduler.epochs=1", "dataloader.num_workers=2"]
    assert run_training(replace(options("run"), overrides=tuple(overrides))) is not None
