"""Checks of a component without a training: gradients, odd sizes, images without objects, saved weights, folding.

A check raises AssertionError with what is wrong and what to do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from seamseg.config import Config
from seamseg.config.components import Component
from seamseg.data.loader import collate
from seamseg.maps.panoptic_map import VOID
from seamseg.models.heads.custom import SemanticImage, run_heads
from seamseg.ops.labels import extract_boxes
from seamseg.structures import Batch, PackedSequence
from seamseg.training.prefetch import prepare_batch
from seamseg.training.setup import Setup, segmentation
from seamseg.utils.distributed import World

_TOLERANCE = 1e-3
"""Largest difference of two outputs that should be equal, of the largest value."""


def check_layers(component: Component, config: Config, data: Any) -> list[str]:
    """Check a component in the small network of a configuration that uses it; return what was checked."""
    if component.kind == "loss":
        return [_check_loss(component, config)]
    if component.kind not in ("body", "head", "network"):
        return []
    torch.manual_seed(0)
    trial = _Trial.of(component, config, data)
    return [_check_gradients(trial), *_check_outputs(trial)]


@dataclass(frozen=True)
class _Trial:
    """A training module with a component, and a batch of two images for it."""

    setup: Setup
    component: Component
    classes: Any
    module: nn.Module
    batch: Batch

    @staticmethod
    def of(component: Component, config: Config, data: Any) -> _Trial:
        """Build the network, and read the batch."""
        setup = segmentation(config)
        images: Any = setup.open_loader(data, World(device=torch.device("cpu"))).dataset
        batch = prepare_batch(collate([images[i % len(images)] for i in (0, 1)]), config.dataloader)
        return _Trial(setup, component, images.metadata, setup.build(images.metadata), batch)

    @property
    def net(self) -> Any:
        """The network."""
        return self.module.get_submodule("net")

    @property
    def part(self) -> nn.Module:
        """The part of the network that the component has made."""
        if not self.net.of_parts:
            return cast(nn.Module, self.net.network)
        found = self.net.custom_heads[self.component.name] if self.component.kind == "head" else self.net.backbone
        return cast(nn.Module, found)

    def fresh(self) -> Any:
        """Return another network with the saved weights of this one, in evaluation mode."""
        torch.manual_seed(1)
        net = self.setup.build(self.classes).get_submodule("net")
        net.load_state_dict(copy.deepcopy(self.net.state_dict()))
        return net.eval()


def _with_masks(batch: Batch, masks: PackedSequence) -> Batch:
    pairs = zip(masks, batch.categories, strict=True)
    boxes = [extract_boxes(m, len(c)) for m, c in pairs if m is not None and c is not None]
    return replace(batch, masks=masks, boxes=PackedSequence(boxes), target_info=None).with_target_info()


def _sparse_batches(batch: Batch, num_stuff: int, reads: Mapping[str, Any]) -> Iterator[tuple[str, Batch]]:
    """Yield batches whose images have less ground truth, each with a description."""
    stuff = []
    for ids, categories in zip(batch.masks, batch.categories, strict=True):
        assert ids is not None and categories is not None
        classes = categories[ids.long()]
        stuff.append(torch.where((classes >= num_stuff) & (classes != VOID), 0, ids))
    yield "images without objects", _with_masks(batch, PackedSequence(stuff))
    yield "images that are void", _with_masks(batch, batch.masks.map(torch.zeros_like))
    sparse = {name: spec.fill for name, spec in reads.items() if spec.optional or spec.void is not None}
    if sparse:
        none = {name: batch.maps[name].map(partial(torch.full_like, fill_value=fill)) for name, fill in sparse.items()}
        yield f"images without {', '.join(sparse)}", replace(batch, maps={**batch.maps, **none})


def _check_gradients(trial: _Trial) -> str:
    """Run backward passes: losses and gradients are finite, and all parameters get one, which may be 0."""
    module, part = trial.module, trial.part
    trained = {name: p for name, p in part.named_parameters() if p.requires_grad}
    idle = set(trained)
    sparse = _sparse_batches(trial.batch, trial.classes.num_stuff, getattr(part, "reads", {}))
    for number, (what, batch) in enumerate([("images", trial.batch), *sparse, ("images", trial.batch)]):
        module.train().zero_grad()
        losses = module(batch)
        for name, mean in losses.means.items():
            advice = "return a finite mean, and 0 as the count where there is nothing to average"
            assert bool(torch.isfinite(mean)), f"{name} is {mean.item()} for {what} of odd sizes: {advice}"
        total = torch.stack([mean.float() for mean in losses.means.values() if mean.requires_grad]).sum()
        total.backward()
        for name, p in trained.items():
            if p.grad is not None:
                assert bool(torch.isfinite(p.grad).all()), f"the gradient of {name} is not finite for {what}"
                idle.discard(name)
        if number == 0:
            _vary(part)
    named = sorted(idle, key=list(trained).index)
    assert not named, (
        f"{len(named)} of {len(trained)} parameters get no gradient, first {named[0] if named else ''}: use their "
        "layers in forward, do not detach what depends on them, or set requires_grad_(False)"
    )
    return "all parameters get gradients; images of odd sizes, without objects and without ground truth are trained on"


@torch.no_grad()
def _vary(part: nn.Module) -> None:
    """Change all parameters a little, also those that start at 0; the next pass sets the running statistics."""
    for p in part.parameters():
        scale = p.float().square().mean().sqrt().item() if p.numel() else 0.0
        p.add_(torch.randn_like(p), alpha=0.2 * scale or 0.02)
    for layer in part.modules():
        if getattr(layer, "running_var", None) is not None:
            layer.momentum = 1.0  # type: ignore[assignment]


def _check_outputs(trial: _Trial) -> list[str]:
    """Compare outputs: twice, alone and in a batch, of another network with the same weights, and when folded."""
    net, images = trial.net.eval(), trial.batch.images
    outputs = _outputs(net, trial.component, images)
    broken = [name for name, x in outputs.items() if not torch.isfinite(x).all()]
    assert not broken, f"{', '.join(broken[:1])} is not finite in evaluation mode"
    again = _outputs(net, trial.component, images)
    assert not (found := _difference(outputs, again)), (
        f"{found} for the same images: no dropout or random numbers where self.training is False"
    )
    found = _difference(outputs, _outputs(trial.fresh(), trial.component, images))
    assert not found, (
        f"{found} after its saved weights are loaded: keep all that changes, or starts at random, in layers, "
        "parameters and persistent buffers, several of them in torch.nn.ModuleList, ModuleDict or ParameterList"
    )
    one = images[0]
    assert one is not None
    pair = _outputs(net, trial.component, PackedSequence([one, one.flip(-1)]))
    found = _difference(_dense(_outputs(net, trial.component, PackedSequence([one]))), pair)
    assert not found, f"{found} for an image alone and in a batch: do not mix the images of a batch"
    return ["saved weights and other batches give the same outputs"]


@torch.no_grad()
def _outputs(net: Any, component: Component, images: PackedSequence) -> dict[str, Tensor]:
    """Return the outputs of a component in a network, in evaluation mode, by name and image."""
    if not net.of_parts:
        rows = []
        for p in net.predict(images):
            named = {"boxes": p.boxes, "classes": p.classes, "scores": p.scores, "masks": p.mask_logits}
            rows.append({**named, "class map": p.semantic, **p.maps})
    else:
        features = net.encode(images)
        maps = {f"level {number}": x for number, x in enumerate(features.levels)}
        if component.kind == "head":
            (found,) = [one for one in run_heads(net.custom_heads, features) if one.name == component.name]
            maps = found.maps | found.head.predict(found.maps)
        rows = [{name: x[i] for name, x in maps.items()} for i in range(len(images))]
    return {f"{name} of image {i}": x for i, row in enumerate(rows) for name, x in row.items() if x is not None}


def _dense(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out detections: rounding may exchange two with almost equal scores."""
    return {name: x for name, x in outputs.items() if not name.startswith(("boxes", "classes", "scores", "masks"))}


def _difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """Describe the first difference of outputs; empty if there is none."""
    for name, x in a.items():
        y = b[name]
        if x.shape != y.shape:
            return f"{name} has the shape {tuple(x.shape)} and {tuple(y.shape)}"
        if not x.is_floating_point():
            if (other := (x != y).float().mean().item() if x.numel() else 0.0) > 0.01:
                return f"{100 * other:.0f} % of {name} differ"
        elif x.numel():
            largest, off = x.abs().max().item(), (x.float() - y.float()).abs().max().item()
            if not off <= _TOLERANCE * largest:
                return f"{name} differs by {off:.3g} of {largest:.3g}"
    return ""


def _check_loss(component: Component, config: Config) -> str:
    """Compute the loss of a semantic head and its gradient, also for an image that is void."""
    _, keys = config.component("loss")
    for void in (False, True):
        torch.manual_seed(0)
        logits = torch.randn(5, 7, 11, requires_grad=True)
        target = torch.randint(0, 5, (27, 41))
        target[:3] = VOID
        target = torch.full_like(target, VOID) if void else target
        loss = component.make(SemanticImage(logits, (32, 44), target), keys)
        what = "a void image" if void else "an image"
        assert isinstance(loss, Tensor) and loss.ndim == 0, "must return a scalar tensor"
        assert bool(torch.isfinite(loss)), f"the loss of {what} is {loss.item()}: return 0 where no pixel counts"
        if not loss.requires_grad:
            assert void, "the loss has no gradient: do not detach image.logits, or round what depends on them"
            continue
        (gradient,) = torch.autograd.grad(loss, logits, allow_unused=True)
        assert void or (gradient is not None and bool(gradient.any())), (
            "the gradient of the loss does not reach image.logits: do not detach or round what depends on them"
        )
        finite = gradient is None or bool(torch.isfinite(gradient).all())
        assert finite, f"the gradient of the loss of {what} is not finite"
    return "its gradient reaches the logits; that of a void image is finite"
