"""The typed sections of a configuration: one frozen dataclass a section, one field a key (SPEC section 2).

The text behind each field is the reference page: `docs/config.md` is generated from it. Values stand in the packaged
INI defaults, not here, so that a key has one default only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CHANNELS = 16_384
"""Most channels of a layer."""
PROPOSALS = 1_000_000
"""Most proposals or samples of an image."""


def key(
    doc: str,
    *,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    most: int | None = None,
    ours: bool = False,
) -> Any:
    """A key with its documentation and what its value, or each of its values, must satisfy.

    Keys whose type allows None may be empty, which reads as None. `minimum` and `maximum` are allowed values, `above`
    is not; `most` is the largest number of values. Maxima of sizes are far above any sane experiment: a configuration
    may come with the model of somebody else. `ours` marks keys that the original does not know, whose defaults
    reproduce it.
    """
    limits = {"choices": choices, "minimum": minimum, "maximum": maximum, "above": above, "most": most}
    return field(metadata={"doc": doc, "ours": ours, **limits})


@dataclass(frozen=True)
class General:
    """What is validated and logged when, and how network outputs become one panoptic map."""

    val_interval: int = key("epochs between validations", minimum=1)
    log_interval: int = key("steps between lines of the log", minimum=1)
    score_threshold: float = key(
        "detections at or below this score are left out of the panoptic map", minimum=0, maximum=1
    )
    overlap_threshold: float = key(
        "an instance of which more than this part is taken already is left out", minimum=0, maximum=1
    )
    min_stuff_area: int = key("stuff segments of fewer pixels, at network size, become void", minimum=0)
    eval_mode: str = key(
        "the score that picks the best snapshot: PQ (panoptic) or mIoU (separate)", choices=("panoptic", "separate")
    )
    eval_coco: bool = key("measure COCO's box and mask AP of the detections, too")
    cudnn_benchmark: bool = key("let cuDNN time its algorithms for each input size")
    seed: int = key("seed of weights, sampling and augmentation", minimum=0, maximum=2**32 - 1, ours=True)
    channels_last: bool = key("run the network in channels-last memory format", ours=True)
    precision: str = key(
        "what training computes with: fp32, bf16 or fp16 (mixed), or auto: bf16 where the device is fast at it",
        choices=("fp32", "bf16", "fp16", "auto"),
        ours=True,
    )
    compile: bool = key(
        "compile body, pyramid and semantic head with torch.compile; the first steps take minutes", ours=True
    )
    checkpoint_body: bool = key(
        "compute the activations of body and pyramid a second time instead of keeping them", ours=True
    )
    unused_parameters: str = key(
        "DistributedDataParallel looks for unused parameters in each step (find), or takes the graph of the first step "
        "for that of all (fake: static_graph); a process without regions runs the ROI head on zero rows with both",
        choices=("find", "fake"),
        ours=True,
    )
    snapshot_interval: int = key(
        "steps between snapshots within an epoch; 0 for none but at its end", minimum=0, ours=True
    )
    snapshot_keep: int = key("so many of the newest snapshots are kept", minimum=1, ours=True)
    loss_limit: float = key("a loss above it stops the training; 0 for no limit", minimum=0, ours=True)


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
    activation_slope: float = key("negative slope of leaky_relu, alpha of elu", minimum=0)
    gn_groups: int = key("groups of the group norm", minimum=1, maximum=CHANNELS)
    body_params: dict[str, Any] = key("further arguments of the backbone: dilation, dropout, ...")
    num_frozen: int = key("the first modules mod1..modN are not trained", minimum=0, maximum=5)
    bn_frozen: bool = key("the learning rate of norm layers is 0")
    out_channels: dict[str, int] = key("channels of the outputs of mod1..mod5", maximum=CHANNELS)
    out_strides: dict[str, int] = key("strides of the outputs of mod1..mod5", maximum=1024)


@dataclass(frozen=True)
class Fpn:
    """The feature pyramid."""

    out_channels: int = key("channels of each level", minimum=1, maximum=CHANNELS)
    extra_scales: int = key("levels beyond the body's, by strided convolutions", minimum=0, maximum=8)
    interpolation: str = key("upsampling on the way down", choices=("nearest", "bilinear"))
    inputs: list[str] = key("modules of the body that feed the pyramid", most=16)
    out_strides: tuple[int, ...] = key("stride of each level, extra ones included", minimum=1, maximum=65536, most=16)


@dataclass(frozen=True)
class Rpn:
    """Region proposals."""

    hidden_channels: int = key("channels of the hidden convolution", minimum=1, maximum=CHANNELS)
    stride: int = key("stride of the head on its level", minimum=1, maximum=64)
    anchor_ratios: tuple[float, ...] = key("height / width of the anchors", above=0, maximum=1000, most=64)
    anchor_scale: float = key("anchor size as a multiple of the level's stride", above=0, maximum=10_000)
    nms_threshold: float = key("IoU from which a proposal suppresses another", minimum=0, maximum=1)
    num_pre_nms_train: int = key("proposals before NMS, training", minimum=1, maximum=PROPOSALS)
    num_post_nms_train: int = key("proposals after NMS, training", minimum=1, maximum=PROPOSALS)
    num_pre_nms_val: int = key("proposals before NMS, inference", minimum=1, maximum=PROPOSALS)
    num_post_nms_val: int = key("proposals after NMS, inference", minimum=1, maximum=PROPOSALS)
    min_size: int = key("proposals with a shorter side are dropped; 0 keeps all", minimum=0)
    num_samples: int = key("anchors an image that the losses look at", minimum=1, maximum=PROPOSALS)
    pos_ratio: float = key("at most this part of the samples is positive", minimum=0, maximum=1)
    pos_threshold: float = key("IoU from which an anchor is positive", minimum=0, maximum=1)
    neg_threshold: float = key("IoU under which an anchor is negative", minimum=0, maximum=1)
    void_threshold: float = key("anchors with this part on crowd are ignored; 0 ignores none", minimum=0, maximum=1)
    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    sigma: float = key("sharpness of the smooth L1 loss", above=0)


@dataclass(frozen=True)
class Roi:
    """Boxes, classes and masks of things."""

    roi_size: tuple[int, int] = key("height and width of the features of a region", minimum=1, maximum=128)
    num_samples: int = key("proposals an image that the losses look at", minimum=1, maximum=PROPOSALS)
    pos_ratio: float = key("at most this part of the samples is positive", minimum=0, maximum=1)
    pos_threshold: float = key("IoU from which a proposal is positive", minimum=0, maximum=1)
    neg_threshold_hi: float = key("upper IoU bound of negatives", minimum=0, maximum=1)
    neg_threshold_lo: float = key("lower IoU bound of negatives", minimum=0, maximum=1)
    void_threshold: float = key("proposals with this part on crowd are ignored; 0 ignores none", minimum=0, maximum=1)
    void_is_background: bool = key("void pixels of a mask count as background")
    nms_threshold: float = key("IoU from which a detection suppresses another of its class", minimum=0, maximum=1)
    score_threshold: float = key("detections at or below this score are dropped", minimum=0, maximum=1)
    max_predictions: int = key("detections an image at most", minimum=1, maximum=10_000)
    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    fpn_canonical_scale: float = key("side in pixels of a box that belongs to the canonical level", above=0)
    fpn_canonical_level: int = key("pyramid level of such a box")
    sigma: float = key("sharpness of the smooth L1 loss", above=0)
    bbx_reg_weights: tuple[float, float, float, float] = key("factors of the box codes", above=0)
    fc_channels: int = key("channels of the two fully connected layers", minimum=1, maximum=65_536, ours=True)
    conv_channels: int = key("channels of the mask branch", minimum=1, maximum=CHANNELS, ours=True)
    sample_empty_images: bool = key("images without things give negatives too; the original skips them", ours=True)
    fixed_samples: bool = key(
        "always num_samples rows an image, so that a GPU never waits for a count; where proposals are too few, rows "
        "that count in no loss, but in the norms' statistics, fill up",
        ours=True,
    )


@dataclass(frozen=True)
class Sem:
    """The semantic head."""

    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    pooling_size: tuple[int, int] = key("window of the global branch, in cells of the level", minimum=1, maximum=4096)
    ohem: float | None = key(
        "part of the pixels of an image, the worst ones, that counts in the loss; empty counts all", above=0, maximum=1
    )
    hidden_channels: int = key("channels of each branch", minimum=1, maximum=CHANNELS, ours=True)


@dataclass(frozen=True)
class Optimizer:
    """From gradients to weights."""

    lr: float = key("base learning rate", minimum=0)
    weight_decay: float = key("weight decay", minimum=0)
    weight_decay_norm: bool = key("weight decay on norm layers too")
    momentum: float = key("momentum", minimum=0, maximum=1)
    nesterov: bool = key("Nesterov momentum")
    loss_weights: tuple[float, ...] = key(
        "weights of obj, bbx, roi_cls, roi_bbx, roi_msk, sem (as many as the task has losses)", minimum=0
    )
    type: str = key("sgd, or adamw, which takes momentum for its first beta", choices=("sgd", "adamw"), ours=True)
    beta2: float = key("second beta of adamw", minimum=0, maximum=1, ours=True)
    clip_norm: float = key("a gradient of a larger norm is scaled down to it; 0 for no limit", minimum=0, ours=True)
    accumulate: int = key("batches whose gradients make one step", minimum=1, ours=True)
    loss_average: str = key(
        "a loss is the mean over its anchors, samples, mask pixels or images in each batch of each process, of which "
        "the step takes the mean (process, as the original), or the mean over those of the whole step (step)",
        choices=("process", "step"),
        ours=True,
    )
    ema: float = key(
        "keep a moving average of the weights, of which each step keeps this part; it is validated and saved too; "
        "0 for none",
        minimum=0,
        maximum=1,
        ours=True,
    )


@dataclass(frozen=True)
class Scheduler:
    """The learning rate over time."""

    epochs: int = key("epochs to train", minimum=1)
    type: str = key("schedule", choices=("linear", "step", "poly", "multistep"))
    update_mode: str = key("count steps (batch) or epochs", choices=("batch", "epoch"))
    params: dict[str, Any] = key(
        "linear {from, to}; step {step_size, gamma}; poly {gamma}; multistep {milestones, gamma}"
    )
    burn_in_steps: int = key("steps of the linear burn-in; 0 for none", minimum=0)
    burn_in_start: float = key("factor at its start", minimum=0)


@dataclass(frozen=True)
class Dataloader:
    """Images and batches."""

    shortest_size: int = key("shortest side of the network's input", minimum=1, maximum=16384)
    longest_max_size: int = key(
        "longest side at most, training; inference allows at least 4 times the shortest size", minimum=1, maximum=32_768
    )
    train_batch_size: int | None = key("images a batch and process, training", minimum=1, maximum=65_536)
    val_batch_size: int | None = key("images a batch and process, validation; empty is 1", minimum=1, maximum=65_536)
    rgb_mean: tuple[float, float, float] = key("mean of the channels of images in 0..1")
    rgb_std: tuple[float, float, float] = key("standard deviation of the channels", above=0)
    random_flip: bool = key("flip half of the training images")
    random_scale: tuple[float, ...] | None = key(
        "two values: a range of scales; another number: a choice; empty: none", above=0, maximum=100, most=1000
    )
    num_workers: int = key("processes that read images; 0 reads in the main one", minimum=0, maximum=1024)
    train_set: str = key("split to train on")
    val_set: str = key("split to validate on")
    coco_gt: str = key(
        "COCO annotations of the validation split; accepted, not needed: eval_coco takes the truth from the data set"
    )
    drop_last: bool = key("leave out the last, smaller batch of an epoch", ours=True)
    crop_size: tuple[int, int] | None = key(
        "height and width of a random crop of the scaled training image; empty for none",
        minimum=1,
        maximum=32_768,
        ours=True,
    )
    color_jitter: tuple[float, float, float, float] | None = key(
        "largest change of brightness, contrast, saturation (factors 1 +- x) and hue (turns, up to .5) of training "
        "images; empty for none",
        minimum=0,
        ours=True,
    )
    class_uniform: float = key(
        "this part of the training images is drawn so that all classes come equally often",
        minimum=0,
        maximum=1,
        ours=True,
    )
    device_transforms: bool = key(
        "training images travel as bytes; flip, colour and normalisation happen on the device", ours=True
    )
    fast_decode: bool = key(
        "decode JPEG photos at the smallest sufficient half, quarter or eighth of their size: faster, slightly other "
        "pixels",
        ours=True,
    )
    persistent_workers: bool = key("the processes that read images live on from epoch to epoch", ours=True)
    prefetch: int = key("batches that each of them prepares ahead", minimum=1, maximum=1024, ours=True)
    broken_limit: float = key(
        "a training image that cannot be read is said, counted and replaced by another, until they are more than this "
        "part of the epoch's; 0 stops at the first",
        minimum=0,
        maximum=1,
        ours=True,
    )


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
