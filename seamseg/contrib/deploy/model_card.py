"""Upload of a trained model to the Hugging Face Hub, with a model card: its README.md with a YAML header."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from seamseg.checkpoints.hub import check_repo, upload
from seamseg.config import Config
from seamseg.config.bodies import TIMM
from seamseg.contrib.classification.checkpoint import CLASSIFICATION
from seamseg.contrib.deploy.model_folder import ConversionOptions, ConvertedModel, check_folder, convert_model, filling
from seamseg.inference.images import input_size
from seamseg.maps.evaluation.scores import pixel_iou_titles
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import read_bytes, write_atomically
from seamseg.utils.limits import EVALUATION_BYTES, parse_json

CARD_NAME = "README.md"
_TEMPLATE = Path(__file__).with_name("model_card.md")


@dataclass(frozen=True)
class _Task:
    """Texts of a card for a kind of network: the task for the hub and for people, and what `predict` returns.

    `metrics` has key (as `box.AP`), identifier and name of each score; `percent` states that scores are no fractions.
    """

    pipeline: str
    tag: str
    result: str
    metrics: tuple[tuple[str, str, str], ...]
    percent: bool = False


TASKS = {
    "panoptic": _Task(
        "image-segmentation",
        "panoptic-segmentation",
        "a panoptic map: class and instance of each pixel",
        (
            ("PQ", "pq", "PQ"),
            ("PQ_things", "pq_things", "PQ, things"),
            ("PQ_stuff", "pq_stuff", "PQ, stuff"),
            ("SQ", "sq", "SQ"),
            ("RQ", "rq", "RQ"),
            ("mIoU", "mean_iou", "mIoU"),
            ("mIoU_segments", "mean_iou", "mIoU (segments)"),
        ),
    ),
    "instance_seg": _Task(
        "image-segmentation",
        "instance-segmentation",
        "boxes, masks, classes and scores",
        (("mask.AP", "ap_mask", "mask AP"), ("mask.AP50", "ap50_mask", "mask AP50"), ("box.AP", "ap_box", "box AP")),
    ),
    "detection": _Task(
        "object-detection",
        "object-detection",
        "boxes, classes and scores",
        (("box.AP", "ap_box", "box AP"), ("box.AP50", "ap50_box", "box AP50"), ("box.AP75", "ap75_box", "box AP75")),
    ),
    "semantic": _Task(
        "image-segmentation",
        "semantic-segmentation",
        "the class of each pixel",
        (("mIoU", "mean_iou", "mIoU"), ("accuracy", "accuracy", "pixel accuracy")),
    ),
    CLASSIFICATION: _Task(
        "image-classification",
        "image-classification",
        "logits",
        (("top1", "accuracy", "top-1 accuracy"), ("top5", "top_5_accuracy", "top-5 accuracy")),
        True,
    ),
}


@dataclass(frozen=True)
class CardOptions:
    """What a model card states besides the model.

    Attributes
    ----------
    scores : JSON file of `seamseg evaluate --json`, or of `seamseg classify validate --json`
    datasets : names of the data sets it was trained on, for example `cityscapes`; the scores are on the first
    """

    scores: str | Path | None = None
    datasets: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.scores is not None and not self.datasets:
            raise InputError(f"`scores={self.scores}`: name the data set with `datasets=NAME`")


def push_model(
    model: str | Path,
    repo: str,
    conversion: ConversionOptions = ConversionOptions(),  # noqa: B008  # frozen
    card: CardOptions = CardOptions(),
    private: bool = False,
    folder: str | Path | None = None,
) -> str | None:
    """Convert a trained model, write its card, and upload both as one commit.

    Parameters
    ----------
    model, conversion : see :func:`seamseg.contrib.deploy.model_folder.convert_model`
    repo : `user/repo` on the hub, which is created if it does not exist
    card : what the card states
    private : create a private repository
    folder : write the files there instead of uploading them

    Returns
    -------
    URI of the revision, `hf://user/repo@COMMIT`; None with `folder`
    """
    check_repo(repo)
    require_packages("huggingface_hub", "safetensors", what=repo)

    def write(target: Path) -> None:
        made = convert_model(model, target, conversion)
        write_atomically(target / CARD_NAME, model_card(made, repo, card).encode())

    if folder is not None:
        check_folder(Path(folder), conversion.force)
        with filling(Path(folder)) as scratch:
            write(scratch)
        return None
    with tempfile.TemporaryDirectory(prefix="seamseg-push-") as target:
        write(Path(target))
        return upload(Path(target), repo, private)


def model_card(made: ConvertedModel, repo: str, options: CardOptions) -> str:
    """Return the text of a card."""
    from huggingface_hub import EvalResult, ModelCardData

    task, name = TASKS[made.kind], repo.partition("/")[2]
    scores = {} if options.scores is None else _scores(Path(options.scores), made)
    data: dict[str, Any] = {
        "library_name": "seamseg",
        "pipeline_tag": task.pipeline,
        # of `timm:NAME` both words
        "tags": [task.tag, *_network(made)["backbone"].split(":"), "safetensors"],
        "datasets": list(options.datasets) or None,
        **_licence(made.licence),
    }
    if scores:
        data["model_name"] = name
        data["eval_results"] = [
            EvalResult(
                task_type=task.pipeline,
                dataset_type=options.datasets[0],
                dataset_name=options.datasets[0],
                metric_type=identifier,
                metric_name=metric,
                metric_value=value,
            )
            for metric, (identifier, value) in scores.items()
        ]
    header = ModelCardData(**data).to_yaml()
    return f"---\n{header}\n---\n\n{_body(made, repo, scores, options.datasets)}"


def _licence(licence: str) -> dict[str, str]:
    """Return the keys of a licence: an identifier such as `cc-by-4.0`, or the name of another one."""
    if not licence:
        return {}
    # one word, or a few with a version, as CC BY 4.0
    if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*|([a-z0-9-]+ ){1,2}\d\.\d", licence, re.IGNORECASE):
        return {"license": licence.lower().replace(" ", "-")}
    return {"license": "other", "license_name": licence}


def _scores(path: Path, made: ConvertedModel) -> dict[str, tuple[str, float]]:
    """Return the scores of a file by name: the identifier of the metric, and the value in percent."""
    task = TASKS[made.kind]
    try:
        content = parse_json(read_bytes(path, "file of scores", EVALUATION_BYTES))
    except ValueError as error:
        raise InputError(f"{path}: not JSON, or a truncated one ({error})") from None
    titles = {key: name for key, _, name in task.metrics}
    if made.kind == "panoptic" and isinstance(content, Mapping):
        titles = {key: name for key, name in titles.items() if not key.startswith("mIoU")} | pixel_iou_titles(content)
    scores = {
        titles[key]: (identifier, round(value if task.percent else 100 * value, 2))
        for key, identifier, _ in task.metrics
        if key in titles and (value := _number(content, key)) is not None
    }
    if task.metrics[0][2] not in scores:
        raise InputError(f"{path}: no {task.metrics[0][0]}: not the scores of a network of kind {made.kind}")
    classes = content.get("per_class")
    if isinstance(classes, Mapping) and len(classes) != made.metadata.num_classes:
        raise InputError(f"{path}: scores of {len(classes)} classes, the model has {made.metadata.num_classes}")
    return scores


def _number(content: Any, key: str) -> float | None:
    for name in key.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return float(content) if isinstance(content, (int, float)) and not isinstance(content, bool) else None


def _network(made: ConvertedModel) -> dict[str, str]:
    """Return the rows of the table of the network."""
    rows = {"kind": made.kind}
    if isinstance(made.config, Config):
        loading, backbone = made.config.dataloader, made.config.body.body
        found = input_size(made.config)
        size = f"shortest side {found.shortest_size}, longest at most {found.longest_max_size} pixels"
        if found.longest_size is not None:
            size = f"longest side {found.longest_size} pixels"
        mean, std = loading.rgb_mean, loading.rgb_std
    else:
        sizes, backbone = made.config.input, made.config.network.arch
        scale = f"shorter side {sizes.scale_val}, " if sizes.scale_val > 0 else ""
        size = f"{scale}centre crop {sizes.crop_val} pixels"
        mean, std = sizes.mean, sizes.std
    rows |= {"backbone": backbone, "input": size, "mean": str(mean), "std": str(std)}
    return rows | {"parameters": f"{made.num_parameters:,}"}


def _body(made: ConvertedModel, repo: str, scores: Mapping[str, tuple[str, float]], datasets: Sequence[str]) -> str:
    """Return the text below the header."""
    uri, task, network = f"hf://{repo}", TASKS[made.kind], _network(made)
    if made.kind == CLASSIFICATION:
        use = f'net = seamseg.classifier("{uri}")  # images N x 3 x H x W, normalised -> {task.result}'
        command = f"seamseg export {uri} classifier.onnx"
    else:
        use = f'model = seamseg.load("{uri}")\nresult = model.predict("street.jpg")  # {task.result}'
        command = f"seamseg predict {uri} photos/ out/"
    stated = ""
    if scores:
        rows = ((name, f"{value:.2f}") for name, (_, value) in scores.items())
        stated = f"## Scores\n\nOn {datasets[0]}, in percent.\n\n{_table(('score', 'value'), rows)}\n\n"
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        name=repo.partition("/")[2],
        task=task.tag.replace("-", " "),
        trained_on=f" on {', '.join(datasets)}" if datasets else "",
        extras="torch,hub,timm" if network["backbone"].startswith(TIMM) else "torch,hub",
        command=command,
        use=use,
        network=_table(("", ""), network.items()),
        scores=stated,
        classes=_table(("index", "name", "kind", "colour"), _classes(made)),
        licence=made.licence or "No licence of the weights is stated.",
    )


def _classes(made: ConvertedModel) -> Iterable[tuple[str, ...]]:
    classes, single = made.metadata, made.kind == CLASSIFICATION
    for index, name in enumerate(classes.categories):
        kind = "" if single else "thing" if classes.is_thing(index) else "stuff"
        yield str(index), name, kind, "" if single else "#{:02x}{:02x}{:02x}".format(*classes.palette[index])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, without the columns that are empty in all rows."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    kept = [number for number in range(len(head)) if any(row[number] for row in cells)]
    lines = [[head[number] for number in kept], ["---"] * len(kept), *([row[n] for n in kept] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
