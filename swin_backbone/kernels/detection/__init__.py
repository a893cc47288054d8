"""Layers of detectors and segmentors by the compiled library."""

import torch
from torch import Tensor

from ...modes import needs_torch_op, tracer_of
from ..native.availability import find_reason_against

FLOATS = torch.float32, torch.bfloat16, torch.float16


def takes_tensor(x: Tensor) -> bool:
    """Return whether the library computes layers of detectors with tensors like `x`.

    The operators of torch for these layers are for torch.compile: neither torch.export nor a dispatch mode gets them.
    """
    has_operator = not needs_torch_op() or tracer_of(x) == 'torch.compile'
    return has_operator and find_reason_against(x, FLOATS) is None
