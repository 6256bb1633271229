"""Fusion against the original and a plain form; the map of queries against the paper's; the image's own size."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from support import op_oracles as oracles
from support.golden_files import array, has, tensor
from support.host_reads import HostReads
from torch.nn import functional

from seamseg import fusion
from seamseg.fusion import FusedMap, download, fuse, fuse_plainly, merge_queries, to_result
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.pasting import paste_detections
from seamseg.maps.predictions import Prediction, QueryMasks

CASES = ("a", "b_none", "c_lowscores", "d_ties", "e_area0")


def golden_case(case):
    """Prediction and parameters (score threshold, overlap threshold, minimal area, number of stuff classes)."""
    semantic = tensor("ops", f"pan_pre/{case}/sem")
    size = (int(semantic.shape[0]), int(semantic.shape[1]))
    if has("ops", f"pan_pre/{case}/bbx"):
        parts = (tensor("ops", f"pan_pre/{case}/{name}") for name in ("bbx", "cls", "obj", "msk"))
    else:
        parts = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0), torch.zeros(0, 28, 28)
    score, overlap, area, num_stuff = array("ops", f"pan_pre/{case}/params").tolist()
    boxes, classes, scores, masks = parts
    prediction = Prediction(boxes, classes, scores, masks, semantic, size)
    return prediction, (int(num_stuff), score, overlap, int(area))


@pytest.mark.parametrize("form", [fuse, fuse_plainly])
@pytest.mark.parametrize("case", CASES)
def test_fusion_equals_the_original(case, form):
    """Without the ids that it gives to segments that have no pixel."""
    prediction, parameters = golden_case(case)
    fused = form(prediction, *parameters)
    assert fused.ids.dtype == np.int32, "half the memory of int64"
    ids = array("ops", f"pan_pre/{case}/out_msk")
    present = np.unique(np.append(ids, 0))
    assert np.array_equal(fused.ids, np.searchsorted(present, ids))
    assert fused.categories == array("ops", f"pan_pre/{case}/out_cat")[present].tolist()
    assert fused.iscrowd == array("ops", f"pan_pre/{case}/out_iscrowd").astype(bool)[present].tolist()
    np.testing.assert_allclose(fused.scores, array("ops", f"pan_pre/{case}/out_obj")[present], rtol=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from([0.0, 0.3, 0.9]))
def test_fusion_equals_its_plain_form(seed, count, overlap):
    generator = torch.Generator().manual_seed(seed)
    size = (41, 57)
    corner = torch.rand(count, 2, generator=generator) * 50 - 8
    boxes = torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * 40], dim=1)
    prediction = Prediction(
        boxes,
        torch.randint(0, 3, (count,), generator=generator),
        torch.rand(count, generator=generator).mul(9).round() / 9,
        torch.randn(count, 28, 28, generator=generator) + 1,
        torch.randint(0, 5, size, generator=generator),
        size,
    )
    fused, plain = fuse(prediction, 2, 0.2, overlap, 40), fuse_plainly(prediction, 2, 0.2, overlap, 40)
    assert np.array_equal(fused.ids, plain.ids)
    assert (fused.categories, fused.scores, fused.iscrowd) == (plain.categories, plain.scores, plain.iscrowd)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def fused_twice(monkeypatch, prediction, device, *parameters, **options):
    wanted = fuse(prediction, *parameters, **options)
    if device == "cpu":
        monkeypatch.setattr(fusion, "_has_kernels", lambda _: True)
    parts = [None if x is None else x.to(device) for x in list(vars(prediction).values())[:5]]
    found = fuse(Prediction(*parts, prediction.size), *parameters, **options)
    monkeypatch.undo()
    if found.ids.shape != wanted.ids.shape:
        wanted = replace(wanted, ids=resize_nearest(wanted.ids, found.ids.shape))
    return found, wanted


def check_same(found, wanted):
    assert found.ids.dtype == np.int32
    np.testing.assert_array_equal(found.ids, wanted.ids)
    assert (found.categories, found.scores, found.iscrowd) == (wanted.categories, wanted.scores, wanted.iscrowd)
    assert found.measured is not None, "by the operators"
    assert wanted.measured is None
    assert to_result(found, found.ids.shape, 2).segments == to_result(wanted, wanted.ids.shape, 2).segments


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(24))
def test_operators_fuse_anything_as_arrays(monkeypatch, seed, device):
    """Few and many detections, equal scores, empty masks, boxes beyond the borders, no class map, other sizes."""
    generator = torch.Generator().manual_seed(seed)
    count, size = (0, 3, 12, 90)[seed % 4], ((41, 57), (1, 70), (130, 33))[seed % 3]
    corner = (torch.rand(count, 2, generator=generator) * 1.4 - 0.2) * torch.tensor(size)
    boxes = torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 40 - 1], dim=1)
    masks = torch.randn(count, 28, 28, generator=generator) * 3
    masks[::5] = -9
    boxes[::7] = torch.nan
    prediction = Prediction(
        *(boxes, torch.randint(0, 3, (count,), generator=generator)),
        *(torch.rand(count, generator=generator).mul(9).round() / 9, masks),
        torch.randint(0, 5, size, generator=generator) if seed % 5 else None,
        size,
    )
    options = {"native_size": ((50, 31), size, None)[seed // 2 % 3]}
    parameters = (2, 0.2, (0.0, 0.5, 1.0)[seed // 3 % 3], (0, 40, 300)[seed // 4 % 3])
    found, wanted = fused_twice(monkeypatch, prediction, device, *parameters, **options)
    check_same(found, wanted)
    assert found.ids.shape == (options["native_size"] or size)
    assert len(found.categories) > 1 or count < 12


@pytest.mark.parametrize("device", DEVICES)
def test_more_ids_than_int16_holds(monkeypatch, device):
    count, size = 33000, (200, 200)
    corners = torch.stack((torch.arange(count) // 200, torch.arange(count) % 200), 1).float()
    prediction = Prediction(
        *(torch.cat((corners, corners + 1), 1), torch.zeros(count).long(), torch.full((count,), 0.9)),
        *(torch.full((count, 1, 1), 9.0), torch.ones(size).long(), size),
    )
    found, wanted = fused_twice(monkeypatch, prediction, device, 2, 0.5, 1.0, 1)
    check_same(found, wanted)
    assert found.ids.max() == count + 1


def test_operators_leave_a_large_map_at_the_size_of_the_network(monkeypatch):
    prediction, parameters = golden_case("a")
    for pixels, size in ((50 * 31, prediction.size), (50 * 31 + 1, (50, 31))):
        monkeypatch.setattr(fusion, "LARGE_PIXELS", pixels)
        monkeypatch.setattr(fusion, "_has_kernels", lambda _: True)
        assert fuse(prediction, *parameters, native_size=(50, 31)).ids.shape == size


def downloaded(monkeypatch, prediction):
    """The arrays of a prediction whose class map is kept as if it were on a GPU."""
    monkeypatch.setattr(fusion, "_has_kernels", lambda p: isinstance(p.scores, torch.Tensor))
    return download(prediction)()


@pytest.mark.parametrize("case", CASES)
def test_what_was_downloaded_is_merged_where_it_was_made(monkeypatch, case):
    prediction, parameters = golden_case(case)
    wanted = fuse(prediction, *parameters)
    with HostReads() as reads:
        arrays = downloaded(monkeypatch, prediction)
        assert reads.places.total() == 10, f"5 parts, each an array\n{reads}"
        found = fuse(arrays, *parameters)
    assert sum(place.startswith("cpu: ") for place in reads.places.elements()) == 6, f"nothing twice\n{reads}"
    check_same(found, wanted)
    assert arrays.semantic_on_gpu[1].untyped_storage().nbytes() == arrays.semantic.size, "not that of a batch"
    for one in (arrays.on_cpu(), arrays.copy()):
        assert one.semantic_on_gpu is None, "no memory of the GPU"
        np.testing.assert_array_equal(one.semantic, prediction.semantic)


def test_another_class_map_is_not_merged_with_that_on_the_gpu(monkeypatch):
    prediction, parameters = golden_case("a")
    arrays = downloaded(monkeypatch, prediction)
    other = replace(arrays, semantic=np.zeros_like(arrays.semantic))
    assert fuse(other, *parameters).measured is None, "on the CPU"
    np.testing.assert_array_equal(fuse(other, *parameters).ids, fuse(other.on_cpu(), *parameters).ids)
    for changes in ({"mask_logits": None}, {"semantic": None}, {"queries": object()}):  # nothing to be merged
        assert downloaded(monkeypatch, replace(prediction, **changes)).semantic_on_gpu is None


@pytest.mark.parametrize("in_arrays", [False, True])
def test_a_full_gpu_leaves_the_fusion_to_the_cpu(monkeypatch, in_arrays):
    prediction, parameters = golden_case("a")
    wanted = fuse(prediction, *parameters)
    arrays = downloaded(monkeypatch, prediction)
    errors = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("misaligned address")]
    monkeypatch.setattr(fusion, "_merge_tensors", lambda *_: (_ for _ in ()).throw(errors.pop(0)))
    found = fuse(arrays if in_arrays else prediction, *parameters)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    with pytest.raises(RuntimeError, match="misaligned"):
        fuse(arrays, *parameters)


@pytest.mark.parametrize("state", ["loaded", "absent", "not built"])
def test_only_loaded_kernels_fuse_on_a_gpu(monkeypatch, state):
    monkeypatch.setattr("seamseg.ops.kernels", lambda: {"GPU": state})
    on_gpu = SimpleNamespace(scores=SimpleNamespace(is_cuda=True))
    assert fusion._has_kernels(on_gpu) == (state == "loaded")


def test_semantic_things_without_detection_are_crowds():
    box = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([0]), torch.tensor([0.9])
    with pytest.raises(ValueError, match="no masks"):
        fuse(Prediction(*box, None, torch.zeros(8, 8).long(), (8, 8)), 2)
    semantic = torch.tensor([[0, 0, 3, 3]])
    nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0), torch.zeros(0, 28, 28)
    fused = fuse(Prediction(*nothing, semantic, (1, 4)), 2, 0.5, 0.5, 1)
    assert fused.categories == [VOID, 0, 3]
    assert fused.iscrowd == [False, False, True]
    assert fuse(Prediction(*nothing, None, (1, 4)), 2).ids.sum() == 0
    for form in (fuse, fuse_plainly):
        assert form(Prediction(*nothing[:3], None, semantic, (1, 4)), 2, 0.5, 0.5, 1).categories == [VOID, 0, 3]


def test_stuff_of_at_least_the_least_area_is_kept(monkeypatch):
    """4096 pixels by default; a class whose pixels are fewer is void."""
    semantic = torch.zeros(2, 4096, dtype=torch.long)
    semantic[1], semantic[1, 0] = 1, 2
    nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0), torch.zeros(0, 28, 28)
    prediction = Prediction(*nothing, semantic, (2, 4096))
    assert fuse(prediction, 3).categories == [VOID, 0]
    assert fuse(prediction, 3, min_stuff_area=4095).categories == [VOID, 0, 1]
    assert fuse(prediction, 3, min_stuff_area=4097).categories == [VOID]
    found, wanted = fused_twice(monkeypatch, prediction, "cpu", 3, min_stuff_area=0)
    check_same(found, wanted)
    assert found.categories == [VOID, 0, 1, 2], "of a single pixel"


def placed(detection, size):
    plane, (y, x), (height, width) = np.zeros(size, bool), detection.corner, detection.crop.shape
    plane[y : y + height, x : x + width] = detection.crop
    return plane


@pytest.mark.parametrize("by_nearest", [False, True])
@pytest.mark.parametrize("size", [(21, 29), (10, 16), (45, 30), (21, 15)])
def test_detections_are_pasted_at_the_size_of_the_image(size, by_nearest):
    """As whole masks are: at that size, or at the network's and then resized as Pillow does by nearest neighbour."""
    boxes = torch.tensor([[1.5, 2.5, 15, 20], [-4, 10, 10, 36], [5, 5, 8, 7.5]])
    logits = torch.randn(3, 28, 28, generator=torch.Generator().manual_seed(0)) * 4
    parts = boxes, torch.tensor([2, 0, 1]), torch.tensor([0.5, 0.25, 0.75])
    scaled = (boxes.double() * torch.tensor([size[0] / 21, size[1] / 29] * 2, dtype=torch.float64)).float()
    found = list(paste_detections(Prediction(*parts, logits, None, (21, 29)), size, by_nearest))
    assert [(d.category, d.score) for d in found] == [(2, 0.5), (0, 0.25), (1, 0.75)]
    for detection, mask, box, own in zip(found, logits, boxes, scaled):
        if by_nearest:
            whole = Image.fromarray(oracles.paste_mask(mask, box, (21, 29)).numpy())
            wanted = np.asarray(whole.resize(size[::-1], Image.Resampling.NEAREST))
            own = own.clamp(min=0).minimum(torch.tensor([*size, *size]))
        else:
            wanted = oracles.paste_mask(mask, own, size).numpy()
        assert np.array_equal(placed(detection, size), wanted)
        assert detection.box == tuple(own.tolist())
    for detection in paste_detections(Prediction(*parts, None, None, (21, 29)), size, by_nearest):
        assert (detection.crop, detection.corner) == (None, (0, 0))
    ids = np.zeros((21, 29), np.int32)
    ids[2:9, 3:12], ids[9:15, 3:5] = 1, 3  # nothing of the second is seen
    known = Prediction(*parts, None, None, (21, 29), maps={"ids": torch.from_numpy(ids)})
    for k, detection in enumerate(paste_detections(known, size, by_nearest), start=1):
        assert np.array_equal(placed(detection, size), resize_nearest(ids, size) == k)


def test_segments_are_described_at_the_native_size():
    ids = np.zeros((4, 6), np.int32)
    ids[1:3, 2:5], ids[3, 5] = 1, 2
    fused = FusedMap(ids, [VOID, 3, 0, 2], [0.0, 0.75, 1.0, 1.0], [False, False, False, True])
    result = to_result(fused, (8, 12), 2)
    thing, stuff = result.segments
    assert (thing.id, thing.category, thing.isthing, thing.score, thing.area) == (1, 3, True, 0.75, 24)
    assert thing.box == (2.0, 4.0, 6.0, 10.0)
    assert (stuff.id, stuff.isthing, stuff.score, stuff.area) == (2, False, None, 4)
    assert result.size == (8, 12)
    assert result.id_map.dtype == np.int32
    small = to_result(fused, (2, 3), 2)
    assert [s.id for s in small.segments] == [i for i in np.unique(small.id_map).tolist() if i > 0], "gone if vanished"


STUFF = 3
NEAR = 1e-4
"""Where the best and the second best differ by less, or a probability is this close to .5, either is right."""


def upsample(queries, size, native):
    logits = torch.from_numpy(queries.mask_logits)[None]
    padded = functional.interpolate(logits, queries.padded_size, mode="bilinear", align_corners=False)
    valid = padded[..., : size[0], : size[1]]
    return functional.interpolate(valid, native, mode="bilinear", align_corners=False)[0].sigmoid()


def papers_map(queries, size, native, score_threshold=0.8, overlap_threshold=0.8):
    """Ids, categories, whether each pixel is certain, and whether all decisions on whole queries are."""
    kept = np.flatnonzero(queries.scores > score_threshold)
    ids, categories, stuff, sure = torch.zeros(native, dtype=torch.int32), [VOID], {}, True
    certain = torch.ones(native, dtype=torch.bool)
    if not len(kept):
        return ids.numpy(), categories, certain.numpy(), sure
    masks = upsample(queries, size, native)[kept]
    values = masks * torch.from_numpy(queries.scores[kept])[:, None, None]
    owner = values.argmax(0)
    if len(kept) > 1:
        first, second = values.topk(2, dim=0).values
        certain = first - second > NEAR * first
    certain &= ((masks - 0.5).abs() > NEAR).all(0)
    doubtful = int((~certain).sum())
    for k in range(len(kept)):
        mine, inside = owner == k, masks[k] >= 0.5
        claimed = mine & inside
        ratio = mine.sum().item() / max(inside.sum().item(), 1)
        slack = 2 * doubtful / max(inside.sum().item(), 1)
        sure &= abs(ratio - overlap_threshold) > slack and (doubtful == 0 or claimed.sum().item() > doubtful)
        if not claimed.any() or ratio < overlap_threshold:
            continue
        category = int(queries.classes[kept[k]])
        if category in stuff:
            ids[claimed] = stuff[category]
            continue
        categories.append(category)
        ids[claimed] = len(categories) - 1
        if category < STUFF:
            stuff[category] = len(categories) - 1
    return ids.numpy(), categories, certain.numpy(), sure


def smooth(rng, count, cells, coarse):
    noise = torch.from_numpy(rng.normal(-1, 6, (count, 1, *coarse)).astype(np.float32))
    return functional.interpolate(noise, cells, mode="bicubic")[:, 0].numpy()


def random_queries(seed, count, cells, padded, coarse):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0.6, 1, count).astype(np.float32)
    return QueryMasks(rng.integers(0, 7, count), scores, smooth(rng, count, cells, coarse), padded)


@st.composite
def image_sizes(draw):
    """Generate the padded size, the valid one, and that of an image that is larger, smaller, or equal."""
    padded = draw(st.tuples(st.integers(4, 120), st.integers(4, 120)))
    size = tuple(p - draw(st.integers(0, p // 2)) for p in padded)
    return padded, size, draw(st.just(size) | st.tuples(st.integers(1, 250), st.integers(1, 250)))


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(0, 12), image_sizes(), st.sampled_from([0.1, 0.5, 0.8]), st.integers(2, 12))
def test_it_is_the_papers_map(seed, count, sizes, overlap, coarse):
    padded, size, native = sizes
    cells = -(-padded[0] // 4), -(-padded[1] // 4)
    queries = random_queries(seed, count, cells, padded, (coarse, coarse))
    wanted, categories, certain, sure = papers_map(queries, size, native, 0.7, overlap)
    assume(sure)
    fused = merge_queries(queries, size, native, STUFF, 0.7, overlap)
    assert fused.ids.dtype == np.int32
    assert fused.ids.shape == native
    assert fused.categories == categories
    assert np.array_equal(fused.ids[certain], wanted[certain])


def squares(size, *boxes):
    """Logits of boxes at the size of the input: 10 inside, -10 outside."""
    logits = np.full((len(boxes), *size), -10, np.float32)
    for mask, (y0, x0, y1, x1) in zip(logits, boxes):
        mask[y0:y1, x0:x1] = 10
    return logits


def queries_of(logits, classes, scores=None, padded=None):
    scores = [0.9] * len(classes) if scores is None else scores
    padded = logits.shape[1:] if padded is None else padded
    return QueryMasks(np.array(classes, np.int64), np.array(scores, np.float32), logits, padded)


def merged(queries, *thresholds, size=None, native=None):
    """Merge, by default at the size of the input, and compare with the paper's map."""
    size = size or queries.padded_size
    native = native or size
    fused = merge_queries(queries, size, native, STUFF, *thresholds)
    ids, categories, certain, _ = papers_map(queries, size, native, *thresholds)
    assert fused.categories == categories
    assert np.array_equal(fused.ids[certain], ids[certain])
    return fused


def test_ids_of_interrupted_stuff_do_not_collide():
    """Road, car, car, road, car: both parts of the road are one segment, and the last car is one of its own."""
    boxes = [(8 * i, 0, 8 * i + 8, 32) for i in range(5)]
    fused = merged(queries_of(squares((40, 32), *boxes), [0, 4, 4, 0, 4]))
    assert fused.ids[::8, 0].tolist() == [1, 2, 3, 1, 4]
    assert fused.categories == [VOID, 0, 4, 4, 4]
    assert fused.scores == pytest.approx([0, 1, 0.9, 0.9, 0.9])
    assert fused.iscrowd == [False] * 5
    segments = to_result(fused, (40, 32), STUFF).segments
    assert [(s.id, s.area, s.score is None) for s in segments] == [
        (1, 512, True), (2, 256, False), (3, 256, False), (4, 256, False)
    ]  # fmt: skip


def test_scores_must_be_above_the_threshold():
    """A mask is compared with .5 by its own probability, not by score x probability."""
    queries = queries_of(squares((32, 32), (4, 4, 20, 20)), [4], [0.5])
    for threshold, pixels in ((0.5, 0), (0.49, 256), (0.1, 256)):
        fused = merged(queries, threshold)
        assert (fused.ids == 1).sum() == pixels
    assert fused.scores[1] == pytest.approx(0.5)


@pytest.mark.parametrize("scores", [[], [0.8, 0.3]])
def test_no_query_is_kept(scores):
    logits = squares((16, 16), *[(0, 0, 16, 16)] * len(scores))
    fused = merged(queries_of(logits, [4] * len(scores), scores), size=(16, 16), native=(30, 50))
    assert fused.ids.dtype == np.int32
    assert fused.ids.shape == (30, 50)
    assert not fused.ids.any()
    assert (fused.categories, fused.scores, fused.iscrowd) == ([VOID], [0.0], [False])
    assert to_result(fused, (30, 50), STUFF).segments == []


MEMORY = """
import json, resource
import numpy as np
from seamseg.fusion import merge_queries, to_result
from seamseg.maps.predictions import QueryMasks

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

rng = np.random.default_rng(0)
logits = rng.standard_normal((40, 256, 512), np.float32)
queries = QueryMasks(np.arange(40) % 9, np.full(40, 0.9, np.float32), logits, (1024, 2048))
before = peak()
fused = merge_queries(queries, (1024, 1366), (3000, 4000), 3, 0.8, 0.0)
result = to_result(fused, (3000, 4000), 3)
print(json.dumps([peak() - before, len(result.segments)]))
"""


def test_memory():
    """40 masks at 12 megapixels would be 1.8 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    kilobytes, segments = json.loads(done.stdout)
    assert segments > 20
    assert kilobytes < 400_000
