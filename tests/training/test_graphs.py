"""`[general] cuda_graphs`: a step with recorded graphs, which need no GPU here, equals a step without, bit by bit."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from support.host_reads import HostReads, Launches
from support.networks import in_turn, narrow_module, tiny_config, toy_batch
from support.processes import launch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from seamseg import structures
from seamseg.config import load_config
from seamseg.models.build import build_training_module
from seamseg.models.heads import roi, rpn
from seamseg.training.graphs import CudaRecorder, StepGraphs, TrainingGraphs, use_cuda_graphs
from seamseg.training.losses import LossCheck
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, distributed


class CopyingRecorder:
    """A recorder on the CPU, whose operators no mode sees: each replay overwrites the tensors at fixed places.

    As the graphs share their memory, a replay of the first of two functions, the forward pass, spoils all other places.
    """

    def __init__(self) -> None:
        self.records = self.replays = 0
        self.latest: object = None
        self._places: list[Tensor] = []

    def warm_up(self, function: Callable[[], object]) -> None:
        function()

    def record(self, function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]]:
        is_forward = self.records % 2 == 0
        self.records += 1
        places = [tensor.clone() for tensor in function()]
        self._places += places

        def replay() -> None:
            self.replays += 1
            with torch.no_grad(), _disable_current_modes():
                for place in self._places if is_forward else []:
                    place.fill_(torch.nan)
                for place, tensor in zip(places, function(), strict=True):
                    place.copy_(tensor)

        return places, replay


FIXED = "roi.fixed_samples=yes"
SIZES = ((64, 96), (96, 64), (80, 80))


class Training:
    def __init__(self, recorder, *overrides, world=None, kind="panoptic", step=False, **options):
        world = World() if world is None else world
        self.module = narrow_module(*overrides, kind=kind, **options).train()
        self.said = []
        net = self.module.net
        if step:
            graphs = in_turn(net) if recorder is None else StepGraphs(net, recorder, self.said.append)
            self.module.run_step = graphs
        elif recorder is not None:
            net.run_in_training = TrainingGraphs(net, recorder, self.said.append)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)
        settings = TrainerOptions.from_config(tiny_config(kind, overrides=overrides))
        self.stepper = Stepper(settings, self.module, optimizer, world)

    def step(self, *batches):
        """Losses, gradients, weights and statistics after a step."""
        result = self.stepper([batch.with_target_info() for batch in batches], [0.01])
        gradients = {f"d{n}": p.grad.clone() for n, p in self.module.named_parameters() if p.grad is not None}
        return {**result.losses, "norm": result.grad_norm, **gradients, **copied(self.module.state_dict())}


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)] == []


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "overrides", "batches"),
    [
        ("panoptic", (), 1),
        ("panoptic", (FIXED,), 1),
        ("instance_seg", (FIXED, "general.checkpoint_body=yes", "roi.mask_positives_only=yes"), 1),
        slow("panoptic", (FIXED, "optimizer.accumulate=2", "general.precision=bf16"), 2),
        slow("panoptic", ("general.precision=bf16", "general.checkpoint_body=yes"), 1),
        slow("panoptic", ("optimizer.loss_average=step", "general.precision=fp16"), 2),
        slow("instance_seg", ("general.channels_last=no",), 2),
    ],
)
def test_equal_to_a_step_without(kind, overrides, batches):
    recorder, found = CopyingRecorder(), []
    for graphs in (None, recorder):
        torch.manual_seed(1)
        training = Training(graphs, *overrides, kind=kind, step=FIXED in overrides)
        steps = (toy_batch(SIZES[number % 3], empty=(0,) if number % 5 == 4 else ()) for number in range(11))
        found.append([training.step(*[batch] * batches) for batch in steps])
        assert not training.said
    for plain, recorded in zip(*found):
        assert_equal(recorded, plain)
    # the first batch of a size runs without
    assert (recorder.records, recorder.replays) == (6, 2 * (11 * batches - 3))


def train_together(rank, join):
    join()
    with distributed("cpu") as world:
        for overrides in ((), (FIXED,), (FIXED, "optimizer.loss_average=step")):
            recorder, found = CopyingRecorder(), []
            for graphs in (None, recorder):
                torch.manual_seed(world.rank)
                training = Training(graphs, *overrides, world=world, step=FIXED in overrides)
                # each process has sizes of its own
                batches = [toy_batch(SIZES[(number + world.rank) % 2]) for number in range(4)]
                found.append([training.step(*pair) for pair in pairwise(batches)])
            for plain, recorded in zip(*found):
                assert_equal(recorded, plain)
            assert recorder.replays == 8


@pytest.mark.distributed
def test_processes_exchange_the_gradients():
    launch(train_together, 2)


def in_order(positive, negative, most_positive, number):
    positive = positive & (positive.cumsum(-1) <= most_positive)
    rank = torch.where(positive, 0, torch.where(negative, 1, 2))
    order = rank.argsort(dim=-1, stable=True)[..., :number]
    return positive, order, rank.gather(-1, order) < 2


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [("panoptic", ()), ("instance_seg", ("roi.sample_empty_images=yes",)), ("panoptic", ("roi.num_samples=500",))],
)
def test_rows_of_void_change_nothing(kind, overrides, monkeypatch):
    for head in (rpn, roi):
        monkeypatch.setattr(head, "rank_samples", in_order)
    batches = [
        toy_batch((64, 96)),
        toy_batch((64, 96), (80, 64), (48, 48), empty=(2,), crowd=(0,)),
        toy_batch((64, 64), (64, 64), empty=(0, 1)),
    ]
    found = []
    for step in (False, True):
        training = Training(None, FIXED, *overrides, kind=kind, step=step)
        found.append([training.step(batch) for batch in batches])
    for plain, padded in zip(*found):
        assert_equal(padded, plain)


def test_a_recorded_step_copies_nothing_from_the_host(monkeypatch):
    """A replay would copy from memory that is in other use by then."""
    training = Training(None, FIXED, step=True)
    batch = toy_batch(*SIZES, crowd=(0,))
    training.step(batch)
    for module in (rpn, roi, structures):
        monkeypatch.setattr(module, "upload", pytest.fail)
    with HostReads() as reads:
        sum(training.module(batch).means.values()).backward()
    assert reads.count == 0, str(reads)


def test_what_a_callback_changes_is_recorded_again():
    recorder = CopyingRecorder()
    net = narrow_module().train().net
    graphs, x = TrainingGraphs(net, recorder, pytest.fail), torch.randn(1, 3, *SIZES[0])
    wanted = net.body.backbone.mod2
    for change in (lambda: None, lambda: wanted.requires_grad_(False), lambda: wanted.eval()):
        change()
        for _ in range(2):
            graphs(x).obj_logits.sum().backward()
    assert recorder.records == 6
    # frozen, and with the statistics of before
    net.zero_grad()
    before = copied(wanted.state_dict())
    graphs(x).obj_logits.sum().backward()
    assert all(p.grad is None for p in wanted.parameters())
    assert_equal(wanted.state_dict(), before)


@pytest.mark.parametrize("size", SIZES[:2])
def test_gradients_are_those_of_the_last_batch_only(size):
    net = narrow_module().train().net
    graphs = TrainingGraphs(net, CopyingRecorder(), pytest.fail)
    batches = [torch.randn(1, 3, *sides) for sides in (SIZES[0], size)]
    for x in batches:
        graphs(x)
        graphs(x)
    first, last = (graphs(x).obj_logits.sum() for x in batches)
    with pytest.raises(RuntimeError, match="must come before the next forward pass"):
        first.backward()
    last.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        last.backward()


class Failing(CopyingRecorder):
    def record(self, function):
        super().record(function)
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")
        finally:
            raise RuntimeError("the end of the capture fails, too")


def hooked(net):
    net.sem_head.conv_sem.register_forward_hook(lambda *_: None)


def random(net):
    net.rpn_head.conv1 = nn.Sequential(net.rpn_head.conv1, nn.Dropout(0.0), nn.Dropout(0.1))


def foreign(net):
    net.body.backbone.extra = type("Extra", (nn.Identity,), {"__module__": "timm.layers"})()


@pytest.mark.parametrize(
    ("change", "recorder", "reason"),
    [
        (hooked, CopyingRecorder, "sem_head.conv_sem has hooks"),
        (random, CopyingRecorder, "rpn_head.conv1.2 is random"),
        (foreign, CopyingRecorder, "body.backbone.extra is a layer of timm"),
        (lambda net: None, Failing, "operation not permitted when stream is capturing"),
    ],
)
def test_what_cannot_be_recorded_runs_without(change, recorder, reason):
    found = []
    for graphs in (None, recorder()):
        torch.manual_seed(1)
        training = Training(graphs, mode="bn")
        change(training.module.net)
        found.append([training.step(toy_batch(SIZES[0])) for _ in range(2)])
    # dropout is random
    if change is not random:
        assert_equal(found[1][-1], found[0][-1])
    assert training.said == [f"[general] cuda_graphs: the network runs without CUDA graphs: {reason}"]


def test_a_step_that_cannot_be_recorded_records_its_dense_part():
    found = []
    for recorder in (None, CopyingRecorder()):
        torch.manual_seed(1)
        training = Training(recorder, FIXED, step=True)
        training.module.net.roi_head.roi_cls.register_forward_hook(lambda *_: None)
        found.append([training.step(toy_batch(SIZES[0])) for _ in range(4)])
    for plain, recorded in zip(*found):
        assert_equal(recorded, plain)
    assert recorder.replays == 4
    assert training.said == [
        "[general] cuda_graphs: proposals, ROI head and losses run without CUDA graphs: roi_head.roi_cls has hooks"
    ]


@pytest.mark.parametrize(
    ("kind", "overrides", "recorder", "reason"),
    [
        ("panoptic", (FIXED,), CopyingRecorder(), None),
        ("panoptic", (), CopyingRecorder(), "[roi] fixed_samples is no"),
        ("detection", (FIXED,), CopyingRecorder(), "the number of crowds of an image varies"),
        ("panoptic", (FIXED,), None, "the device is cpu"),
    ],
)
def test_what_is_recorded_follows_from_the_configuration(kind, overrides, recorder, reason):
    module, said = narrow_module(*overrides, kind=kind), []
    use_cuda_graphs(module, torch.device("cpu"), said.append, recorder)
    assert (module.run_step is None) == (reason is not None)
    assert (module.net.run_in_training is None) == (reason is None or recorder is None)
    assert [line.rpartition(": ")[2] for line in said] == [reason] * (reason is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("fixed_samples", "most"), [("yes", 60), ("no", 640)])
def test_operators_outside_of_the_graphs(fixed_samples, most):
    torch.manual_seed(0)
    overrides = ["general.precision=bf16", "roi.num_samples=16", f"roi.fixed_samples={fixed_samples}"]
    config = load_config("vistas_r50", overrides=overrides)
    module, recorder = build_training_module(config, 2, 3).train(), CopyingRecorder()
    use_cuda_graphs(module, torch.device("cpu"), lambda _: None, recorder)
    optimizer, options = build_optimizer(module.net, config), TrainerOptions.from_config(config)
    stepper, losses = Stepper(options, module, optimizer, World()), LossCheck(options, World())
    batch, rates = toy_batch((64, 96)).with_target_info(), [0.0] * len(optimizer.param_groups)
    for _ in range(2):
        stepper([batch], rates)
    replays = recorder.replays
    with Launches() as launches:
        losses.add(3, stepper([batch], rates))
    launches.names["replay"] = recorder.replays - replays
    assert launches.names.total() <= most, launches.names.most_common(20)
    assert launches.names["replay"] == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("overrides", [(), ("general.precision=bf16", "general.checkpoint_body=yes")])
@pytest.mark.parametrize("step", [False, True])
def test_recorded_on_a_gpu(overrides, step):
    """For several sizes in turns and two batches a step; a library may choose another algorithm."""
    world, found = World(device=torch.device("cuda")), []
    for graphs in (None, CudaRecorder(world.device)):
        torch.manual_seed(1)
        training = Training(None, FIXED, *overrides)
        module = training.module.to(world.device)
        if step:
            module.run_step = in_turn(module.net) if graphs is None else StepGraphs(module.net, graphs, pytest.fail)
        elif graphs is not None:
            module.net.run_in_training = TrainingGraphs(module.net, graphs, pytest.fail)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        training.stepper = Stepper(training.stepper.options, module, optimizer, world)
        batches = [toy_batch(SIZES[number % 3]).to(world.device) for number in range(9)]
        found.append([training.step(batch, batch) for batch in batches])
    for plain, recorded in zip(*found):
        for name in ("obj_loss", "sem_loss", "net.body.backbone.mod1.bn1.running_mean"):
            torch.testing.assert_close(recorded[name], plain[name], rtol=0.05, atol=1e-3)
