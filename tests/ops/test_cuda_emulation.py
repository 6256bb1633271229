"""The CUDA kernels, emulated on the CPU: faults are found, and results equal plain torch. See `emulator`."""

import pytest
import torch
from support.cuda_emulation.worker import load_operators
from support.emulator import ROOT, Fault, Raised, Worker, obstacle
from support.op_arguments import check_equal, plausible

from seamseg.ops import implementations

pytestmark = [pytest.mark.slow, pytest.mark.skipif(obstacle() is not None, reason=obstacle() or "")]

load_operators()
OPERATORS = sorted(implementations())
EMULATED = [
    name for name in OPERATORS if any(f'"{name}"' in path.read_text() for path in (ROOT / "csrc/cuda").glob("*.cu"))
]
FEWER = {"upsample_ohem_loss": 4, "paste_masks_into": 2}  # many threads


@pytest.fixture(scope="module")
def worker():
    worker = Worker(sanitized=True)
    yield worker
    worker.close()


def agree(worker, name, arguments, seed=2):
    found, wanted = (worker.call(library, name, arguments, seed) for library in ("seamseg_emulated", "seamseg"))
    check_equal(name, found, wanted)
    return wanted


def compare(worker, library, name, seeds, **options):
    compared = 0
    for seed in seeds:
        arguments = plausible(name, seed, **options)
        try:
            result = worker.call(library, name, arguments, seed)
        except Raised as error:
            if error.kind != "RuntimeError":  # raised for a layout, for example, that only plain torch supports
                pytest.fail(f"{name}, seed {seed}: {error}")
            continue
        except Fault as fault:
            pytest.fail(f"{name}, seed {seed}: {fault}")
        try:
            check_equal(name, result, worker.call("seamseg", name, arguments))
        except AssertionError as error:
            pytest.fail(f"{name}, seed {seed}: {error}")
        compared += 1
    assert compared >= len(seeds) // 2


@pytest.mark.parametrize("name", EMULATED)
def test_cuda_equals_plain(worker, name):
    compare(worker, "seamseg_emulated", name, range(32 // FEWER.get(name, 1)))


@pytest.mark.parametrize("name", OPERATORS)
def test_cpu_equals_plain_under_sanitizers(worker, name):
    compare(worker, "seamseg_checked", name, range(32))


@pytest.mark.parametrize("name", [name for name in OPERATORS if name.startswith(("abn_", "roi_"))])
def test_zero_rows(worker, name):
    """What a process without regions runs: no launch of no blocks, nothing read or written out of bounds."""
    for library in ("seamseg_emulated", "seamseg_checked"):
        compare(worker, library, name, range(6), zero_rows=True)


ABN_MAPS = [  # channels, height x width, channels last, elements that the maps start behind a 16-byte boundary
    (64, (23, 17), True, 0),
    (264, (9, 7), True, 0),
    (12, (33, 21), True, 0),
    (6, (24, 24), False, 0),
    (5, (7, 9), False, 0),
    (2, (160, 160), False, 0),
    (16, (12, 8), True, 1),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("channels", "size", "last", "offset"), ABN_MAPS)
def test_abn_in_packs(worker, channels, size, last, offset, dtype):
    shape = (2, *size, channels) if last else (2, channels, *size)
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(count)

    def draw(mean):
        flat = (torch.randn(count + offset, generator=generator) + mean).to(dtype)[offset:].view(shape)
        return flat.permute(0, 3, 1, 2) if last else flat

    wide = torch.promote_types(dtype, torch.float32)
    mean, bias, offsets = (torch.randn(channels, generator=generator).to(wide) for _ in range(3))
    scale, slope = (torch.rand(channels, generator=generator).to(wide) + 0.5 for _ in range(2))
    far = 30 if dtype == torch.bfloat16 else 1000
    for name, arguments in [
        ("abn_statistics", [draw(far)]),
        ("abn_transform", [draw(0), mean, scale, bias, draw(0), 0, 0.01]),
        ("abn_transform", [draw(0), mean, scale, bias, None, 1, 1.0]),
        ("abn_backward_reduce", [draw(0), draw(0), draw(0), bias, 0, 0.01]),
        ("abn_backward_reduce", [draw(0), draw(0).clamp(-0.9), None, bias, 1, 1.0]),
        ("abn_backward_input", [draw(0), draw(0), draw(0), bias, scale, offsets, slope, 0, 0.01]),
        ("abn_backward_input", [draw(0), draw(0).clamp(-0.9), None, bias, scale, offsets, slope, 1, 1.0]),
    ]:
        agree(worker, name, arguments)
    constant = worker.call("seamseg_emulated", "abn_statistics", [torch.full_like(draw(0), 0.1)])[0]
    assert constant[1].count_nonzero() == 0


@pytest.mark.parametrize("groups", [None, 1, 3, 40])
@pytest.mark.parametrize("n_max", [0, 1, 70, 500])
def test_nms_of_many(worker, n_max, groups):
    generator = torch.Generator().manual_seed(n_max)
    corners = torch.rand(900, 2, generator=generator).mul(60).round()
    boxes = torch.cat([corners, corners + torch.rand(900, 2, generator=generator).mul(20).round()], 1)
    boxes[5] = torch.nan
    group = None if groups is None else torch.randint(-1, groups - 1, (900,), generator=generator)
    arguments = [boxes, torch.rand(900, generator=generator).mul(50).round(), 0.3, n_max, group]
    agree(worker, "nms", arguments)


@pytest.mark.parametrize(("n", "m"), [(3, 7000), (11, 2500), (700, 300), (1, 1)])
def test_match_boxes_of_few_with_many(worker, n, m):
    generator = torch.Generator().manual_seed(n)

    def draw(count):
        corners = torch.rand(count, 2, generator=generator).mul(30).round()
        return torch.cat([corners, corners + torch.rand(count, 2, generator=generator).mul(9).round()], 1)

    a, b = draw(n), draw(m)
    b[m // 2 :: 900] = torch.nan if n == 11 else 0.0
    for arguments in ([a, b], [b, a]):
        agree(worker, "match_boxes", arguments)


@pytest.mark.parametrize(
    ("count", "size", "overlap", "keep_empty"),
    [(150, (40, 70), 0.5, False), (130, (33, 65), 1.0, True), (3, (130, 300), 0.2, False), (65, (3, 33), 0.0, True)],
)
def test_pasting_in_chunks(worker, count, size, overlap, keep_empty):
    generator = torch.Generator().manual_seed(count)
    corner = (torch.rand(count, 2, generator=generator) * 1.4 - 0.2) * torch.tensor(size)
    side = torch.rand(count, 2, generator=generator) * torch.tensor(size) * 0.6 - 0.5
    masks = (torch.randn(count, 7, 6, generator=generator) * 4).sigmoid()
    ids = (torch.rand(size, generator=generator) < 0.1).short() * 5
    arguments = [ids, masks, torch.cat((corner, corner + side), 1), overlap, 1, keep_empty]
    assert agree(worker, "paste_masks_into", arguments)[0].any()


LOSS_SIZES = [  # classes, logits, padded input, valid part, classes of a pixel beside each other
    (19, (24, 30), (96, 120), (90, 113), True),
    (6, (17, 21), (64, 80), (61, 80), False),
    (3, (40, 300), (8, 24), (8, 20), True),  # tiles of the image do not fit
    (3, (2, 3), (60, 90), (50, 90), False),  # those of the logits do not
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("classes", "size", "padded", "valid", "last"), LOSS_SIZES)
def test_loss_in_tiles(worker, classes, size, padded, valid, last, dtype):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(*size, classes, generator=generator).to(dtype).permute(2, 0, 1)
    logits = logits if last else logits.contiguous()
    target = torch.randint(0, classes, valid, generator=generator)
    target[: valid[0] // 3] = 255
    arguments = [logits, *padded, target, 0.6]
    wanted = agree(worker, "upsample_ohem_loss", arguments)[0]
    one = torch.ones((), dtype=wanted[1].dtype)
    agree(worker, "upsample_ohem_loss_backward", [one, logits, *padded, target, wanted[1], 0.6])


def example(worker, name, seed=0):
    return worker.call("seamseg_emulated", "example", [name, torch.arange(100.0)], seed)[0]


def test_faults_are_found(worker):
    for name, words in (
        ("past_the_end", "heap-buffer-overflow(.|\n)*past_the_end.*examples.cu"),
        ("barrier_for_some", "threads wait at __syncthreads.. and another has ended.*examples.cu"),
    ):
        with pytest.raises(Fault, match=words):
            example(worker, name)
    found = [example(worker, "no_barrier", seed) for seed in range(8)]
    assert found[0].isnan().any(), "what nobody wrote"
    assert len({str(x.tolist()) for x in found}) > 1, "results that depend on the order"


def test_failing_launches_are_cuda_errors(monkeypatch, worker):
    """The second fails while it runs, which is known at once only with SEAMSEG_SYNC."""
    assert example(worker, "atomic_sum, failing")[0] == 4950
    monkeypatch.setenv("SEAMSEG_SYNC", "1")
    worker.close()
    for name in ("atomic_sum, refused", "atomic_sum, failing"):
        with pytest.raises(Raised, match="CUDA error: atomic_sum: invalid configuration argument"):
            example(worker, name)
    worker.close()
