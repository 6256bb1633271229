"""A published model, from the zip to the panoptic map."""

import zipfile

import numpy as np
import pytest
import torch

import seamseg

pytestmark = pytest.mark.usefixtures("narrow")


def test_zip_predicts_like_its_run_folder(micro, micro_run, tmp_path):
    content = torch.load(micro_run / "model_last.pth.tar", weights_only=True)
    # as the original wrote it: no classes in the snapshot, no optimizer, no counters of batches
    weights = {
        part: {key: value for key, value in content["state_dict"][part].items() if "num_batches_tracked" not in key}
        for part in ("body", "rpn_head", "roi_head", "sem_head")
    }
    torch.save({"config": "", "state_dict": weights, "training_meta": {}}, tmp_path / "weights.tar")
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "weights.tar", "weights.tar")
        archive.write(micro_run / "config.ini", "config.ini")
        archive.write(micro / "metadata.bin", "metadata.bin")
    (tmp_path / "weights.tar").unlink()

    photo = micro / "img" / "val0.png"
    model = seamseg.load(path, device="cpu", min_stuff_area=0)
    of_run = seamseg.load(str(micro_run / "model_last.pth.tar"), device="cpu", min_stuff_area=0)
    assert model.metadata == of_run.metadata
    assert model.metadata.images == []
    found, wanted = model.predict(photo), of_run.predict(photo)
    assert found.segments
    assert found.segments == wanted.segments
    assert np.array_equal(found.id_map, wanted.id_map)
