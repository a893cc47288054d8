"""The compiled library of this package, and torchvision, for operators of mmcv. Without both, torch computes."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

LIBRARY_DTYPES = torch.float32, torch.bfloat16  # of the compiled library


def library_takes(x: Tensor, dtypes: Sequence[torch.dtype] = LIBRARY_DTYPES) -> bool:
    """Return whether the compiled library has operators for the tensor. `dtypes` are the dtypes of the operator."""
    if x.device.type != 'cpu' or x.dtype not in dtypes:
        return False
    try:
        from ...kernels.native.library import load_library
        from ...kernels.native.memory import is_readable
    except ImportError:  # the folder is not there
        return False
    return load_library()[0] is not None and is_readable(x)


def torchvision_takes(operator: str, x: Tensor) -> bool:
    """Return whether torchvision has a kernel of the operator for the tensor's device."""
    return _has_kernel(operator, x.device.type.upper())


@lru_cache(maxsize=16)
def _has_kernel(operator: str, key: str) -> bool:
    try:
        import torchvision  # noqa: F401
    except Exception:  # whatever a build for another torch raises
        return False
    # A CUDA build beside a CPU torch imports, and registers the names of a few operators without kernels.
    return hasattr(torch.ops.torchvision, operator) and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'torchvision::{operator}', key
    )
