"""`seamseg train`: from a configuration and a data set to a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo.config
from torch import nn
from torch.utils.data import DataLoader

from seamseg.checkpoints.class_table import ClassTable
from seamseg.config import Config, load_config
from seamseg.config.kinds import PANOPTIC
from seamseg.config.loader import check_training
from seamseg.data.loader import index_sampler
from seamseg.evaluation.scores import Scores
from seamseg.formats.metadata import Metadata
from seamseg.models.build import without_quantisation
from seamseg.models.folding import fold_layers
from seamseg.models.quantised import choosing_ranges
from seamseg.structures import PackedSequence
from seamseg.training.checkpointing.checkpoint import (
    ResumePoint,
    TrainState,
    data_order,
    load_rank_state,
    load_weights,
    resume,
)
from seamseg.training.checkpointing.rank_state import seed_everything
from seamseg.training.checkpointing.run_folder import DUMPS, RunFolder
from seamseg.training.ddp import wrap_distributed
from seamseg.training.debugging.dump import StepRecorder
from seamseg.training.logging.logs import TensorBoardWriter, TextLog
from seamseg.training.logging.metrics import MetricsFile
from seamseg.training.logging.reporter import Reporter
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.preemption import Preempted
from seamseg.training.step import Stepper, compute_dtype
from seamseg.training.task import Task
from seamseg.training.trainer import Trainer, steps_per_epoch
from seamseg.utils.compiler import compiler_problem
from seamseg.utils.distributed import World, barrier, broadcast_buffers, distributed, gather_objects, reported_by_main
from seamseg.utils.errors import InputError, SeamsegError, option
from seamseg.utils.progress import is_quiet
from seamseg.validation.validator import Validator

CALIBRATION_IMAGES = 64
"""Largest number of training images by which the ranges of int8 are chosen."""
AUTO = "auto"
"""The value of `resume` that selects the newest snapshot of the run folder."""


@dataclass(frozen=True)
class TrainingOptions:
    """Arguments of a training.

    Attributes
    ----------
    config : INI file
    data : dataset folder
    log_dir : run folder, created if needed
    resume : snapshot to resume from, or a run folder for its newest undamaged one; `auto` selects that of `log_dir`, if
        there is one
    pretrain : `[part:]FILE` to start from, see :func:`seamseg.checkpoints.pretrained.load_pretrained`
    pretrain_classes : table by which `pretrain` maps the classes of another data set to those of this one, see
        :class:`seamseg.checkpoints.class_table.ClassTable`; None if they are the same
    evaluate : only score the weights of `resume` or `pretrain`
    overrides : `section.key=value` each
    device : auto, cpu, cuda or cuda:N
    """

    config: str | Path
    data: str | Path
    log_dir: str | Path
    resume: str | Path | None = None
    pretrain: Sequence[str] = ()
    pretrain_classes: str | None = None
    evaluate: bool = False
    overrides: Sequence[str] = ()
    device: str = "auto"


def run_training(options: TrainingOptions, task: Task | None = None) -> Scores | None:
    """Train a network, or with `evaluate` only score it; joins the processes of torchrun if there are any.

    Parameters
    ----------
    options : arguments
    task : the kind of training; default: that of the configuration file

    Returns
    -------
    scores : of the last validation; None if there was none

    Raises
    ------
    InputError
        if the configuration, the data set or a file of weights is wrong
    SeamsegError
        if a loss or gradient is not finite, or a file cannot be written
    Preempted
        if a signal stopped the training, after writing a snapshot
    """
    if options.evaluate and options.resume is None and not options.pretrain:
        raise InputError(
            f"{option('evaluate', True)} needs existing weights: name them with {option('resume', 'F')} or "
            f"{option('pretrain', 'F')}"
        )
    if task is None:
        config = load_config(options.config, None, options.overrides)
        if not options.evaluate:
            check_training(config, options.config, options.overrides)
        task = Task(config, options.config)
    with distributed(options.device) as world:
        folder = RunFolder(Path(options.log_dir), task.files)
        fresh = world.is_main and not folder.path.exists()
        with _locked(folder, world):
            if world.is_main:
                folder.remove_partial()
            log = task.open_log(folder, world)
            try:
                return _TrainingRun(options, task, world, folder, log)()
            except KeyboardInterrupt as stop:
                saved = bool(folder.saved()) or folder.last.exists()
                auto = option("resume", AUTO)
                advice = f"re-run the same command (`train`: with {auto}) to resume from the newest snapshot"
                stop.args = (advice if saved else "no snapshot saved yet",)
                log.failure(f"interrupted; {stop}")
                raise
            except Preempted:
                # logged by the trainer
                raise
            except Exception as error:
                log.failure(f"{type(error).__name__}: {error}")
                if fresh and isinstance(error, InputError):
                    log.close()
                    folder.discard()
                raise
            finally:
                log.close()


@dataclass(frozen=True)
class _TrainingRun:
    """One call of :func:`run_training` on one process."""

    options: TrainingOptions
    task: Task
    world: World
    folder: RunFolder
    log: TextLog

    @property
    def config(self) -> Config:
        return self.task.config

    def __call__(self) -> Scores | None:
        task, config, world, log = self.task, self.config, self.world, self.log
        options = _find_snapshot(self.options, world, self.folder, log)
        _check_weights(options, task)
        torch.backends.cudnn.benchmark = config.general.cudnn_benchmark
        validator = task.open_validator(options.data, world, is_quiet())
        if options.evaluate and validator is None:
            raise InputError(f"{options.config}: {option('evaluate', True)} requires [dataloader] val_set")
        loader = None if options.evaluate else task.open_loader(options.data, world)
        metadata: Metadata = (validator if loader is None else loader).dataset.metadata  # type: ignore[union-attr]
        log.info(f"{task.describe_classes(metadata)}; {_describe_device(world)}")
        if loader is not None:
            log.info(_describe_steps(config, loader, world))
        if config.dataloader.coco_gt and (config.kind != PANOPTIC or config.general.eval_coco):
            log.info("[dataloader] coco_gt is ignored: average precision uses the ground truth of the data set")

        seed_everything(config.general.seed, -1, 0)
        module = task.build(metadata)
        if config.general.qat and options.pretrain and not options.evaluate:
            start = replace(task, config=without_quantisation(config)).build(metadata).net
            _load_initial_weights(options, task, start, log, metadata)
            module.net.to(world.device)
            self._quantise(module.net, start)
        else:
            _load_initial_weights(options, task, module.net, log, metadata)
            module.net.to(world.device)
        if loader is None:
            assert validator is not None
            if options.resume is not None:
                load_weights(options.resume, module.net, metadata, task.files)
            return validator(module.net)
        state, resumed = self._prepare(options, module, metadata, loader)
        return self._train(state, resumed, loader, validator)

    def _quantise(self, net: Any, start: nn.Module) -> None:
        """Fill a network of `[general] qat` from a float one; its ranges are those of training images."""
        config, world = self.config, self.world
        net.load_state_dict(fold_layers(start).state_dict(), strict=False)
        images = Validator.open(self.options.data, config.dataloader.train_set, config, world).dataset
        count = min(CALIBRATION_IMAGES, len(images))
        self.log.info(f"[general] qat: choosing the ranges of int8 by {count} training images")
        net.eval()
        # each process does the same, so that none waits for the others
        with choosing_ranges(net), torch.no_grad():
            for number in np.linspace(0, len(images) - 1, count).round().astype(int):
                net.predict(PackedSequence([images[int(number)]["img"].to(world.device)]))
        net.train()
        broadcast_buffers(world, net)

    def _prepare(
        self, options: TrainingOptions, module: Any, metadata: Metadata, loader: DataLoader
    ) -> tuple[TrainState, ResumePoint | None]:
        """Build optimizer, schedule and stepper, restored from a snapshot if the run is resumed."""
        config, world, net = self.config, self.world, module.net
        optimizer = self.task.build_optimizer(net)
        base_lrs = [group["lr"] for group in optimizer.param_groups]
        files = self.task.files
        resumed = None if options.resume is None else resume(options.resume, net, optimizer, metadata, files)
        length = steps_per_epoch(len(loader), config.optimizer.accumulate)
        schedule = self.task.build_schedule(base_lrs, length)
        if config.general.compile:
            compile_network(net, world, self.log)
        stepper = Stepper(config, wrap_distributed(module, config, world), optimizer, world)
        if resumed is not None:
            load_rank_state(resumed, net, stepper, world)
            continue_schedule(schedule, resumed, loader, config)
            self.log.info(
                f"resumed from {resumed.source}, {_describe_position(resumed)}, step {resumed.progress.global_step}"
            )
            # such as a forgotten override
            if changed := self.task.changes(resumed.config):
                self.log.warning(f"configuration differs from the snapshot's: {', '.join(changed)}")
        return TrainState(config, metadata, world, net, stepper, schedule), resumed

    def _train(
        self,
        state: TrainState,
        resumed: ResumePoint | None,
        loader: DataLoader,
        validator: Callable[..., Scores] | None,
    ) -> Scores | None:
        config, world, folder = self.config, self.world, self.folder
        if world.is_main:
            log_earlier_runs(folder, self.log, resumed is not None)
            self.task.describe(folder, state.metadata)
            if resumed is not None and resumed.is_best and resumed.source in [path for _, path in folder.saved()]:
                # the run may have ended between writing the snapshot and linking it
                folder.publish(resumed.source, folder.best)
        barrier(world)
        output = folder.path if world.is_main else None
        tensorboard = TensorBoardWriter(output, resumed.progress.global_step + 1 if resumed else None, self.log)
        metrics = MetricsFile(output, (resumed.progress.global_step, resumed.progress.epoch) if resumed else None)
        recorder = None
        if self.task.replayable:
            recorder = StepRecorder(config, state.metadata, world, state.net, folder.path)
        images = self.task.sample_images(state.metadata)
        reporter = Reporter(config, images, world, self.log, tensorboard, metrics, recorder, self.task.rate_names)
        trainer = Trainer(state, loader, validator, folder, reporter, resumed, self.task.watch(state.net, tensorboard))
        tensorboard.text("config", self.task.config_text)
        epochs = config.scheduler.epochs
        if trainer.progress.epoch + 1 >= epochs:
            self.log.warning(f"all {epochs} epochs are done already; raise {option('scheduler.epochs')} to train on")
        try:
            return trainer.train()
        finally:
            tensorboard.close()
            metrics.close()


@contextmanager
def _locked(folder: RunFolder, world: World) -> Iterator[None]:
    """Make and lock the run folder in the main process, for all processes; a collective call.

    Raises
    ------
    InputError
        if another training uses the folder; CollectiveError in the other processes
    """
    with ExitStack() as stack:
        problem: SeamsegError | None = None
        if world.is_main:
            try:
                folder.make()
                stack.enter_context(folder.lock())
            except SeamsegError as error:
                problem = error
        found = gather_objects(world, problem)[0]
        if problem is not None:
            raise problem
        if found is not None:
            raise reported_by_main(found)
        yield


def _find_snapshot(options: TrainingOptions, world: World, folder: RunFolder, log: TextLog) -> TrainingOptions:
    """Replace `resume=auto`, or a run folder, by the snapshot that the main process finds, or by None; collective."""
    if options.resume != AUTO:
        if options.resume is None or not Path(options.resume).is_dir():
            return options
        folder = replace(folder, path=Path(options.resume))
    newest = gather_objects(world, folder.newest_good(log.warning) if world.is_main else None)[0]
    if options.resume != AUTO:
        if newest is None:
            raise InputError(f"{option('resume', options.resume)}: no run folder: it holds no snapshot")
        return replace(options, resume=newest)
    if newest is not None:
        # the weights that the run originally started from are not needed
        return replace(options, resume=newest, pretrain=())
    if options.evaluate and not options.pretrain:
        raise InputError(f"{option('evaluate', True)} {option('resume', AUTO)}: {folder.path} holds no snapshot")
    log.info(f"{option('resume', AUTO)}: {folder.path} holds no snapshot, starting a new training")
    return replace(options, resume=None)


def _check_weights(options: TrainingOptions, task: Task) -> None:
    if options.resume is not None and options.pretrain:
        both = f"{option('resume')} and {option('pretrain')}"
        raise InputError(f"{both} are mutually exclusive: a resumed run has its own weights")
    if options.pretrain_classes is not None and not options.pretrain and options.resume is None:
        given = option("pretrain_classes", options.pretrain_classes)
        raise InputError(f"{given} is for weights of another data set: name them with {option('pretrain', 'F')}")
    if task.config.general.qat and options.resume is None and not options.pretrain:
        raise InputError(
            f"[general] qat starts from a trained network: name its snapshot with {option('pretrain', 'F')}"
        )


def _load_initial_weights(
    options: TrainingOptions, task: Task, net: nn.Module, log: TextLog, metadata: Metadata
) -> None:
    if options.resume is not None:
        return
    # others may leave the rest random
    complete = options.evaluate or task.config.general.qat
    why = option("evaluate", True) if options.evaluate else "[general] qat"
    if not task.config.general.qat and (body := task.load_body(net)) is not None:
        log.info(f"body weights {task.config.body.weights}: {body}")
        if (problem := task.body_problem(net)) is not None:
            log.warning(problem)
    table = None if options.pretrain_classes is None else ClassTable(metadata, options.pretrain_classes)
    for specification in options.pretrain:
        report = task.load_pretrained(net, specification, table)
        log.info(f"pre-trained {specification}: {report}")
        if report.classes and report.classes != tuple(metadata.categories):
            log.warning(
                f"pre-trained {specification}: its classes are not those of the data set; "
                f"{option('pretrain_classes', 'TABLE')} copies weights by the names of classes"
            )
        for line in report.fresh:
            log.info(f"pre-trained {specification}: {line}")
        if complete and (report.skipped or report.fresh):
            problem = str(report) if report.skipped else report.fresh[0]
            raise InputError(f"{why} {option('pretrain', specification)}: does not fill the network: {problem}")
    if complete and all(":" in s and s.split(":")[0] in task.parts for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        missing = [part for part in task.parts if part not in filled]
        if missing:
            raise InputError(f"{why}: {option('pretrain')} gives no weights for {', '.join(missing)}")


def continue_schedule(schedule: LRSchedule, resumed: ResumePoint, loader: DataLoader, config: Config) -> None:
    """Set the length of the schedule of a resumed training to the steps done plus the steps left.

    The length changes only if the number of processes, the batch size or the training images have changed.
    """
    if schedule.by_epoch:
        return
    accumulate, sampler = config.optimizer.accumulate, index_sampler(loader)
    epochs, left = config.scheduler.epochs - resumed.progress.epoch - 1, 0
    whole, position = steps_per_epoch(len(sampler), accumulate), resumed.position
    # in another order the epoch is restarted
    if position is not None and epochs > 0 and position.order == data_order(sampler, config.general.seed):
        sampler.set_epoch(position.epoch)
        sampler.continue_from(position.segments)
        left, epochs = steps_per_epoch(len(sampler), accumulate), epochs - 1
    schedule.total = max(1, resumed.progress.global_step + left + epochs * whole)


def log_earlier_runs(folder: RunFolder, log: TextLog, resumed: bool) -> None:
    """Log which files of earlier runs the folder of a run holds."""
    if not resumed and (folder.last.exists() or folder.best.exists() or folder.saved()):
        log.warning(
            f"{folder.path} holds snapshots of an earlier run; the first snapshot of this run replaces them "
            f"({option('resume')} continues a run)"
        )
    dumps = folder.dumps()
    if dumps:
        log.info(f"{folder.path} holds {len(dumps)} {DUMPS} of earlier trainings; they are never deleted automatically")


def _describe_position(resumed: ResumePoint) -> str:
    if resumed.position is None:
        return f"after epoch {resumed.progress.epoch + 1}"
    return f"in epoch {resumed.position.epoch + 1} after {resumed.position.steps} of its steps"


def _describe_steps(config: Config, loader: DataLoader, world: World) -> str:
    images, accumulate = len(loader.dataset), config.optimizer.accumulate  # type: ignore[arg-type]
    parts = [f"batch {config.dataloader.train_batch_size}"]
    parts += [f"{accumulate} batches"] if accumulate > 1 else []
    parts += [f"{world.size} processes"] if world.is_distributed else []
    threads = f", {torch.get_num_threads()} threads a process" if world.device.type == "cpu" else ""
    dtype = str(compute_dtype(config.general.precision, world.device)).removeprefix("torch.")
    return f"{images} training images, {' x '.join(parts)} a step, {dtype}{threads}"


def _describe_device(world: World) -> str:
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "the CPU"
    return f"on {name}" if not world.is_distributed else f"in {world.size} processes on {name}"


def compile_network(net: Any, world: World, log: TextLog, backend: str = "inductor") -> bool:
    """Compile body, pyramid and semantic head of a network in place, without changing its state-dict keys.

    The compiler runs at the first step, and again at the first validation. Height and width of the images may change
    between steps. Without a working compiler (C++ for the CPU, Triton for a GPU) the network is not changed, and a
    warning is logged.

    Parameters
    ----------
    net : on its device
    world : the processes; if the compiler fails in one, none compiles
    log : for the warning
    backend : of torch.compile

    Returns
    -------
    whether it is compiled
    """
    reasons = [reason for reason in gather_objects(world, compiler_problem(world.device, backend)) if reason]
    if reasons:
        log.warning(
            "[general] compile: the network runs uncompiled, torch.compile does not work "
            f"{'here' if len(reasons) == world.size else 'in every process'}: {reasons[0]}"
        )
        return False
    # DistributedDataParallel would split the graph at its bucket boundaries, which the graphs of in-place ABN do not
    # allow. The gradients of the body come last in any case.
    torch._dynamo.config.optimize_ddp = False
    net.compile_parts(backend)
    return True
