"""Two operators of detectors that torch lacks: non-maximum suppression and RoIAlign.

In PyTorch mmcv computes them. An ONNX model has the standard operators of ONNX.

Layout: B batch, M boxes, R regions, n kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NEVER = -1.0  # the score of missing or removed boxes; real scores are from 0 to 1


@torch.library.custom_op('swin_deploy::nms', mutates_args=())
def graph_nms(boxes_BM4: Tensor, scores_BM: Tensor, iou_threshold: float) -> Tensor:
    """Keep the best of the boxes whose overlap is above `iou_threshold` (NMS). Boxes with the score NEVER are ignored.

    Returns:
        (n, 3): image, 0 and box. The boxes of an image are sorted, best first.
    """
    from mmcv.ops import nms

    kept = [boxes_BM4.new_empty(0, 3, dtype=torch.int64)]
    for image, scores_M in enumerate(scores_BM):
        valid = (scores_M > NEVER / 2).nonzero()[:, 0]
        if len(valid):
            _, best = nms(boxes_BM4[image, valid].contiguous(), scores_M[valid].contiguous(), iou_threshold)
            box = valid[best]
            kept.append(torch.stack([torch.full_like(box, image), torch.zeros_like(box), box], 1))
    return torch.cat(kept)


graph_nms.register_fake(
    lambda boxes, *_: boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), 3, dtype=torch.int64)
)


@torch.library.custom_op('swin_deploy::roi_align', mutates_args=())
def graph_roi_align(
    map_BCHW: Tensor,
    box_R4: Tensor,
    image_R: Tensor,
    height: int,
    width: int,
    scale: float,
    samples: int,
) -> Tensor:
    """Sample the map inside boxes bilinearly: (R, C, height, width).

    Args:
        image_R: indices of the boxes' images.
        scale: the map's resolution relative to the boxes' coordinates.
        samples: samples in a bin along an axis; 0: the number of cells in the bin.
    """
    from mmcv.ops import roi_align

    regions_R5 = torch.cat([image_R[:, None].to(box_R4.dtype), box_R4], 1)
    cut_RCHW: Tensor = roi_align(map_BCHW.contiguous(), regions_R5, (height, width), scale, samples, 'avg', True)
    return cut_RCHW


graph_roi_align.register_fake(
    lambda map, boxes, _, height, width, *__: map.new_empty(boxes.shape[0], map.shape[1], height, width)
)


def list_translations() -> dict[Callable[..., Any], Any]:
    """Return the ONNX versions of the operators, for `torch.onnx.export`."""
    from onnxscript import FLOAT, INT64
    from onnxscript import opset20 as op

    def nms_onnx(boxes: FLOAT, scores: FLOAT, iou_threshold: float) -> INT64:
        count = op.Squeeze(op.Shape(boxes, start=1, end=2))
        axis: Any = op.Constant(value_ints=[1])
        scores_of_class = op.Unsqueeze(scores, axis)
        thresholds: Any = [op.Constant(value_float=value) for value in (iou_threshold, NEVER / 2)]
        return op.NonMaxSuppression(boxes, scores_of_class, count, *thresholds)

    # Tensors have no annotations, which the exporter would read as a list of allowed types.
    def roi_align_onnx(  # type: ignore[no-untyped-def]
        map, boxes, image, height: int, width: int, scale: float, samples: int
    ):
        return op.RoiAlign(
            map,
            boxes,
            image,
            coordinate_transformation_mode='half_pixel',
            mode='avg',
            output_height=height,
            output_width=width,
            sampling_ratio=samples,
            spatial_scale=scale,
        )

    return {
        torch.ops.swin_deploy.nms.default: nms_onnx,
        torch.ops.swin_deploy.roi_align.default: roi_align_onnx,
    }
