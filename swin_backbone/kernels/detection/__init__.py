"""Layers of detectors and segmentors by the compiled library."""

import torch
from torch import Tensor

from ...modes import needs_torch_op
from ..native.availability import find_reason_against

FLOATS = torch.float32, torch.bfloat16, torch.float16


def takes_tensor(x: Tensor) -> bool:
    """Return whether the library computes layers of detectors with tensors like `x`. In a graph torch does."""
    return not needs_torch_op() and find_reason_against(x, FLOATS) is None
