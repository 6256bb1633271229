"""Functions of this wing that `seamseg` offers: `seamseg.classifier`, `seamseg.export` and `seamseg.serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.serving.options import ServeOptions
from seamseg.utils.errors import require_packages
from seamseg.utils.options import takes

if TYPE_CHECKING:
    from torch import nn

    from seamseg.contrib.deploy.export import ExportReport


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
