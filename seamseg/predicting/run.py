"""Predict files: from the options of `predict` to a folder of outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seamseg.checkpoints.model_path import is_exported
from seamseg.inference.predictor import Predictor
from seamseg.predicting.find import find_sources, limited
from seamseg.predicting.folder import output_path
from seamseg.predicting.job import RunSummary, default_workers, predict_all
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.settings import PredictSettings
from seamseg.utils.distributed import distributed


def predict_files(
    options: PredictOptions, report: Callable[[Predictor[Any], RunSummary], None] = lambda *_: None
) -> RunSummary:
    """Write the outputs of images; joins the processes of torchrun if there are any.

    Parameters
    ----------
    options : model, images, folder of the outputs and their formats
    report : called by the main process at the end

    Raises
    ------
    InputError
        if the model, an input or an option is wrong, or the folder holds something else
    SeamsegError
        if an output cannot be written
    """
    settings = PredictSettings.of(options)
    out = output_path(str(options.out))
    sources = limited(find_sources(options.inputs, out), options.limit)
    # exported networks take arrays, and choose their devices themselves
    with distributed(None if is_exported(settings.path) else options.device) as world:
        predictor = settings.load(world.device or options.device)
        folder = settings.open_folder(out, predictor, sources)
        workers = default_workers(sources, world) if options.workers is None else options.workers
        summary = predict_all(predictor, sources, folder, world, options.batch_size, workers, options.restart)
        if world.is_main:
            report(predictor, summary)
    return summary
