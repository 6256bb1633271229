"""The network that looks at regions of interest: what they are, their exact box, their mask."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.backbones.residual import NormFactory
from seamseg.ops.norm import InPlaceABN, NormSequential, run_layers


class ROIHead(nn.Module):
    """Class, box and (optionally) mask of regions (SPEC section 3 "ROI head").

    Parameters
    ----------
    in_channels : channels of the features of a region
    num_things : thing classes
    norm : factory of norm + activation layers
    roi_size : `(height, width)` of the features of a region
    fc_channels, conv_channels : widths of the box and of the mask branch
    with_masks : False leaves the mask branch out (detection)
    """

    def __init__(
        self,
        in_channels: int,
        num_things: int,
        norm: NormFactory,
        roi_size: tuple[int, int] = (14, 14),
        fc_channels: int = 1024,
        conv_channels: int = 256,
        with_masks: bool = True,
    ) -> None:
        super().__init__()
        self.num_things = num_things
        self.with_masks = with_masks
        self.roi_size = roi_size
        cells = (roi_size[0] // 2) * (roi_size[1] // 2)
        self.fc = NormSequential(
            OrderedDict(
                fc1=nn.Linear(cells * in_channels, fc_channels, bias=False),
                bn1=norm(fc_channels),
                fc2=nn.Linear(fc_channels, fc_channels, bias=False),
                bn2=norm(fc_channels),
            )
        )
        self.roi_cls = nn.Linear(fc_channels, num_things + 1)
        self.roi_bbx = nn.Linear(fc_channels, num_things * 4)

        if with_masks:
            layers: OrderedDict[str, nn.Module] = OrderedDict()
            for i in range(1, 5):
                width = in_channels if i == 1 else conv_channels
                layers[f"conv{i}"] = nn.Conv2d(width, conv_channels, 3, padding=1, bias=False)
                layers[f"bn{i}"] = norm(conv_channels)
            layers["conv_up"] = nn.ConvTranspose2d(conv_channels, conv_channels, 2, stride=2, bias=False)
            layers["bn_up"] = norm(conv_channels)
            self.conv = NormSequential(layers)
            self.roi_msk = nn.Conv2d(conv_channels, num_things, 1)

    def boxes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features `K x C x roi_size` -> class logits `K x (things + 1)` (0 = background), codes `K x things x 4`."""
        x = functional.avg_pool2d(x, 2)
        # folded for inference, the branch takes regions as they lie in memory
        x = self.fc(x.flatten(1) if isinstance(self.fc, nn.Sequential) else x)
        return self.roi_cls(x), self.roi_bbx(x).reshape(x.shape[0], self.num_things, 4)

    def masks(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Mask logits `K x things x 28 x 28` of features `K x C x 14 x 14`.

        With `rows` (int64 `P`) only those regions get logits, `P x things x 28 x 28`; the others still take part in the
        batch statistics.
        """
        *layers, enlarge, norm = self.conv
        x = run_layers(layers, x)
        if rows is not None and norm.training and isinstance(norm, InPlaceABN):
            assert isinstance(enlarge, nn.ConvTranspose2d)
            # the other regions are needed in the statistics only: no map is made of them
            return self.roi_msk(norm.upsample_rows(x, rows, enlarge))
        x = run_layers((enlarge, norm), x)
        return self.roi_msk(x if rows is None else x[rows])

    def masks_of(self, x: Tensor, classes: Tensor) -> Tensor:
        """Mask logits `K x 28 x 28` of features `K x C x 14 x 14`, each for the thing class of its region (`K`)."""
        x = self.conv(x)
        # the other classes' logits need not be made
        weight, bias = self.roi_msk.weight.flatten(1)[classes], self.roi_msk.bias
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)
        logits = torch.bmm(pixels, weight[:, :, None]).squeeze(2)
        if bias is not None:
            logits = logits + bias[classes, None]
        return logits.view(x.shape[0], *x.shape[2:])

    def forward(self, x: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """All branches: class logits, box codes and (of `rows` only, if given) mask logits or None."""
        cls_logits, bbx_logits = self.boxes(x)
        return cls_logits, bbx_logits, self.masks(x, rows) if self.with_masks else None
