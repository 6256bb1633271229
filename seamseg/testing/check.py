"""The check of components: what their kind needs, and trainings, predictions and files on a generated city."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from seamseg.data.images import open_image
from seamseg.deploy.export import export_model
from seamseg.deploy.source import ExportOptions
from seamseg.predicting.find import find_sources
from seamseg.predicting.job import predict_all
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.settings import PredictSettings
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.structures import ReadMap
from seamseg.testing.layers import check_layers
from seamseg.toy_city import generate_toy_city
from seamseg.training.callbacks import Callback, Run
from seamseg.training.run import TrainingOptions, run_training
from seamseg.utils.component_errors import described
from seamseg.utils.distributed import World, local_group
from seamseg.utils.errors import InputError, SeamsegError, one_line
from seamseg.utils.progress import is_quiet, set_quiet
from seamseg.utils.signals import end_with_parent
from seamseg.validation.evaluate import evaluate_model
from seamseg.validation.options import EvaluationOptions

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
shortest_size = 64
longest_max_size = 128
train_batch_size = 1
val_batch_size = 1
random_scale = None
num_workers = 0
train_set = train
val_set = val
"""

_SECONDS = 900
"""Longest time of a process, on a busy machine."""

_EXPORTED = ("head", "body")
"""Kinds whose components are part of an exported network."""

_NO_DETECTIONS = "roi.score_threshold=1"
"""Override for predictions without any things."""

_WORKER = "from seamseg.testing.check import _work; _work()"


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

    A training that is stopped and resumed is compared with one that is not, a training runs on two processes (in bf16
    where the CPU has it), and the model predicts a whole image and tiles. The outputs of heads and formats are written
    to a folder, a model opens without its head, the sum of a metric over two processes is compared with
    that of one, and the state of a callback is restored. Networks are exported to ONNX and compared,
    where the packages of the extra `export` are installed. It takes half a minute of two cores.

    Parameters
    ----------
    source : Python file, or name of a module
    kind, name : kind and name of the component; None for all of the source
    keys : values of its keys, if the defaults do not suit the check, and of others by `section.key`
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
        files = _Files(city if data is None else Path(data), config, min((city / "img").iterdir()))
        lines = []
        for number, component in enumerate(found):
            work = Path(folder, str(number))
            lines += _Check(component, str(source), work, files, dict(keys or {}), deterministic).run()
    return lines


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


@contextlib.contextmanager
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
class _Files:
    """Dataset folder or what else the trainings read, configuration, and an image."""

    data: Path
    config: Path
    photo: Path


@dataclass(frozen=True)
class _Check:
    """The check of a component.

    Attributes
    ----------
    component : component as registered
    source : file or module
    work : folder for the runs
    files : files that all checks use
    keys, deterministic : see :func:`check_component`
    """

    component: Component
    source: str
    work: Path
    files: _Files
    keys: Mapping[str, object]
    deterministic: bool

    def run(self) -> list[str]:
        """Run all checks that the kind has."""
        checks = [self.resume, self.two_processes, self.predict]
        checks += [self.export] if self.component.kind in _EXPORTED else []
        own = getattr(self, f"_{self.component.kind}", None)
        section = self.component.section
        try:
            lines = [*self.layers(), *(check() for check in [*checks, *([own] if own else [])])]
            return [f"{section}: {line}" for line in lines]
        except (AssertionError, SeamsegError):
            raise
        except Exception as error:
            raise SeamsegError(f"{section}{described(error, str(self.component.file))}") from error

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """The overrides that use the component."""
        made, kind = self.component, KINDS[self.component.kind]
        source = Path(self.source).resolve() if self.source.endswith(".py") else self.source
        found = [f"general.components={source}", *([f"{kind.key}={made.name}"] if kind.key else [])]
        strides = tuple(getattr(made.make, "strides", {}).values()) if made.kind == "body" else ()
        if strides and strides != (4, 8, 16, 32):
            found += [f"fpn.out_strides={strides}", "fpn.extra_scales=0"]
            found += [f"{section}.fpn_levels={len(strides)}" for section in ("rpn", "roi", "sem")]
        for key, value in self.keys.items():
            found.append(f"{key}={_text(value)}" if "." in key else f"{made.section}.{key}={_text(value)}")
        if made.kind == "format" and "panoptic" not in (networks := tuple(made.make.kinds)):  # type: ignore[attr-defined]
            found.append(f"general.kind={networks[0]}")
        return tuple(found)

    @property
    def model(self) -> Path:
        """The run folder of the training that was not stopped."""
        return self.work / "straight"

    def options(self, run: str, *overrides: str, **more: Any) -> TrainingOptions:
        """Return the options of a training."""
        more |= {"overrides": (*self.overrides, *overrides), "device": "cpu"}
        return TrainingOptions(self.files.config, self.files.data, self.work / run, **more)

    def expect(self, holds: bool, problem: str) -> None:
        """Raise AssertionError, with the component and its file, unless a condition holds."""
        if not holds:
            raise AssertionError(f"{self.component.section} ({self.component.file}): {problem}")

    def layers(self) -> list[str]:
        """Check what needs no training."""
        try:
            return check_layers(self.component, load_config(self.files.config, None, self.overrides), self.files.data)
        except AssertionError as error:
            self.expect(False, str(error))
            raise

    def two_processes(self) -> str:
        """Train two steps on two processes."""
        # the scores are compared with those of one process
        precision = "fp32" if self.component.kind == "metric" else "auto"
        overrides = [*self.overrides, f"general.precision={precision}"]
        job = {"run": str(self.work / "two"), "overrides": overrides, "out": str(self.work / "scores.json")}
        self._start("training on two processes", 2, job)
        log = (self.work / "two" / "training.log").read_text()
        self._expect_callback(log)
        snapshot = load_snapshot(self.work / "two" / "model_last.pth.tar")
        broken = [name for name, x in _tensors(snapshot.state_dict) if not torch.isfinite(x.float()).all()]
        self.expect(not broken, f"training on two processes: {', '.join(broken[:1])} is not finite")
        dtype = "bfloat16" if "bfloat16" in log else "float32"
        return f"trains two steps on two processes ({dtype})"

    def resume(self) -> str:
        """Compare a training that was stopped and resumed with one that was not."""
        run_training(self.options("straight"))
        self._expect_callback((self.model / "training.log").read_text())
        stopped = run_training(self.options("stopped", callbacks=[_StopAfter()]))
        self.expect(stopped.steps == 2, f"the training ended after step {stopped.steps}: {stopped.stopped}")
        # another number of workers must not change the numbers
        workers = ("dataloader.num_workers=1",) if self.component.kind == "augmentation" else ()
        run_training(self.options("stopped", *workers, resume=self.work / "stopped"))
        self._expect_callback((self.work / "stopped" / "training.log").read_text())
        if not self.deterministic:
            return "is resumed"
        first, second = (load_snapshot(self.work / run / "model_last.pth.tar") for run in ("straight", "stopped"))
        pairs = zip(_tensors(first.state_dict), _tensors(second.state_dict), strict=True)
        other = [name for (name, a), (_, b) in pairs if not torch.equal(a, b)]
        self.expect(
            not other,
            f"a resumed training has other weights, first {', '.join(other[:1])}: keep all state in state_dict, take "
            "random numbers from torch or the given RNG (or pass deterministic=False)",
        )
        return "a resumed training has the same weights, to the bit"

    def predict(self) -> str:
        """Predict an image as a whole, in tiles and mirrored, as far as the component allows it."""
        image = np.ascontiguousarray(np.tile(np.asarray(open_image(self.files.photo)), (4, 3, 1)))
        views: dict[str, dict[str, Any]] = {"as a whole": {"tiles": "off"}}
        if not getattr(self.component.make, "predicts_ids", False):
            views["in tiles"] = {"tiles": 160}
        if self.component.kind != "network":
            views["mirrored"] = {"tiles": "off", "tta": "flip"}
        for options in views.values():
            given: dict[str, Any] = {**options, "overrides": self.overrides}
            predictor = seamseg.load(self.model, "cpu", **given)
            (found,) = predictor.raw([image])
            for name, spec in predictor.map_formats.items():
                wanted = image.shape[:2] if spec.channels == 1 else (spec.channels, *image.shape[:2])
                shape = found.maps[name].shape
                self.expect(shape == wanted, f"predict: the map {name} has shape {shape}, not {wanted} ({options})")
                self.expect(bool(np.isfinite(found.maps[name]).all()), f"predict: {name} is not finite ({options})")
        *others, last = views
        return f"predicts an image {' and '.join([', '.join(others), last] if others else [last])}"

    def export(self) -> str:
        """Export the model to ONNX, which compares the file with it."""
        if not getattr(self.component.make, "exportable", True):
            return "is not part of exported networks"
        if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
            return f"the export is not checked without {', '.join(missing)}"
        options = ExportOptions(check=(self.files.photo,), overrides=self.overrides)
        export_model(self.model, self.work / "network.onnx", options)
        return "exports to ONNX, which gives the same for an image"

    def _head(self) -> str:
        """Write the maps, and open the model in a process without the head."""
        maps = tuple(seamseg.load(self.model, "cpu", overrides=self.overrides).map_formats)
        written = f"{self._files(maps)}; " if maps else ""
        out = self.work / "warnings.json"
        self._start("without it", 1, {"model": str(self.model), "photo": str(self.files.photo), "out": str(out)})
        warned = any(f"head {self.component.name} (" in line for line in json.loads(out.read_text()))
        self.expect(warned, "the model opens without the head, but does not warn")
        return f"{written}the model opens without it, with a warning"

    def _format(self) -> str:
        return self._files((self.component.name,))

    def _files(self, formats: Sequence[str]) -> str:
        photo, odd = self.files.photo, self.work / "odd.png"
        open_image(photo).crop((0, 0, 101, 63)).save(odd)
        none = () if "general.kind=semantic" in self.overrides else (_NO_DETECTIONS,)
        for out, path, more in (("out", photo, ()), ("none", odd, none)):
            target, overrides = self.work / "files" / out, (*self.overrides, *more)
            settings = PredictSettings(PredictOptions(self.model, path, target, formats, overrides=overrides))
            predictor, sources = settings.load("cpu"), find_sources([str(path)])
            folder = settings.open_folder(target, predictor, sources)
            predict_all(predictor, sources, folder, World(device=predictor.network.device))
            (line,) = folder.manifest.lines()
            self.expect(line["status"] == "ok", f"predict: {line.get('reason')}")
        stem = self.files.photo.stem
        found = [path for path in (self.work / "files" / "out").rglob(f"{stem}*") if path.stat().st_size]
        self.expect(len(found) >= len(formats), f"predict: no files of {', '.join(formats)}")
        names = sorted(path.name.replace(stem, "NAME") for path in found)
        return f"writes {', '.join(names)}"

    def _metric(self) -> str:
        """Compare the sum over two processes with that of one."""
        two = json.loads((self.work / "scores.json").read_text())
        last = self.work / "two" / "model_last.pth.tar"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            scores = run_training(self.options("one", resume=last, evaluate=True)).validation
        finally:
            torch.set_num_threads(threads)
        one = dict(getattr(scores, "metrics", {}))
        self.expect(bool(one), "scores() returns no numbers")
        for name, value in one.items():
            other = two[name]
            same = math.isclose(value, other, rel_tol=1e-6) or (math.isnan(value) and math.isnan(other))
            wrong = f"{name} is {value:.6g} on one process, {other:.6g} on two: state() must be a sum over images"
            self.expect(same, wrong)
        # without an error
        overrides = (*self.overrides, _NO_DETECTIONS)
        evaluate_model(EvaluationOptions(self.model, self.files.data, "cpu", overrides=overrides, quiet=True))
        return f"two processes give the same {', '.join(one)} as one"

    def _callback(self) -> str:
        """Restore the state of a snapshot in a new object."""
        resume = load_snapshot(self.model / "model_last.pth.tar").resume or {}
        state = resume.get("callbacks", {}).get(self.component.name)
        if not state:
            return "has no state"
        config = load_config(self.files.config, None, self.overrides)
        made = next(c.make(keys) for c, keys in config.components("callback") if c.name == self.component.name)
        made.load_state_dict(state)
        self.expect(_same(made.state_dict(), state), "load_state_dict() does not restore what state_dict() returns")
        return "its state is restored"

    def _scheduler(self) -> str:
        """Compute the factors of a training."""
        made, keys = load_config(self.files.config, None, self.overrides).component("scheduler")
        for t in range(101):
            factor = made.make(t, 100, keys)
            self.expect(math.isfinite(factor) and factor >= 0, f"the factor of step {t} of 100 is {factor}")
        return "its factors are numbers from 0"

    def _expect_callback(self, log: str) -> None:
        lines = [line for line in log.splitlines() if "is not called again" in line]
        self.expect(not lines, one_line(lines[0]) if lines else "")

    def _start(self, what: str, size: int, job: Mapping[str, Any]) -> None:
        """Run :func:`_work` in so many processes; SeamsegError with the message of one that fails."""
        self.work.mkdir(exist_ok=True)
        parts = {"config": str(self.files.config), "data": str(self.files.data), "parent": os.getpid()}
        content = json.dumps({**parts, **job})
        shared = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        processes = []
        for rank, group in enumerate(local_group(size) if size > 1 else [{}]):
            with open(self.work / f"stderr{rank}", "wb") as log:
                command = [sys.executable, "-c", _WORKER, content]
                processes.append(subprocess.Popen(command, env={**shared, **group}, stdout=log, stderr=log))
        end = time.monotonic() + _SECONDS
        try:
            # the others wait for one that has failed
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                self.expect(time.monotonic() < end, f"{what}: not done after {_SECONDS} seconds")
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for rank, code in enumerate(codes):
            if code:
                lines = (self.work / f"stderr{rank}").read_text(errors="replace").strip().splitlines()
                raise SeamsegError(f"{self.component.section}: {what}: {lines[-1] if lines else f'exit code {code}'}")


def _work() -> None:
    """Train or predict in a process of :meth:`_Check._start`, by the JSON of the arguments."""
    job = json.loads(sys.argv[1])
    end_with_parent(job["parent"])
    try:
        if "model" in job:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seamseg.load(job["model"], "cpu").predict(job["photo"])
            Path(job["out"]).write_text(json.dumps([str(warning.message) for warning in caught]))
            return
        set_quiet(True)
        given = {"overrides": job["overrides"], "device": "cpu"}
        options = TrainingOptions(job["config"], job["data"], job["run"], **given)
        result = run_training(options)
    except SeamsegError as error:
        raise SystemExit(one_line(error)) from None
    if os.environ.get("RANK") == "0":
        Path(job["out"]).write_text(json.dumps(dict(getattr(result.validation, "metrics", {}))))


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


def _text(value: object) -> str:
    return value if isinstance(value, str) else format_value(value)
