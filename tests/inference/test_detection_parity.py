"""Detection and instance segmentation against the original's, from the features to the results and the overlay.

Tolerances are about ten times what the original differs from itself between two convolution libraries.
"""

import json
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from support.golden_files import DATA, array, tensor
from support.golden_weights import golden_state
from support.networks import NUM_STUFF, NUM_THING, golden_image

from seamseg.config import default_config
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import Prediction
from seamseg.maps.visualize.detections import draw_legacy
from seamseg.models.build import build_network
from seamseg.models.folding import fold_abn
from seamseg.results import Detections
from seamseg.structures import PackedSequence

CASES = {"flower": ["flower"], "batch": ["flower", "china"]}
RESULTS = json.loads((DATA / "infer_instance_seg_results.json").read_text())
COLORS = [tuple(rgb) for rgb in array("infer_instance_seg", "flower/picture_colors").tolist()]
CLASSES = Metadata(NUM_STUFF, NUM_THING, [f"class {i}" for i in range(19)], COLORS, list(range(19)))


def stored(name):
    return tensor("infer_instance_seg", name)


def positions(key, size, count=64):
    return np.random.RandomState(zlib.crc32(key.encode()) % 2**31).randint(0, size, count)


def golden_network(kind):
    """The golden weights; those of a panoptic snapshot that fit."""
    net = build_network(default_config(kind), NUM_STUFF, NUM_THING)
    for part, state in golden_state().items():
        if (own := getattr(net, part)) is not None:
            own.load_state_dict({key: state[key] for key in own.state_dict()})
    return net.eval()


class Case:
    def __init__(self, name, fold=False):
        net = golden_network("instance_seg")
        self.name, self.net = name, fold_abn(net) if fold else net
        config = default_config("instance_seg")
        images = PackedSequence([golden_image(image, config) for image in CASES[name]])
        with torch.no_grad():
            self.features = self.net.encode(images)
            self.anchors, self.obj_logits, self.bbx_logits = self.net.score_anchors(self.features)
            self.predictions = self.net.predict(images)


@pytest.fixture(scope="module")
def flower():
    return Case("flower")


@pytest.fixture(
    scope="module", params=["flower", *(pytest.param(name, marks=pytest.mark.slow) for name in ("folded", "batch"))]
)
def case(request, flower):
    cases = {"flower": lambda: flower, "batch": lambda: Case("batch"), "folded": lambda: Case("flower", True)}
    return cases[request.param]()


def test_features(case):
    for level, x in enumerate(case.features.levels):
        key = f"{case.name}/fpn{level}"
        assert list(x.shape) == stored(f"{key}_shape").tolist()
        flat = x.contiguous().flatten()
        assert (flat[positions(key, len(flat))] - stored(f"{key}_val")).abs().max() < 1e-3
        stats = torch.stack([flat.double().mean(), flat.double().std(correction=0), flat.double().abs().max()])
        assert (stats - stored(f"{key}_stats")).abs().max() < 1e-3


def test_proposals(case):
    scored = (case.obj_logits, case.bbx_logits, case.anchors, case.features.valid_sizes)
    for i, found in enumerate(case.net.options.proposals(*scored, training=False)):
        wanted = stored(f"{case.name}/{i}/proposals")
        assert found.shape == wanted.shape
        distance = (found[:, None] - wanted[None]).abs().amax(-1)
        assert (distance.amin(0) < 0.01).float().mean() >= 0.99
        assert (distance.amin(1) < 0.01).float().mean() >= 0.99


def match(found, name):
    """Number of our detection that each stored one is: the nearest of its class, each once."""
    boxes, classes = stored(f"{name}/bbx_pred"), stored(f"{name}/cls_pred")
    assert found.boxes.shape == boxes.shape
    distance = (found.boxes[None] - boxes[:, None]).abs().amax(-1)
    order = torch.where(found.classes[None] == classes[:, None], distance, torch.inf).argmin(1)
    assert sorted(order.tolist()) == list(range(len(boxes)))
    return order


def test_detections(case):
    for i, found in enumerate(case.predictions):
        name = f"{case.name}/{i}"
        order = match(found, name)
        assert found.semantic is None
        assert found.classes[order].tolist() == stored(f"{name}/cls_pred").tolist()
        moved = (found.boxes[order] - stored(f"{name}/bbx_pred")).abs().amax(1)
        assert (moved < 0.01).float().mean() >= 0.95
        assert moved.max() < 0.09
        assert (found.scores[order] - stored(f"{name}/obj_pred")).abs().max() < 2.5e-3
        logits = found.mask_logits[order].flatten(1)[:, positions("msk_val", 28 * 28)]
        differs = (logits - stored(f"{name}/msk_val")).abs()
        assert differs.mean() < 3e-3
        assert differs.max() < 0.27


def test_a_detector_with_the_same_weights_finds_the_same_boxes(flower):
    """It has no mask branch: the weights of that of an instance segmentation network are not used."""
    with torch.no_grad():
        found = golden_network("detection").predict(PackedSequence([golden_image("flower", default_config())]))[0]
    assert found.mask_logits is None
    assert found.semantic is None
    for part in ("boxes", "classes", "scores"):
        assert torch.equal(getattr(found, part), getattr(flower.predictions[0], part))


def golden_prediction():
    """The original's detections with a score above one half, whose masks are stored whole."""
    kept = stored("flower/0/obj_pred") > 0.5
    boxes, classes, scores = (stored(f"flower/0/{name}_pred")[kept] for name in ("bbx", "cls", "obj"))
    return Prediction(boxes, classes, scores, stored("flower/0/msk_kept"), None, tuple(RESULTS["img_size"]))


def test_coco_results_of_the_originals_detections():
    """Masks are equal to the last pixel, boxes but for the rounding of float32."""
    size = tuple(RESULTS["original_size"])
    found = Detections.of(golden_prediction(), size, CLASSES).to_coco(RESULTS["image_id"])
    wanted = [entry for entry in RESULTS["results"] if entry["score"] > 0.5]
    assert len(found) == len(wanted) == 9
    for ours, theirs in zip(found, wanted):
        for key in ("image_id", "category_id", "score", "segmentation"):
            assert ours[key] == theirs[key]
        assert ours["bbox"] == pytest.approx(theirs["bbox"], abs=1e-4)


def test_overlay_of_the_originals_detections():
    photo = array("inputs", "flower_resized_u8")
    result = Detections.of(golden_prediction(), photo.shape[:2], CLASSES)
    wanted = np.asarray(Image.open(DATA / "infer_instance_seg_overlay.png").convert("RGB"))
    assert np.array_equal(draw_legacy(photo, list(result), result.size, COLORS), wanted)
