"""What every operator promises: the dispatcher, by torch's own tool; any number of threads; what autograd keeps."""

import torch
from torch.autograd.graph import saved_tensors_hooks


def same_with_threads(run, numbers=(1, 2, 5)):
    before, results = torch.get_num_threads(), []
    try:
        for number in numbers:
            torch.set_num_threads(number)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0, equal_nan=True)
    return results[0]


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def keeping(run):
    """The result of a call, and the tensors that it keeps for the backward pass, each under its :func:`place`."""
    kept = {}

    def pack(tensor):
        kept[place(tensor)] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return result, kept
