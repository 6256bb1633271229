"""Training images that cannot be read."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from data.test_workers import dataset
from seamseg.data.dataset import MAX_ATTEMPTS
from seamseg.data.loader import LoaderOptions, UnreadableImages, set_epoch, train_loader
from seamseg.data.samplers import DistributedARBatchSampler, SampleIndex
from seamseg.utils.errors import InputError

SIZES = [(12, 20), (20, 12), (12, 24), (14, 14), (10, 18), (9, 30), (22, 12), (8, 20)]


replacing = partial(dataset, replace_unreadable=True)


def no_mask(root):
    (root / "msk" / "im2.png").unlink()
    return "no mask of image 'im2'"


def misfit(root):
    (root / "img" / "im2.png").write_bytes((root / "img" / "im0.png").read_bytes())
    return "im2.png: the image is 20 x 12 pixels"


@pytest.mark.parametrize("spoil", [no_mask, misfit])
def test_replaced_by_another_image_of_the_same_orientation(make_folder, spoil):
    root = make_folder(SIZES)
    whole = replacing(root)
    good = [whole[i] for i in range(len(SIZES))]
    reason = spoil(root)
    data = replacing(root)
    taken = set()
    for epoch in range(30):
        item = data[SampleIndex(epoch, 2, 2)]
        assert item["size"][0] < item["size"][1]
        assert item["id"] != "im2"
        ((image, error),) = item["unreadable"]
        assert image == "im2"
        assert reason in error
        again = replacing(root)[SampleIndex(epoch, 2, 2)]
        assert again["id"] == item["id"]
        assert torch.equal(again["img"], item["img"])
        taken.add(item["id"])
    assert len(taken) > 2
    for index in {0, 1, *range(3, len(SIZES))}:
        assert torch.equal(data[index]["img"], good[index]["img"])
        assert data[index]["unreadable"] == []
    with pytest.raises(InputError, match="im2"):
        dataset(root)[2]


def test_error_if_all_replacements_are_unreadable(make_folder):
    """Those of the other orientation come last."""
    root = make_folder([(12, 20)] * 5 + [(20, 12)] * 25)
    for path in (root / "img").iterdir():
        path.write_bytes(b"")
    data = replacing(root)
    reads = []
    read = data.reader.read_image
    data.reader.read_image = lambda index, at_least: reads.append(index) or read(index, at_least)
    with pytest.raises(InputError, match=r"im4.png: the file is empty.*; nor can the others tried in its place \(9\)"):
        data[4]
    assert len(set(reads)) == len(reads) == MAX_ATTEMPTS
    assert max(reads[:5]) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_full_and_list_unreadable_images(make_folder, workers):
    root = make_folder(SIZES)
    no_mask(root)
    (root / "img" / "im6.png").write_bytes(b"")
    data = replacing(root)
    loader = train_loader(data, DistributedARBatchSampler(data.img_sizes, 2), LoaderOptions(num_workers=workers))
    set_epoch(loader, 1)
    batches = list(loader)
    assert sum(map(len, batches)) == len(SIZES)
    assert sorted(image for batch in batches for image, _ in batch.unreadable) == ["im2", "im6"]
    assert not {"im2", "im6"} & {i for batch in batches for i in batch.ids}


@pytest.mark.parametrize(("limit", "allowed"), [(0.0, 0), (0.1, 1), (0.25, 2), (0.3, 3)])
def test_limit_of_unreadable_images(limit, allowed):
    """Each file is reported once."""
    log = []
    images = UnreadableImages(limit, 10, log.append)
    for _ in range(2):
        images.begin_epoch()
        for number in range(allowed):
            images.add([(str(number), f"{number}.png: empty")])
            assert images.count == number + 1
    with pytest.raises(InputError) as error:
        images.add([("last", "last.png: empty")])
    assert str(error.value).startswith(f"{allowed + 1} of the 10 training images of this epoch cannot be read")
    assert f"broken_limit = {limit:g}" in str(error.value)
    assert str(error.value).endswith("and 1 more" if allowed == 3 else "last.png: empty")
    assert log == [f"{number}.png: empty; replaced by another image" for number in range(allowed)]
