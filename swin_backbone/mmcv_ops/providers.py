"""Who computes an operator: another library's kernel, where one is there for the tensor's device, else torch.

A provider answers with a kernel or None. They are asked in order, so a compiled library takes its place by a function
here.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Optional

import torch
from torch import Tensor

Kernel = Callable[..., Tensor]

# What torchvision computes as mmcv does. Its RoIAlign for CPUs is mmcv's loop on one thread, so ours stands there.
TORCHVISION = {
    'nms': ('nms', ('cpu', 'cuda')),
    'roi_align': ('roi_align', ('cuda',)),
    'roi_align_backward': ('_roi_align_backward', ('cuda',)),
    'deform_conv2d': ('deform_conv2d', ('cpu', 'cuda')),
}


def find(name: str, x: Tensor) -> Optional[Kernel]:
    """The kernel of the first provider that has one for this operator and the tensor's device, or None."""
    return _find(name, x.device.type)


@lru_cache(maxsize=64)
def _find(name: str, device: str) -> Optional[Kernel]:
    for provider in PROVIDERS.values():
        kernel = provider(name, device)
        if kernel is not None:
            return kernel
    return None


def who_computes(name: str, device: str) -> str:
    """The name of the provider, or 'torch'."""
    return next((title for title, provider in PROVIDERS.items() if provider(name, device) is not None), 'torch')


def _torchvision(name: str, device: str) -> Optional[Kernel]:
    """Its operator, where a kernel of it is registered: its CUDA build beside a CPU torch imports and has none."""
    operator, devices = TORCHVISION.get(name, ('', ()))
    if device not in devices or not _torchvision_loads():
        return None
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(f'torchvision::{operator}', device.upper())
    return getattr(torch.ops.torchvision, operator) if has_kernel else None


@lru_cache(maxsize=1)
def _torchvision_loads() -> bool:
    try:
        import torchvision  # noqa: F401
    except Exception:  # whatever a build for another torch raises
        return False
    return hasattr(torch.ops.torchvision, 'nms')


PROVIDERS: dict[str, Callable[[str, str], Optional[Kernel]]] = {'torchvision': _torchvision}
