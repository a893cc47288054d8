"""The kernel of an operator for a tensor's device and dtype; torch computes if there is none.

A provider is a function that returns a kernel or None. The first kernel in the order of `PROVIDERS` computes.

    nms, nms_offset                   (boxes, scores, iou_threshold) -> indices; the second with an offset of 1
    roi_align, roi_align_max          (maps, rois, pooled, argmax, bins, scale, sampling_ratio, aligned), into `pooled`
    roi_align_backward, ..._max_...   (gradient, rois, argmax, grad_maps, and the same), added to `grad_maps`
    deform_conv2d                     as torchvision
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Optional

import torch
from torch import Tensor

Kernel = Callable[..., Any]


def find(name: str, x: Tensor) -> Optional[Kernel]:
    """Return the first provider's kernel for this operator and tensor, or None."""
    return _find(name, x.device.type, x.dtype)


@lru_cache(maxsize=64)
def _find(name: str, device: str, dtype: torch.dtype) -> Optional[Kernel]:
    for provider in PROVIDERS.values():
        kernel = provider(name, device, dtype)
        if kernel is not None:
            return kernel
    return None


# --- The compiled library, for CPUs -----------------------------------------------------------------------------------


def _library(name: str, device: str, dtype: torch.dtype) -> Optional[Kernel]:
    from ..backends.native import detection, library

    if device != 'cpu' or library.load()[0] is None:
        return None
    if name in ('nms', 'nms_offset'):
        kernel = partial(_library_nms, offset=int(name == 'nms_offset'))
        return kernel if dtype in (*library.DTYPES, torch.float16) else None
    if not name.startswith('roi_align') or dtype not in library.DTYPES:
        return None
    return detection.roi_align_backward if name.endswith('_backward') else detection.roi_align


def _library_nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    from ..backends.native import detection

    order = scores.sort(0, descending=True)[1]  # torch's order of equal scores, as mmcv
    return detection.nms(boxes.float(), order, iou_threshold, offset)


# --- torchvision ------------------------------------------------------------------------------------------------------


def _torchvision(name: str, device: str, dtype: torch.dtype) -> Optional[Kernel]:
    """Return torchvision's kernel if it is registered. A CUDA build beside a CPU torch imports without kernels."""
    if name not in TORCHVISION:
        return None
    operator, devices, kernel = TORCHVISION[name]
    if device not in devices or not _torchvision_loads():
        return None
    has_kernel = hasattr(torch.ops.torchvision, operator) and torch._C._dispatch_has_kernel_for_dispatch_key(
        f'torchvision::{operator}', device.upper()
    )
    return kernel if has_kernel else None


@lru_cache(maxsize=1)
def _torchvision_loads() -> bool:
    try:
        import torchvision  # noqa: F401
    except Exception:  # whatever a build for another torch raises
        return False
    return hasattr(torch.ops.torchvision, 'nms')


def _torchvision_nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    if boxes.device.type == 'cpu' or boxes.dtype != scores.dtype:  # where it takes no half precision
        boxes, scores = (x.double() if x.dtype == torch.float64 else x.float() for x in (boxes, scores))
    kept: Tensor = torch.ops.torchvision.nms(boxes, scores, iou_threshold)
    return kept


def _torchvision_roi_align(
    maps: Tensor, rois: Tensor, pooled: Tensor, argmax: None, bins: tuple[int, int], scale: float, *settings: Any
) -> None:
    pooled.copy_(torch.ops.torchvision.roi_align(maps, rois, scale, *bins, *settings))


def _torchvision_roi_align_backward(
    grad: Tensor, rois: Tensor, argmax: None, grad_maps: Tensor, bins: tuple[int, int], scale: float, *settings: Any
) -> None:
    grad_maps += torch.ops.torchvision._roi_align_backward(grad, rois, scale, *bins, *grad_maps.shape, *settings)


def _torchvision_deform_conv2d(*args: Any) -> Any:
    return torch.ops.torchvision.deform_conv2d(*args)


# torchvision's operators that equal mmcv's: name, devices, kernel. The RoIAlign for CPUs is left out: it has one thread
# and takes no bfloat16.
TORCHVISION: dict[str, tuple[str, tuple[str, ...], Kernel]] = {
    'nms': ('nms', ('cpu', 'cuda'), _torchvision_nms),
    'roi_align': ('roi_align', ('cuda',), _torchvision_roi_align),
    'roi_align_backward': ('_roi_align_backward', ('cuda',), _torchvision_roi_align_backward),
    'deform_conv2d': ('deform_conv2d', ('cpu', 'cuda'), _torchvision_deform_conv2d),
}

PROVIDERS: dict[str, Callable[[str, str, torch.dtype], Optional[Kernel]]] = {
    'library': _library,
    'torchvision': _torchvision,
}
