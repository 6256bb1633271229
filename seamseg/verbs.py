"""The commands as functions of the options that they have as flags; see `seamseg`, which offers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.inference.options import LoadOptions, PredictOptions
from seamseg.training.options import TrainingOptions
from seamseg.utils.options import takes
from seamseg.validation.options import EvaluationOptions

if TYPE_CHECKING:
    from seamseg.inference.predictor import Predictor
    from seamseg.maps.evaluation.scores import Scores
    from seamseg.predicting.job import RunSummary
    from seamseg.training.options import TrainResult

# each function imports what it needs: an exported network needs no torch


@takes(LoadOptions)
def load(options: LoadOptions) -> Predictor[Any]:
    """Load a trained model: `seamseg.load("model.zip").predict("street.jpg")`.

    The kind of the model decides what :meth:`~seamseg.inference.predictor.Predictor.predict` returns: a panoptic map,
    or detections with boxes and masks. Options that are None have the value of the configuration.

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model is missing, broken, or does not match its configuration and metadata
    """
    from seamseg.inference.predictor import build_predictor, open_for_inference

    opened = open_for_inference(options.model, options.device, options.config, options.meta, options)
    return build_predictor(opened, options)


@takes(PredictOptions)
def predict(options: PredictOptions) -> RunSummary:
    """Predict images and videos to files: `seamseg.predict("runs/city", "photos/", "out/", "coco")`.

    Joins the processes of torchrun if there are any. The command `seamseg predict` resumes an interrupted run, and the
    other way round: only images that are not done are predicted.

    Returns
    -------
    :class:`seamseg.predicting.job.RunSummary`: the numbers of images

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model, an input or an option is wrong, or the folder holds something else
    seamseg.utils.errors.SeamsegError
        if the disk is full, or a device is lost; any other image that fails is reported on stderr and skipped
    """
    from seamseg.predicting.job import predict_files

    return predict_files(options)


@takes(EvaluationOptions)
def evaluate(options: EvaluationOptions) -> Scores:
    """Score the results that :func:`load` gives with the same options: `seamseg.evaluate("runs/city", "data").PQ`.

    The kind of the model decides the type of the scores, for example
    :class:`seamseg.maps.evaluation.scores.PanopticScores`.
    An image that fails is reported on stderr and left out: `n_images` is the number of the others.

    Raises
    ------
    seamseg.utils.errors.InputError
        if something is missing or broken, or the classes of model and data set differ and no table
        maps them
    """
    from seamseg.validation.evaluate import evaluate_model

    return evaluate_model(options)


@takes(TrainingOptions)
def train(options: TrainingOptions) -> TrainResult:
    """Train a network: `seamseg.train("cityscapes_r50", "data", "runs/city", pretrain="body:resnet50.pth")`.

    Under torchrun each process calls it. Returns :class:`seamseg.training.options.TrainResult`: `scores["PQ"]`, `best`,
    `history` and the rest.

    Raises
    ------
    seamseg.utils.errors.InputError
        if the configuration, the data set or a file of weights is wrong
    seamseg.utils.errors.SeamsegError
        if a loss is not finite, or a file cannot be written
    """
    from seamseg.training.run import run_training

    return run_training(options)
