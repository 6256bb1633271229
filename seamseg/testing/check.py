"""The check of components: trainings, predictions and files on a generated city."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import load_config
from seamseg.config.components import KINDS, Component, added_by, load, registered
from seamseg.config.experiments import TINY_NETWORK
from seamseg.config.values import format_value
from seamseg.maps.folder import ReadMap
from seamseg.maps.images import open_image
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.toy_city import generate_toy_city
from seamseg.predicting.folder import OutputFolder
from seamseg.predicting.job import predict_files
from seamseg.predicting.options import PredictOptions
from seamseg.testing.layers import check_layers
from seamseg.training.callbacks import Callback, Run
from seamseg.training.options import TrainingOptions
from seamseg.training.run import run_training
from seamseg.utils.component_errors import named_errors
from seamseg.utils.errors import InputError, one_line
from seamseg.utils.progress import is_quiet, set_quiet

_TINY = f"""{TINY_NETWORK}
[body]
body = resnet18
normalization_mode = syncbn
num_frozen = 0
bn_frozen = no
[optimizer]
lr = 0.005
[scheduler]
epochs = 1
burn_in_steps = 1
[dataloader]
shortest_size = 63
longest_max_size = 127
train_batch_size = 1
val_batch_size = 1
random_scale = None
num_workers = 0
train_set = train
val_set = val
"""

_NO_DETECTIONS = "roi.score_threshold=1"
"""Override for predictions without any things."""


def check_component(
    source: str | Path,
    kind: str | None = None,
    name: str | None = None,
    keys: Mapping[str, object] | None = None,
    *,
    deterministic: bool = True,
    data: str | Path | None = None,
) -> list[str]:
    """Check the components of a file or module with a small network on a generated city, on the CPU.

    A training that is stopped and resumed is compared with one that is not, and the model predicts a whole image and
    tiles. The outputs of heads and formats are written to a folder, and the state of a callback is restored. Networks
    are exported to ONNX and compared, where the packages of the extra `export` are installed. It takes half a minute.

    Parameters
    ----------
    source : Python file, or name of a module
    kind, name : kind and name of the component; None for all of the source
    keys : values of its options, if the defaults do not suit the check, and of others by `section.key`
    deterministic : whether a resumed training must give the same weights, to the bit
    data : what the trainings read in place of the generated city, with the splits `train` and `val`: for readers of
        other formats, and for heads whose ground truth has a meaning. In the city, heads that declare `reads` find maps
        of random integers from 1 to 255 and rows of `void`; half of the images have none of those with `optional`

    Returns
    -------
    what was checked, a line each

    Raises
    ------
    AssertionError
        with one line, if a check fails
    SeamsegError
        if the component has an error
    """
    module = Path(load([str(source)])[0]).stem if str(source).endswith(".py") else str(source)
    found = [c for c in registered(kind) if c.module == module or c.module.startswith(f"{module}.")]
    found = [component for component in found if name in (None, component.name)]
    if not found:
        raise InputError(f"{source}: registers no {kind or 'component'}{'' if name is None else f' {name}'}")
    if keys and len(found) > 1:
        raise InputError(f"{source}: `keys` are those of one component: name it with `kind` and `name`")
    if data is not None and not Path(data).exists():
        raise InputError(f"{data}: no such file or folder")
    with tempfile.TemporaryDirectory(prefix="seamseg-check-") as folder, _quietly():
        raw, city = Path(folder, "raw"), Path(folder, "data")
        generate_toy_city(raw, 4, 3, size=(64, 128), workers=1)
        prepare_cityscapes(raw, city, ("train", "val"))
        for made in added_by([module]):
            _write_maps(city, getattr(made.make, "reads", {}).values())
        config = Path(folder, "tiny.ini")
        config.write_text(_TINY)
        lines = []
        for number, component in enumerate(found):
            check = _Check(
                component,
                _overrides(component, str(source), keys or {}),
                Path(folder, str(number)),
                config,
                Path(data or city),
                min((city / "img").iterdir()),
                deterministic,
            )
            lines += check.run()
    return lines


def _overrides(made: Component, source: str, keys: Mapping[str, object]) -> tuple[str, ...]:
    """Return the overrides that use a component."""
    kind = KINDS[made.kind]
    found = [f"general.components={Path(source).resolve() if source.endswith('.py') else source}"]
    if kind.key:
        found.append(f"{kind.key}={made.name}")
    strides = tuple(getattr(made.make, "strides", {}).values()) if made.kind == "body" else ()
    if strides and strides != (4, 8, 16, 32):
        found += [f"fpn.out_strides={strides}", "fpn.extra_scales=0"]
        found += [f"{section}.fpn_levels={len(strides)}" for section in ("rpn", "roi", "sem")]
    for key, value in keys.items():
        found.append(f"{key if '.' in key else f'{made.section}.{key}'}={format_value(value)}")
    if made.kind == "format" and "panoptic" not in (networks := tuple(made.make.kinds)):  # type: ignore[attr-defined]
        found.append(f"general.kind={networks[0]}")
    return tuple(found)


def _write_maps(city: Path, specs: Iterable[ReadMap]) -> None:
    """Write the maps that a head reads."""
    rng = np.random.default_rng(0)
    for spec in specs:
        (city / spec.folder).mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(sorted((city / "img").iterdir())):
            height, width = np.asarray(open_image(path)).shape[:2]
            values = rng.integers(1, 256, (spec.channels, height, width)).astype(np.float32)
            if spec.void is not None:
                values[:, :4] = spec.void
            if not (spec.optional and number % 2):
                np.save(city / spec.folder / f"{path.stem}.npy", values)


@contextmanager
def _quietly() -> Iterator[None]:
    before = is_quiet()
    set_quiet(True)
    try:
        yield
    finally:
        set_quiet(before)


class _StopAfter(Callback):
    """Ends a training after a step, with a snapshot."""

    def train(self, run: Run, values: Mapping[str, float]) -> None:
        if run.step == 2:
            run.stop("check")


@dataclass(frozen=True)
class _Check:
    """The check of a component, with a folder for its runs, its data and an image."""

    component: Component
    overrides: tuple[str, ...]
    work: Path
    config: Path
    data: Path
    image: Path
    deterministic: bool

    def run(self) -> list[str]:
        """Run all checks that the kind has."""
        kind, section = self.component.kind, self.component.section
        with named_errors(section, self.component.module):
            try:
                lines = check_layers(self.component, load_config(self.config, None, self.overrides), self.data)
                lines += [self.resume(), self.predict()]
                if kind in ("head", "body"):
                    lines.append(self.export())
                if kind == "head" and (maps := tuple(self.load().map_formats)):
                    lines.append(self.write(maps))
                if kind == "format":
                    lines.append(self.write((self.component.name,)))
                if kind == "callback":
                    lines.append(self.restore())
            except AssertionError as error:
                # not named_errors, which is for errors of the component
                failed = AssertionError(f"{section} ({self.component.file}): {error}")
            else:
                return [f"{section}: {line}" for line in lines]
        raise failed

    def train(self, run: str, *overrides: str, **options: Any) -> Any:
        """Train, and check that no callback has failed; return the result."""
        options |= {"overrides": (*self.overrides, *overrides), "device": "cpu"}
        result = run_training(TrainingOptions(self.config, self.data, self.work / run, **options))
        log = (self.work / run / "training.log").read_text().splitlines()
        failed = [line for line in log if "is not called again" in line]
        assert not failed, one_line(failed[0])
        return result

    def load(self, **options: Any) -> Any:
        """Open the model that was trained without a stop."""
        return seamseg.load(self.work / "straight", "cpu", overrides=self.overrides, **options)

    def resume(self) -> str:
        """Compare a training that was stopped and resumed with one that was not."""
        self.train("straight")
        stopped = self.train("stopped", callbacks=[_StopAfter()])
        assert stopped.steps == 2, f"the training ended after step {stopped.steps}: {stopped.stopped}"
        # another number of workers must not change the numbers
        workers = ("dataloader.num_workers=1",) if self.component.kind == "augmentation" else ()
        self.train("stopped", *workers, resume=self.work / "stopped")
        if not self.deterministic:
            return "is resumed"
        first, second = (load_snapshot(self.work / run / "model_last.pth.tar") for run in ("straight", "stopped"))
        pairs = zip(_tensors(first.state_dict), _tensors(second.state_dict), strict=True)
        other = [name for (name, a), (_, b) in pairs if not torch.equal(a, b)]
        assert not other, (
            f"a resumed training has other weights, first {', '.join(other[:1])}: keep all state in state_dict, take "
            "random numbers from torch or the given RNG (or pass deterministic=False)"
        )
        return "a resumed training has the same weights, to the bit"

    def predict(self) -> str:
        """Predict an image as a whole, in tiles and mirrored, as far as the component allows it."""
        image = np.ascontiguousarray(np.tile(np.asarray(open_image(self.image)), (4, 3, 1)))
        views: dict[str, dict[str, Any]] = {"as a whole": {"tiles": "off"}}
        if not getattr(self.component.make, "predicts_ids", False):
            views["in tiles"] = {"tiles": 160}
        if self.component.kind != "network":
            views["mirrored"] = {"tiles": "off", "tta": "flip"}
        for options in views.values():
            predictor = self.load(**options)
            (found,) = predictor.raw([image])
            for name, spec in predictor.map_formats.items():
                wanted = image.shape[:2] if spec.channels == 1 else (spec.channels, *image.shape[:2])
                shape = found.maps[name].shape
                assert shape == wanted, f"predict: the map {name} has shape {shape}, not {wanted} ({options})"
                assert bool(np.isfinite(found.maps[name]).all()), f"predict: {name} is not finite ({options})"
        *others, last = views
        return f"predicts an image {' and '.join([', '.join(others), last] if others else [last])}"

    def export(self) -> str:
        """Export the model to ONNX, which compares the file with it."""
        if not getattr(self.component.make, "exportable", True):
            return "is not part of exported networks"
        needed = ("onnx", "onnxscript", "onnxruntime", "seamseg.contrib")
        if missing := [name for name in needed if find_spec(name) is None]:
            return f"the export is not checked without {', '.join(missing)}"
        file = self.work / "network.onnx"
        seamseg.export(self.work / "straight", file, check=(self.image,), overrides=self.overrides)
        return "exports to ONNX, which gives the same for an image"

    def write(self, formats: Sequence[str]) -> str:
        """Write the files of formats, also for an image of odd sides without detections."""
        odd = self.work / "odd.png"
        open_image(self.image).crop((0, 0, 101, 63)).save(odd)
        none = () if "general.kind=semantic" in self.overrides else (_NO_DETECTIONS,)
        for out, path, more in (("out", self.image, ()), ("none", odd, none)):
            target, overrides = self.work / "files" / out, (*self.overrides, *more)
            predict_files(
                PredictOptions(self.work / "straight", path, target, formats, "cpu", overrides=overrides, workers=0)
            )
            (line,) = OutputFolder(target, [], {}).lines()
            assert line["status"] == "ok", f"predict: {line.get('reason')}"
        stem = self.image.stem
        found = [path for path in (self.work / "files" / "out").rglob(f"{stem}*") if path.stat().st_size]
        assert len(found) >= len(formats), f"predict: no files of {', '.join(formats)}"
        return f"writes {', '.join(sorted(path.name.replace(stem, 'NAME') for path in found))}"

    def restore(self) -> str:
        """Restore the state of a callback in a new object."""
        resume = load_snapshot(self.work / "straight" / "model_last.pth.tar").resume or {}
        state = resume.get("callbacks", {}).get(self.component.name)
        if not state:
            return "has no state"
        config = load_config(self.config, None, self.overrides)
        made = next(c.make(keys) for c, keys in config.components("callback") if c.name == self.component.name)
        made.load_state_dict(state)
        assert _same(made.state_dict(), state), "load_state_dict() does not restore what state_dict() returns"
        return "its state is restored"


def _tensors(state: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of nested dicts and lists, with their names."""
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(state)
    named = [(".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path), x) for path, x in leaves]
    return [(name, x) for name, x in named if isinstance(x, torch.Tensor)]


def _same(a: Any, b: Any) -> bool:
    (x, first), (y, second) = (torch.utils._pytree.tree_flatten(tree) for tree in (a, b))
    return first == second and all(
        torch.equal(p, q) if isinstance(p, torch.Tensor) else bool(np.all(p == q)) for p, q in zip(x, y)
    )
