"""Training for int8: from a trained network, through the trainer, to a snapshot that is used as any other."""

from dataclasses import replace

import pytest
import torch
from support.interruptions import loss_lines, result, signals_at, train_until_done
from support.micro import CONFIG, make_dataset, narrow_body
from support.networks import randomise, toy_batch
from support.processes import launch
from support.semantic_networks import semantic_config
from torch import nn
from torch.testing import assert_close

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import config_from_string
from seamseg.models.build import build_network, build_training_module
from seamseg.models.folding import fold_layers, for_inference
from seamseg.models.quantised import QuantisedConv2d, choosing_ranges, is_quantised, quantised
from seamseg.ops.quantisation import FakeQuantise
from seamseg.structures import PackedSequence
from seamseg.training.run import TrainingOptions, run_training
from seamseg.utils.errors import InputError

SETTINGS = ("general.qat=yes", "optimizer.lr=1e-4", "dataloader.train_batch_size=1", "optimizer.ema=0.9")


@pytest.fixture(scope="module")
def options(micro_run, micro_config, tmp_path_factory):
    """Options of a training on seven images, before it has run."""
    folder = tmp_path_factory.mktemp("qat")
    data = make_dataset(folder / "data", [2, 1, 0, 3, 1, 0, 2], [1, 2])
    pretrain = (str(micro_run / "model_last.pth.tar"),)
    settings = (*SETTINGS, "scheduler.epochs=1")
    return TrainingOptions(micro_config, data, folder / "run", pretrain=pretrain, overrides=settings, device="cpu")


@pytest.mark.slow
def test_training(options, narrow, micro_run, seamseg_main, tmp_path, capsys):
    """It learns, a resumed run ends with the same bits, and `evaluate` gives the scores of the validation."""
    scores = run_training(options).validation
    start, end = (
        load_snapshot(file).state_dict for file in (*options.pretrain, options.log_dir / "model_last.pth.tar")
    )
    assert "fpn.lateral.0.bn.weight" in start["body"]
    assert not any(".bn" in key or "running" in key for key in end["body"])
    scales = [float(value) for part in end.values() for key, value in part.items() if str(key).endswith(".scale")]
    assert len(set(scales)) > 20
    assert all(0 < scale < 1 for scale in scales)

    interrupted = replace(options, log_dir=tmp_path / "run", resume="auto")
    with signals_at([2, 5]):
        assert train_until_done(interrupted) == 2
    assert result(interrupted.log_dir) == result(options.log_dir)
    assert loss_lines(interrupted.log_dir) == loss_lines(options.log_dir)

    capsys.readouterr()
    assert seamseg_main("evaluate", options.log_dir, options.data) == 0
    assert f"{100 * scores.mIoU:.2f}" in capsys.readouterr().out


def train_process(rank, join, options):
    join()
    with narrow_body():
        run_training(options)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes(options, tmp_path):
    """Both have the ranges of the main process, and the snapshot holds one state."""
    launch(train_process, 2, replace(options, log_dir=tmp_path / "run"))
    snapshot = load_snapshot(tmp_path / "run" / "model_last.pth.tar")
    assert len(snapshot.resume["ranks"]) == 2
    assert all(not state["buffers"] for state in snapshot.resume["ranks"]), "buffers are equal"
    scales = [value for key, value in snapshot.state_dict["body"].items() if key.endswith(".scale")]
    assert len(scales) > 10
    assert all(0 < scale < 1 for scale in scales)


def trained_form(config, stuff=2, things=3):
    """The training module of a configuration with `qat`, with weights and ranges, and the float network."""
    torch.manual_seed(0)
    plain = build_network(replace(config, general=replace(config.general, qat=False)), stuff, things).eval()
    randomise(plain)
    module = build_training_module(config, stuff, things)
    net = module.net.eval()
    missing, unexpected = net.load_state_dict(fold_layers(plain).state_dict(), strict=False)
    assert not unexpected
    assert all(key.endswith((".scale", ".zero_point")) for key in missing)
    return module, plain


def micro_config_of(*overrides):
    return config_from_string(CONFIG.format(norm="bn"), overrides=("general.qat=yes", *overrides))


CONFIGS = {
    "panoptic": micro_config_of(),
    "detection": micro_config_of("general.kind=detection", "body.activation=elu", "body.num_frozen=2"),
    "semantic": semantic_config("general.qat=yes"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_folded_network_is_trained(kind, narrow):
    """Without rounding it computes what the float network does; each weight that is not frozen gets a gradient."""
    config = CONFIGS[kind]
    module, plain = trained_form(config)
    net, batch = module.net, toy_batch((64, 96), (64, 96))
    assert is_quantised(net)
    assert not is_quantised(plain)
    with choosing_ranges(net), torch.no_grad():
        if kind == "semantic":
            images = PackedSequence(list(batch.images))
            assert_close(net(images).logits, plain(images).logits, rtol=0, atol=1e-4)
        else:
            found, wanted = (one.encode(batch.images).levels for one in (net, plain))
            for x, y in zip(found, wanted, strict=True):
                assert_close(x, y, rtol=0, atol=1e-4 * float(y.abs().max()))
            module(batch)  # also the regions
    module.train()
    sum(module(batch).means.values()).backward()
    frozen = [name for name, p in net.named_parameters() if not p.requires_grad]
    assert bool(frozen) == (config.body.num_frozen > 0)
    assert all(name.startswith("body.backbone.mod") for name in frozen)
    for name, parameter in net.named_parameters():
        # scores of boxes without samples of their class have no gradient
        assert not parameter.requires_grad or parameter.grad is not None, name
    weights = [p for name, p in net.named_parameters() if p.requires_grad and name.endswith(".weight")]
    assert sum(bool((p.grad != 0).any()) for p in weights) >= 0.9 * len(weights)


class Squared(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).square()


def test_layers_that_are_not_known_stay_in_float():
    hooked = nn.Conv2d(8, 8, 1)
    hooked.register_forward_hook(lambda module, inputs, y: y.sin())
    mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
    net = nn.Sequential(nn.Conv2d(3, 8, 3), Squared(8, 8, 1), hooked, mirrored, nn.Conv2d(8, 8, 1)).eval()
    x = torch.randn(1, 3, 9, 9)
    made = quantised(fold_layers(net))
    with choosing_ranges(made), torch.no_grad():
        assert_close(made(x), net(x))
    kinds = [QuantisedConv2d, Squared, nn.Conv2d, nn.Conv2d, QuantisedConv2d]
    assert [type(layer) for layer in made] == kinds


def test_simulation_differs_from_float(narrow):
    """The network for inference rounds, as the trained one does."""
    module, plain = trained_form(CONFIGS["semantic"])
    net = module.net
    images = PackedSequence([torch.randn(3, 64, 96, generator=torch.Generator().manual_seed(1))])
    with choosing_ranges(net), torch.no_grad():
        net(images)
    with torch.no_grad():
        rounded, wanted = net(images).logits, plain(images).logits
        assert torch.equal(for_inference(net, torch.device("cpu"))(images).logits, rounded)
    difference = (rounded - wanted).abs().mean() / wanted.std()
    assert 1e-4 < difference < 0.2
    with pytest.raises(InputError, match="`precision=bf16`: a network trained for int8"):
        for_inference(net, torch.device("cpu"), "bf16")


def test_layers_without_values_have_no_range(narrow):
    net = build_network(CONFIGS["semantic"], 2, 3).eval()
    with pytest.raises(InputError, match=r"no objects .*, so that \S+ has no range"), choosing_ranges(net):
        pass
    assert all(m.histogram is None for m in net.modules() if isinstance(m, FakeQuantise))


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"pretrain": ()}, (), r"\[general\] qat starts from a trained network: name its snapshot with `pretrain"),
        ({"pretrain": ("body:{run}",)}, (), r"\[general\] qat: `pretrain` gives no weights for rpn_head"),
        ({}, ("body.normalization_mode=gn",), r"\[general\] qat .* needs batch norm, not normalization_mode gn"),
        ({}, ("fpn.out_channels=8",), r"\[general\] qat `pretrain=\S+`: does not fill the network"),
    ],
)
def test_refused(changes, more, message, options, narrow, tmp_path):
    run = options.pretrain[0]
    changes = {name: tuple(value.format(run=run) for value in values) for name, values in changes.items()}
    wrong = replace(options, log_dir=tmp_path / "run", overrides=(*options.overrides, *more), **changes)
    with pytest.raises(InputError, match=message):
        run_training(wrong)
    assert not (tmp_path / "run").exists()
