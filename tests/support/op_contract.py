"""What every operator promises the dispatcher, checked by torch's own tool."""

import torch

from seamseg.ops import implementations


def check_operator(name, samples):
    """A kernel serves the operator on the CPU, and `opcheck` finds nothing, with any of the argument tuples."""
    assert "C++" in implementations()[name]
    operator = getattr(torch.ops.seamseg, name).default
    for arguments in samples:
        torch.library.opcheck(operator, arguments)
