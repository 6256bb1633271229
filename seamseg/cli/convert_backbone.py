"""Convert a torchvision ResNet to pre-trained weights for `seamseg train --pre-train body:FILE`.

    seamseg convert-backbone resnet50 resnet50.pth
    seamseg convert-backbone resnet18 resnet18.pth --weights my_resnet18.pth

Without --weights, torchvision downloads its first ImageNet weights (IMAGENET1K_V1). In-place ABN scales by |weight| +
eps: where a weight is negative, the kernel before it gets the other sign, so that the function is the same. All else is
copied unchanged. Missing layers are listed and skipped, and so is a prefix of the names, as `backbone.`
"""

from __future__ import annotations

import argparse

from seamseg.checkpoints.imagenet import ARCHITECTURES, convert_backbone
from seamseg.utils.errors import first_names
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("net", choices=ARCHITECTURES, help="architecture")
    parser.add_argument("out", metavar="OUT", help="file to write")
    parser.add_argument("--weights", metavar="FILE", help="state dict with torchvision's names (default: download)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    """Convert the weights and print a summary."""
    converted, missing = convert_backbone(args.net, args.out, args.weights, args.force)
    echo(f"{args.out}: {converted} tensors of {args.net}")
    if missing:
        echo(f"the weights lack {len(missing)} tensors of this network: {first_names(missing, 6)}")
    return 0
