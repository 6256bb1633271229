"""The backbones compute what the original's do: outputs of all stages, logits, a training step."""

import numpy as np
import pytest
import torch
from support.golden_files import array, has
from support.golden_weights import load_golden, sample_positions, stored
from torch import nn
from torch.testing import assert_close

from seamseg.models.build import build_backbone, norm_factory

CASES = stored()["cases"]
STEPS = stored()["train_step"]
MODES = {"ABN": "standard", "InPlaceABN": "inplace"}
_STEP_ARRAYS = ("logits", "loss", "names", "grad_norm", "grad_sample", "stat_names", "stat_norm")
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def network(case, **options):
    norm = norm_factory(MODES[case["norm"]], case["activation"], case["activation_param"])
    return build_backbone(case["arch"], norm, classes=1000, **case["args"], **options)


def images():
    crops = array("backbones", "input_crop_u8").astype(np.float32) / np.float32(255)
    return torch.from_numpy(((crops - MEAN) / STD).transpose(0, 3, 1, 2).copy())


def slow_except(names, *fast):
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_except(CASES, "resnet18", "resnet18_std_leaky.2"))
def test_logits_and_stages(name):
    case = CASES[name]
    net = load_golden(case["weights"], network(case), case["arch"])
    with torch.no_grad():
        outputs = net(images())
    wanted = array("backbones", f"{name}/logits")
    assert_close(outputs["classifier"].numpy(), wanted, rtol=0, atol=1e-4 * np.ptp(wanted))
    stages = [stage for stage in outputs if stage != "classifier"]
    assert stages == [s for s in net.out_channels if has("backbones", f"{name}/{s}_shape")]
    for stage in stages:
        output = outputs[stage]
        assert list(output.shape[1:]) == array("backbones", f"{name}/{stage}_shape").tolist()
        stats, values = (array("backbones", f"{name}/{stage}_{part}") for part in ("stats", "val"))
        positions = sample_positions(f"{name}/{stage}", output[0].numel(), values.shape[1])
        scale = float(stats[:, 2].max())
        for picture, wanted_stats, wanted_values in zip(output, stats, values):
            found = picture.flatten()
            assert_close(found[positions].numpy(), wanted_values, rtol=0, atol=1e-4 * scale)
            found_stats = [float(found.mean()), float(found.std(correction=0)), float(found.abs().max())]
            assert_close(found_stats, wanted_stats.tolist(), rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("name", slow_except(STEPS, "resnet18"))
def test_training_step(name):
    case, settings = CASES[name], STEPS[name]
    net = load_golden(case["weights"], network(case, keep_outputs=False), case["arch"]).train()
    golden = {part: array("backbones_train", f"{name}/{part}") for part in _STEP_ARRAYS}
    logits = net(images())
    loss = nn.functional.cross_entropy(logits, torch.tensor(settings["targets"]))
    loss.backward()
    assert_close(logits.detach().numpy(), golden["logits"], rtol=0, atol=1e-3)
    assert_close(loss.item(), float(golden["loss"]), rtol=0, atol=2e-4)

    parameters = dict(net.named_parameters())
    assert list(parameters) == golden["names"].tolist()
    norms = np.array([float(p.grad.norm()) for p in parameters.values()])
    assert_close(norms, golden["grad_norm"].astype(norms.dtype), rtol=1e-2, atol=1e-5 * norms.max())
    assert np.median(np.abs(norms / golden["grad_norm"] - 1)) < 6e-4
    for key, wanted, norm in zip(parameters, golden["grad_sample"], norms):
        gradient = parameters[key].grad.flatten()
        found = gradient[sample_positions(key, gradient.numel(), len(wanted))].numpy()
        assert_close(found, wanted.astype(found.dtype), rtol=0, atol=1e-2 * norm)

    buffers = dict(net.named_buffers())
    statistics = [float(buffers[key].norm()) for key in golden["stat_names"]]
    assert_close(statistics, golden["stat_norm"].tolist(), rtol=1e-4, atol=1e-5)
