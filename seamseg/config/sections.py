"""The typed sections of a configuration: one frozen dataclass a section, one field a key (SPEC section 2).

The text behind each field is the reference page: `docs/config.md` is generated from it. Values stand in the packaged
INI defaults, not here, so that a key has one default only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def key(
    doc: str,
    *,
    choices: tuple[Any, ...] | None = None,
    optional: bool = False,
    length: int | None = None,
    ours: bool = False,
) -> Any:
    """A key with its documentation.

    `optional` ones may be empty, which reads as None; `length` is that of a tuple; `ours` marks keys that the original
    does not know, whose defaults reproduce it.
    """
    return field(metadata={"doc": doc, "choices": choices, "optional": optional, "length": length, "ours": ours})


@dataclass(frozen=True)
class General:
    """What is validated and logged when, and how network outputs become one panoptic map."""

    val_interval: int = key("epochs between validations")
    log_interval: int = key("steps between lines of the log")
    score_threshold: float = key("detections below this score are left out of the panoptic map")
    overlap_threshold: float = key("an instance of which more than this part is taken already is left out")
    min_stuff_area: int = key("stuff segments of fewer pixels, at network size, become void")
    eval_mode: str = key("what validation measures", choices=("panoptic", "separate"))
    eval_coco: bool = key("also measure box and mask AP against `[dataloader] coco_gt`")
    cudnn_benchmark: bool = key("let cuDNN time its algorithms for each input size")
    seed: int = key("seed of weights, sampling and augmentation", ours=True)
    channels_last: bool = key("run the network in channels-last memory format", ours=True)


@dataclass(frozen=True)
class Body:
    """The backbone and its normalization."""

    body: str = key("network", choices=("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"))
    weights: str = key("file of pre-trained weights, from `seamseg convert-backbone`; empty for none")
    normalization_mode: str = key(
        "norm layers; of `a+b` the body, FPN and semantic head take a, the other heads b",
        choices=("bn", "syncbn", "syncbn+bn", "gn", "syncbn+gn", "off"),
    )
    activation: str = key("activation behind each norm", choices=("leaky_relu", "elu"))
    activation_slope: float = key("negative slope of leaky_relu, alpha of elu")
    gn_groups: int = key("groups of the group norm")
    body_params: dict = key("further arguments of the backbone: dilation, dropout, ...")
    num_frozen: int = key("the first modules mod1..modN are not trained")
    bn_frozen: bool = key("the learning rate of norm layers is 0")
    out_channels: dict = key("channels of the outputs of mod1..mod5")
    out_strides: dict = key("strides of the outputs of mod1..mod5")


@dataclass(frozen=True)
class Fpn:
    """The feature pyramid."""

    out_channels: int = key("channels of each level")
    extra_scales: int = key("levels beyond the body's, by strided convolutions")
    interpolation: str = key("upsampling on the way down", choices=("nearest",))
    inputs: list = key("modules of the body that feed the pyramid")
    out_strides: tuple = key("stride of each level, extra ones included")


@dataclass(frozen=True)
class Rpn:
    """Region proposals."""

    hidden_channels: int = key("channels of the hidden convolution")
    stride: int = key("stride of the head on its level")
    anchor_ratios: tuple = key("height / width of the anchors")
    anchor_scale: float = key("anchor size as a multiple of the level's stride")
    nms_threshold: float = key("IoU from which a proposal suppresses another")
    num_pre_nms_train: int = key("proposals before NMS, training")
    num_post_nms_train: int = key("proposals after NMS, training")
    num_pre_nms_val: int = key("proposals before NMS, inference")
    num_post_nms_val: int = key("proposals after NMS, inference")
    min_size: int = key("proposals with a shorter side are dropped; 0 keeps all")
    num_samples: int = key("anchors an image that the losses look at")
    pos_ratio: float = key("at most this part of the samples is positive")
    pos_threshold: float = key("IoU from which an anchor is positive")
    neg_threshold: float = key("IoU under which an anchor is negative")
    void_threshold: float = key("anchors with this part on crowd are ignored; 0 ignores none")
    fpn_min_level: int = key("first pyramid level")
    fpn_levels: int = key("number of pyramid levels")
    sigma: float = key("sharpness of the smooth L1 loss")


@dataclass(frozen=True)
class Roi:
    """Boxes, classes and masks of things."""

    roi_size: tuple = key("height and width of the features of a region", length=2)
    num_samples: int = key("proposals an image that the losses look at")
    pos_ratio: float = key("at most this part of the samples is positive")
    pos_threshold: float = key("IoU from which a proposal is positive")
    neg_threshold_hi: float = key("upper IoU bound of negatives")
    neg_threshold_lo: float = key("lower IoU bound of negatives")
    void_threshold: float = key("proposals with this part on crowd are ignored; 0 ignores none")
    void_is_background: bool = key("void pixels of a mask count as background")
    nms_threshold: float = key("IoU from which a detection suppresses another of its class")
    score_threshold: float = key("detections at or below this score are dropped")
    max_predictions: int = key("detections an image at most")
    fpn_min_level: int = key("first pyramid level")
    fpn_levels: int = key("number of pyramid levels")
    fpn_canonical_scale: float = key("side in pixels of a box that belongs to the canonical level")
    fpn_canonical_level: int = key("pyramid level of such a box")
    sigma: float = key("sharpness of the smooth L1 loss")
    bbx_reg_weights: tuple = key("factors of the box codes", length=4)
    fc_channels: int = key("channels of the two fully connected layers", ours=True)
    conv_channels: int = key("channels of the mask branch", ours=True)
    sample_empty_images: bool = key(
        "images without things give negatives too; the original skips them", ours=True
    )


@dataclass(frozen=True)
class Sem:
    """The semantic head."""

    fpn_min_level: int = key("first pyramid level")
    fpn_levels: int = key("number of pyramid levels")
    pooling_size: tuple = key("window of the global branch, in cells of the level", length=2)
    ohem: float | None = key("part of the pixels of an image, the worst ones, that counts in the loss", optional=True)
    hidden_channels: int = key("channels of each branch", ours=True)


@dataclass(frozen=True)
class Optimizer:
    """Stochastic gradient descent."""

    lr: float = key("base learning rate")
    weight_decay: float = key("weight decay")
    weight_decay_norm: bool = key("weight decay on norm layers too")
    momentum: float = key("momentum")
    nesterov: bool = key("Nesterov momentum")
    loss_weights: tuple = key("weights of obj, bbx, roi_cls, roi_bbx, roi_msk, sem (as many as the task has losses)")


@dataclass(frozen=True)
class Scheduler:
    """The learning rate over time."""

    epochs: int = key("epochs to train")
    type: str = key("schedule", choices=("linear", "step", "poly", "multistep"))
    update_mode: str = key("count epochs or batches", choices=("batch", "epoch"))
    params: dict = key("linear {from, to}; step {step_size, gamma}; poly {gamma}; multistep {milestones, gamma}")
    burn_in_steps: int = key("steps of the linear burn-in; 0 for none")
    burn_in_start: float = key("factor at its start")


@dataclass(frozen=True)
class Dataloader:
    """Images and batches."""

    shortest_size: int = key("shortest side of the network's input")
    longest_max_size: int = key("longest side at most (training and evaluation)")
    train_batch_size: int | None = key("images a batch and process, training", optional=True)
    val_batch_size: int | None = key("images a batch and process, validation", optional=True)
    rgb_mean: tuple = key("mean of the channels of images in 0..1", length=3)
    rgb_std: tuple = key("standard deviation of the channels", length=3)
    random_flip: bool = key("flip half of the training images")
    random_scale: tuple | None = key("two values: a range of scales; more: a choice", optional=True)
    num_workers: int = key("processes that read images; 0 reads in the main one")
    train_set: str = key("split to train on")
    val_set: str = key("split to validate on")
    coco_gt: str = key("COCO annotations of the validation split, for eval_coco")
    drop_last: bool = key("leave out the last, smaller batch of an epoch", ours=True)


@dataclass(frozen=True)
class Config:
    """A whole configuration.

    `kind` is the task: panoptic, instance_seg or detection; keys that only panoptic segmentation has keep their
    defaults in the others. `texts` holds the values as they were written, section by section.
    """

    kind: str
    general: General
    body: Body
    fpn: Fpn
    rpn: Rpn
    roi: Roi
    sem: Sem
    optimizer: Optimizer
    scheduler: Scheduler
    dataloader: Dataloader
    texts: dict[str, dict[str, str]] = field(repr=False, compare=False)


SECTIONS: dict[str, type] = {
    "general": General,
    "body": Body,
    "fpn": Fpn,
    "rpn": Rpn,
    "roi": Roi,
    "sem": Sem,
    "optimizer": Optimizer,
    "scheduler": Scheduler,
    "dataloader": Dataloader,
}
