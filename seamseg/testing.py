"""Check that a component works in a training and a prediction; for tests of your own.

    from seamseg.testing import check_component

    def test_edges():
        check_component("edges.py")

`python -m seamseg.testing edges.py` prints what was checked; `--help` lists the options.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import Config, load_config
from seamseg.config.components import KINDS, Component, added_by, load, registered
from seamseg.config.experiments import TINY_NETWORK
from seamseg.config.values import format_value
from seamseg.data.loader import collate
from seamseg.inference.options import PredictOptions
from seamseg.maps.folder import ReadMap
from seamseg.maps.images import open_image
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.toy_city import generate_toy_city
from seamseg.ops.labels import extract_boxes
from seamseg.predicting.job import predict_files
from seamseg.structures import Batch, PackedSequence
from seamseg.training.callbacks import Callback, Run
from seamseg.training.options import TrainingOptions
from seamseg.training.prefetch import prepare_batch
from seamseg.training.run import run_training
from seamseg.training.setup import segmentation
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError, named_errors, one_line
from seamseg.utils.output import console, echo

__all__ = ["CheckFailed", "check_component"]

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


class CheckFailed(SeamsegError, AssertionError):
    """A component does not do what a check expects; the message is one line."""


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

    Losses and gradients are finite, also for images that are void, saved weights give the same outputs, a training that
    is stopped and resumed gives the weights of one that is not, and the model predicts an image to files. It takes half
    a minute.

    Parameters
    ----------
    source : Python file, or name of a module
    kind, name : kind and name of the component; None for all of the source
    keys : values of its options, if the defaults do not suit the check, and of others by `section.key`
    deterministic : whether a resumed training must give the same weights, to the bit
    data : what the trainings read in place of the generated city, with the splits `train` and `val`: for readers of
        other formats, and for heads whose ground truth has a meaning. In the city, heads that declare `reads` find maps
        of random integers from 1 to 255 and rows of `void`

    Returns
    -------
    what was checked, a line each

    Raises
    ------
    CheckFailed
        an AssertionError, if a check fails
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
    lines = []
    with tempfile.TemporaryDirectory(prefix="seamseg-check-") as folder:
        city = _city(Path(folder), (getattr(c.make, "reads", {}).values() for c in added_by([module])))
        config = Path(folder, "tiny.ini")
        config.write_text(_TINY)
        for number, component in enumerate(found):
            overrides, image = _overrides(component, str(source), keys or {}), min((city / "img").iterdir())
            check = _Check(component, overrides, config, Path(data or city), Path(folder, str(number)), image)
            try:
                with named_errors(component.section, component.module):
                    lines += [f"{component.section}: {line}" for line in check.run(deterministic)]
            except CheckFailed as error:
                raise CheckFailed(f"{component.section} ({component.file}): {error}") from None
    return lines


def _overrides(made: Component, source: str, keys: Mapping[str, object]) -> tuple[str, ...]:
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


def _city(folder: Path, reads: Iterable[Iterable[ReadMap]]) -> Path:
    """Return the data set of the checks, with maps of random numbers for the heads that read some."""
    generate_toy_city(folder / "raw", 4, 3, size=(64, 128), workers=1)
    prepare_cityscapes(folder / "raw", folder / "data", ("train", "val"))
    rng = np.random.default_rng(0)
    for spec in (spec for specs in reads for spec in specs):
        (folder / "data" / spec.folder).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / "data" / "img").iterdir()):
            values = rng.integers(1, 256, (spec.channels, *np.asarray(open_image(path)).shape[:2])).astype(np.float32)
            if spec.void is not None:
                values[:, :4] = spec.void
            np.save(folder / "data" / spec.folder / f"{path.stem}.npy", values)
    return folder / "data"


class _StopAfter(Callback):
    def train(self, run: Run, values: Mapping[str, float]) -> None:
        if run.step == 2:
            run.stop("check")


@dataclass(frozen=True)
class _Check:
    component: Component
    overrides: tuple[str, ...]
    config: Path
    data: Path
    work: Path
    image: Path

    def run(self, deterministic: bool) -> Iterator[str]:
        if self.component.kind in ("body", "head", "network", "loss"):
            yield from self.layers(load_config(self.config, None, self.overrides))
        yield self.resume(deterministic)
        yield self.predict()

    def layers(self, config: Config) -> Iterator[str]:
        setup = segmentation(config)
        torch.manual_seed(0)
        images: Any = setup.open_loader(self.data, World(device=torch.device("cpu"))).dataset
        batch = prepare_batch(collate([images[i % len(images)] for i in (0, 1)]), config.dataloader)
        module = setup.build(images.metadata)
        net: Any = module.get_submodule("net")
        parts = {"body": "backbone", "loss": "sem_head", "network": "network"}
        kind, name = self.component.kind, self.component.name
        part = net.custom_heads[name] if kind == "head" else getattr(net, parts[kind])
        for what, of in (("images", batch), ("images that are void", _void(batch, getattr(part, "reads", {})))):
            losses = module.train()(of).means
            for loss, mean in losses.items():
                advice = "return a finite mean, and 0 as the count where there is nothing to average"
                _require(bool(torch.isfinite(mean)), f"{loss} is {mean.item()} for {what}: {advice}")
            torch.stack([mean.float() for mean in losses.values() if mean.requires_grad]).sum().backward()
        trained = {key: p for key, p in part.named_parameters() if p.requires_grad}
        idle = [key for key, p in trained.items() if p.grad is None]
        advice = "use their layers in forward, do not detach what depends on them, or set requires_grad_(False)"
        _require(
            not idle, f"{len(idle)} of {len(trained)} parameters get no gradient, first {''.join(idle[:1])}: {advice}"
        )
        broken = [key for key, p in trained.items() if p.grad is not None and not p.grad.isfinite().all()]
        _require(not broken, f"the gradient of {''.join(broken[:1])} is not finite")
        yield "all parameters get gradients, and void images finite losses"
        if kind == "loss":
            return
        torch.manual_seed(1)
        other = setup.build(images.metadata).get_submodule("net")
        other.load_state_dict(net.state_dict())
        other_outputs = self.outputs(other.eval(), batch.images)
        for key, x in self.outputs(net.eval(), batch.images).items():
            _require(bool(x.isfinite().all()), f"{key} is not finite in evaluation mode")
            _require(
                torch.equal(x, other_outputs[key]),
                f"{key} differs after the saved weights are loaded into another network: keep all that changes, or "
                "starts at random, in layers, parameters and persistent buffers, several of them in "
                "torch.nn.ModuleList, ModuleDict or ParameterList; no random numbers where self.training is False",
            )
        yield "saved weights give the same outputs"

    @torch.no_grad()
    def outputs(self, net: Any, images: PackedSequence) -> dict[str, Tensor]:
        if self.component.kind == "body":
            return {f"level {number}": x for number, x in enumerate(net.encode(images).levels)}
        found: dict[str, Tensor] = {}
        for i, p in enumerate(net.predict(images)):
            named = {"boxes": p.boxes, "masks": p.mask_logits, "class map": p.semantic, **p.maps}
            found |= {f"{name} of image {i}": x for name, x in named.items() if x is not None}
        return found

    def train(self, run: str, *overrides: str, **options: Any) -> Any:
        """Train, check that no callback has failed, and return the result."""
        options |= {"overrides": (*self.overrides, *overrides), "device": "cpu"}
        result = run_training(TrainingOptions(self.config, self.data, self.work / run, **options))
        log = (self.work / run / "training.log").read_text().splitlines()
        failed = [line for line in log if "is not called again" in line]
        _require(not failed, "".join(failed[:1]))
        return result

    def resume(self, deterministic: bool) -> str:
        self.train("straight")
        stopped = self.train("stopped", callbacks=[_StopAfter()])
        _require(stopped.steps == 2, f"the training ended after step {stopped.steps}: {stopped.stopped}")
        # another number of workers must not change the numbers
        workers = ("dataloader.num_workers=1",) if self.component.kind == "augmentation" else ()
        self.train("stopped", *workers, resume=self.work / "stopped")
        if not deterministic:
            return "is resumed"
        files = [self.work / run / "model_last.pth.tar" for run in ("straight", "stopped")]
        first, second = (torch.utils._pytree.tree_leaves(load_snapshot(file).state_dict) for file in files)
        same = [torch.equal(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, Tensor)]
        _require(
            all(same),
            "a resumed training has other weights: keep all state in state_dict, take random numbers from torch or the "
            "given RNG (or pass deterministic=False)",
        )
        return "a resumed training has the same weights, to the bit"

    def predict(self) -> str:
        """Predict an image to files: the maps of a head, those of a format, else an overlay."""
        kind, model, out = self.component.kind, self.work / "straight", self.work / "out"
        formats: tuple[str, ...] = (self.component.name,) if kind == "format" else ("overlay",)
        if kind == "head":
            formats = tuple(seamseg.load(model, "cpu", overrides=self.overrides).map_formats) or formats
        done = predict_files(
            PredictOptions(model, self.image, out, formats, "cpu", overrides=self.overrides, workers=0)
        )
        _require(not done.failed, "the prediction of an image fails")
        stem = self.image.stem
        found = [path for path in out.rglob(f"{stem}*") if path.stat().st_size]
        _require(len(found) >= len(formats), f"predict: no files of {', '.join(formats)}")
        return f"writes {', '.join(sorted(path.name.replace(stem, 'NAME') for path in found))}"


def _require(true: bool, problem: str) -> None:
    if not true:
        raise CheckFailed(one_line(problem))


def _void(batch: Batch, reads: Mapping[str, Any]) -> Batch:
    masks = batch.masks.map(torch.zeros_like)
    pairs = zip(masks, batch.categories, strict=True)
    boxes = [extract_boxes(m, len(c)) for m, c in pairs if m is not None and c is not None]
    maps = dict(batch.maps)
    for name in (name for name, spec in reads.items() if spec.optional or spec.void is not None):
        maps[name] = maps[name].map(partial(torch.full_like, fill_value=reads[name].fill))
    return replace(batch, masks=masks, boxes=PackedSequence(boxes), maps=maps, target_info=None).with_target_info()


def main(argv: Sequence[str] | None = None) -> int:
    """Check the files that the command line names and print what was checked; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m seamseg.testing",
        description="Check components with a small network on a generated city: training, resume, prediction, files.",
        epilog="example: python -m seamseg.testing edges.py --kind head --set channels=8",
    )
    parser.add_argument("sources", nargs="+", metavar="FILE", help="Python file or module of components")
    parser.add_argument("--kind", choices=KINDS, metavar="KIND", help="check only components of this kind")
    parser.add_argument("--name", help="check only the component of this name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of it, or section.key")
    parser.add_argument("--data", help="data set, with splits train and val, to train on instead of the city")
    parser.add_argument("--not-deterministic", action="store_true", help="a resumed training may have other weights")
    args = parser.parse_args(argv)
    if wrong := [text for text in args.set if "=" not in text]:
        parser.error(f"--set {wrong[0]}: expected KEY=VALUE")
    keys = dict(text.split("=", 1) for text in args.set)
    console.quiet = True
    try:
        for source in args.sources:
            deterministic = not args.not_deterministic
            lines = check_component(source, args.kind, args.name, keys, deterministic=deterministic, data=args.data)
            echo("\n".join(lines), flush=True)
    except SeamsegError as error:
        echo(f"seamseg.testing: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    finally:
        console.quiet = False
    return 0


if __name__ == "__main__":
    sys.exit(main())
