"""A network of transformers as a module for export: one image to the class scores and masks of its queries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seamseg.inference.foreign.transformers_model import TransformersNetwork, used_logits
from seamseg.utils.errors import InputError
from seamseg.utils.quiet_logs import quiet_logs


class QueryNet(nn.Module):
    """A network of queries, changed so that it can be traced; `forward` maps an image to class and mask logits.

    Parameters
    ----------
    network : on the CPU, in float32; its attention becomes that of matrix products
    name : of the model, for errors

    Raises
    ------
    InputError
        if its masked attention is not switched off at the end of the training, as it must be
    """

    def __init__(self, network: TransformersNetwork, name: str) -> None:
        super().__init__()
        net, self.family = network.net, network.family
        self.columns = network.classes.columns
        with quiet_logs("transformers"):  # it warns about parts that are no models of their own
            net.set_attn_implementation("eager")  # type: ignore[operator]
        if self.family.annealed:
            _switch_off(net, self.family.annealed, name)
        self.net = net

    def forward(self, pixels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Map an input `1 x 3 x H x W` and its valid pixels, bool `H x W`, to the logits.

        Returns
        -------
        class_logits : `Q x (C + 1)`, the last one of "no object"
        mask_logits : `Q x h x w`
        """
        mask = {"pixel_mask": valid.long()[None]} if self.family.pixel_mask else {}
        outputs = self.net(pixel_values=pixels, **mask)
        scores = used_logits(outputs[self.family.class_logits], self.columns)
        return scores[0], outputs[self.family.mask_logits][0]


def _switch_off(net: nn.Module, buffer: str, name: str) -> None:
    """Replace a buffer of zeros by numbers: the tracer follows no branch that depends on a tensor."""
    probabilities = net.get_buffer(buffer)
    if torch.any(probabilities != 0):
        raise InputError(
            f"{name}: cannot be exported: {buffer} is not 0, the masked attention of its training is still on"
        )
    delattr(net, buffer)
    setattr(net, buffer, [0.0] * len(probabilities))
