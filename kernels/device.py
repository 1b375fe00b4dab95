"""Where kernels run: how many programs fill the GPU, or the few that keep the interpreter quick."""

from __future__ import annotations

import torch

INTERPRETED_PROGRAMS = 3


def multiprocessors(tensor: torch.Tensor) -> int:
    """Multiprocessors of the GPU that holds *tensor*; a small number for tensors of the CPU, which are interpreted."""
    if not tensor.is_cuda:
        return INTERPRETED_PROGRAMS
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)
