"""Semantic networks: keys, class maps, folding, loss, the head of DeepLabV3, and the numbers of the original."""

import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from support.golden_files import DATA, array, tensor
from support.golden_weights import golden_vistas, sample_positions
from support.micro import make_dataset, narrow_body
from support.sections import sem, train_transform
from support.small_models import semantic_config, semantic_net
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.config import load_config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import collate
from seamseg.inference.images import network_input
from seamseg.inference.options import InferenceOptions
from seamseg.inference.tta import Augmentation, predict_augmented
from seamseg.models.build import build_network, build_training_module
from seamseg.models.folding import fold_abn, for_inference
from seamseg.models.heads.semantic import semantic_loss
from seamseg.models.semantic import DeeplabV3
from seamseg.ops.norm import ABN, InPlaceABN
from seamseg.structures import Normalise, PackedSequence
from seamseg.utils.errors import InputError

IMAGE = torch.linspace(-2, 2, 3 * 45 * 70).view(3, 45, 70).sin()


@pytest.mark.parametrize("pad_to", [1, 32])
def test_class_map_and_probability(pad_to):
    net = semantic_net().with_options(pad_to=pad_to)
    with torch.no_grad():
        output = net(PackedSequence([IMAGE]))
    scores = functional.interpolate(output.logits, size=output.padded_size, mode="bilinear").softmax(1)[0, :, :45, :70]
    (plain,) = net.predict(PackedSequence([IMAGE]))
    assert output.logits.shape[2:] == ((6, 9) if pad_to == 1 else (8, 12)), "stride 8"
    assert output.valid_sizes == [(45, 70)]
    with pytest.raises(RuntimeError, match="training mode"):
        semantic_net().train().predict(PackedSequence([IMAGE]))
    (both,) = net.with_options(probabilities=True).predict(PackedSequence([IMAGE]))
    assert plain.maps == {}
    assert plain.size == (45, 70)
    assert torch.equal(plain.semantic, scores.argmax(0))
    assert torch.equal(both.semantic, plain.semantic)
    assert_close(both.maps["probability"], scores.amax(0))
    assert np.array_equal(
        both.on_cpu().on_cpu().maps["probability"], (both.maps["probability"] * 255).to(torch.uint8).numpy()
    )


@pytest.mark.parametrize("pooling_size", [(4, 6), (2, 3), None])
def test_folding_changes_nothing_but_time(pooling_size):
    net = semantic_net()
    net.head.pooling_size = pooling_size
    folded = fold_abn(net)
    assert not any(isinstance(layer, ABN) for layer in folded.modules())
    with torch.no_grad():
        assert_close(folded(PackedSequence([IMAGE])).logits, net(PackedSequence([IMAGE])).logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def items(tmp_path):
    dataset = PanopticDataset(make_dataset(tmp_path, [2, 1], [0]), "train", train_transform(64, 128))
    return [dataset[0], dataset[1]]


@pytest.mark.parametrize("loss", ["cross_entropy", "max_pooling"])
def test_training_module(loss, items):
    config = semantic_config(
        "general.components=seamseg.contrib.recipes.max_pooling", f"sem.loss={loss}", "sem.ohem=0.5"
    )
    component, keys = config.component("loss")
    with narrow_body():
        module = build_training_module(config, 2, 1)
    batch = collate(items)
    losses = module(batch)
    assert list(losses.means) == ["sem_loss"]
    assert losses.counts["sem_loss"] == 2
    output = module.net(batch.images)
    targets = [torch.where(m[0] > 0, c[m[0]], 255) for m, c in zip(batch.masks, batch.categories)]
    wanted = semantic_loss(output.logits, output.padded_size, targets, lambda image: component.make(image, keys))
    assert_close(losses.means["sem_loss"], wanted)
    losses.means["sem_loss"].backward()
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    assert not missing


def test_wrong_bodies():
    with pytest.raises(InputError, match="remove classes"):
        build_network(semantic_config('body.body_params={"classes": 3}'), 2, 1)
    with pytest.raises(InputError, match=r"\[body\] body_params: "):
        build_network(semantic_config('body.body_params={"dilation": [1, 2]}'), 2, 1)


class TestVistas:
    """The network of `wide_resnet38_deeplab_vistas.pth.tar` on the golden image."""

    pytestmark = pytest.mark.slow

    @pytest.fixture(scope="class")
    def net(self):
        net = build_network(load_config("vistas_wrn38"), 65, 0)
        net.load_state_dict(golden_vistas(net))
        return net.eval()

    @pytest.fixture(scope="class")
    def photo(self):
        return Image.open(DATA / "flower.png").convert("RGB")

    @pytest.fixture(scope="class")
    def image(self, photo):
        config = load_config("vistas_wrn38")
        pixels = torch.from_numpy(network_input(photo, InferenceOptions(size=256).input_size(config)))
        return Normalise(config.dataloader.rgb_mean, config.dataloader.rgb_std)(pixels.permute(2, 0, 1))

    @staticmethod
    def check_samples(name, value, tolerance):
        expected = array("vistas", f"{name}_val")
        found = value.contiguous().flatten().numpy()[sample_positions(name, value.numel(), len(expected))]
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)

    @pytest.mark.parametrize("folded", [False, True])
    def test_single_view(self, net, photo, image, folded):
        used = (for_inference(net, torch.device("cpu")) if folded else net).with_options(probabilities=True)
        images = PackedSequence([image])
        with torch.inference_mode():
            logits = used(images).logits
        assert tuple(logits.shape) == tuple(array("vistas", "flower/single/logits_f32_shape"))
        self.check_samples("flower/single/logits_f32", logits, 1.5e-3)
        assert_close(logits, tensor("vistas", "flower/single/logits").float(), rtol=1e-3, atol=1e-2)
        (prediction,) = used.predict(images)
        assert np.array_equal(prediction.semantic.numpy(), array("vistas", "flower/single/class_map"))
        steps = (
            torch.from_numpy(prediction.on_cpu().maps["probability"]).int()
            - tensor("vistas", "flower/single/prob_map").int()
        )
        assert steps.abs().max() <= 1
        assert (steps != 0).float().mean() < 0.01
        final = Image.fromarray(prediction.on_cpu().semantic).resize(photo.size, Image.Resampling.NEAREST)
        assert zlib.crc32(np.asarray(final).tobytes()) == int(array("vistas", "flower/single/final_png_crc32"))

    def test_views(self, net, image):
        views = Augmentation((0.7, 1.0, 1.2), flip=True)
        used = for_inference(net, torch.device("cpu")).with_options(probabilities=True)
        with torch.inference_mode():
            (found,) = predict_augmented(used, [image], views, "mean")
        assert np.array_equal(found.semantic.numpy(), array("vistas", "flower/tta_mean/returned_map"))
        expected = array("vistas", "flower/tta_mean/prob_val")
        at = sample_positions("flower/tta_mean", found.maps["probability"].numel(), len(expected))
        np.testing.assert_allclose(found.maps["probability"].flatten().numpy()[at], expected, rtol=0, atol=1e-4)


KEYS = [
    *(f"map_convs.{i}.weight" for i in range(4)),
    *(f"map_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    "global_pooling_conv.weight",
    *(f"global_pooling_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    "red_conv.weight",
    "pool_red_conv.weight",
    *(f"red_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
]


def golden_deeplab(case):
    window = tuple(array("vistas", f"head_op/{case}/pooling_size").tolist())
    config = sem("semantic", hidden_channels=4, out_channels=5, dilations=(1, 2, 3))
    head = DeeplabV3(config, 6, InPlaceABN)
    head.pooling_size = None if window == (0, 0) else window
    head.load_state_dict({key: tensor("vistas", f"head_op/state/{key}") for key in KEYS})
    return head


@pytest.mark.parametrize("case", range(7))
def test_golden_inference(case):
    head = golden_deeplab(case).eval()
    assert list(head.state_dict()) == KEYS
    expected = tensor("vistas", f"head_op/{case}/y")
    assert_close(head(tensor("vistas", f"head_op/{case}/x")), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", [0, 6])
def test_golden_training(case):
    head = golden_deeplab(case).train()
    x = tensor("vistas", f"head_op/{case}/x").requires_grad_()
    y = head(x)
    assert_close(y, tensor("vistas", f"head_op/{case}/train_y"), rtol=1e-5, atol=5e-6)
    draws = np.random.RandomState(zlib.crc32(b"20190601:deeplab_op.dy")).random_sample(y.numel())
    (dx,) = torch.autograd.grad(y, x, torch.from_numpy(2 * draws - 1).float().view_as(y))
    assert_close(dx, tensor("vistas", f"head_op/{case}/train_dx"), rtol=1e-4, atol=1e-5)


def plain_norm(norm, x):
    y = functional.batch_norm(x, None, None, norm.weight.abs() + norm.eps, norm.bias, True, 0.1, norm.eps)
    return functional.leaky_relu(y, 0.01)


def plain_deeplab(head, x):
    local = head.red_conv(plain_norm(head.map_bn, torch.cat([conv(x) for conv in head.map_convs], 1)))
    context = head.global_pooling_conv(functional.adaptive_avg_pool2d(x, 1))
    context = head.pool_red_conv(plain_norm(head.global_pooling_bn, context))
    return plain_norm(head.red_bn, local + context.expand_as(local))


def test_gradients_of_all_parameters():
    torch.manual_seed(0)
    head = DeeplabV3(sem("semantic", hidden_channels=3, out_channels=4, dilations=(1, 2)), 5, InPlaceABN).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    # so small that its gradient comes from the kernels before it
    head.red_bn.weight.data[0] = 1e-12
    x = torch.randn(3, 5, 6, 7, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(3, 4, 6, 7, dtype=torch.float64)
    names, parameters = zip(*head.named_parameters())
    ours = torch.autograd.grad(head(x), (x, *parameters), dy)
    plain = torch.autograd.grad(plain_deeplab(head, x), (x, *parameters), dy)
    for name, mine, theirs in zip(("x", *names), ours, plain):
        assert_close(mine, theirs, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
