"""Loss max-pooling: the definition by a search over the weights, its limits, void pixels; packaged components."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from seamseg.config import components, config_from_string
from seamseg.config.components import NotLoaded
from seamseg.contrib.recipes.max_pooling import MaxPoolingKeys, max_pooled_loss, max_pooling
from seamseg.models.heads.semantic import semantic_loss
from seamseg.ops.upsample import upsample_cross_entropy
from seamseg.utils.errors import InputError

POWERS = [1.0, 1.01, 1.3, 1.7, 4.0, 60.0]


def bounds(n: int, power: float, support: float | None) -> tuple[float, float]:
    radius = n ** (1 / power - 1)
    return radius, radius * max(1.0, (support or 0) * n) ** (-1 / power)


def searched(losses: Tensor, power: float, support: float | None) -> Tensor:
    """The weights from the conditions of optimality, by bisection: `min(tau, c loss^(1 / (p - 1)))` on the norm."""
    radius, largest = bounds(len(losses), power, support)
    shape = (losses / losses.max()).log() / (power - 1)
    low, high = -1e4, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        weights = (shape + middle).exp().clamp(max=largest)
        low, high = (low, middle) if (weights**power).sum() > radius**power else (middle, high)
    return (shape + low).exp().clamp(max=largest)


def pooled(losses: Tensor, power: float, support: float | None) -> tuple[Tensor, Tensor]:
    rows = losses[None].clone().requires_grad_()
    value = max_pooled_loss(rows, torch.ones_like(rows, dtype=torch.bool), power, support)
    value.sum().backward()
    return value[0].detach(), rows.grad[0]


lists = st.lists(st.floats(1e-3, 30), min_size=1, max_size=12).map(lambda x: torch.tensor(x, dtype=torch.float64))


@settings(max_examples=60)
@given(lists, st.sampled_from(POWERS[1:]), st.sampled_from([None, 0.2, 0.5, 1.0]))
def test_against_search(losses, power, support):
    value, weights = pooled(losses, power, support)
    radius, largest = bounds(len(losses), power, support)
    assert (weights >= 0).all()
    assert weights.max() <= largest * (1 + 1e-9)
    assert weights.pow(power).sum() ** (1 / power) <= radius * (1 + 1e-9)
    assert_close(value, (searched(losses, power, support) * losses).sum(), rtol=1e-6, atol=0)
    assert value >= losses.mean() * (1 - 1e-9)


def test_power_one_is_ohem():
    losses = torch.tensor([0.5, 3.0, 1.0, 2.0], dtype=torch.float64)
    value, weights = pooled(losses, 1.0, 0.5)
    assert value == 2.5
    assert weights.tolist() == [0, 0.5, 0, 0.5]
    # 1.6 pixels: the second one counts in part
    assert_close(pooled(losses, 1.0, 0.4)[0], torch.tensor((3 + 0.6 * 2) / 1.6, dtype=torch.float64))


@pytest.mark.parametrize(("power", "support"), [(1.7, 1.0), (1e6, None)])
def test_limit_is_the_mean(power, support):
    losses = torch.tensor([0.5, 3.0, 1.0, 2.0], dtype=torch.float64)
    assert_close(pooled(losses, power, support)[0], losses.mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("power", POWERS)
def test_void_and_zero_losses(power):
    losses = torch.tensor([[2.0, 9.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]], requires_grad=True)
    valid = torch.tensor([[True, False, True, True], [True] * 4, [False] * 4])
    value = max_pooled_loss(losses, valid, power, 0.5)
    alone = max_pooled_loss(torch.tensor([[2.0, 0.0, 1.0]]), torch.ones(1, 3, dtype=torch.bool), power, 0.5)
    assert_close(value, torch.stack((alone[0], torch.tensor(0.0), torch.tensor(0.0))))
    value.sum().backward()
    assert losses.grad.isfinite().all()
    assert losses.grad[~valid].eq(0).all()


def test_semantic_loss():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, requires_grad=True)
    targets = [torch.randint(0, 3, (14, 20)), torch.randint(0, 3, (16, 17))]
    targets[0][:5] = 255
    loss = semantic_loss(logits, (16, 20), targets, partial(max_pooling, keys=MaxPoolingKeys(1.7, 0.25)))
    parts = []
    for x, target in zip(logits, targets):
        pixels = upsample_cross_entropy(x, (16, 20), tuple(target.shape), target)[target != 255]
        parts.append(max_pooled_loss(pixels[None], torch.ones(1, len(pixels), dtype=torch.bool), 1.7, 0.25))
    assert_close(loss, torch.stack(parts).mean())
    ours, theirs = (torch.autograd.grad(value, logits)[0] for value in (loss, torch.stack(parts).mean()))
    assert_close(ours, theirs)


@pytest.fixture
def no_recipes(imported, monkeypatch):
    """As in a process that has not imported those of the package."""
    for name in [name for name in sys.modules if name.startswith("seamseg.contrib.recipes.")]:
        monkeypatch.delitem(sys.modules, name)
    for key in [
        key for key, found in components._REGISTERED.items() if found.module.startswith("seamseg.contrib.recipes.")
    ]:
        del components._REGISTERED[key]


def test_a_model_names_parts_of_the_package(no_recipes, tmp_path, monkeypatch):
    """They are imported, unlike files; one that does not name them ends in a line that says what to add."""
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", "seamseg.contrib.recipes.py"):
        (tmp_path / name).write_text("raise ValueError")
    chosen = "[body]\nbody = timm:resnet18\n[sem]\nloss = max_pooling\n[loss max_pooling]\npower = 2\n"
    message = re.escape(
        "no body 'timm:resnet18': it is part of this package, add `components=seamseg.contrib.recipes.timm`"
    )
    with pytest.raises(InputError, match=message):
        config_from_string(chosen)
    with pytest.raises(InputError, match=r"^m: \[body\] body = nosuch: no body"):
        config_from_string(
            "[general]\ncomponents = seamseg.contrib.recipes.nosuch\n[body]\nbody = nosuch\n", source="m"
        )
    assert isinstance(config_from_string(chosen.replace("timm:", "")).parts["loss max_pooling"], NotLoaded)
    names = "seamseg.contrib.recipes.timm, evil.py, seamseg.contrib.recipes.max_pooling, seamseg.contrib.recipes.py"
    config = config_from_string(f"[general]\ncomponents = {names}\n{chosen}")
    assert config.general.components == names
    assert config.component("loss")[1].power == 2
    assert config.component("body")[0].module == "seamseg.contrib.recipes.timm"
    assert config.records() == ()


def test_the_page_of_components_is_up_to_date() -> None:
    # in a process of its own: other tests import components
    program = [sys.executable, "-m", "seamseg.cli.components"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    page = Path(__file__).parents[3] / "docs" / "reference" / "components.md"
    assert page.read_text(encoding="utf-8") == done.stdout, "run `make reference` and commit components.md"
