"""mmdet's SingleRoIExtractor with this package's RoIAlign on a CPU.

Letters: B images, C channels, H W height and width of a map; R regions, I and J bins down and across.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from mmcv.ops import RoIAlign
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor as OfMMDet
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...compat import hidden_from_compiler
from ..mmcv_ops.roi import roi_align_backward, roi_align_forward

MEAN = 1  # mmcv's number of the pool mode


class SingleRoIExtractor(OfMMDet):
    """mmdet's extractor: cuts each region from the pyramid level for its size.

    mmdet rounds the corners of regions to the dtype of the maps: in bfloat16 by up to 4 pixels at 1333. Here corners
    are not rounded. On a CPU this package's RoIAlign computes, with all threads and in bfloat16.
    """

    def forward(self, feats: Sequence[Tensor], rois: Tensor, roi_scale_factor: Optional[float] = None) -> Tensor:
        """Return the features (R, C, I, J) of regions, in the dtype of the maps.

        Args:
            feats: maps (B, C, H, W), from the finest level.
            rois: (R, 5): index of an image, x1, y1, x2, y2 in pixels of the image.
            roi_scale_factor: growth of regions around their centres, after levels are chosen.
        """
        layers = list(self.roi_layers)[: len(feats)]
        if feats[0].device.type != 'cpu' or any(
            type(layer) is not RoIAlign or layer.pool_mode != 'avg' for layer in layers
        ):
            return super().forward(feats, rois, roi_scale_factor)
        if len(feats) == 1:
            levels_R = rois.new_zeros(len(rois), dtype=torch.long)
        else:
            levels_R = self.map_roi_levels(rois, len(feats))
            if roi_scale_factor is not None:
                rois = self.roi_rescale(rois, roi_scale_factor)
        settings = [
            (*layer.output_size, layer.spatial_scale, layer.sampling_ratio, MEAN, layer.aligned) for layer in layers
        ]
        return align_by_level(feats, rois, levels_R, settings)


@hidden_from_compiler  # the numbers of regions are known only at run time
def align_by_level(feats: Sequence[Tensor], rois_R5: Tensor, levels_R: Tensor, settings: list[Any]) -> Tensor:
    """Return the features (R, C, I, J) of regions, each from the map of its level; `settings` belong to the maps."""
    levels_R, order_R = levels_R.sort(stable=True)
    counts = torch.bincount(levels_R, minlength=len(feats)).tolist()
    sorted_RCIJ = _RoIAlign.apply(rois_R5[order_R], counts, settings, *feats)  # type: ignore[no-untyped-call]
    return sorted_RCIJ[order_R.argsort()]


class _RoIAlign(torch.autograd.Function):
    """Mean RoIAlign of regions sorted by level.

    `counts` are the numbers of regions of each level, `settings` the arguments of mmcv's operator after the tensors.
    """

    @staticmethod
    def forward(ctx: Any, rois_R5: Tensor, counts: list[int], settings: list[Any], *maps: Tensor) -> Tensor:
        ctx.save_for_backward(rois_R5)
        ctx.counts = counts
        ctx.settings = settings
        ctx.maps = [(x.shape, x.stride(), x.dtype) for x in maps]
        pooled_RCIJ = maps[0].new_empty(len(rois_R5), maps[0].shape[1], *settings[0][:2])
        none = maps[0].new_empty(0)
        levels = zip(maps, rois_R5.split(counts), pooled_RCIJ.split(counts), settings)
        for map_BCHW, level_rois_R5, level_pooled_RCIJ, setting in levels:
            roi_align_forward(map_BCHW, level_rois_R5, level_pooled_RCIJ, none, none, *setting)
        return pooled_RCIJ

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RCIJ: Tensor) -> Any:
        (rois_R5,) = ctx.saved_tensors
        grad_RCIJ = grad_RCIJ.contiguous()
        none = grad_RCIJ.new_empty(0)
        grads = []
        levels = zip(ctx.maps, rois_R5.split(ctx.counts), grad_RCIJ.split(ctx.counts), ctx.settings)
        for (shape, stride, dtype), level_rois_R5, level_grad_RCIJ, setting in levels:
            grad_BCHW = torch.empty_strided(shape, stride, dtype=dtype, device=grad_RCIJ.device).zero_()
            roi_align_backward(level_grad_RCIJ, level_rois_R5, none, none, grad_BCHW, *setting)
            grads.append(grad_BCHW)
        return None, None, None, *grads
