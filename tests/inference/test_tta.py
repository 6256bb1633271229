"""Test-time augmentation: options, geometry, and that a single view equals the plain prediction."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from support.predictors import StandIn
from support.sections import roi

import seamseg
from seamseg.inference.images import network_input
from seamseg.inference.tta import Augmentation, _merge, predict_augmented
from seamseg.maps.predictions import Prediction
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError


def test_parse():
    for text, views in (("0.5,1", [(0.5, False), (1, False)]), ("Flip, 2,2", [(2, False), (2, True)])):
        assert list(Augmentation.parse(text).views()) == views
    for text in (None, "", "1.0,"):
        assert Augmentation.parse(text) is None
    for text in ("flop", "0", "-1", "5", "nan", "1;2"):
        with pytest.raises(InputError, match="tta"):
            Augmentation.parse(text)


class SquareDetector(StandIn):
    """A stand-in for the network that detects the bright square of an image."""

    def __init__(self):
        super().__init__()
        self.options = SimpleNamespace(selector=DetectionSelector(roi(nms_threshold=0.5, max_predictions=3)))
        self.inputs = []

    def encode(self, images):
        return images

    def classify(self, images):
        return torch.stack(list(images))

    def predict_things(self, images):
        predictions = []
        for image in images:
            self.inputs.append(image)
            rows, columns = (image[0] > 0.5).any(1).nonzero().flatten(), (image[0] > 0.5).any(0).nonzero().flatten()
            box = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
            mask = torch.linspace(-1, 1, 28).expand(1, 28, 28)  # true on the right half
            # on the left for a mirrored image, which has the better score
            mirrored = float(image[1, 0, 0]) < float(image[1, 0, -1])
            mask, score = (mask.flip(-1), 0.95) if mirrored else (mask, 0.9)
            size = (image.shape[1], image.shape[2])
            predictions.append(
                Prediction(torch.tensor([box]).float(), torch.tensor([0]), torch.tensor([score]), mask, None, size)
            )
        return predictions


def scene(height=40, width=60):
    image = torch.zeros(3, height, width)
    image[0, 10:20, 12:28] = 1
    image[1] = torch.linspace(1, 0.1, width)  # decreases to the right, to recognise mirrored images
    image[1, :, 0] = 1
    return image


@pytest.mark.parametrize("text", ["flip", "0.5", "2", "flip,0.5,1,2"])
def test_detections_of_all_views_are_merged(text):
    image = scene()
    net, augmentation = SquareDetector(), Augmentation.parse(text)
    found = predict_augmented(net, [image], augmentation)[0]
    assert [view.shape[1:] for view in net.inputs] == [(40 * scale, 60 * scale) for scale, _ in augmentation.views()]
    assert found.boxes.shape == (1, 4), "detections of one object were not merged"
    assert (found.boxes[0] - torch.tensor([10.0, 12, 20, 28])).abs().max() <= 2
    assert found.mask_logits[0, 0, -1] > 0 > found.mask_logits[0, 0, 0], "the mask was not mirrored back"
    assert found.size == (40, 60)
    assert found.semantic.shape == (40, 60)
    assert (found.semantic != image.argmax(0)).float().mean() < 0.06
    # images of two sizes are processed separately
    found = predict_augmented(net, [scene(), scene(50, 60)], augmentation)
    assert [p.size for p in found] == [(40, 60), (50, 60)]
    assert all(torch.isfinite(view).all() for view in net.inputs)


def test_as_many_detections_as_there_may_be_are_in_the_order_of_classes():
    boxes = torch.tensor([[0.0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]])
    parts = [Prediction(boxes, torch.tensor([1, 0, 1]), torch.tensor([0.9, 0.5, 0.7]), None, None, (50, 9))]
    assert _merge(SquareDetector(), parts, [], (50, 9)).classes.tolist() == [0, 1, 1]


@pytest.mark.usefixtures("narrow")
def test_a_single_view_is_the_plain_prediction(micro_run, micro):
    model = seamseg.load(micro_run, device="cpu")
    photo = Image.open(micro / "img" / "val0.png").convert("RGB")
    image = model.network.prepare(network_input(photo, model.input_size))
    with torch.inference_mode():
        once = predict_augmented(model.network.net, [image], Augmentation())[0]
        plain = model.network.net.predict(PackedSequence([image]))[0]
    assert torch.equal(once.scores.sort().values, plain.scores.sort().values)
    assert (once.semantic != plain.semantic).float().mean() < 1e-3
