"""The ops elsewhere: on a CUDA device (equal to the CPU) and under torch.compile."""

import pytest
import torch
from torch.testing import assert_close

from ops.test_boxes import random_boxes
from seamseg.ops.boxes import box_iou, crowd_overlap, match_boxes
from seamseg.ops.labels import extract_boxes, paste_masks_into
from seamseg.ops.nms import nms
from seamseg.ops.norm import ABN, InPlaceABN
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.roi_sampling import roi_features, roi_sampling
from seamseg.ops.upsample import upsample_argmax, upsample_ohem_loss


def cases(device):
    """Name, function of tensors on a device, inputs; floating inputs with 3 or more dimensions get gradients."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 8, 32, 48, generator=generator)
    boxes = random_boxes(200, 0, 40)
    scores = torch.rand(200, generator=generator)
    index = torch.randint(0, 2, (200,), generator=generator)
    ids = torch.randint(0, 9, (2, 30, 40), generator=generator)
    logits = torch.randn(5, 12, 16, generator=generator)
    target = torch.randint(0, 5, (45, 60), generator=generator)
    masks = torch.randn(200, 28, 28, generator=generator) * 3
    norms = {layer: layer(8).to(device) for layer in (ABN, InPlaceABN)}

    def pasted(boxes, masks):
        plane = torch.zeros(40, 40, dtype=torch.long, device=boxes.device)
        paste_masks_into(plane, masks.detach().float().sigmoid(), boxes.float(), 0.5, 1, False)
        return plane

    return {
        "iou": (box_iou, (boxes, boxes)),
        "match": (lambda b: torch.stack([t.float() for t in match_boxes(b, b.flip(0))]), (boxes,)),
        "nms": (lambda b, s: nms(b, s, 0.5), (boxes, scores)),
        "nms_groups": (lambda b, s, g: nms(b, s, 0.5, 20, g), (boxes, scores, index)),
        "crowd": (lambda b, m: crowd_overlap(b, m > 4), (boxes, ids[0])),
        "extract": (lambda m: extract_boxes(m, 12), (ids,)),
        "roi": (lambda x, b, i: roi_sampling(x, b, i, (7, 5)), (maps, boxes, index)),
        "features": (
            lambda x, b, i: roi_features([x, x[..., ::2, ::2]], b, i, i, (64, 96), (7, 7)),
            (maps, boxes, index),
        ),
        "pool": (lambda x: box_filter_pool(x, (17, 64)), (maps,)),
        "argmax": (lambda x: upsample_argmax(x, (48, 64), (45, 60)), (logits,)),
        "ohem": (lambda x, t: upsample_ohem_loss(x, (48, 64), (45, 60), t, 0.25), (logits, target)),
        "abn": (norms[ABN], (maps,)),
        "inplace_abn": (norms[InPlaceABN], (maps,)),
        "paste": (pasted, (boxes, masks)),
    }


NAMES = list(cases("cpu"))


def evaluate(function, inputs, device):
    inputs = [t.detach().to(device) for t in inputs]
    inputs = [t.requires_grad_() if t.is_floating_point() and t.dim() >= 3 else t for t in inputs]
    y = function(*inputs)
    gradients = []
    if y.requires_grad:
        y.backward(torch.linspace(-1, 1, y.numel(), device=device).view(y.shape))
        gradients = [t.grad.cpu() for t in inputs if t.grad is not None]
    return [y.detach().cpu(), *gradients]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda_equals_cpu(name):
    results = []
    for device in ("cpu", "cuda"):
        function, inputs = cases(device)[name]
        results.append(evaluate(function, inputs, device))
    for cpu, cuda in zip(*results):
        assert_close(cuda, cpu, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_graph_breaks(name):
    """Tracing and autograd partitioning, without the time of code generation."""
    function, inputs = cases("cpu")[name]
    expected = evaluate(cases("cpu")[name][0], inputs, "cpu")
    # the size of the result of NMS depends on the boxes
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        results = evaluate(compiled, inputs, "cpu")
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, rtol=1e-5, atol=1e-5)
