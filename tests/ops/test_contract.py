"""What every operator promises the dispatcher, by torch's own tool, and under torch.compile."""

import pytest
import torch
from support.cuda_emulation.worker import tensors_of
from support.op_arguments import plausible
from torch import Tensor
from torch.testing import assert_close

from ops.test_boxes import random_boxes
from seamseg.ops import implementations
from seamseg.ops.boxes import box_iou, crowd_overlap, match_boxes
from seamseg.ops.labels import extract_boxes, paste_masks_into
from seamseg.ops.nms import nms
from seamseg.ops.norm import ABN, InPlaceABN
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.roi_sampling import roi_features, roi_sampling
from seamseg.ops.upsample import upsample_argmax, upsample_ohem_loss

DIFFERENTIABLE = {
    "box_filter_pool": ("x",),
    "roi_sampling": ("levels",),
    "upsample_ohem_loss": ("logits",),
}


def copied(value, with_gradient):
    if isinstance(value, list):
        return [copied(v, with_gradient) for v in value]
    if not isinstance(value, Tensor):
        return value
    # the tool copes with no empty map that was expanded
    value = value.clone() if value.numel() else torch.zeros_like(value, memory_format=torch.contiguous_format)
    return value.requires_grad_(with_gradient and value.is_floating_point())


@pytest.mark.parametrize("most", [3, pytest.param(12, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("name", sorted(implementations()))
def test_dispatch(name, most):
    operator = getattr(torch.ops.seamseg, name).default
    needed, checked = DIFFERENTIABLE.get(name, ()), 0
    most = 2 * most if needed else most  # every other set needs gradients
    for seed in range(24):
        try:
            results = operator(*plausible(name, seed))
        except RuntimeError:  # a layout, for example, that only plain torch supports
            continue
        if not all(t.isfinite().all() for t in tensors_of(results)):  # the tool finds NaN different from NaN
            continue
        named = zip(operator._schema.arguments, plausible(name, seed), strict=True)
        arguments = [copied(value, seed % 2 == 1 and argument.name in needed) for argument, value in named]
        torch.library.opcheck(operator, arguments)
        checked += 1
        if checked == most:
            break
    assert checked


def cases():
    """Name, function, inputs; floating inputs with 3 or more dimensions get gradients."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 8, 32, 48, generator=generator)
    boxes = random_boxes(200, 0, 40)
    scores = torch.rand(200, generator=generator)
    index = torch.randint(0, 2, (200,), generator=generator)
    ids = torch.randint(0, 9, (2, 30, 40), generator=generator)
    logits = torch.randn(5, 12, 16, generator=generator)
    target = torch.randint(0, 5, (45, 60), generator=generator)
    masks = torch.randn(200, 28, 28, generator=generator) * 3

    def pasted(boxes, masks):
        plane = torch.zeros(40, 40, dtype=torch.long)
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
        "abn": (ABN(8), (maps,)),
        "inplace_abn": (InPlaceABN(8), (maps,)),
        "paste": (pasted, (boxes, masks)),
    }


def evaluate(function, inputs):
    inputs = [t.detach().requires_grad_(t.is_floating_point() and t.dim() >= 3) for t in inputs]
    y = function(*inputs)
    if not y.requires_grad:
        return [y]
    y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape))
    return [y.detach(), *(t.grad for t in inputs if t.grad is not None)]


@pytest.mark.parametrize("name", list(cases()))
def test_compiles_without_graph_breaks(name):
    """Tracing and autograd partitioning, without the time of code generation."""
    function, inputs = cases()[name]
    expected = evaluate(cases()[name][0], inputs)
    # the size of the result of NMS depends on the boxes
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        results = evaluate(torch.compile(function, fullgraph=True, backend="aot_eager"), inputs)
    assert_close(results, expected, rtol=1e-5, atol=1e-5)
