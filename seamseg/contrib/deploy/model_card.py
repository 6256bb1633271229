"""Upload of a trained model to the Hugging Face Hub, with a model card: its README.md with a YAML header."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from seamseg.checkpoints.hub import check_repo, upload
from seamseg.config.kinds import KINDS, TIMM
from seamseg.contrib.deploy.model_folder import ConvertedModel, check_folder, convert_model, filling
from seamseg.contrib.deploy.options import CardOptions, ConversionOptions
from seamseg.maps.evaluation.scores import pixel_iou_titles
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import read_json, write_atomically
from seamseg.utils.limits import EVALUATION_BYTES

CARD_NAME = "README.md"
_TEMPLATE = Path(__file__).with_name("model_card.md")


METRICS = (
    ("PQ", "pq", "PQ"),
    ("PQ_things", "pq_things", "PQ, things"),
    ("PQ_stuff", "pq_stuff", "PQ, stuff"),
    ("SQ", "sq", "SQ"),
    ("RQ", "rq", "RQ"),
    ("mIoU", "mean_iou", "mIoU"),
    ("mIoU_segments", "mean_iou", "mIoU (segments)"),
    ("accuracy", "accuracy", "pixel accuracy"),
    ("mask.AP", "ap_mask", "mask AP"),
    ("mask.AP50", "ap50_mask", "mask AP50"),
    ("box.AP", "ap_box", "box AP"),
    ("box.AP50", "ap50_box", "box AP50"),
    ("box.AP75", "ap75_box", "box AP75"),
    ("top1", "accuracy", "top-1 accuracy"),
    ("top5", "top_5_accuracy", "top-5 accuracy"),
)
"""Key in the JSON of scores, identifier of the hub, and name."""

_PERCENT = ("top1", "top5")
"""Scores that are no fractions."""
_PIPELINES = ("object-detection", "image-classification")
"""Tasks that are pipelines of the hub by themselves; others are its image-segmentation."""


def push_model(
    model: str | Path,
    repo: str,
    conversion: ConversionOptions = ConversionOptions(),  # noqa: B008  # frozen
    card: CardOptions = CardOptions(),  # noqa: B008  # frozen
    private: bool = False,
    folder: str | Path | None = None,
) -> str | None:
    """Convert a trained model, write its card, and upload both as one commit.

    `repo` is `user/repo`, which is created if it does not exist. With `folder` the files are written there instead.
    Returns the URI of the revision, `hf://user/repo@COMMIT`; None with `folder`.
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

    licence: dict[str, str] = {}
    # one word, or a few with a version, as CC BY 4.0
    if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*|([a-z0-9-]+ ){1,2}\d\.\d", made.licence, re.IGNORECASE):
        licence = {"license": made.licence.lower().replace(" ", "-")}
    elif made.licence:
        licence = {"license": "other", "license_name": made.licence}
    pipeline = made.task if made.task in _PIPELINES else "image-segmentation"
    scores = {} if options.scores is None else _scores(Path(options.scores), made)
    data: dict[str, Any] = {
        "library_name": "seamseg",
        "pipeline_tag": pipeline,
        # of `timm:NAME` both words
        "tags": [made.task, *made.network["backbone"].split(":"), "safetensors"],
        "datasets": list(options.datasets) or None,
        **licence,
    }
    if scores:
        data["model_name"] = repo.partition("/")[2]
        data["eval_results"] = [
            EvalResult(
                task_type=pipeline,
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


def _scores(path: Path, made: ConvertedModel) -> dict[str, tuple[str, float]]:
    """Return the scores of a file by name: the identifier of the metric, and the value in percent."""
    content = read_json(path, "file of scores", EVALUATION_BYTES)
    # a panoptic network has mIoU, too, and one with masks box.AP
    main = (*(kind.main_score for kind in KINDS.values()), "top1")
    found = next((key for key in main if _number(content, key) is not None), None)
    if found != made.main_score:
        has = "" if found is None else f"has {found}, "
        raise InputError(f"{path}: {has}no {made.main_score}: not the scores of a network of kind {made.kind}")
    names = {key: name for key, _, name in METRICS if not key.startswith("mIoU")} | pixel_iou_titles(content)
    scores = {
        names[key]: (identifier, round(value if key in _PERCENT else 100 * value, 2))
        for key, identifier, _ in METRICS
        if key in names and (value := _number(content, key)) is not None
    }
    classes = content.get("per_class")
    if isinstance(classes, Mapping) and len(classes) != made.metadata.num_classes:
        raise InputError(f"{path}: scores of {len(classes)} classes, the model has {made.metadata.num_classes}")
    return scores


def _number(content: Any, key: str) -> float | None:
    for name in key.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return float(content) if isinstance(content, (int, float)) and not isinstance(content, bool) else None


def _body(made: ConvertedModel, repo: str, scores: Mapping[str, tuple[str, float]], datasets: Sequence[str]) -> str:
    uri, stated = f"hf://{repo}", ""
    network = {"kind": made.kind, **made.network, "parameters": f"{made.num_parameters:,}"}
    if scores:
        rows = ((name, f"{value:.2f}") for name, (_, value) in scores.items())
        stated = f"## Scores\n\nOn {datasets[0]}, in percent.\n\n{_table(('score', 'value'), rows)}\n\n"
    classes, listed = made.metadata, []
    for index, name in enumerate(classes.categories):
        kind = colour = ""  # of a classifier
        if classes.palette:
            kind = "thing" if classes.is_thing(index) else "stuff"
            colour = "#{:02x}{:02x}{:02x}".format(*classes.palette[index])
        listed.append((str(index), name, kind, colour))
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    return template.substitute(
        name=repo.partition("/")[2],
        task=made.task.replace("-", " "),
        trained_on=f" on {', '.join(datasets)}" if datasets else "",
        extras="torch,hub,timm" if made.network["backbone"].startswith(TIMM) else "torch,hub",
        command=made.command.format(uri),
        use=made.use.format(uri),
        network=_table(("", ""), network.items()),
        scores=stated,
        classes=_table(("index", "name", "kind", "colour"), listed),
        licence=made.licence or "No licence of the weights is stated.",
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, without the columns that are empty in all rows."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    kept = [number for number in range(len(head)) if any(row[number] for row in cells)]
    lines = [[head[number] for number in kept], ["---"] * len(kept), *([row[n] for n in kept] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
