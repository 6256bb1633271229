"""The typed sections of a configuration: one frozen dataclass a section, one field a key (docs/contract.md, section 2).

`docs/config.md` is generated from the text of each field. The defaults are in the packaged INI files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any

from seamseg.config import components
from seamseg.config.components import Component, NoKeys, NotLoaded, Record
from seamseg.config.kinds import BODIES, KINDS, SEAMLESS, Kind, kind_of_network

CHANNELS = 16_384
"""Largest number of channels of a layer."""
PROPOSALS = 1_000_000
"""Largest number of proposals or samples of an image."""


def key(  # noqa: PLR0913
    doc: str,
    default: Any = MISSING,
    *,
    choices: tuple[str, ...] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    most: int | None = None,
    ours: bool = False,
    component: str | None = None,
) -> Any:
    """Declare a key with its documentation and the limits of its value, or of each of its values.

    Keys of components have a `default`; the defaults of the sections of a configuration are in packaged files. Keys
    whose type allows None may be empty, which is read as None. Names of the kind of `component` are allowed besides
    `choices`. `minimum` and `maximum` are allowed values, `above` is not; `most` is the largest number of values.
    Maxima of sizes are far above any experiment: they protect from the configuration of an untrusted model. `ours`
    marks keys that the original does not have, see :data:`our_key`.
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "most": most}
    metadata = {"doc": doc, "ours": ours, "choices": choices, "component": component, **limits}
    return field(default=default, metadata=metadata)


our_key = partial(key, ours=True)
"""Declares a key that the original does not have; its default reproduces the original."""


@dataclass(frozen=True)
class General:
    """Kind of network, validation, logging, fusion of network outputs to a panoptic map, and execution."""

    kind: str = our_key("kind of network: what it predicts", choices=tuple(KINDS))
    base: str = our_key("packaged experiment, or INI file beside this one, whose values are the defaults of this file")
    components: str = our_key(
        "modules and files (`*.py`) of components, separated by commas, which are imported; files are searched beside "
        "the configuration, then in the working directory"
    )
    network: str = our_key(
        "network as a whole: the one that the sections body, fpn, rpn, roi and sem describe (seamless), or another, of "
        "which those have no effect",
        choices=(SEAMLESS,),
        component="network",
    )
    val_interval: int = key("number of epochs between validations", minimum=1)
    log_interval: int = key("number of steps between log lines", minimum=1)
    score_threshold: float = key(
        "detections with a score up to this value are left out of the panoptic map", minimum=0, maximum=1
    )
    overlap_threshold: float = key(
        "an instance is dropped if instances of higher score cover more than this fraction of it", minimum=0, maximum=1
    )
    min_stuff_area: int = key(
        "stuff segments with fewer pixels, at the size of the network input, become void", minimum=0
    )
    eval_mode: str = key(
        "metric that selects the best snapshot: PQ (panoptic) or mIoU of the class map (separate)",
        choices=("panoptic", "separate"),
        component="metric",
    )
    eval_coco: bool = key("also compute box and mask AP of COCO for the detections")
    cudnn_benchmark: bool = key("have cuDNN benchmark its algorithms for each input size")
    seed: int = our_key("random seed of weights, sampling and augmentation", minimum=0, maximum=2**32 - 1)
    channels_last: bool = our_key("run the network in channels-last memory format")
    precision: str = our_key(
        "precision of training: fp32, bf16 or fp16 (mixed), or auto: bf16 where it is faster than fp32",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    winograd: bool = our_key(
        "on a CPU in fp32, run 3x3 convolutions of stride 1 by Winograd's algorithm, forward and backward: about half "
        "their time, other rounding errors of the same size; not with compile"
    )
    compile: bool = our_key("compile body, pyramid and semantic head with torch.compile; the first steps take minutes")
    cuda_graphs: bool = our_key(
        "on a GPU, record training steps as CUDA graphs, forward and backward, at the second batch of a size (16 sizes "
        "are kept); for few sizes, as with crop_size; without fixed_samples, for detection and with custom heads body, "
        "pyramid, RPN head and semantic head only; norms over several processes, hooks, dropout and layers of other "
        "packages run without"
    )
    checkpoint_body: bool = our_key(
        "activation checkpointing of body and pyramid: recompute activations in the backward pass"
    )
    unused_parameters: str = our_key(
        "how several processes treat parameters that no loss depends on: find them in the first step and give them "
        "gradients of 0 (fake), or have DistributedDataParallel search for them in each step (find); with both, a "
        "process without regions runs the ROI head on zero rows",
        choices=("fake", "find"),
    )
    snapshot_interval: int = our_key(
        "number of steps between snapshots within an epoch; 0 saves at the end of epochs only", minimum=0
    )
    snapshot_keep: int = our_key("number of newest snapshots to keep", minimum=1)
    loss_limit: float = our_key(
        "training stops with an error if the loss exceeds this value; 0 for no limit", minimum=0
    )


@dataclass(frozen=True)
class Body:
    """The backbone and its normalization."""

    body: str = key(
        "architecture of the backbone; those with `resnext`, `wider` and `dense` end with a norm, bn_out; with "
        "`components = seamseg.contrib.recipes.timm`, `timm:NAME` is a timm network, with or without a tag of weights",
        choices=tuple(BODIES),
        component="body",
    )
    weights: str = key(
        "file of pre-trained weights, of a ResNet of torchvision or of ImageNet with in-place ABN; of a network of "
        "timm, `timm` downloads its weights, and a file is a timm one (.safetensors or .pth); `torchvision` downloads "
        "those of a ResNet; empty for none"
    )
    normalization_mode: str = key(
        "norm layers: `bn` is in-place ABN, `syncbn` that over all processes, `gn` group norm; with `a+b`, a in body, "
        "FPN, semantic head and heads of your own, b in the RPN and ROI heads",
        choices=("bn", "syncbn", "syncbn+bn", "gn", "syncbn+gn", "off"),
    )
    activation: str = key("activation after each norm", choices=("leaky_relu", "elu"))
    activation_slope: float = key("negative slope of leaky_relu, alpha of elu", minimum=0)
    gn_groups: int = key("number of groups of group norm", minimum=1, maximum=CHANNELS)
    body_params: dict[str, Any] = key("further arguments of the backbone: dilation, dropout, width, input_3x3, ...")
    num_frozen: int = key(
        "number N of frozen modules mod1..modN; of a timm network mod1 is the stem, mod2 the stage of stride 4, and "
        "so on",
        minimum=0,
        maximum=1024,
    )
    bn_frozen: bool = key("freeze norm layers: their learning rate is 0")
    out_channels: dict[str, int] = key(
        "channels of the outputs of mod1, mod2, ...; default: those of the body", maximum=CHANNELS
    )
    out_strides: dict[str, int] = key(
        "strides of the outputs of mod1, mod2, ...; not used: the body knows its strides", maximum=1024
    )


@dataclass(frozen=True)
class Fpn:
    """The feature pyramid."""

    out_channels: int = key("channels of each level", minimum=1, maximum=CHANNELS)
    extra_scales: int = key("number of extra levels, made by strided convolutions", minimum=0, maximum=8)
    interpolation: str = key("upsampling of coarse levels", choices=("nearest", "bilinear"))
    inputs: list[str] = key(
        "modules of the body that are inputs of the pyramid; default: those of strides 4, 8, 16 and 32: `mod2`..`mod5` "
        "of resnet, `mod2`, `mod3`, `mod4`, `bn_out` of resnext and densenet, `mod3`, `mod4`, `mod5`, `bn_out` of "
        "wider_resnet",
        most=16,
    )
    out_strides: tuple[int, ...] = key("stride of each level, extra ones included", minimum=1, maximum=65536, most=16)


class _Sampled:
    """A section with samples for its losses."""

    num_samples: int
    pos_ratio: float

    @property
    def most_positive(self) -> int:
        """Largest number of positive samples of an image."""
        return int(self.num_samples * self.pos_ratio)


@dataclass(frozen=True)
class Rpn(_Sampled):
    """Region proposals."""

    hidden_channels: int = key("channels of the hidden convolution", minimum=1, maximum=CHANNELS)
    stride: int = key("stride of the head on its level", minimum=1, maximum=64)
    anchor_ratios: tuple[float, ...] = key("height / width of the anchors", above=0, maximum=1000, most=64)
    anchor_scale: float = key("anchor size as a multiple of the level's stride", above=0, maximum=10_000)
    nms_threshold: float = key("IoU threshold of NMS between proposals", minimum=0, maximum=1)
    num_pre_nms_train: int = key("proposals before NMS, training", minimum=1, maximum=PROPOSALS)
    num_post_nms_train: int = key("proposals after NMS, training", minimum=1, maximum=PROPOSALS)
    num_pre_nms_val: int = key("proposals before NMS, inference", minimum=1, maximum=PROPOSALS)
    num_post_nms_val: int = key("proposals after NMS, inference", minimum=1, maximum=PROPOSALS)
    min_size: int = key("minimum side of proposals in pixels; 0 keeps all", minimum=0)
    num_samples: int = key("number of anchors sampled per image for the losses", minimum=1, maximum=PROPOSALS)
    pos_ratio: float = key("largest fraction of positive samples", minimum=0, maximum=1)
    pos_threshold: float = key("IoU from which an anchor is positive", minimum=0, maximum=1)
    neg_threshold: float = key("IoU under which an anchor is negative", minimum=0, maximum=1)
    void_threshold: float = key(
        "anchors with at least this fraction of their area on crowd are ignored; 0 ignores none", minimum=0, maximum=1
    )
    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    sigma: float = key("sigma of the smooth L1 loss: it is quadratic up to 1 / sigma²", above=0)


@dataclass(frozen=True)
class Roi(_Sampled):
    """Boxes, classes and masks of things."""

    roi_size: tuple[int, int] = key("height and width of the features of a region", minimum=1, maximum=128)
    num_samples: int = key("number of proposals sampled per image for the losses", minimum=1, maximum=PROPOSALS)
    pos_ratio: float = key("largest fraction of positive samples", minimum=0, maximum=1)
    pos_threshold: float = key("IoU from which a proposal is positive", minimum=0, maximum=1)
    neg_threshold_hi: float = key("upper IoU bound of negatives", minimum=0, maximum=1)
    neg_threshold_lo: float = key("lower IoU bound of negatives", minimum=0, maximum=1)
    void_threshold: float = key(
        "proposals with at least this fraction of their area on crowd are ignored; 0 ignores none", minimum=0, maximum=1
    )
    void_is_background: bool = key("void pixels of a mask count as background; always without stuff classes")
    nms_threshold: float = key("IoU threshold of NMS between detections of a class", minimum=0, maximum=1)
    score_threshold: float = key("detections with a score up to this value are dropped", minimum=0, maximum=1)
    max_predictions: int = key("largest number of detections per image", minimum=1, maximum=10_000)
    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    fpn_canonical_scale: float = key("side in pixels of a box on the canonical level", above=0)
    fpn_canonical_level: int = key("pyramid level of such a box")
    sigma: float = key("sigma of the smooth L1 loss: it is quadratic up to 1 / sigma²", above=0)
    bbx_reg_weights: tuple[float, float, float, float] = key("factors of the box codes", above=0)
    fc_channels: int = our_key("channels of the fully connected layers", minimum=1, maximum=65_536)
    conv_channels: int = our_key("channels of the convolutions of the mask branch", minimum=1, maximum=CHANNELS)
    sample_empty_images: bool = our_key("sample negatives from images without things; the original skips these images")
    fixed_samples: bool = our_key(
        "always use num_samples rows per image, so that the host never waits for a count on the GPU; missing rows are "
        "padded with copies, which are excluded from the losses but not from the statistics of the norms"
    )
    mask_positives_only: bool = our_key(
        "run the mask branch in training on positive samples only, the only ones with a mask loss (with fixed_samples "
        "on num_samples x pos_ratio rows): a faster step; the original runs it on all samples, and all enter the "
        "statistics of its norms"
    )


@dataclass(frozen=True)
class Sem:
    """The semantic head and its loss; with kind semantic the head of DeepLabV3."""

    fpn_min_level: int = key("first pyramid level", minimum=0, maximum=16)
    fpn_levels: int = key("number of pyramid levels", minimum=1, maximum=16)
    pooling_size: tuple[int, int] = key(
        "pooling window of the global branch, in cells of the level", minimum=1, maximum=4096
    )
    ohem: float | None = key(
        "fraction of the pixels of an image, those of highest loss, that the loss averages; empty for all",
        above=0,
        maximum=1,
    )
    hidden_channels: int = our_key("channels of each branch", minimum=1, maximum=CHANNELS)
    out_channels: int = our_key("channels before the classifier", minimum=1, maximum=CHANNELS)
    dilations: tuple[int, ...] = our_key("dilations of the 3x3 convolutions", minimum=1, maximum=1024, most=16)
    loss: str = our_key(
        "loss of an image: the mean cross-entropy of the pixels that ohem selects; with `components = "
        "seamseg.contrib.recipes.max_pooling`, max_pooling is loss max-pooling of arXiv 1704.02966, which weights "
        "pixels by their loss",
        choices=("cross_entropy",),
        component="loss",
    )


@dataclass(frozen=True)
class Optimizer:
    """The optimizer and the losses."""

    lr: float = key("base learning rate", minimum=0)
    weight_decay: float = key("weight decay factor", minimum=0)
    weight_decay_norm: bool = key("apply weight decay to norm layers too")
    body_lr_factor: float = our_key(
        "factor of the learning rate of the backbone, without the pyramid", above=0, maximum=1000
    )
    layer_decay: float = our_key(
        "factor of the learning rate of each layer of a timm network, as timm groups them, relative to the layer "
        "after it; 1 for none",
        above=0,
        maximum=1,
    )
    momentum: float = key("momentum of sgd", minimum=0, maximum=1)
    nesterov: bool = key("Nesterov momentum")
    loss_weights: tuple[float, ...] = key(
        "weights of the losses obj, bbx, roi_cls, roi_bbx, roi_msk, sem (one for each loss of the task)", minimum=0
    )
    type: str = our_key(
        "sgd or adamw; adamw uses momentum as its first beta", choices=("sgd", "adamw"), component="optimizer"
    )
    beta2: float = our_key("second beta of adamw", minimum=0, maximum=1)
    clip_norm: float = our_key("largest norm of the gradient, which is scaled down to it; 0 for no limit", minimum=0)
    accumulate: int = our_key(
        "number of batches whose gradients are accumulated for one step", minimum=1, maximum=10**6
    )
    step_images: int | None = our_key(
        "images of a step that lr, milestones and burn-in are for; `train` says what to set where a step has another "
        "number. Empty: unknown, but 8 where lr is that of the original, 0.01",
        minimum=1,
        maximum=10**9,
    )
    loss_average: str = our_key(
        "average of a loss over its anchors, samples, mask pixels or images: for each batch of each process, then the "
        "mean of these (process, as in the original), or over the whole step at once (step)",
        choices=("process", "step"),
    )
    ema: float = our_key(
        "decay per step of a moving average of the weights, which is also validated and saved; 0 for none",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class Scheduler:
    """The learning rate over time."""

    epochs: int = key("epochs to train", minimum=1)
    type: str = key("schedule", choices=("linear", "step", "poly", "multistep"), component="scheduler")
    update_mode: str = key("update the learning rate by step (batch) or by epoch", choices=("batch", "epoch"))
    params: dict[str, Any] = key(
        "linear {from, to}; step {step_size, gamma}; poly {gamma}; multistep {milestones, gamma}"
    )
    burn_in_steps: int = key("steps of the linear burn-in; 0 for none", minimum=0)
    burn_in_start: float = key("factor of the learning rate at the start of the burn-in", minimum=0)


@dataclass(frozen=True)
class Dataloader:
    """Images and batches."""

    reader: str = our_key(
        "what reads the data set: folder, a dataset folder, or the name of a reader of your own, whose keys are in the "
        "section [reader NAME]",
        choices=("folder",),
        component="reader",
    )
    shortest_size: int = key("shortest side of the network input in pixels", minimum=1, maximum=16384)
    longest_max_size: int = key(
        "largest long side in training; inference allows at least 4 times the shortest size", minimum=1, maximum=32_768
    )
    longest_size: int | None = our_key(
        "exact length of the longest side of the network input at inference and validation, instead of the other two; "
        "empty to use those",
        minimum=1,
        maximum=32_768,
    )
    train_batch_size: int | None = key("images per batch and process in training", minimum=1, maximum=65_536)
    val_batch_size: int | None = key(
        "images per batch and process in validation; empty for 1", minimum=1, maximum=65_536
    )
    rgb_mean: tuple[float, float, float] = key("mean of each channel, for values in 0..1")
    rgb_std: tuple[float, float, float] = key("standard deviation of each channel", above=0)
    random_flip: bool = key("flip training images horizontally with probability 0.5")
    random_scale: tuple[float, ...] | None = key(
        "random scale of training images: two values are a range, any other number of values is a choice; empty: none",
        above=0,
        maximum=100,
        most=1000,
    )
    num_workers: int = key(
        "number of worker processes that load images; 0 loads in the main process", minimum=0, maximum=1024
    )
    train_set: str = key("split to train on")
    val_set: str = key("split to validate on")
    coco_gt: str = key("COCO annotations of the validation split; accepted but not used: eval_coco uses the data set")
    drop_last: bool = our_key("drop the last, smaller batch of an epoch")
    crop_size: tuple[int, int] | None = our_key(
        "height and width of a random crop of the scaled training image; empty for none", minimum=1, maximum=32_768
    )
    crop_multiple: int = our_key(
        "random crop of training images to sides that are multiples of this, where they are longer: with a few values "
        "of random_scale there are few sizes, as general.cuda_graphs needs; 1 for none",
        minimum=1,
        maximum=1024,
    )
    color_jitter: tuple[float, float, float, float] | None = our_key(
        "color jitter of training images: largest change of brightness, contrast, saturation (factors 1 +- x) and hue "
        "(turns, up to .5); empty for none",
        minimum=0,
    )
    class_uniform: float = our_key(
        "fraction of the training images that is sampled uniformly over the classes", minimum=0, maximum=1
    )
    device_transforms: bool = our_key(
        "transfer training images as uint8 and apply flip, color jitter and normalization on the device"
    )
    fast_decode: bool = our_key(
        "decode JPEG images at the smallest sufficient half, quarter or eighth of their size: faster, with slightly "
        "different pixels"
    )
    persistent_workers: bool = our_key("keep the worker processes alive between epochs")
    prefetch: int = our_key("number of batches that each worker process loads in advance", minimum=1, maximum=1024)


@dataclass(frozen=True)
class Config:
    """A whole configuration.

    Keys that are used by other kinds of networks only have their defaults. `texts` are the values as written, by
    section. `parts` has the keys of each component by section, or :class:`NotLoaded` for those that were not imported.
    """

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
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def parts_of_kind(self) -> Kind:
        """The kind of network, with its modules, losses and keys."""
        return kind_of_network(self.general.kind, self.general.network)

    def components(self, kind: str | None = None) -> Iterator[tuple[Component, Any]]:
        """Yield the components, of a kind or of all, that the sections of the configuration add, each with its keys."""
        for section, keys in self.parts.items():
            found = components.parse_section(section)
            if found is not None and kind in (None, found[0]) and not isinstance(keys, NotLoaded):
                yield components.find(*found), keys

    def component(self, kind: str) -> tuple[Component, Any]:
        """Return the component that a key of the configuration chooses, with its options.

        A component without any gets the section that chooses it. InputError if it is not loaded.
        """
        section, key = components.KINDS[kind].key.split(".")
        options = getattr(self, section)
        found = components.find(kind, getattr(options, key))
        return found, options if found.keys is NoKeys else self.parts.get(found.section, found.keys())

    def records(self) -> tuple[Record, ...]:
        """Return what a snapshot states about custom components."""
        return tuple(Record.of(component) for component, _ in self.components() if not component.built_in)


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

KEYS = tuple(f"{name}.{spec.name}" for name, section in SECTIONS.items() for spec in fields(section))
"""All keys, as `section.key`."""
