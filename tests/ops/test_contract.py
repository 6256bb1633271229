"""What every operator promises the dispatcher, by torch's own tool."""

import pytest
import torch
from support.cuda_emulation.worker import tensors_of
from support.op_arguments import plausible
from torch import Tensor

from seamseg.ops import implementations

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
