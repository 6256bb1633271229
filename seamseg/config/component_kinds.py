"""What a component may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ComponentKind:
    """What a component may be.

    Attributes
    ----------
    what : a line for `seamseg components`
    key : `section.key` of the configuration that chooses one by its name; empty if any number may be used, one for each
        section `[KIND NAME]` of the configuration
    modules : modules of this package that register the built-in ones
    evaluated : whether an evaluation uses it although the configuration of the model does not name it
    chosen : whether it is used where an option names it, not because of its section
    needed : a model that has one does not open without it
    """

    what: str
    key: str = ""
    modules: tuple[str, ...] = ()
    evaluated: bool = False
    chosen: bool = False
    needed: bool = False


KINDS: dict[str, ComponentKind] = {
    "augmentation": ComponentKind("changes the colours of a training image"),
    "body": ComponentKind(
        "backbone of the network", "body.body", ("seamseg.recipes.timm_body", "seamseg.models.backbones"), needed=True
    ),
    "callback": ComponentKind(
        "follows a training, such as a logger, and may end it", modules=("seamseg.training.logging.tensorboard",)
    ),
    "head": ComponentKind("head of the network, with losses and output maps"),
    "format": ComponentKind(
        "output format of predict, which its option names",
        modules=tuple(
            f"seamseg.predict.writers.{name}"
            for name in ("annotation_tools", "detections", "images", "predictions", "raw", "semantic")
        ),
        chosen=True,
    ),
    "loss": ComponentKind(
        "loss of the semantic head", "sem.loss", ("seamseg.models.heads.semantic", "seamseg.recipes.max_pooling")
    ),
    "metric": ComponentKind("metric of a validation, which may select the best snapshot", evaluated=True),
    "network": ComponentKind(
        "network as a whole, with its losses",
        "general.network",
        ("seamseg.models.build", "seamseg.recipes.transformers_network"),
        needed=True,
    ),
    "optimizer": ComponentKind("updates the weights", "optimizer.type", ("seamseg.training.optim.optimizer",)),
    "reader": ComponentKind("reads a data set", "dataloader.reader", ("seamseg.data.folder",)),
    "scheduler": ComponentKind("learning rate over time", "scheduler.type", ("seamseg.training.optim.schedule",)),
}
"""The kinds of components by name."""


def parse_section(section: str) -> tuple[str, str] | None:
    """Return kind and name of the component that a section of a configuration is for; None for other sections."""
    kind, space, name = section.partition(" ")
    return (kind, name.strip()) if space and kind in KINDS else None
