"""A reader of the user: a data set in a zip file, read as if it were a folder."""

import zipfile
from dataclasses import replace

import pytest
import torch
from support.components import DEPTH, assert_refused, code_of_page, component_file, forget

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

file, _ = component_file("my_zip.py", code_of_page("extend_data.md", '@reader("zip")'))


@pytest.fixture
def data(tmp_path, micro):
    path = tmp_path / "micro.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in micro.rglob("*"):
            archive.write(member, member.relative_to(micro))
    return path


@pytest.fixture
def options(component_options, file, data):
    given = ("dataloader.reader=zip", "dataloader.class_uniform=.5")
    return lambda run, *more, **others: replace(component_options(file, run, *given, *more, **others), data=data)


@pytest.mark.slow
def test_a_training_and_its_scores_equal_those_on_the_folder(options, micro, tmp_path):
    run_training(options("zip", "dataloader.num_workers=2", "dataloader.fast_decode=yes"))
    folder = replace(options("folder", "dataloader.reader=folder", "dataloader.fast_decode=yes"), data=micro)
    run_training(folder)
    one, other = (load_snapshot(tmp_path / run / "model_last.pth.tar") for run in ("zip", "folder"))
    assert [record.name for record in one.components] == ["zip"]
    assert one.training_meta == other.training_meta, "the scores"
    leaves = [torch.utils._pytree.tree_leaves(snapshot.state_dict) for snapshot in (one, other)]
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*leaves, strict=True))


def test_a_model_is_evaluated_with_its_reader_only(options, file, data, micro, tmp_path, seamseg_main, capsys):
    run_training(replace(options("run", "scheduler.epochs=1"), data=str(data)))
    forget("my_zip")
    photo, words = micro / "img" / "val0.png", ("--device", "cpu", "--split", "val")
    assert seamseg_main("predict", tmp_path / "run", photo, tmp_path / "out", "--device", "cpu") == 0
    assert seamseg_main("evaluate", tmp_path / "run", data, *words) == 2
    assert "no reader 'zip'" in capsys.readouterr().err
    assert seamseg_main("evaluate", tmp_path / "run", micro, *words, "--set", "dataloader.reader=folder") == 0


DAMAGED = "raise __import__('seamseg').utils.errors.InputError('a damaged row')"


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("class ZipReader(Reader)", "class ZipReader", SeamsegError, "reader zip"),
        ('f"img/{', 'f"{self.missing}/{', SeamsegError, r"micro.zip: image \w+: reader zip, .*line \d+: Attrib"),
        ("))[None]", "))", InputError, r"the masks are int32 of \(64, 96\), expected integers L x "),
        (
            'name = f"img/{',
            f'{DAMAGED}; name = f"img/{{',
            InputError,
            r"micro.zip: image \w+: reader zip: a damaged row",
        ),
        ("listed = self.archive", "listed = [] and self.archive", InputError, "finds no image in split"),
    ],
)
def test_mistakes(old, new, error, message, file, options):
    run = options("run")
    assert_refused(run, message, file, old, new, error)


def test_a_reader_without_maps_says_so(options, tmp_path):
    head = tmp_path / "my_head.py"
    head.write_text(DEPTH)
    with pytest.raises(InputError, match=r"micro.zip: its reader reads no maps, such as depth"):
        run_training(options("run", f"general.components={head}"))
