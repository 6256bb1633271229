"""Several processes, and several batches a step, give the gradients of one process with one large batch."""

import pytest
import torch
from support.step_equality import Network, batch_of, error, images_of, in_float64, in_processes

from seamseg.training.step import ParallelModule
from seamseg.utils.distributed import World, gather_objects
from seamseg.utils.errors import SeamsegError

TOLERANCE = 1e-9
BY_STEP = "optimizer.loss_average=step"
WAYS = ("find", "fake")


def whole(step, parts):
    return batch_of([one for part in images_of(step, parts) for one in part])


def rows_of_head(network):
    rows = []
    network.module.net.roi_head.register_forward_hook(lambda head, inputs, _: rows.append(inputs[0].shape[0]))
    return rows


def compare(world, steps, ways):
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
        if world.rank == 0:
            print(f"{world.size} processes, {way}: {steps} steps, relative error {max(errors):.1e}, {active} active")
        assert max(errors) < TOLERANCE
        assert {0, world.size} < set(active), "the steps were to be of all kinds"
        assert len(rows) == steps, "the head runs in every step"


def compare_accumulated(world, steps, ways):
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


class Changing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.ParameterDict({name: torch.ones(2) for name in ("first", "second", "never")})

    def forward(self, name):
        return self.net[name].sum()


def changing_parameters(world):
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


def test_batches_of_a_step_give_the_gradients_of_one():
    with in_float64():
        compare_accumulated(World(), 2, ("find",))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("count", "more"), [(2, [(compare_accumulated, 7, WAYS), (changing_parameters,)]), (3, [])])
def test_processes_give_the_gradients_of_one(count, more):
    in_processes(count, (compare, 60, WAYS), *more, seconds=900)
