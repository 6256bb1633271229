"""The interface of the `inplace-abn` package, for code that was written for it: change the import, keep the rest.

    from seamseg.inplace_abn import ABN, InPlaceABN, InPlaceABNSync, active_group, set_active_group

Arguments, attributes and state dicts are the same. Differences: the input of a layer is not overwritten, so
that it may be used again; one value per channel, or none, is no error; and a synchronised layer without a group
synchronises over all ranks of an initialised torch.distributed, instead of not at all.

:func:`convert` puts these layers into any network with batch norm, :func:`to_batchnorm` replaces them by batch norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seamseg.inplace_abn._convert import convert, to_batchnorm
from seamseg.ops.abn import inplace_abn
from seamseg.ops.norm import ABN, InPlaceABN, InPlaceABNSync, synchronised_over
from seamseg.ops.norm import set_group as set_active_group
from seamseg.utils.distributed import active_group

__all__ = [
    "ABN",
    "InPlaceABN",
    "InPlaceABNSync",
    "active_group",
    "convert",
    "inplace_abn",
    "inplace_abn_sync",
    "set_active_group",
    "to_batchnorm",
]


def inplace_abn_sync(  # noqa: PLR0913
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str = "leaky_relu",
    activation_param: float = 0.01,
    group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Apply in-place ABN with the training statistics of all ranks of a group.

    Parameters
    ----------
    x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param :
        as for :func:`seamseg.ops.abn.inplace_abn`
    group : ranks that share the statistics; None for all

    Returns
    -------
    a new tensor in the shape and memory format of `x`
    """
    shared = synchronised_over(group) if training else None
    return inplace_abn(
        x, weight, bias, running_mean, running_var, training, momentum, eps, activation, activation_param, shared
    )
