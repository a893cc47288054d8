"""The library's operators of detectors, RoIAlign and NMS, on tensors.

Letters: R regions, I and J bins down and across.
"""

from ctypes import byref, c_int64
from typing import Optional

import torch
from torch import Tensor

from .library import RoiAlign
from .memory import address, dtype_number, library

Bins = tuple[int, int]


def roi_align(
    maps_BCHW: Tensor,
    rois_R5: Tensor,
    pooled_RCIJ: Tensor,
    argmax_RCIJ: Optional[tuple[Tensor, Tensor]],
    bins: Bins,
    scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> None:
    """Write RoIAlign into `pooled_RCIJ`: the mean of a bin's samples.

    With `argmax_RCIJ` (float32; y, then x): the maximum, and the maximum's place.

    Args:
        maps_BCHW: float32 or bfloat16, dense in rows or in channels; for different strides, the function makes a copy.
        rois_R5: index of a map, x1, y1, x2, y2.
        pooled_RCIJ: contiguous, of the maps' dtype.

    Raises:
        ValueError: an argument does not fit.
    """
    maps_BCHW = _dense(maps_BCHW)
    sizes = (len(rois_R5), maps_BCHW.shape[1], *bins)
    rois_R5 = rois_R5.float().contiguous()
    described = _describe(maps_BCHW, rois_R5, bins, scale, sampling_ratio, aligned)
    argmax = [None, None] if argmax_RCIJ is None else [address('argmax', of, sizes) for of in argmax_RCIJ]
    first = _address_of_maps(maps_BCHW)
    library().roi_align_forward(
        byref(described), first, address('pooled', pooled_RCIJ, sizes, maps_BCHW.dtype), *argmax
    )


def roi_align_backward(
    grad_RCIJ: Tensor,
    rois_R5: Tensor,
    argmax_RCIJ: Optional[tuple[Tensor, Tensor]],
    grad_maps_BCHW: Tensor,
    bins: Bins,
    scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> None:
    """Add the gradient of `roi_align` to `grad_maps_BCHW`, of the dtype of `grad_RCIJ`.

    Sums are in float32. The order is equal for any number of threads.
    """
    sums_BCHW = grad_maps_BCHW
    if grad_maps_BCHW.dtype is not torch.float32 or _dense(grad_maps_BCHW) is not grad_maps_BCHW:
        sums_BCHW = torch.zeros(grad_maps_BCHW.shape, dtype=torch.float32, device='cpu')
    sizes = (len(rois_R5), sums_BCHW.shape[1], *bins)
    grad_RCIJ, rois_R5 = grad_RCIJ.contiguous(), rois_R5.float().contiguous()
    described = _describe(sums_BCHW, rois_R5, bins, scale, sampling_ratio, aligned, grad_RCIJ.dtype)
    argmax = [None, None] if argmax_RCIJ is None else [address('argmax', of, sizes) for of in argmax_RCIJ]
    first = _address_of_maps(sums_BCHW)
    library().roi_align_backward(byref(described), address('grad', grad_RCIJ, sizes, grad_RCIJ.dtype), *argmax, first)
    if sums_BCHW is not grad_maps_BCHW:
        grad_maps_BCHW += sums_BCHW


def nms(boxes_N4: Tensor, order_N: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of kept boxes, the best first.

    Args:
        boxes_N4: float32.
        order_N: indices of the boxes, by falling score.
    """
    number = len(boxes_N4)
    kept_N, found = torch.empty(number, dtype=torch.long, device='cpu'), c_int64()
    boxes_N4 = boxes_N4.contiguous()
    library().nms(
        *(address('boxes', boxes_N4, (number, 4)), address('order', order_N, (number,), torch.long)),
        *(number, iou_threshold, offset, torch.get_num_threads(), kept_N.data_ptr(), byref(found)),
    )
    return kept_N[: found.value]


def _dense(maps_BCHW: Tensor) -> Tensor:
    """Return maps with dense rows or dense channels; a copy if the maps are not dense."""
    if maps_BCHW.dim() != 4:
        raise ValueError(f'maps must be (B, C, H, W), got {list(maps_BCHW.shape)}')
    dense = maps_BCHW.is_contiguous() or maps_BCHW.is_contiguous(memory_format=torch.channels_last)
    return maps_BCHW if dense else maps_BCHW.contiguous()


def _address_of_maps(maps_BCHW: Tensor) -> Optional[int]:
    """Return the address of a result of `_dense`."""
    x = maps_BCHW if maps_BCHW.is_contiguous() else maps_BCHW.permute(0, 2, 3, 1)
    return address('maps', x, x.shape, x.dtype)


def _describe(
    maps_BCHW: Tensor,
    rois_R5: Tensor,
    bins: Bins,
    scale: float,
    sampling_ratio: int,
    aligned: bool,
    dtype: Optional[torch.dtype] = None,
) -> RoiAlign:
    """Return the library's description. The description holds the address of `rois_R5`: keep `rois_R5` alive."""
    boxes = address('rois', rois_R5, (len(rois_R5), 5))
    return RoiAlign(
        *(
            dtype_number('maps', dtype or maps_BCHW.dtype),
            torch.get_num_threads(),
            *maps_BCHW.shape,
            tuple(maps_BCHW.stride()),
        ),
        *(len(rois_R5), boxes, *bins, max(sampling_ratio, 0), scale, aligned),
    )
