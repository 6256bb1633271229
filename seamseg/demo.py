"""Demo of the whole pipeline without a download: generate a city, prepare, train, predict, evaluate, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from seamseg.config import find_experiment, load_config
from seamseg.inference.options import PredictOptions
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.record import read_evaluation, write_summary
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.export import dataset_to_coco_panoptic
from seamseg.maps.report import write_report
from seamseg.maps.toy_city import generate_toy_city
from seamseg.maps.toy_city.writer import check_scenes, check_settings
from seamseg.predicting.job import predict_files
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.options import TrainingOptions
from seamseg.training.run import run_training
from seamseg.utils.distributed import choose_device, run_in_processes
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_json
from seamseg.utils.output import echo
from seamseg.utils.parallel import available_cores
from seamseg.utils.progress import counter, progress

EXPERIMENT = "toy_city_r18"
"""Packaged configuration of the demo."""


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo, `train` and `val` scenes of a city that `seed` draws."""

    out: Path
    """Run folder; everything is written there."""
    train: int = 560
    val: int = 40
    seed: int = 0
    overrides: tuple[str, ...] = ()
    """`section.key=value`, applied to the experiment."""
    device: str = "auto"


def run_demo(options: DemoOptions, print_line: Callable[[str], None] = echo) -> PanopticScores:
    """Run all stages, except those that are complete.

    The run folder gets `toy_city/raw` (as Cityscapes is distributed), `toy_city/data` (dataset folder), the snapshots,
    `predictions/`, `evaluation/`, `metrics.json` and `report.html`.

    `print_line` is called with each message. Returns the scores of the validation split. InputError if an option is out
    of range, or the folder holds other files, or a demo with other settings.
    """
    out = options.out
    check_scenes("toy city", options.train, options.val, options.seed, least=1)
    settings = {
        "train": options.train,
        "val": options.val,
        "seed": options.seed,
        "experiment": EXPERIMENT,
        "overrides": list(options.overrides),
    }
    if not (out / "demo.json").exists() and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: holds files, but no demo; choose another folder")
    check_settings(out, settings, "demo.json")
    raw, data = out / "toy_city" / "raw", out / "toy_city" / "data"
    begin = time.monotonic()
    with _stage(print_line, f"[1/6] generating {options.train} + {options.val} street scenes in {raw}"):
        generate_toy_city(raw, options.train, options.val, options.seed, progress=counter("toy city"))
    with _stage(print_line, f"[2/6] converting them to a dataset folder in {data}"):
        prepare_cityscapes(raw, data, ("train", "val"), ConversionOptions(progress=progress))
    with _stage(print_line, f"[3/6] training a ResNet-18 panoptic network in {out}"):
        _train(options, data)
    predictions = out / "predictions"
    with _stage(print_line, f"[4/6] predicting the {options.val} held-out scenes into {predictions}"):
        folder, model = DatasetFolder(data), RunFolder(out).last
        images = [folder.image_path(image.id) for image in folder.split("val")]
        predict_files(PredictOptions(model, images, predictions, ("overlay", "coco"), options.device, restart=True))
    with _stage(print_line, "[5/6] evaluating them against the ground truth, both as COCO panoptic files"):
        scores = _evaluate(out, data, predictions)
    page = out / "report.html"
    with _stage(print_line, f"[6/6] drawing {page}"):
        write_report(page, read_evaluation(out / "evaluation"), progress=progress)
    print_line(f"done in {(time.monotonic() - begin) / 60:.1f} minutes")
    return scores


@contextmanager
def _stage(print_line: Callable[[str], None], text: str) -> Iterator[None]:
    """Print the text of a stage, and its time after it."""
    start = time.monotonic()
    print_line(text)
    yield
    print_line(f"      {time.monotonic() - start:.0f} s")


def _train(options: DemoOptions, data: Path) -> None:
    last = RunFolder(options.out).last
    overrides, processes = list(options.overrides), 1
    batch = load_config(EXPERIMENT, overrides=overrides).dataloader.train_batch_size
    # half of a step of so small a network is Python and small operators, which a second thread does not share
    if choose_device(options.device).type == "cpu" and available_cores() > 1 and batch and batch % 2 == 0:
        processes = 2
        overrides.append(f"dataloader.train_batch_size={batch // 2}")
    training = TrainingOptions(
        config=find_experiment(EXPERIMENT),
        data=data,
        log_dir=options.out,
        resume=last if last.exists() else None,
        # interrupted before its first snapshot
        restart=not last.exists(),
        overrides=tuple(overrides),
        device=options.device,
    )
    run_in_processes(processes, run_training, training)


def _evaluate(out: Path, data: Path, predictions: Path) -> PanopticScores:
    truth = dataset_to_coco_panoptic(DatasetFolder(data), "val", out / "toy_city" / "val_panoptic.json")
    evaluation = out / "evaluation"
    scores = evaluate_panoptic_json(
        truth, predictions / "panoptic.json", workers=2, progress=progress, out=evaluation, photos=data / "img"
    )
    write_summary(replace(read_evaluation(evaluation), title="Toy city: held-out scenes"))
    write_json(out / "metrics.json", scores.to_json(), indent=2)
    return scores
