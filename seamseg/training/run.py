"""`seamseg train`: from a configuration and a data set to a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
import torch._dynamo.config
from torch import nn

import seamseg.predicting.writers  # noqa: F401  # they register the formats, of which a configuration may have sections
from seamseg.config import Config, load_config
from seamseg.config.components import NoKeys
from seamseg.config.loader import check_training
from seamseg.data.loader import BatchLoader, index_sampler
from seamseg.inference.acceleration import compiler_problem
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.metrics_file import MetricsFile, read_metrics
from seamseg.models.network import Network, TrainingModule
from seamseg.ops.fused import compute_dtype
from seamseg.training.callbacks import Callback, Callbacks, Run, TensorBoard
from seamseg.training.checkpointing.checkpoint import (
    ResumePoint,
    TrainState,
    load_rank_state,
    load_weights,
    resume,
    seed_everything,
)
from seamseg.training.checkpointing.run_folder import AUTO, LOCK_NAME, SNAPSHOTS, RunFolder
from seamseg.training.graphs import use_cuda_graphs
from seamseg.training.logging.reporter import Reporter, TextLog
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import TrainerOptions, TrainingOptions, TrainResult
from seamseg.training.preemption import Preempted
from seamseg.training.prefetch import DevicePrefetcher
from seamseg.training.setup import Setup, Validate, segmentation
from seamseg.training.step import Stepper
from seamseg.training.trainer import Trainer
from seamseg.utils.distributed import World, barrier, distributed, gather_objects, raised_by_all
from seamseg.utils.errors import InputError, counted, named_errors
from seamseg.utils.files import PARTIAL, lock_file, make_folder
from seamseg.utils.output import console, quiet_logs


def run_training(options: TrainingOptions, setup: Setup | None = None) -> TrainResult:
    """Train a network, or with `evaluate` only score it; joins the processes of torchrun if there are any.

    `setup` is by default the training of a segmentation network with the configuration. Numbers of steps are 0 in the
    result of `evaluate`. InputError if the configuration, the data set or a file of weights is wrong; SeamsegError if a
    loss or gradient is not finite, or a file cannot be written; Preempted if a signal stopped the training, after
    writing a snapshot.
    """
    for callback in options.callbacks:
        if not isinstance(callback, Callback):
            raise InputError(f"`callbacks`: {callback!r:.80} is no object of a seamseg.components.Callback")
    if setup is None:
        config = completed(load_config(options.config, None, options.overrides))
        if not options.evaluate:
            check_training(config, options.config, options.overrides)
        setup = segmentation(config, options.config)
    with _opened(options, setup) as (world, folder, log):
        options = _find_snapshot(options, world, folder, log)
        torch.backends.cudnn.benchmark = setup.options.cudnn_benchmark
        validator = setup.open_validator(options.data, world)
        if options.evaluate and validator is None:
            raise InputError(f"{options.config}: `evaluate=True` requires [dataloader] val_set")
        loader = None if options.evaluate else setup.open_loader(options.data, world)
        metadata: Metadata = (validator if loader is None else loader.dataset).metadata  # type: ignore[union-attr]
        _log_setup(setup, metadata, loader, world, log)

        seed_everything(setup.options.seed, -1, 0)
        module = setup.build(metadata)
        net = module.get_submodule("net")
        if options.resume is None:
            with raised_by_all(world):
                setup.load_weights(net, options, metadata, log)
        net.to(world.device)
        if loader is None:
            assert validator is not None
            if options.resume is not None:
                load_weights(options.resume, net, metadata, folder)
            scores = validator(net)
            return TrainResult(folder.path, best=scores.selection.value, validation=scores)
        state, resumed = _prepare(options, setup, module, metadata, loader, world, folder, log)
        trainer = _open_trainer(state, resumed, setup, loader, validator, folder, log, options.callbacks)
        found = trainer.train()
        done, stopped = trainer.progress, trainer.reporter.callbacks.run.stop_reason
        history = read_metrics(folder.path) if world.rank == 0 else []
        validated = any(line.get("kind") == "validation" for line in history)
        best = done.best_score if validated and (done.best_of or done.best_score) else None
        stopped, history, best = gather_objects(world, (stopped, history, best))[0]
        return TrainResult(folder.path, done.global_step, done.epoch + 1, best, stopped, history, found)


@contextmanager
def _opened(options: TrainingOptions, setup: Setup) -> Iterator[tuple[World, RunFolder, TextLog]]:
    """Join the processes, lock the run folder and open the log, which gets the error that ends a `with` block."""
    # the compiler warns of operations in place in checkpointed parts: it updates running averages once
    quiet = quiet_logs("torch._higher_order_ops.wrap")
    with distributed(options.device) as world, ExitStack() as stack, quiet:
        folder = setup.run_folder(options.folder)
        fresh = world.rank == 0 and not folder.path.exists()
        with raised_by_all(world):
            if world.rank == 0:
                stack.enter_context(
                    lock_file(folder.path / LOCK_NAME, "wait until that training ends, or choose another folder")
                )
                if not options.evaluate:
                    folder.refuse_other(options.resume, options.restart)
                # of killed processes
                for stale in [*folder.path.glob(f".*{PARTIAL}"), *(folder.path / SNAPSHOTS).glob(f".*{PARTIAL}")]:
                    stale.unlink(missing_ok=True)
        name = folder.log_name.format(rank=world.rank)
        # a log of the main process, or one of each
        writes = world.rank == 0 or name != folder.log_name
        if writes:
            make_folder(folder.path)
        with closing(TextLog(folder.path / name if writes else None, console.quiet, console=world.rank == 0)) as log:
            try:
                yield world, folder, log
            except KeyboardInterrupt as stop:
                again = f"re-run the same command (`seamseg train`: with `resume={AUTO}`)"
                advice = f"{again} to resume from the newest snapshot"
                stop.args = (advice if folder.newest() else "no snapshot saved yet",)
                log.failure(f"interrupted; {stop}")
                raise
            except Exception as error:
                # the trainer has logged a signal
                if not isinstance(error, Preempted):
                    log.failure(f"{type(error).__name__}: {error}")
                log.close()
                refused = fresh and isinstance(error, InputError)
                # before the training began
                if refused and all(e.match("training*.log") or e.name == LOCK_NAME for e in folder.path.iterdir()):
                    shutil.rmtree(folder.path, ignore_errors=True)
                raise


def _log_setup(setup: Setup, metadata: Metadata, loader: BatchLoader | None, world: World, log: TextLog) -> None:
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "the CPU"
    processes = f"in {world.size} processes " if world.size > 1 else ""
    counts = f"{metadata.num_stuff} stuff and {metadata.num_thing} thing" if metadata.num_stuff else metadata.num_thing
    log.info(f"{counts} classes; {processes}on {device}")
    if loader is not None:
        images, accumulate = len(loader.dataset), setup.options.accumulate  # type: ignore[arg-type]
        parts = [f"batch {index_sampler(loader).batch_size}"]
        parts += [f"{accumulate} batches"] if accumulate > 1 else []
        parts += [f"{world.size} processes"] if world.size > 1 else []
        threads = f", {counted(torch.get_num_threads(), 'thread')} per process" if world.device.type == "cpu" else ""
        dtype = str(compute_dtype(setup.options.precision, world.device)).removeprefix("torch.")
        log.info(f"{counted(images, 'training image')}, {' x '.join(parts)} per step, {dtype}{threads}")
    setup.log_notes(loader, world, log)


def completed(config: Config) -> Config:
    """Return a configuration with what its network reads from other files, so that snapshots need these no more."""
    component, keys = config.component("network")
    if not hasattr(component.make, "completed") or component.keys is NoKeys:
        return config
    with named_errors(component.section, component.module):
        return replace(config, parts={**config.parts, component.section: component.make.completed(keys)})


def _prepare(
    options: TrainingOptions,
    setup: Setup,
    module: nn.Module,
    metadata: Metadata,
    loader: BatchLoader,
    world: World,
    folder: RunFolder,
    log: TextLog,
) -> tuple[TrainState, ResumePoint | None]:
    net, settings = module.get_submodule("net"), setup.options
    optimizer = setup.build_optimizer(net)
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    length = settings.steps_per_epoch(len(loader))
    resumed = None
    if options.resume is not None:
        resumed = resume(options.resume, net, optimizer, metadata, folder, length, settings)
    schedule = setup.build_schedule(base_lrs, length)
    if settings.compile:
        compile_network(cast(Network, net), world, log.warning)
    if settings.cuda_graphs:
        use_cuda_graphs(cast(TrainingModule, module), world.device, log.warning)
    stepper = Stepper(settings, module, optimizer, world)
    if resumed is not None:
        load_rank_state(resumed, net, stepper, world)
        done, at = resumed.progress, resumed.position
        where = f"in epoch {at.epoch + 1} after {at.steps} of its steps" if at else f"after epoch {done.epoch + 1}"
        log.info(f"resumed from {resumed.source}, {where}, step {done.global_step}")
        for line in resumed.missing:
            log.warning(f"{resumed.source}: {line}")
        # such as a forgotten override
        if changed := setup.changes(resumed.config):
            log.warning(f"configuration differs from the snapshot's: {', '.join(changed)}")
        resumed = _continued(resumed, schedule, loader, settings, log)
    return TrainState(stepper, schedule, metadata, setup.config, setup.components), resumed


def compile_network(net: Network, world: World, warn: Callable[[str], None], backend: str = "inductor") -> bool:
    """Compile the dense parts of a network in place, if that works in every process; return whether it is."""
    reasons = [reason for reason in gather_objects(world, compiler_problem(world.device, backend)) if reason]
    if reasons:
        warn(
            "[general] compile: the network runs uncompiled, torch.compile does not work "
            f"{'here' if len(reasons) == world.size else 'in every process'}: {reasons[0]}"
        )
        return False
    # DistributedDataParallel would split the graph at its bucket boundaries, which the graphs of in-place ABN do not
    # allow. The gradients of the body come last in any case.
    torch._dynamo.config.optimize_ddp = False
    net.compile_parts(backend)
    return True


def _open_trainer(
    state: TrainState,
    resumed: ResumePoint | None,
    setup: Setup,
    loader: BatchLoader,
    validator: Validate | None,
    folder: RunFolder,
    log: TextLog,
    callbacks: Sequence[Callback],
) -> Trainer:
    world, settings = state.stepper.world, state.stepper.options
    if world.rank == 0:
        setup.write_model(folder, state.metadata)
        if resumed is not None and resumed.is_best and resumed.source in [path for _, path in folder.saved()]:
            # the run may have ended between writing the snapshot and linking it
            folder.publish(resumed.source, folder.best)
    barrier(world)
    done = None if resumed is None else resumed.progress
    metrics = MetricsFile(folder.path if world.rank == 0 else None, (done.global_step, done.epoch) if done else None)
    run = Run(folder.path, state.config, settings.epochs)
    if done is not None:
        run.step, run.epoch, run.resumed = done.global_step, done.epoch + 1, True
    named: dict[str, Callback] = {}
    if world.rank == 0:
        named = {"tensorboard": TensorBoard(), **setup.callbacks()}
        for callback in callbacks:
            name = type(callback).__name__
            while name in named:
                name += "+"
            named[name] = callback
        named = {name: callback for name, callback in named.items() if callback.enabled}
    following = Callbacks(run, log.warning, named)
    images = setup.sample_images(state.metadata)
    reporter = Reporter(settings, images, world, log, following, metrics)
    batches = DevicePrefetcher(loader, world.device, setup.prepare)
    if done is not None and done.epoch + 1 >= settings.epochs:
        epochs = settings.key("scheduler.epochs")
        log.warning(f"all {settings.epochs} epochs are done already; raise {epochs} to train on")
    return Trainer(state, batches, validator, folder, reporter, resumed)


def _find_snapshot(options: TrainingOptions, world: World, folder: RunFolder, log: TextLog) -> TrainingOptions:
    """Replace `resume=auto`, or a run folder, by the snapshot that the main process finds, or by None; collective."""
    if options.resume is None or (options.resume != AUTO and not Path(options.resume).is_dir()):
        return options
    if options.resume != AUTO:
        folder = replace(folder, path=Path(options.resume))
    newest = gather_objects(world, folder.newest() if world.rank == 0 else None)[0]
    if newest is None and options.resume != AUTO:
        raise InputError(f"`resume={options.resume}`: no run folder: it holds no snapshot")
    if newest is not None:
        # the weights that the run originally started from are not needed
        return replace(options, resume=newest, pretrain=())
    if options.evaluate and not options.pretrain:
        raise InputError(f"`evaluate=True` `resume={AUTO}`: {folder.path} holds no snapshot")
    log.info(f"`resume={AUTO}`: {folder.path} holds no snapshot, starting a new training")
    return replace(options, resume=None)


def _continued(
    resumed: ResumePoint, schedule: LRSchedule, loader: BatchLoader, options: TrainerOptions, log: TextLog
) -> ResumePoint:
    """Fit the schedule to the steps done and left; drop a position in an epoch whose images have changed."""
    position, sampler = resumed.position, index_sampler(loader)
    if position is not None and position.order != sampler.order:
        if position.epoch < options.epochs:
            log.warning(
                f"restarting epoch {position.epoch + 1}: the training images or {options.key('general.seed')} differ "
                f"from those of {resumed.source}"
            )
        position = None
    if not schedule.by_epoch:
        epochs, left = options.epochs - resumed.progress.epoch - 1, 0
        whole = options.steps_per_epoch(len(sampler))
        if position is not None and epochs > 0:
            sampler.set_epoch(position.epoch)
            sampler.continue_from(position.segments)
            left, epochs = options.steps_per_epoch(len(sampler)), epochs - 1
        schedule.total = max(1, resumed.progress.global_step + left + epochs * whole)
    return replace(resumed, position=position)
