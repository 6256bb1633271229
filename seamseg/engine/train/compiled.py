"""`[general] compile`: body, pyramid and semantic head through torch.compile, the rest of the network as it is.

These three do the same whatever is on the image. Proposals and regions are of other numbers each time: compiled, they
would be compiled again and again.
"""

from __future__ import annotations

import torch._dynamo.config
from torch import nn

from seamseg.engine.compiler import why_not
from seamseg.engine.distributed import World, gather_objects
from seamseg.engine.train.logs import TextLog
from seamseg.models.panoptic import PanopticNet


def compile_static_part(net: PanopticNet, world: World, log: TextLog, backend: str = "inductor") -> bool:
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
    reasons = [reason for reason in gather_objects(world, why_not(world.device, backend)) if reason is not None]
    if reasons:
        log.warning(
            "[general] compile: the network runs uncompiled, torch.compile does not work "
            f"{'here' if len(reasons) == world.size else 'in every process'}: {reasons[0]}"
        )
        return False
    # DistributedDataParallel would have the graph cut at the borders of its buckets, which cannot be done with the
    # graphs of in-place ABN. The gradients of the body come last in any case.
    torch._dynamo.config.optimize_ddp = False
    parts: list[nn.Module | None] = [net.body, net.sem_head]
    for part in parts:
        if part is not None:
            part.compile(backend=backend)
    net.sizes_vary = True
    return True
