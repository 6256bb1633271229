"""An output format of the user, with keys."""

import sys

import numpy as np
import pytest
from PIL import Image
from support.components import component_file, forget

from seamseg.cli.new import template
from seamseg.inference.options import PredictOptions
from seamseg.predicting.folder import PredictSettings
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

BORDERS = template("format", "borders")
WORDS = ("--device", "cpu", "--workers", "0", "--quiet", "--components")
file, _ = component_file("my_borders.py", BORDERS)


def test_a_format_in_a_folder(file, micro_run, micro, tmp_path, seamseg_main, capsys):
    photo = micro / "img" / "val0.png"
    words = (*WORDS, file, "--format", "overlay,borders", "--set", "format borders.value=7")
    assert seamseg_main("predict", micro_run, photo, tmp_path / "out", *words) == 0
    assert sorted(p.name for p in (tmp_path / "out").glob("val0*")) == ["val0.jpg", "val0_borders.png"]
    border = np.array(Image.open(tmp_path / "out" / "val0_borders.png"))
    assert set(np.unique(border)) == {0, 7}
    # other keys are another run
    assert seamseg_main("predict", micro_run, photo, tmp_path / "out", *words, "--set", "format borders.value=8") == 2
    assert "format borders.value=8" in capsys.readouterr().err


def test_errors_name_the_format_and_the_image(file, micro_run, micro, tmp_path, seamseg_main, capsys):
    """Nothing remains of a run whose first image fails, so that the corrected format runs in the same folder."""
    photo = micro / "img" / "val0.png"
    file.write_text(BORDERS.replace("result.id_map.shape", 'result.maps["none"]'))
    words = (*WORDS, file, "--format", "borders")
    assert seamseg_main("predict", micro_run, photo, tmp_path / "out", *words) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1] == f"skipped {photo}: format borders, {file} line 28: KeyError: 'none'"
    # what the base of the format does with it, a missing file, and one at the end
    end = "return Image.fromarray(mask)\n\n    def finish(self, records):\n        open('/none')"
    for text, expected in (
        ("return", f"skipped {photo}: format borders, {file}: AttributeError: 'NoneType' object "),
        ("return Image.open('none')", f"skipped {photo}: format borders, {file} line 32: FileNotFoundError: "),
        (end, f"seamseg predict: format borders, {file} line 35: FileNotFoundError: "),
    ):
        file.write_text(BORDERS.replace("return Image.fromarray(mask)", text))
        forget("my_borders")
        del sys.modules["my_borders"]
        assert seamseg_main("predict", micro_run, photo, tmp_path / "out", *words) == 1
        assert expected in capsys.readouterr().err


def test_mistakes(file, micro_run, tmp_path):
    def settings(formats, overrides=()):
        return PredictSettings(PredictOptions(micro_run, "in", "out", formats, overrides=overrides))

    with pytest.raises(InputError, match="there is no format 'borders'; choose among"):
        settings("borders")
    given = (f"general.components={file}", "format borders.valeu=7")
    with pytest.raises(InputError, match=r"unknown key 'valeu' in \[format borders\]; did you mean 'value'"):
        settings("borders", given).load("cpu")
    with pytest.raises(InputError, match="did you mean 'borders'"):
        settings("border", given)
    file = tmp_path / "my_coco.py"
    file.write_text(BORDERS.replace('"borders", keys', '"coco", keys'))
    given = (f"general.components={file}",)
    with pytest.raises(InputError, match=r"my_coco.py: another format coco is in .*predictions.py: rename one"):
        settings("coco", given)
