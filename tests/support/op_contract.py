"""What every operator promises: the dispatcher, by torch's own tool; any number of threads; what autograd keeps."""

import torch
from torch.autograd.graph import saved_tensors_hooks


def with_threads(numbers, run):
    """The result of a call for each number of threads."""
    before, results = torch.get_num_threads(), []
    try:
        for number in numbers:
            torch.set_num_threads(number)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    return results


def place(tensor):
    """Where the memory of a tensor is."""
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
