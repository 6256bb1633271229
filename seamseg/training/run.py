"""`seamseg train`: from a configuration and a data set to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch._dynamo.config
from torch.utils.data import DataLoader

from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained
from seamseg.checkpoints.snapshot import NETWORK_MODULES
from seamseg.config import Config, config_from_string, config_to_string, load_config
from seamseg.config.loader import differences
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import index_sampler
from seamseg.evaluation.scores import PanopticScores
from seamseg.formats.metadata import Metadata
from seamseg.inference.acceleration import compiler_problem
from seamseg.models.build import build_training_module
from seamseg.models.panoptic import PanopticNet
from seamseg.training.checkpointing.checkpoint import Start, load_own_state, load_weights, resume
from seamseg.training.checkpointing.position import order_of
from seamseg.training.checkpointing.rng import seed_everything
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.debugging.dump import Recorder
from seamseg.training.logging.logs import Board, TextLog
from seamseg.training.logging.metrics import MetricsFile
from seamseg.training.logging.reporter import Reporter
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.optim.precision import number_type
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.parallel import in_parallel
from seamseg.training.preemption import Preempted
from seamseg.training.prefetch import open_loader
from seamseg.training.step import Stepper
from seamseg.training.trainer import Trainer, steps_of_epoch
from seamseg.utils.distributed import World, barrier, distributed, gather_objects
from seamseg.utils.errors import InputError
from seamseg.utils.progress import is_quiet
from seamseg.validation.validator import Validator

AUTO = "auto"
"""The `--resume` that looks for a snapshot itself."""


@dataclass(frozen=True)
class TrainingOptions:
    """What the command line says.

    Attributes
    ----------
    config : INI file
    data : dataset folder
    log_dir : run folder, is made
    resume : snapshot to continue from; `auto` is the newest good one of the run folder, if there is one
    pretrain : `[part:]FILE` to start from, see :func:`seamseg.checkpoints.pretrained.load_pretrained`
    evaluate : only score the weights of `resume` or `pretrain`
    overrides : `section.key=value` each
    device : auto, cpu, cuda or cuda:N
    """

    config: str | Path
    data: str | Path
    log_dir: str | Path
    resume: str | Path | None = None
    pretrain: Sequence[str] = ()
    evaluate: bool = False
    overrides: Sequence[str] = ()
    device: str = "auto"


def run_training(options: TrainingOptions) -> PanopticScores | None:
    """Train, or with `evaluate` only score, a network; joins the processes of torchrun if there are any.

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
        if a signal asked to stop; where the training stands is saved
    """
    if options.evaluate and options.resume is None and not options.pretrain:
        raise InputError("--eval scores weights that exist: name them with --resume F or --pre-train F")
    config = load_config(options.config, "panoptic", options.overrides)
    with distributed(options.device) as world:
        run = RunFolder(Path(options.log_dir))
        fresh = world.is_main and not run.path.exists()
        if world.is_main:
            run.make()
            run.remove_partial()
        log = TextLog(run.path if world.is_main else None, is_quiet(), enabled=world.is_main)
        try:
            return _run(options, config, world, run, log)
        except KeyboardInterrupt:
            saved = bool(run.saved()) or run.last.exists()
            goes_on = "the same command (`train`: with --resume auto) goes on from the newest snapshot"
            what = goes_on if saved else "nothing is saved yet"
            log.warning(f"interrupted; {what}")
            raise
        except Preempted:
            # the trainer has told why, and what to do
            raise
        except Exception as error:
            log.failure(f"{type(error).__name__}: {error}")
            if fresh and isinstance(error, InputError):
                log.close()
                run.discard()
            raise
        finally:
            log.close()


def _run(options: TrainingOptions, config: Config, world: World, run: RunFolder, log: TextLog) -> PanopticScores | None:
    options = _find_snapshot(options, world, run, log)
    torch.backends.cudnn.benchmark = config.general.cudnn_benchmark
    validator = _validator(options, config, world)
    loader = None if options.evaluate else open_loader(config, options.data, options.config, world)
    metadata = _metadata(validator, loader)
    log.info(f"{metadata.num_stuff} stuff and {metadata.num_thing} thing classes; {_where(world)}")
    if loader is not None:
        log.info(_plan(config, loader, world))
    if config.general.eval_coco and config.dataloader.coco_gt:
        log.info("[dataloader] coco_gt is not read: average precision takes the ground truth of the data set")

    seed_everything(config.general.seed, -1, 0)
    module = build_training_module(config, metadata.num_stuff, metadata.num_thing)
    net = module.net
    names, weights = module.criterion.names, config.optimizer.loss_weights
    if len(names) != len(weights):
        raise InputError(f"[optimizer] loss_weights: {len(weights)} for {len(names)} losses, {', '.join(names)}")
    _load_start(options, config, net, log)
    net.to(world.device)
    if loader is None:
        assert validator is not None
        if options.resume is not None:
            load_weights(options.resume, net, metadata)
        return validator(net)

    optimizer = build_optimizer(net, config)
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    start = None if options.resume is None else resume(options.resume, net, optimizer, metadata)
    scheduler = config.scheduler
    schedule = LRSchedule(
        scheduler.type,
        scheduler.params,
        base_lrs,
        scheduler.epochs,
        steps_of_epoch(len(loader), config.optimizer.accumulate),
        scheduler.update_mode,
        scheduler.burn_in_steps,
        scheduler.burn_in_start,
    )
    if config.general.compile:
        compile_network(net, world, log)
    stepper = Stepper(config, in_parallel(module, config, world), optimizer, world)
    if start is not None:
        load_own_state(start, net, stepper, world)
        continue_schedule(schedule, start, loader, config)
        log.info(f"resumed from {start.source}, {_place(start)}, step {start.progress.global_step}")
        _tell_changes(start, config, log)
    if world.is_main:
        run.describe(config, metadata, log, options.resume is not None)
        if start is not None and start.is_best and start.source in [path for _, path in run.saved()]:
            # the run may have ended between writing the snapshot and naming it
            run.publish(start.source, run.best)
    barrier(world)
    board = Board(run.path if world.is_main else None, start.progress.global_step + 1 if start else None, log)
    resumed = (start.progress.global_step, start.progress.epoch) if start else None
    metrics = MetricsFile(run.path if world.is_main else None, resumed)
    recorder = Recorder(config, metadata, world, net, run.path)
    trainer = Trainer(
        config,
        metadata,
        net,
        stepper,
        schedule,
        loader,
        validator,
        world,
        run,
        Reporter(config, metadata, world, log, board, metrics, recorder),
        start,
    )
    board.text("config", config_to_string(config))
    if trainer.progress.epoch + 1 >= scheduler.epochs:
        log.warning(f"all {scheduler.epochs} epochs are done already; raise scheduler.epochs to train on")
    try:
        return trainer.train()
    finally:
        board.close()
        metrics.close()


def _find_snapshot(options: TrainingOptions, world: World, run: RunFolder, log: TextLog) -> TrainingOptions:
    """The options with `--resume auto` made a file, or nothing; all processes take what the main one finds."""
    if options.resume != AUTO:
        return options
    found = gather_objects(world, run.newest_good(log.warning) if world.is_main else None)[0]
    if found is not None:
        # where a restarted run began does not matter any more
        return replace(options, resume=found, pretrain=())
    if options.evaluate and not options.pretrain:
        raise InputError(f"--eval --resume auto: {run.path} holds no snapshot")
    log.info(f"--resume auto: {run.path} holds no snapshot, the training begins anew")
    return replace(options, resume=None)


def continue_schedule(schedule: LRSchedule, start: Start, loader: DataLoader, config: Config) -> None:
    """Let the curve of a resumed training end with it: the steps that are done, and those that are left.

    It is the curve of before, unless the number of processes, the batch size or the training images have changed.
    """
    if schedule.by_epoch:
        return
    accumulate, sampler = config.optimizer.accumulate, index_sampler(loader)
    epochs, left = config.scheduler.epochs - start.progress.epoch - 1, 0
    whole = steps_of_epoch(len(sampler), accumulate)
    # in another order the epoch begins anew
    if start.position is not None and epochs > 0 and start.position.order == order_of(sampler, config.general.seed):
        sampler.set_epoch(start.position.epoch)
        sampler.continue_from(start.position.segments)
        left, epochs = steps_of_epoch(len(sampler), accumulate), epochs - 1
    schedule.total = max(1, start.progress.global_step + left + epochs * whole)


def _place(start: Start) -> str:
    if start.position is None:
        return f"after epoch {start.progress.epoch + 1}"
    return f"in epoch {start.position.epoch + 1}, {start.position.steps} steps of it done"


def _validator(options: TrainingOptions, config: Config, world: World) -> Validator | None:
    split = config.dataloader.val_set
    if not split:
        if options.evaluate:
            raise InputError(f"{options.config}: [dataloader] val_set is needed with --eval")
        return None
    return Validator.open(options.data, split, config, world, quiet=is_quiet())


def _metadata(validator: Validator | None, loader: DataLoader | None) -> Metadata:
    dataset = validator.dataset if loader is None and validator is not None else loader.dataset  # type: ignore[union-attr]
    assert isinstance(dataset, PanopticDataset)
    return dataset.metadata


def _load_start(options: TrainingOptions, config: Config, net: PanopticNet, log: TextLog) -> None:
    if options.resume is not None:
        if options.pretrain:
            raise InputError("--resume and --pre-train exclude each other: a resumed run has its weights")
        return
    if config.body.weights:
        log.info(f"body weights {config.body.weights}: {load_body_weights(net, config.body.weights)}")
    for specification in options.pretrain:
        report = load_pretrained(net, specification)
        log.info(f"pre-trained {specification}: {report}")
        if options.evaluate and report.skipped:
            raise InputError(f"--eval --pre-train {specification}: does not fill the network: {report}")
    if options.evaluate and all(":" in s and s.split(":")[0] in NETWORK_MODULES for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        missing = [part for part in NETWORK_MODULES if part not in filled and getattr(net, part) is not None]
        if missing:
            raise InputError(f"--eval: --pre-train gives no weights for {', '.join(missing)}")


def _plan(config: Config, loader: DataLoader, world: World) -> str:
    images, accumulate = len(loader.dataset), config.optimizer.accumulate  # type: ignore[arg-type]
    parts = [f"batch {config.dataloader.train_batch_size}"]
    parts += [f"{accumulate} batches"] if accumulate > 1 else []
    parts += [f"{world.size} processes"] if world.is_distributed else []
    threads = f", {torch.get_num_threads()} threads a process" if world.device.type == "cpu" else ""
    precision = str(number_type(config.general.precision, world.device)).removeprefix("torch.")
    return f"{images} training images, {' x '.join(parts)} a step, {precision}{threads}"


def _tell_changes(start: Start, config: Config, log: TextLog) -> None:
    """Name the keys that a resumed training has otherwise than before: a forgotten --set is easily made."""
    try:
        changed = differences(config_from_string(start.config, config.kind), config)
    except InputError:
        return  # a configuration of another time; the training's own has been read
    if changed:
        log.warning(f"other values than before: {', '.join(changed)}")


def _where(world: World) -> str:
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "the CPU"
    return f"on {name}" if not world.is_distributed else f"in {world.size} processes on {name}"


def compile_network(net: PanopticNet, world: World, log: TextLog, backend: str = "inductor") -> bool:
    """Compile body, pyramid and semantic head of a network in place; its state-dict keys stay.

    The compiler runs with the first step, and again with the first validation. Height and width of the images may
    change from step to step. Without a working compiler (C++ for the CPU, Triton for a GPU) the network stays as it
    is, and the log says so.

    Parameters
    ----------
    net : on its device
    world : the processes; in each, the compiler must work or none compiles
    log : for that line
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
    # DistributedDataParallel would have the graph cut at the borders of its buckets, which cannot be done with the
    # graphs of in-place ABN. The gradients of the body come last in any case.
    torch._dynamo.config.optimize_ddp = False
    net.compile_parts(backend)
    return True
