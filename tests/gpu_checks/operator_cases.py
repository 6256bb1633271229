"""Cases that random arguments rarely cover: many boxes, repeated sums, vectors, more than 2^31 elements.

`python tests/gpu_checks/operators.py` runs them. On a CPU the large ones are small.
"""

from itertools import product

import torch
from timing import boxes_of_scene
from torch.testing import assert_close

from seamseg.ops.labels import count_labels, extract_boxes
from seamseg.ops.nms import nms, nms_fixed
from seamseg.ops.pooling import box_filter_pool

OPS = torch.ops.seamseg
LEAKY = (0, 0.01)
"""Activation and parameter of ABN."""
HALF = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class LeftOut(Exception):
    """The device is too small for a case."""


def outcome(case, device):
    """Return `equal`, the difference, or why the case was skipped."""
    try:
        case(device)
    except LeftOut as reason:
        return f"left out: {reason}"
    except torch.OutOfMemoryError as error:
        return f"left out: {str(error).splitlines()[0]}"
    except AssertionError as error:
        return "differs: " + " ".join(str(error).split())[:300]
    return "equal"


def many_boxes(device):
    """Check NMS beyond a block of 256 boxes, in several groups, with limits: the indices equal those of the CPU."""
    generator = torch.Generator().manual_seed(0)
    for count, groups, limit in product((257, 1000, 6500), (1, 3, 65), (-1, 1, 20, 300)):
        boxes = boxes_of_scene(count, generator, 150)
        scores = torch.randperm(count, generator=generator).float() / count
        group = torch.randint(0, groups, (count,), generator=generator)
        wanted = nms(boxes, scores, 0.5, limit, group)
        b, s, g = (t.to(device) for t in (boxes, scores, group))
        assert torch.equal(nms(b, s, 0.5, limit, g).cpu(), wanted), ("nms", count, groups, limit)
        if limit > 0:
            fixed = nms_fixed(boxes, scores, 0.5, limit, group)
            found = nms_fixed(b, s, 0.5, limit, g)
            for x, y in zip(found, fixed):
                assert torch.equal(x.cpu(), y), ("nms_fixed", count, groups, limit)


def roi_arguments(channels, dtype):
    """Make levels of a pyramid of 256 x 512, boxes that overlap a lot, and the image and level of each."""
    generator = torch.Generator().manual_seed(0)
    levels = [torch.randn(2, channels, 256 // s, 512 // s, generator=generator).to(dtype) for s in (4, 8, 16)]
    boxes = boxes_of_scene(400, generator, 60, 256, 512)
    index, level = (torch.randint(0, n, (400,), generator=generator) for n in (2, 3))
    return levels, boxes, index, level


def roi_backward_repeats(device):
    """Check the deterministic gradient of ROI sampling: equal bits in two runs, and the numbers of the CPU."""
    for dtype, channels, last in product(HALF, (16, 72, 256), (True, False)):
        levels, boxes, index, level = roi_arguments(channels, dtype)
        dy = torch.randn(400, channels, 7, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
        shapes = [side for x in levels for side in x.shape]

        def gradients(where, deterministic, tensors=(dy, boxes, index, level, shapes, last)):
            y, b, i, n = (t.to(where) for t in tensors[:4])
            layout = [tensors[5]] * 3
            return OPS.roi_sampling_backward(y, tensors[4], layout, b, i, n, [256, 512], False, False, deterministic)

        wanted = gradients(torch.device("cpu"), True)
        first, second, scattered = (gradients(device, fixed) for fixed in (True, True, False))
        for a, b, c, reference in zip(first, second, scattered, wanted):
            assert torch.equal(a, b), ("not repeatable", dtype, channels, last)
            for found in (a, c):
                assert_close(found.cpu(), reference, rtol=HALF[dtype], atol=HALF[dtype])


def sides(device, gigabytes):
    """Return height and width of a map of a little more than 2^31 elements; on a CPU of 2^13."""
    if device.type == "cpu":
        return 64, 136
    free = torch.cuda.mem_get_info(device)[0] / 2**30
    if free < gigabytes:
        raise LeftOut(f"{gigabytes:g} GiB are needed, {free:.0f} are free")
    return 32768, 65552


def large_abn(device):
    """Check in-place ABN of more than 2^31 elements, in planes and rows: closed forms, and parts of the map alone."""
    height, width = sides(device, 20)
    shape = (2, 4, height // 4, width // 2)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.empty(shape, dtype=torch.bfloat16, device=device, memory_format=layout)
        channel = torch.arange(4, device=device, dtype=torch.float32)
        sign = 1 - 2 * (torch.arange(shape[3], device=device) % 2)
        x.copy_((channel[:, None, None] + sign).to(x.dtype)[None].expand(shape))
        mean, var = OPS.abn_statistics(x)
        assert_close(mean, channel, rtol=1e-3, atol=1e-3)
        assert_close(var, torch.ones_like(channel), rtol=1e-3, atol=1e-3)
        ones = torch.ones_like(channel)
        end = x[1:, :, -8:].clone(memory_format=layout)
        y = OPS.abn_transform(x, channel, ones, ones, None, *LEAKY)
        assert torch.equal(y[1:, :, -8:], OPS.abn_transform(end, channel, ones, ones, None, *LEAKY))
        del y
        whole = OPS.abn_backward_reduce(x, x, None, ones, *LEAKY)
        parts = [OPS.abn_backward_reduce(p, p, None, ones, *LEAKY) for p in (x[:1], x[1:])]
        for found, (a, b) in zip(whole, zip(*parts)):
            assert_close(found, a + b, rtol=1e-3, atol=1e-3 * x.numel())
        dx = OPS.abn_backward_input(x, x, None, ones, ones, channel, ones, *LEAKY)[0]
        alone = OPS.abn_backward_input(end, end, None, ones, ones, channel, ones, *LEAKY)[0]
        assert torch.equal(dx[1:, :, -8:], alone)
        del x, dx


def large_pool(device):
    """Check a pool of more than 2^31 elements: its last map equals that of the map alone."""
    height, width = sides(device, 40)
    x = torch.randn(2, 4, height // 4, width // 2, dtype=torch.bfloat16, device=device)
    found, alone = box_filter_pool(x, (5, 9))[1, 3:], box_filter_pool(x[1:, 3:].clone(), (5, 9))[0]
    assert_close(found, alone, rtol=1e-2, atol=1e-2)


def large_ids(device):
    """Check boxes of ids in the last corner of more than 2^31 pixels; counting so many labels is refused."""
    height, width = sides(device, 6)
    ids = torch.zeros(1, height, width, dtype=torch.uint8, device=device)
    ids[0, 0, 0], ids[0, -2:, -3:] = 1, 2
    found = extract_boxes(ids, 4).cpu().tolist()
    assert found[1:] == [[0, 0, 1, 1], [height - 2, width - 3, height, width], [-1] * 4], found
    if device.type == "cpu":
        assert count_labels(ids[0], 3).tolist() == [ids.numel() - 7, 1, 6]
        return
    try:
        count_labels(ids[0], 3)
    except RuntimeError:
        return
    raise AssertionError("count_labels: takes more than 2^31 pixels")


def large_levels(device):
    """Check ROI sampling at the end of a map of more than 2^31 elements against one channel of it."""
    height, width = sides(device, 12)
    channels = 64 if device.type == "cuda" else 4
    shape = (1, channels, height // 8, width // 8 + 8)
    one = torch.randn(1, 1, *shape[2:], device=device, dtype=torch.bfloat16)
    h, w = shape[2:]
    corner = torch.tensor([[h - 40.5, w - 60.25, h - 1.0, w - 2.5], [h - 9.0, w - 9.0, h, w]], device=device)
    index = torch.zeros(2, dtype=torch.long, device=device)
    wanted = OPS.roi_sampling([one], corner, index, None, [0, 0], 7, 7, False, False)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = one.expand(shape).contiguous(memory_format=layout)
        found = OPS.roi_sampling([x], corner, index, None, [0, 0], 7, 7, False, False)
        assert_close(found, wanted.expand_as(found), rtol=1e-2, atol=1e-2)
        del x


CASES = {
    "case nms, many boxes": many_boxes,
    "case roi_sampling_backward, repeated": roi_backward_repeats,
    "case abn, beyond 2^31": large_abn,
    "case box_filter_pool, beyond 2^31": large_pool,
    "case extract_boxes and count_labels, beyond 2^31": large_ids,
    "case roi_sampling, beyond 2^31": large_levels,
}
