"""Several processes, and several batches a step, give the gradients of one process with one large batch."""

import pytest
import torch
from support.micro import CONFIG
from support.step_equality import ALL_SAMPLES, Network, batch_of, error, images_of, in_float64, in_processes

from seamseg.config import config_from_string
from seamseg.models.build import build_training_module
from seamseg.training.ddp import ParallelModule
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, gather_objects
from seamseg.utils.errors import SeamsegError

TOLERANCE = 1e-9
BY_STEP = "optimizer.loss_average=step"
WAYS = ("find", "fake")


def whole(step, parts):
    return batch_of([one for part in images_of(step, parts) for one in part])


def rows_of_head(network):
    """A list that gets the number of rows of each forward pass of the ROI head."""
    rows = []
    network.module.net.roi_head.register_forward_hook(lambda head, inputs, _: rows.append(inputs[0].shape[0]))
    return rows


def compare(world, steps, ways):
    """Gradients, losses and statistics of steps of all processes, against the same images in one batch."""
    alone = Network("bn", World(), BY_STEP)
    wanted = {}
    for step in range(world.rank, steps, world.size):
        result = alone.step(step, [whole(step, world.size)])
        wanted[step] = alone.gradients(), result, alone.buffers()
    for way in ways:
        together = Network("syncbn", world, BY_STEP, f"general.unused_parameters={way}")
        rows = rows_of_head(together)
        worst, active = 0.0, []
        for step in range(steps):
            mine = batch_of(images_of(step, world.size)[world.rank])
            result = together.step(step, [mine])
            active.append(sum(gather_objects(world, rows[-1] > 0)))
            if step not in wanted:
                continue
            gradients, of_all, statistics = wanted[step]
            worst = max(worst, error(together.gradients(), gradients), error(result.losses, of_all.losses))
            # those of the ROI head too, whether this process had regions or not
            worst = max(worst, error(together.buffers(), statistics))
        errors = gather_objects(world, worst)
        if world.is_main:
            print(f"{world.size} processes, {way}: {steps} steps, relative error {max(errors):.1e}, {active} active")
        assert max(errors) < TOLERANCE
        assert {0, world.size} < set(active), "the steps were to be of all kinds"
        assert len(rows) == steps, "the head runs in every step"


def compare_accumulated(world, steps, ways):
    """As :func:`compare`, each process with several batches; with group norm, which is independent of the batch."""
    alone = Network("gn", World(), BY_STEP, "body.gn_groups=4")
    wanted = {}
    for step in range(world.rank, steps, world.size):
        result = alone.step(step, [whole(step, 3 * world.size)])
        wanted[step] = alone.gradients(), result
    for way in ways:
        together = Network("gn", world, BY_STEP, "body.gn_groups=4", f"general.unused_parameters={way}")
        for step in range(steps):
            parts = images_of(step, 3 * world.size)[world.rank :: world.size]
            result = together.step(step, [batch_of(part) for part in parts])
            if step in wanted:
                gradients, of_all = wanted[step]
                assert error(together.gradients(), gradients) < TOLERANCE
                assert error(result.losses, of_all.losses) < TOLERANCE


def test_batches_of_a_step_give_the_gradients_of_one():
    with in_float64():
        compare_accumulated(World(), 2, ("find",))


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_give_the_gradients_of_one():
    """With one batch each and with several."""
    in_processes(2, (compare, 60, WAYS), (compare_accumulated, 7, WAYS), seconds=900)


@pytest.mark.slow
@pytest.mark.distributed
def test_three_processes_give_the_gradients_of_one():
    in_processes(3, (compare, 60, WAYS), seconds=900)


# --- without things in the images of a process: both modes of DistributedDataParallel give the same weights

NORMS = ("syncbn", "syncbn+gn", "bn")


def trained(world, norm, way, batches_of_step):
    """The state of a network after some steps, and its gradients in the last."""
    text, given = CONFIG.format(norm=norm), (f"general.unused_parameters={way}",)
    config = config_from_string(text, "panoptic", overrides=(*ALL_SAMPLES, "body.gn_groups=4", *given))
    torch.manual_seed(0)
    module = build_training_module(config, 2, 2).double()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, world)
    for batches in batches_of_step:
        stepper(batches, [0.01, 0.01])
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    return module.state_dict(), gradients


def same_weights(world, accumulate, number):
    for norm in NORMS:
        steps = [
            [batch_of(part) for part in images_of(step, accumulate * world.size)[world.rank :: world.size]]
            # rounding grows from step to step
            for step in range(number)
        ]
        found, _ = trained(world, norm, "find", steps)
        faked, _ = trained(world, norm, "fake", steps)
        for name, tensor in found.items():
            # Each step computes the same numbers but where zeros are added. Two processes add up their gradients in
            # one order only, more of them in that of the buckets, which differs between the two ways.
            if world.size == 2:
                assert torch.equal(faked[name], tensor), (norm, name)
        assert error(faked, found) < 1e-7
        weights = torch.cat([t.flatten() for n, t in faked.items() if "running" not in n and "tracked" not in n])
        assert all(torch.equal(weights, other) for other in gather_objects(world, weights))


def things_at_first(world, way):
    """Two batches: only the first has regions for the ROI head, in all processes or in one."""
    with_things, without = batch_of(images_of(1, 1)[0]), batch_of(images_of(3, 1)[0])
    assert with_things.categories[0].numel() > 3
    assert without.categories[0].numel() == 3
    for first, same in ((with_things, [with_things, without]), (without, [with_things, without, without, without])):
        _, wanted = trained(World(), "gn", way, [same])
        _, got = trained(world, "gn", way, [[with_things if world.is_main else first, without]])
        assert float(wanted["net.roi_head.fc.fc1.weight"].abs().max()) > 0
        assert error(got, wanted) < 1e-9


class Changing(torch.nn.Module):
    """Uses one of its parameters, and a third one never."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.ParameterDict({name: torch.ones(2) for name in ("first", "second", "never")})

    def forward(self, name):
        return self.net[name].sum()


def changing_parameters(world):
    """Only `find` trains a network that uses other parameters from step to step; the default refuses it."""
    for way in ("find", "fake"):
        module = Changing()
        parallel = ParallelModule(module, world, way)
        optimizer = torch.optim.SGD(module.parameters(), 1.0)
        for number, name in enumerate(("first", "first", "second")):
            optimizer.zero_grad()
            parallel.reaching_all(parallel(name)).backward()
            if way == "fake" and number == 2:
                with pytest.raises(SeamsegError, match=r"net\.first: .*unused_parameters=find"):
                    parallel.fill_gradients(optimizer)
                break
            parallel.fill_gradients(optimizer)
            optimizer.step()
        wanted = {"first": -1.0, "second": 0.0 if way == "find" else 1.0, "never": 1.0}
        assert {key: float(p[0]) for key, p in module.net.items()} == wanted, way


@pytest.mark.slow
@pytest.mark.distributed
def test_processes_train_the_same_weights_with_both_ways():
    """With one batch a step and two; a gradient of an earlier batch is kept."""
    of_heads = [(things_at_first, way) for way in ("fake", "find")]
    of_all = (same_weights, 1, 8), (same_weights, 2, 4)
    in_processes(2, *of_all, *of_heads, (changing_parameters,), seconds=600)
    in_processes(3, (same_weights, 1, 4))
