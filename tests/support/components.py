"""Files of components as a user writes them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seamseg.cli.components import import_all
from seamseg.config import components
from seamseg.utils.errors import SeamsegError

EXAMPLES = Path(__file__).parents[2] / "examples" / "components"
EDGES = (EXAMPLES / "edge.py").read_text(encoding="utf-8")
LION = (EXAMPLES / "lion.py").read_text(encoding="utf-8").replace("optimizer\n\n\n", "optimizer, scheduler\n\n\n")
LION += '''

@scheduler("halving")
def halving(t, total, keys):
    """Half the rate in each tenth of the training."""
    return 0.5 ** (10 * t // total)
'''


def code_of_page(page: str, part: str) -> str:
    """Return the code of a page of docs/how-to that has this part."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / page).read_text(encoding="utf-8")
    (code,) = [code for block in text.split("```python\n")[1:] if part in (code := block.split("```")[0])]
    return code


VECTORS = '''
import torch
from torch import nn
from torch.nn import functional

from seamseg.components import Head, Map, head


@head("vectors")
class Vectors(Head):
    """Two channels of either sign, whose horizontal one is mirrored, integers, a length and a distance of the width."""

    outputs = {
        "vector": Map(2, "nearest", "core", mirror=(-1.0, 1.0)),
        "best": Map(resize="nearest", tiles="core", scale=1, bits=16),
        "span": Map(values="multiply", scale=1, bits=16),
    }

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.outputs = {**self.outputs, "far": Map(values="divide", scale=1, bits=16)}
        self.output = nn.Conv2d(context.width, 2, 1)

    def forward(self, features):
        """Compute both from the second level."""
        vector, width = self.output(features.levels[1]), features.valid_sizes[0][1]
        span = torch.zeros_like(vector[:, :1]).float() + width
        return {"vector": vector, "span": span, "far": 9600 / span}

    def predict(self, outputs):
        """Return the vectors and the larger channel."""
        best = outputs["vector"].argmax(1, keepdim=True)
        return {"vector": outputs["vector"], "best": best, "span": outputs["span"], "far": outputs["far"]}
'''


DEPTH = '''
from dataclasses import dataclass

from torch import nn
from torch.nn import functional

from seamseg.components import Head, Map, ReadMap, head, key

BATCHES = []


@dataclass(frozen=True)
class DepthKeys:
    """Keys of the depth."""

    weight: float = key("weight of depth_loss in the total", 0.5, minimum=0)


@head("depth", keys=DepthKeys)
class DepthHead(Head):
    """Distance from the camera."""

    losses = {"depth_loss": "weight"}
    outputs = {"depth": Map(scale=256, bits=16)}
    reads = {"depth": ReadMap("depth", factor=0.5, fill=-1)}

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.output = nn.Conv2d(context.width, 1, 1)

    def forward(self, features):
        """Predict the logarithm."""
        return {"depth": self.output(features.levels[0])}

    def targets(self, batch):
        """Pad what was read."""
        BATCHES.append(batch)
        return batch.maps["depth"].as_padded(-1)[0]

    def loss(self, outputs, targets):
        """Compare where there is ground truth."""
        found = functional.interpolate(outputs["depth"].float(), targets.shape[-2:], mode="bilinear")
        valid = targets > 0
        return {"depth_loss": (functional.l1_loss(found[valid], targets[valid].log1p()), valid.sum())}

    def predict(self, outputs):
        """Return distances."""
        return {"depth": outputs["depth"].expm1()}
'''
"""A head that reads its ground truth, and keeps the batches of its targets."""


def forget(module: str) -> None:
    for key in [key for key, component in components._REGISTERED.items() if component.module == module]:
        del components._REGISTERED[key]


@contextmanager
def imported_for_a_module(*files: Path) -> Iterator[tuple[str, ...]]:
    """Yield the overrides that import files of components, beside a small body; forget them in the end."""
    from support.micro import narrow_body

    with narrow_body(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "_REGISTERED", dict(components._REGISTERED))
        yield (f"general.components={', '.join(map(str, files))}",)
    for file in files:
        del sys.modules[file.stem]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo what a test imports from files that it has written, and from examples."""
    import_all()  # built-in ones register once only
    monkeypatch.setattr(components, "_REGISTERED", dict(components._REGISTERED))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    roots = (str(tmp_path_factory.getbasetemp()), str(EXAMPLES))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(roots):
            del sys.modules[name]


def component_file(name: str, text: str, *overrides: str) -> Any:
    """Return fixtures: a file of this name and content, with components, and options of a training with overrides."""

    @pytest.fixture
    def file(tmp_path: Path) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    @pytest.fixture
    def options(component_options: Callable[..., Any], file: Path) -> Callable[..., Any]:
        return lambda run, *more, **others: component_options(file, run, *overrides, *more, **others)

    return file, options


@pytest.fixture
def component_options(tmp_path: Path, micro: Path, micro_config: Path) -> Callable[..., Any]:
    """Options of a training on the CPU with a file of components, some overrides, and further arguments."""

    from seamseg.training.run import TrainingOptions

    def make(file: Path, run: str, *overrides: str, **options: Any) -> TrainingOptions:
        given = (f"general.components={file}", "dataloader.train_batch_size=1", *overrides)
        return TrainingOptions(micro_config, micro, tmp_path / run, overrides=given, device="cpu", **options)

    return make


def assert_refused(options: Any, message: str, file: Path, old: str, new: str, kind: type = SeamsegError) -> Exception:
    """Replace a part of a file, so that a training ends with one line; return the error."""
    from seamseg.training.run import run_training

    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(kind, match=message) as error:
        run_training(options)
    assert "\n" not in str(error.value)
    return error.value
