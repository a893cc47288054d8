"""The library's operators of detectors, RoIAlign and NMS, on tensors.

Letters: R regions, I and J bins down and across.
"""

from ctypes import byref, c_int64
from typing import Any, Optional

import torch
from torch import Tensor

from ..native.library import DTYPES, RoiAlignStruct, get_libswin
from ..native.memory import require_address


def roi_align(maps_BCHW: Tensor, rois_R5: Tensor, pooled_RCIJ: Tensor, pooling: Any) -> None:
    """Write RoIAlign into `pooled_RCIJ`: the mean of a bin's samples.

    Args:
        maps_BCHW: float32 or bfloat16, dense in rows or in channels; for different strides, the function makes a copy.
        rois_R5: index of a map, x1, y1, x2, y2.
        pooled_RCIJ: contiguous, of the maps' dtype.
        pooling: `mmcv_ops.roi.Pooling`.

    Raises:
        ValueError: an argument does not fit.
    """
    maps_BCHW, rois_R5 = _make_dense(maps_BCHW), rois_R5.float().contiguous()
    structure = _make_structure(maps_BCHW, maps_BCHW.dtype, rois_R5, pooling)
    pooled = require_address('pooled', pooled_RCIJ, (len(rois_R5), maps_BCHW.shape[1], *pooling.bins), maps_BCHW.dtype)
    get_libswin().roi_align_forward(byref(structure), _find_address(maps_BCHW), pooled)


def add_roi_align_gradient(grad_RCIJ: Tensor, rois_R5: Tensor, grad_maps_BCHW: Tensor, pooling: Any) -> None:
    """Add the gradient of `roi_align` to `grad_maps_BCHW`, of the dtype of `grad_RCIJ`.

    Sums are in float32. The order is equal for any number of threads.
    """
    sums_BCHW, grad_RCIJ, rois_R5 = grad_maps_BCHW, grad_RCIJ.contiguous(), rois_R5.float().contiguous()
    if grad_maps_BCHW.dtype is not torch.float32 or _make_dense(grad_maps_BCHW) is not grad_maps_BCHW:
        sums_BCHW = torch.zeros(grad_maps_BCHW.shape, dtype=torch.float32, device='cpu')
    structure = _make_structure(sums_BCHW, grad_RCIJ.dtype, rois_R5, pooling)
    grad = require_address('grad', grad_RCIJ, (len(rois_R5), sums_BCHW.shape[1], *pooling.bins), grad_RCIJ.dtype)
    get_libswin().roi_align_backward(byref(structure), grad, _find_address(sums_BCHW))
    if sums_BCHW is not grad_maps_BCHW:
        grad_maps_BCHW += sums_BCHW


def keep_boxes(boxes_N4: Tensor, order_N: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of kept boxes, the best first.

    Args:
        boxes_N4: float32.
        order_N: indices of the boxes, by falling score.
    """
    number = len(boxes_N4)
    indices_N, count = torch.empty(number, dtype=torch.long, device='cpu'), c_int64()
    boxes_N4 = boxes_N4.contiguous()
    get_libswin().nms(
        *(require_address('boxes', boxes_N4, (number, 4)), require_address('order', order_N, (number,), torch.long)),
        *(number, iou_threshold, offset, torch.get_num_threads()),
        *(require_address('indices', indices_N, (number,), torch.long), byref(count)),
    )
    return indices_N[: count.value]


def _make_dense(maps_BCHW: Tensor) -> Tensor:
    """Return maps with dense rows or dense channels; a copy if the maps are not dense."""
    dense = maps_BCHW.is_contiguous() or maps_BCHW.is_contiguous(memory_format=torch.channels_last)
    return maps_BCHW if dense else maps_BCHW.contiguous()


def _find_address(maps_BCHW: Tensor) -> Optional[int]:
    """Return the address of a result of `_make_dense`."""
    x = maps_BCHW if maps_BCHW.is_contiguous() else maps_BCHW.permute(0, 2, 3, 1)
    return require_address('maps', x, dtype=x.dtype)


def _make_structure(maps_BCHW: Tensor, dtype: torch.dtype, rois_R5: Tensor, pooling: Any) -> RoiAlignStruct:
    """Return the library's structure. It has the address of `rois_R5`: keep `rois_R5` alive."""
    (bins, scale, samples, aligned), (B, C, H, W), R = pooling, maps_BCHW.shape, len(rois_R5)
    return RoiAlignStruct(
        dtype=DTYPES.index(dtype), threads=torch.get_num_threads(),
        batch=B, channels=C, height=H, width=W, stride=tuple(maps_BCHW.stride()),
        regions=R, boxes=require_address('rois', rois_R5, (R, 5)),
        bins_height=bins[0], bins_width=bins[1], samples=max(samples, 0), scale=scale, aligned=aligned,
    )  # fmt: skip
