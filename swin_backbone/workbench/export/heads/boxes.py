"""Boxes on batches of any size: priors, decoding, top-k by level, NMS, regions on a feature pyramid.

Layout: B batch, M boxes, K classes, R regions, n objects, C channels, H W height and width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from mmengine.config import ConfigDict
from torch import Tensor, nn

from ....openmmlab.config_parts import type_name
from ....sizes import Size
from ..graph import make_refusal, require_class
from ..picture import Content
from .operators import NEVER, graph_nms, graph_roi_align


class View(NamedTuple):
    """The sizes of a picture in the graph.

    Args:
        image_size: height and width after the resize, without padding, (2,).
        zoom_4: a box of the resized picture, divided by `zoom_4`, is a box of the original picture.
        padded, inner: height and width of the padded image, and without padding, maybe symbolic.
        picture_size: height and width of the original picture, for pasting of masks. None: no masks.
        content: the place of the content in a letterboxed picture. None: not letterboxed.
    """

    image_size: Tensor
    zoom_4: Tensor
    padded: Size
    inner: Size
    picture_size: Optional[Size]
    content: Optional[Content] = None


class Head(nn.Module):
    """Turns the maps of a detector into objects, in pixels of the original picture.

    Subclasses take a detector, and raise an ExportError for an unsupported part.

    Attributes:
        with_masks: whether objects have masks.
        planes: the largest number of masks of the picture's size.
        batch_size: the only batch size; None: any.
        max_objects: the largest number of objects; None: any.
    """

    with_masks = False
    planes = 1
    batch_size: Optional[int] = None
    max_objects: Any = None


def require_nms(cfg: ConfigDict) -> None:
    """Raise an ExportError unless `suppress` computes this NMS."""
    if type_name({'type': 'nms', **cfg}) != 'nms':
        raise make_refusal(f"nms.type={cfg.type!r} (--cfg-options sets it to 'nms', which changes the scores)")


def decode_boxes(coder: Any, boxes: Tensor, deltas: Tensor, image_size: Tensor) -> Tensor:
    """Move boxes (R, 4) by a head's deltas (R, 4 * K), and clip boxes to the image with `clip_border`: (R, 4 * K).

    Args:
        image_size: height and width, (2,). The coder itself takes numbers.
    """
    moved: Tensor = coder.decode(boxes, deltas)
    return clip(moved, image_size) if coder.clip_border else moved


def clip(boxes: Tensor, image_size: Tensor) -> Tensor:
    """Clip boxes (..., 4 * K) to the image."""
    limit = image_size.flip(0).to(boxes.dtype).repeat(boxes.shape[-1] // 2)
    return torch.minimum(boxes.clamp(min=0), limit)


def find_best(scores_BM: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return up to `count` scores of every image, best first, and the indices."""
    return scores_BM.topk(torch.sym_min(count, scores_BM.shape[1]), dim=1)


def take_rows(x_BMX: Tensor, index_BN: Tensor) -> Tensor:
    """Take some rows of every image: (B, N, X)."""
    return x_BMX.gather(1, index_BN[..., None].expand(-1, -1, x_BMX.shape[-1]))


def suppress(
    boxes_BM4: Tensor,
    scores_BM: Tensor,
    label_BM: Tensor,
    nms_cfg: ConfigDict,
    count: Optional[int],
    min_side: float = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Suppress boxes that overlap a better box of the label (NMS), and boxes with the score NEVER.

    Boxes of different labels are moved apart, like in mmcv's batched_nms, without `class_agnostic`.

    Args:
        count: the largest number of boxes; None: all.
        min_side: boxes with a side of at most `min_side` are suppressed (mmdet's `min_bbox_size`).

    Returns:
        Scores (B, count), best first, with NEVER after the last; boxes, labels, and the indices of the boxes.
    """
    B, M = scores_BM.shape
    count = M if count is None else count
    if min_side >= 0:
        is_large_BM = (boxes_BM4[..., 2:] - boxes_BM4[..., :2] > min_side).all(-1)
        scores_BM = torch.where(is_large_BM, scores_BM, NEVER)
    moved_BM4 = boxes_BM4
    if not nms_cfg.get('class_agnostic', False):
        apart_B11 = boxes_BM4.flatten(1).amax(1)[:, None, None] + 1
        moved_BM4 = boxes_BM4 + label_BM[..., None].to(boxes_BM4.dtype) * apart_B11
    kept_n3 = graph_nms(moved_BM4, scores_BM, nms_cfg.iou_threshold)
    flat_n = kept_n3[:, 0] * M + kept_n3[:, 2]
    # topk needs at least `count` scores
    is_kept = torch.zeros_like(scores_BM).flatten().index_fill(0, flat_n, 1.0).view(B, M)
    final_BM = torch.where(is_kept > 0, scores_BM, NEVER)
    final_BM = torch.cat([final_BM, torch.full_like(final_BM[:, :1], NEVER).expand(-1, count)], 1)
    scores_BN, index_BN = final_BM.topk(count, dim=1)
    index_BN = torch.where(scores_BN > NEVER, index_BN, 0)
    return scores_BN, take_rows(boxes_BM4, index_BN), label_BM.gather(1, index_BN), index_BN


class Regions(nn.Module):
    """mmdet's SingleRoIExtractor: the size of a region decides the level of the pyramid.

    Raises:
        ExportError: for a different extractor.
    """

    def __init__(self, extractor: Any):
        super().__init__()
        require_class(extractor, 'SingleRoIExtractor')
        for layer in extractor.roi_layers:
            require_class(layer, 'RoIAlign')
            if layer.pool_mode != 'avg' or not layer.aligned:
                raise make_refusal('RoIAlign with aligned=False or of mode max')
        self.extractor = extractor

    def forward(self, maps: Sequence[Tensor], box_R4: Tensor, image_R: Tensor) -> Tensor:
        """Return the features of regions (R, C, height, width) of the maps of a pyramid."""
        layers = self.extractor.roi_layers
        region_R5 = torch.cat([image_R[:, None].to(box_R4.dtype), box_R4], 1)
        level_R = self.extractor.map_roi_levels(region_R5, len(layers))
        indices, cuts = [], []
        for level, (map_BCHW, aligned) in enumerate(zip(maps, layers)):
            index = (level_R == level).nonzero()[:, 0]
            indices.append(index)
            height, width = aligned.output_size
            cut = graph_roi_align(
                map_BCHW, box_R4[index], image_R[index], height, width, aligned.spatial_scale, aligned.sampling_ratio
            )
            cuts.append(cut)
        cut_RCHW = torch.cat(cuts)
        return cut_RCHW.new_zeros(box_R4.shape[0], *cut_RCHW.shape[1:]).index_copy(0, torch.cat(indices), cut_RCHW)


def list_objects(scores_BN: Tensor, boxes_BN4: Tensor, labels_BN: Tensor) -> tuple[Tensor, ...]:
    """Return the remaining objects of all images: image, boxes, scores, labels, and the places of B * N."""
    image_n, index_n = (scores_BN > NEVER).nonzero().unbind(1)
    N = scores_BN.shape[1]
    flat_n = image_n * N + index_n
    return (
        image_n,
        boxes_BN4.reshape(-1, 4)[flat_n],
        scores_BN.reshape(-1)[flat_n],
        labels_BN.reshape(-1)[flat_n],
        flat_n,
    )


def rank_pairs(scores_BQK: Tensor, boxes_BQ4: Tensor, count: int, view: View) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` best pairs of query and class by image: scores, boxes of the original picture, labels."""
    B, Q, K = scores_BQK.shape
    scores_BN, index_BN = scores_BQK.reshape(B, Q * K).topk(count, dim=1)
    boxes_BN4 = take_rows(boxes_BQ4, index_BN // K) / view.zoom_4
    return scores_BN, boxes_BN4, index_BN % K


def paste(mask_nYX: Tensor, boxes_n4: Tensor, height: int, width: int) -> Tensor:
    """Paste the masks of boxes into a picture by bilinear interpolation: (n, height, width), 0 outside the boxes.

    Bilinear interpolation is a matrix product along every axis, with weights max(0, 1 - distance).
    """
    Y, X = mask_nYX.shape[-2:]
    rows_nhY = _weigh_cells(height, boxes_n4[:, 1], boxes_n4[:, 3], Y)
    columns_nwX = _weigh_cells(width, boxes_n4[:, 0], boxes_n4[:, 2], X)
    return rows_nhY @ mask_nYX @ columns_nwX.transpose(1, 2)


def _weigh_cells(length: int, start_n: Tensor, end_n: Tensor, cells: int) -> Tensor:
    """Return the weights of a box's cells at the pixels of an axis: (n, length, cells)."""
    pixel_L = torch.arange(length, device=start_n.device).to(start_n.dtype) + 0.5
    inside_nL = (pixel_L - start_n[:, None]) / (end_n - start_n)[:, None] * cells - 0.5
    cell_Y = torch.arange(cells, device=start_n.device).to(start_n.dtype)
    weight = (1 - (inside_nL[..., None] - cell_Y).abs()).clamp(min=0)
    return torch.where(torch.isfinite(inside_nL)[..., None], weight, 0)


def list_priors(x_BCHW: Tensor, values: int) -> Tensor:
    """Return the outputs of a convolution by anchor: (B, M, values)."""
    x_BHWC = x_BCHW.permute(0, 2, 3, 1)
    B, H, W, C = x_BHWC.shape
    return x_BHWC.reshape(B, H * W * (C // values), values)
