"""`seamseg train`: from a configuration and a data set to a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.config import Config, load_config
from seamseg.config.checks import check_training
from seamseg.config.components import NoKeys
from seamseg.data.loader import BatchLoader, index_sampler
from seamseg.evaluation.scores import Scores
from seamseg.formats.metadata import Metadata
from seamseg.models.network import Network
from seamseg.training.callbacks import Callback, Callbacks, Run
from seamseg.training.checkpointing.checkpoint import (
    ResumePoint,
    TrainingProgress,
    TrainState,
    data_order,
    load_rank_state,
    load_weights,
    resume,
)
from seamseg.training.checkpointing.rank_state import seed_everything
from seamseg.training.checkpointing.run_folder import AUTO, RunFolder
from seamseg.training.ddp import compile_network, wrap_distributed
from seamseg.training.logging.logs import TextLog
from seamseg.training.logging.metrics import MetricsFile, read_metrics
from seamseg.training.logging.reporter import Reporter
from seamseg.training.logging.tensorboard import TensorBoard
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import TrainerOptions
from seamseg.training.preemption import Preempted
from seamseg.training.prefetch import DevicePrefetcher, count_unreadable
from seamseg.training.result import TrainResult
from seamseg.training.step import Stepper, compute_dtype
from seamseg.training.task import SegmentationTask, Task, Validate
from seamseg.training.trainer import Trainer, steps_per_epoch
from seamseg.utils.component_errors import named_errors
from seamseg.utils.distributed import World, barrier, distributed, gather_objects, reported_by_main
from seamseg.utils.errors import InputError, SeamsegError, counted, one_line
from seamseg.utils.output import without_message


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
    callbacks : further ones than those of the configuration
    restart : overwrite another training in `log_dir`, which is refused otherwise
    legacy : as the original, freeze weights that were not loaded, with a warning
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
    callbacks: Sequence[Callback] = ()
    restart: bool = False
    legacy: bool = False


def run_training(options: TrainingOptions, task: Task | None = None) -> TrainResult:
    """Train a network, or with `evaluate` only score it; joins the processes of torchrun if there are any.

    Parameters
    ----------
    options : arguments
    task : the kind of training; default: that of the configuration file

    Returns
    -------
    scores and numbers; those of steps are 0 with `evaluate`

    Raises
    ------
    InputError
        if the configuration, the data set or a file of weights is wrong
    SeamsegError
        if a loss or gradient is not finite, or a file cannot be written
    Preempted
        if a signal stopped the training, after writing a snapshot
    """
    if options.restart and options.resume == AUTO:
        raise InputError(f"`restart=True` and `resume={AUTO}` are mutually exclusive: overwrite or continue a training")
    if options.evaluate and options.resume is None and not options.pretrain:
        raise InputError("`evaluate=True` needs existing weights: name them with `resume=F` or `pretrain=F`")
    _check_callbacks(options.callbacks)
    if task is None:
        config = completed(_load_config(options))
        if not options.evaluate:
            check_training(config, options.config, options.overrides)
        task = SegmentationTask(config, options.config)
    with distributed(options.device) as world:
        folder = RunFolder(Path(options.log_dir), task.files, task.options.keys)
        fresh = world.is_main and not folder.path.exists()
        # the compiler warns of operations in place in checkpointed parts: it updates running averages once
        with _locked(folder, world, options), without_message("torch._higher_order_ops.wrap", "context_fn is passed"):
            if world.is_main:
                folder.remove_partial()
            log = task.open_log(folder, world)
            try:
                return _run(options, task, world, folder, log)
            except KeyboardInterrupt as stop:
                saved = bool(folder.saved()) or folder.last.exists()
                auto = f"`resume={AUTO}`"
                advice = f"re-run the same command (`seamseg train`: with {auto}) to resume from the newest snapshot"
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


def _load_config(options: TrainingOptions) -> Config:
    """Load the configuration, and check its sections of output formats, too, which only the trained model uses."""
    config = load_config(options.config, None, options.overrides)
    if any(section.startswith("format ") for section in config.parts):
        import seamseg.predicting.writers  # noqa: F401  # they register

        config = load_config(options.config, None, options.overrides)
    return config


def completed(config: Config) -> Config:
    """Return a configuration with what its network reads from other files, so that snapshots need these no more."""
    component, keys = config.component("network")
    if not hasattr(component.make, "completed") or component.keys is NoKeys:
        return config
    with named_errors(component.section, component.module):
        return replace(config, parts={**config.parts, component.section: component.make.completed(keys)})


def _run(options: TrainingOptions, task: Task, world: World, folder: RunFolder, log: TextLog) -> TrainResult:
    """Train or score in a locked run folder."""
    auto = options.resume == AUTO
    options = _find_snapshot(options, world, folder, log)
    _check_weights(options, task)
    torch.backends.cudnn.benchmark = task.options.cudnn_benchmark
    validator = task.open_validator(options.data, world)
    if options.evaluate and validator is None:
        raise InputError(f"{options.config}: `evaluate=True` requires [dataloader] val_set")
    loader = None if options.evaluate else task.open_loader(options.data, world)
    metadata: Metadata = (validator if loader is None else loader.dataset).metadata  # type: ignore[union-attr]
    classes, *notes = task.describe(metadata)
    log.info(f"{classes}; {_describe_device(world)}")
    if loader is not None:
        log.info(_describe_steps(task.options, loader, world))
        images = index_sampler(loader).batch_size * task.options.accumulate * world.size
        epoch_length = steps_per_epoch(len(loader), task.options.accumulate)
        if (note := task.step_note(images, epoch_length)) is not None:
            log.warning(note)
    for note in notes:
        log.info(note)
    if loader is not None and world.is_main and (problem := task.data_problem(loader)) is not None:
        log.warning(problem)

    seed_everything(task.options.seed, -1, 0)
    module = task.build(metadata)
    _initialise(options, task, module.get_submodule("net"), metadata, world, log)
    if loader is not None:
        for line in task.try_parts(module, loader, validator, world):
            log.warning(line)
        state, resumed = _prepare(options, task, module, metadata, loader, world, log)
        if auto and resumed is not None and resumed.stopped:
            return _stopped(resumed, state, folder, log)
        return _train(state, resumed, task, loader, validator, folder, log, options.callbacks)
    assert validator is not None
    if options.resume is not None:
        load_weights(options.resume, module.get_submodule("net"), metadata, task.files)
    scores = validator(module.get_submodule("net"))
    return TrainResult(folder.path, best=scores.best, validation=scores)


def _initialise(
    options: TrainingOptions, task: Task, net: nn.Module, metadata: Metadata, world: World, log: TextLog
) -> None:
    """Load the initial weights of a network, and move it to the device of this process."""
    start = task.build_float(metadata) if options.pretrain and not options.evaluate else None
    _load_initial_weights(options, task, net if start is None else start, log, metadata)
    net.to(world.device)
    if start is not None:
        task.quantise(net, start, options.data, world, log)


def _prepare(
    options: TrainingOptions,
    task: Task,
    module: nn.Module,
    metadata: Metadata,
    loader: BatchLoader,
    world: World,
    log: TextLog,
) -> tuple[TrainState, ResumePoint | None]:
    """Build optimizer, schedule and stepper, restored from a snapshot if the run is resumed."""
    net, settings = module.get_submodule("net"), task.options
    optimizer = task.build_optimizer(net)
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    length = steps_per_epoch(len(loader), settings.accumulate)
    resumed = None
    if options.resume is not None:
        resumed = resume(options.resume, net, optimizer, metadata, task.files, length, settings.keys)
    schedule = task.build_schedule(base_lrs, length)
    if settings.compile:
        assert isinstance(net, Network)
        compile_network(net, world, log.warning)
    stepper = Stepper(settings, wrap_distributed(module, world, settings.unused_parameters), optimizer, world)
    if resumed is not None:
        load_rank_state(resumed, net, stepper, world)
        log.info(f"resumed from {resumed.source}, {_describe_position(resumed)}, step {resumed.progress.global_step}")
        for line in resumed.missing:
            log.warning(f"{resumed.source}: {line}")
        # such as a forgotten override
        if changed := task.changes(resumed.config):
            log.warning(f"configuration differs from the snapshot's: {', '.join(changed)}")
        resumed = restart_changed_epoch(resumed, loader, settings, log)
        continue_schedule(schedule, resumed, loader, settings)
    return TrainState(stepper, schedule, metadata, task.config_text, task.components), resumed


def _train(
    state: TrainState,
    resumed: ResumePoint | None,
    task: Task,
    loader: BatchLoader,
    validator: Validate | None,
    folder: RunFolder,
    log: TextLog,
    callbacks: Sequence[Callback],
) -> TrainResult:
    world, net, settings = state.world, state.net, state.options
    if world.is_main:
        log_earlier_runs(folder, log, resumed is not None)
        task.write_model(folder, state.metadata)
        if resumed is not None and resumed.is_best and resumed.source in [path for _, path in folder.saved()]:
            # the run may have ended between writing the snapshot and linking it
            folder.publish(resumed.source, folder.best)
    barrier(world)
    output = folder.path if world.is_main else None
    done = None if resumed is None else resumed.progress
    metrics = MetricsFile(output, (done.global_step, done.epoch) if done else None)
    images = task.sample_images(state.metadata)
    run = Run(folder.path, state.config, settings.epochs)
    if done is not None:
        run.step, run.epoch, run.resumed = done.global_step, done.epoch + 1, True
    following = Callbacks(run, log.warning, _named(task, callbacks) if world.is_main else {})
    reporter = Reporter(settings, images, world, log, following, metrics, validator is not None)
    unreadable = count_unreadable(loader, world, settings.broken_limit, log.warning)
    batches = DevicePrefetcher(loader, world.device, task.prepare, unreadable)
    callback = task.step_callback(net, following)
    trainer = Trainer(state, batches, validator, folder, reporter, resumed, callback)
    if trainer.progress.epoch + 1 >= settings.epochs:
        log.warning(f"all {settings.epochs} epochs are done already; raise {settings.keys.epochs} to train on")
    status = "done"
    try:
        following.begin({} if resumed is None else resumed.callbacks)
        scores = trainer.train()
        if run.stop_reason:
            status = f"stopped: {run.stop_reason}"
            log.info(f"{status} (step {run.step}, epoch {run.epoch})")
        return _result(trainer.world, trainer.progress, run, scores)
    except BaseException as error:
        status = f"{type(error).__name__}: {one_line(error)}"
        raise
    finally:
        following.end(status)
        metrics.close()


def _stopped(resumed: ResumePoint, state: TrainState, folder: RunFolder, log: TextLog) -> TrainResult:
    """Return the result of a training that a callback has stopped, without going on with it; a collective call."""
    by, reason = resumed.stopped["by"], resumed.stopped["reason"]
    log.info(
        f"stopped by callback {by} at step {resumed.progress.global_step}: {reason}; `resume={resumed.source}` "
        "continues the training"
    )
    run = Run(folder.path, state.config, state.options.epochs, stop_reason=reason, stopped_by=by)
    return _result(state.world, resumed.progress, run, None)


def _result(world: World, done: TrainingProgress, run: Run, scores: Scores | None) -> TrainResult:
    """Collect what only the main process has of a finished training, for all processes; a collective call."""
    history = read_metrics(run.folder) if world.is_main else []
    validated = any(line.get("kind") == "validation" for line in history)
    best = done.best_score if validated and (done.best_of or done.best_score) else None
    stopped, history, best = gather_objects(world, (run.stop_reason, history, best))[0]
    return TrainResult(run.folder, done.global_step, done.epoch + 1, best, stopped, history, scores)


def _check_callbacks(callbacks: object) -> None:
    """Raise InputError unless these are objects of classes derived from :class:`Callback`, in a list."""
    if not isinstance(callbacks, (list, tuple)):
        raise InputError(f"`callbacks` must be a list of callbacks, not {callbacks!r:.80}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            made = f": make an object of it, {callback.__name__}()" if isinstance(callback, type) else ""
            raise InputError(f"`callbacks`: {callback!r:.80} is no seamseg.components.Callback{made}")


def _named(task: Task, callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return TensorBoard, the callbacks of a task, and further ones by the name of their class, by unique names."""
    named: dict[str, Callback] = {"tensorboard": TensorBoard(), **task.build_callbacks()}
    for callback in callbacks:
        name = type(callback).__name__
        while name in named:
            name += "+"
        named[name] = callback
    return {name: callback for name, callback in named.items() if callback.enabled}


@contextmanager
def _locked(folder: RunFolder, world: World, options: TrainingOptions) -> Iterator[None]:
    """Make and lock the run folder in the main process, for all processes; a collective call.

    Raises
    ------
    InputError
        if another training uses the folder, or it holds one that would be lost; CollectiveError in the other processes
    """
    with ExitStack() as stack:
        problem: SeamsegError | None = None
        if world.is_main:
            try:
                folder.make()
                stack.enter_context(folder.lock())
                if not options.evaluate:
                    folder.refuse_other(options.resume, options.restart)
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
            raise InputError(f"`resume={options.resume}`: no run folder: it holds no snapshot")
        return replace(options, resume=newest)
    if newest is not None:
        # the weights that the run originally started from are not needed
        return replace(options, resume=newest, pretrain=())
    if options.evaluate and not options.pretrain:
        raise InputError(f"`evaluate=True` `resume={AUTO}`: {folder.path} holds no snapshot")
    log.info(f"`resume={AUTO}`: {folder.path} holds no snapshot, starting a new training")
    return replace(options, resume=None)


def _check_weights(options: TrainingOptions, task: Task) -> None:
    if options.resume is not None and options.pretrain:
        both = "`resume` and `pretrain`"
        raise InputError(f"{both} are mutually exclusive: a resumed run has its own weights")
    if options.pretrain_classes is not None and not options.pretrain and options.resume is None:
        given = f"`pretrain_classes={options.pretrain_classes}`"
        raise InputError(f"{given} is for weights of another data set: name them with `pretrain=F`")
    if task.quantised and options.resume is None and not options.pretrain:
        raise InputError("[general] qat starts from a trained network: name its snapshot with `pretrain=F`")


def _load_initial_weights(
    options: TrainingOptions, task: Task, net: nn.Module, log: TextLog, metadata: Metadata
) -> None:
    if options.resume is not None:
        return
    # others may leave the rest random
    complete = options.evaluate or task.quantised
    why = "`evaluate=True`" if options.evaluate else "[general] qat"
    # torch counts the writes to a tensor
    frozen = [] if complete else [(name, p, p._version) for name, p in task.frozen(net).items()]
    task.load_start(net, metadata, log)
    table = None if options.pretrain_classes is None else ClassTable(metadata, options.pretrain_classes)
    for specification in options.pretrain:
        report = task.load_pretrained(net, specification, table)
        log.info(f"pre-trained {specification}: {report}")
        if report.classes and report.classes != tuple(metadata.categories):
            log.warning(
                f"pre-trained {specification}: its classes are not those of the data set; "
                f"`pretrain_classes=TABLE` copies weights by the names of classes"
            )
        for line in report.fresh:
            log.info(f"pre-trained {specification}: {line}")
        if complete and (report.skipped or report.fresh):
            problem = str(report) if report.skipped else report.fresh[0]
            raise InputError(f"{why} `pretrain={specification}`: does not fill the network: {problem}")
    if complete and all(":" in s and s.split(":")[0] in task.parts for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        missing = [part for part in task.parts if part not in filled]
        if missing:
            raise InputError(f"{why}: `pretrain` gives no weights for {', '.join(missing)}")
    if fresh := [name for name, parameter, version in frozen if parameter._version == version]:
        problem = (
            f"[body] num_frozen freezes weights that were not loaded ({len(fresh)} tensors, the first {fresh[0]}): "
            "set body.num_frozen=0, or load weights with `pretrain=body:F`"
        )
        if not options.legacy:
            raise InputError(problem)
        log.warning(problem)


def restart_changed_epoch(
    resumed: ResumePoint, loader: BatchLoader, options: TrainerOptions, log: TextLog
) -> ResumePoint:
    """Return a point whose position, if it has one, can be continued: drop that of images in another order."""
    position = resumed.position
    if position is None or position.order == data_order(index_sampler(loader), options.seed):
        return resumed
    if position.epoch < options.epochs:
        log.warning(
            f"restarting epoch {position.epoch + 1}: the training images or {options.keys.seed} differ from those of "
            f"{resumed.source}"
        )
    return replace(resumed, position=None)


def continue_schedule(schedule: LRSchedule, resumed: ResumePoint, loader: BatchLoader, options: TrainerOptions) -> None:
    """Set the length of the schedule of a resumed training to the steps done plus the steps left.

    `resumed` is from :func:`restart_changed_epoch`. The length changes only if the number of processes, the batch size,
    `accumulate`, the seed or the training images have changed.
    """
    if schedule.by_epoch:
        return
    accumulate, sampler = options.accumulate, index_sampler(loader)
    epochs, left = options.epochs - resumed.progress.epoch - 1, 0
    whole, position = steps_per_epoch(len(sampler), accumulate), resumed.position
    if position is not None and epochs > 0:
        sampler.set_epoch(position.epoch)
        sampler.continue_from(position.segments)
        left, epochs = steps_per_epoch(len(sampler), accumulate), epochs - 1
    schedule.total = max(1, resumed.progress.global_step + left + epochs * whole)


def log_earlier_runs(folder: RunFolder, log: TextLog, resumed: bool) -> None:
    """Log which files of earlier runs the folder of a run holds."""
    if not resumed and (folder.last.exists() or folder.best.exists() or folder.saved()):
        log.warning(f"{folder.path} holds snapshots of an earlier run; the first snapshot of this run replaces them")


def _describe_position(resumed: ResumePoint) -> str:
    if resumed.position is None:
        return f"after epoch {resumed.progress.epoch + 1}"
    return f"in epoch {resumed.position.epoch + 1} after {resumed.position.steps} of its steps"


def _describe_steps(options: TrainerOptions, loader: BatchLoader, world: World) -> str:
    images, accumulate = len(loader.dataset), options.accumulate  # type: ignore[arg-type]
    parts = [f"batch {index_sampler(loader).batch_size}"]
    parts += [f"{accumulate} batches"] if accumulate > 1 else []
    parts += [f"{world.size} processes"] if world.is_distributed else []
    threads = f", {counted(torch.get_num_threads(), 'thread')} a process" if world.device.type == "cpu" else ""
    dtype = str(compute_dtype(options.precision, world.device)).removeprefix("torch.")
    return f"{counted(images, 'training image')}, {' x '.join(parts)} a step, {dtype}{threads}"


def _describe_device(world: World) -> str:
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "the CPU"
    return f"on {name}" if not world.is_distributed else f"in {world.size} processes on {name}"
