"""The commands as functions of the options that they have as flags; see `seamseg`, which offers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.serving.options import ServeOptions
from seamseg.inference.options import LoadOptions
from seamseg.predicting.options import PredictOptions
from seamseg.training.options import TrainingOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.options import takes
from seamseg.validation.options import EvaluationOptions

if TYPE_CHECKING:
    from torch import nn

    from seamseg.contrib.deploy.export import ExportReport
    from seamseg.inference.predictor import Predictor
    from seamseg.maps.evaluation.scores import Scores
    from seamseg.predicting.job import RunSummary
    from seamseg.training.result import TrainResult

# each function imports what it needs: an exported network needs no torch


def classifier(config: Any, checkpoint: Any = None, device: Any = "auto") -> nn.Module:
    """Load an ImageNet classifier: `seamseg.classifier("resnext101_ipabn_lr_512", "resnext101_ipabn_lr_512.pth.tar")`.

    Parameters
    ----------
    config : JSON file, or the name of a packaged one; or a folder with configuration and checkpoint, also
        `hf://user/repo`
    checkpoint : checkpoint of this project or of the original; that of the folder, or random weights if None
    device : auto (a GPU if there is one), cpu, cuda or cuda:N

    Returns
    -------
    a network in evaluation mode that maps images `N x 3 x H x W`, normalised by `mean` and `std` of the configuration,
    to logits `N x classes`; the keys of its state dict are those of the original without the prefix `module.`

    Raises
    ------
    seamseg.utils.errors.InputError
        if the configuration is wrong, or the checkpoint is missing, broken, or does not fit it
    """
    from seamseg.contrib.classification.checkpoint import load_classifier

    return load_classifier(config, checkpoint, device)


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
        if something is missing or broken, all images fail, or the classes of model and data set differ and no table
        maps them
    """
    from seamseg.validation.evaluate import evaluate_model

    return evaluate_model(options).scores


@takes(TrainingOptions)
def train(options: TrainingOptions) -> TrainResult:
    """Train a network: `seamseg.train("cityscapes_r50", "data", "runs/city", pretrain="body:resnet50.pth")`.

    Under torchrun each process calls it. Returns :class:`seamseg.training.result.TrainResult`: `scores["PQ"]`, `best`,
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


@takes(ExportOptions)
def export(options: ExportOptions) -> ExportReport:
    """Export a network to `.onnx` or `.pt2` and compare the file with it: `seamseg.export("runs/city", "city.onnx")`.

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model is missing or broken, or an option is out of range
    seamseg.utils.errors.SeamsegError
        if the export fails, or the file computes something else than the network
    """
    from seamseg.contrib.deploy.export import export_model

    return export_model(options)


@takes(ServeOptions)
def serve(options: ServeOptions) -> int:
    """Serve a model over HTTP until SIGINT or SIGTERM: `seamseg.serve("runs/city", port=8080)`.

    Returns
    -------
    number of requests in progress that were cut off at the end

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model or the address is wrong, or a package of the extra `serve` is missing
    seamseg.utils.errors.SeamsegError
        if the port is in use or not allowed
    """
    require_packages("starlette", "uvicorn", "python_multipart", "prometheus_client", extra="serve")
    from seamseg.contrib.serving.server import serve_model

    return serve_model(options).cut_off
