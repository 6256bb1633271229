"""The loss of the semantic head: what it counts, and losses of a user that return something else."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.networks import tiny_config, toy_batch

from seamseg.models.heads.semantic import SemanticLoss, _custom_loss
from seamseg.structures import PackedSequence
from seamseg.utils.errors import SeamsegError


def test_the_semantic_loss_is_that_of_the_labelled_images():
    """As many of them as classes, too."""
    logits = torch.randn(3, 2, 4, 4, requires_grad=True)
    loss_of = SemanticLoss(tiny_config())
    batch = toy_batch((16, 16), (16, 16), (16, 16), empty=(0, 1, 2))
    masks, categories = list(batch.masks), list(batch.categories)
    alone = [loss_of(logits[i : i + 1], (16, 16), part(batch, [i]))["sem_loss"][0] for i in range(3)]
    for labelled in ([0, 1, 2], [0, 2], [1]):
        kept = [masks[i] if i in labelled else None for i in range(3)]
        some = replace(batch, masks=PackedSequence(kept), categories=PackedSequence(categories))
        loss, count = loss_of(logits, (16, 16), some)["sem_loss"]
        assert count == len(labelled)
        torch.testing.assert_close(loss, torch.stack([alone[i] for i in labelled]).mean())
    nothing, count = loss_of(logits, (16, 16), replace(batch, masks=PackedSequence([None] * 3)))["sem_loss"]
    nothing.backward()
    assert (nothing, count, logits.grad.any()) == (0, 0, False)


def part(batch, indices):
    """Some images of a batch."""
    fields = {name: PackedSequence([getattr(batch, name)[i] for i in indices]) for name in ("masks", "categories")}
    return replace(batch, **fields)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (torch.tensor(2.0), ""),
        (torch.zeros(2, 1), r"a scalar tensor, returned a tensor of \(2, 1\)"),
        (2.0, "a scalar tensor, returned float"),
    ],
)
def test_what_a_loss_of_the_user_returns(made, problem):
    """It is passed on, or the error says what it is."""
    own = SimpleNamespace(section="loss mine", module=__name__, file="mine.py", make=lambda image, keys: made)
    if not problem:
        assert _custom_loss(own, None, None) is made
        return
    with pytest.raises(SeamsegError, match=rf"^loss mine \(mine\.py\): must return {problem}$"):
        _custom_loss(own, None, None)
