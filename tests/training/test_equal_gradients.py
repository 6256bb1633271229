"""Several processes, and several batches a step, give the gradients of one process with one large batch."""

import pytest
from support.step_equality import Network, batch_of, error, images_of, in_float64, in_processes

from seamseg.utils.distributed import World, gather_objects

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
@pytest.mark.parametrize("size", [3, 4])
def test_more_processes_give_the_gradients_of_one(size):
    in_processes(size, (compare, 60, WAYS), seconds=900)
