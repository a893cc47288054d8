"""Suppression of boxes that overlap a better one. Greedy order, ties and limits are mmcv's.

Letters: N boxes, sorted by falling score.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import providers
from .bags import widen
from .overlaps import compute_overlaps, find_rotated_corners, split_corners

Array = np.ndarray[Any, Any]

# Block size of the pairwise IoU matrix. Later boxes are compared only with the kept boxes of a block.
BOXES_OF_A_BLOCK = 192
# Block size of upright boxes on a GPU. A block costs a wait for the GPU, and a copy of 64 MiB.
BOXES_OF_A_COPY = 8192


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the kept boxes of (N, 4), best first: no kept box with a higher score overlaps them by more
    than the threshold.

    Args:
        offset: 1 for boxes with the last pixel, of width x2 - x1 + 1; 0 for width x2 - x1.
    """
    if not len(boxes):
        return torch.empty(0, dtype=torch.long, device=boxes.device)
    order = scores.sort(0, descending=True)[1]  # torch's order of equal scores, as mmcv
    if providers.library_takes(boxes, (*providers.LIBRARY_DTYPES, torch.float16)):
        from ...kernels.detection import regions

        return regions.keep_boxes(boxes.float(), order, iou_threshold, offset)
    if not offset and boxes.is_cuda and providers.torchvision_takes('nms', boxes):
        return torch.ops.torchvision.nms(widen(boxes), widen(scores), iou_threshold)

    def overlaps(better: Tensor, worse: Tensor) -> Tensor:
        return iou(better.t()[:, :, None], worse.t(), offset) > iou_threshold

    block = BOXES_OF_A_BLOCK if boxes.device.type == 'cpu' else BOXES_OF_A_COPY
    return order[_suppress(widen(boxes)[order], overlaps, block)]


def _suppress(boxes_N: Tensor, overlaps: Callable[[Tensor, Tensor], Tensor], block: int = BOXES_OF_A_BLOCK) -> Tensor:
    """Return the indices of the kept boxes. The boxes are sorted by falling score."""
    kept = []
    rest = torch.arange(len(boxes_N), device=boxes_N.device)
    while len(rest):
        head, rest = rest[:block], rest[block:]
        better = boxes_N[head].split(BOXES_OF_A_BLOCK)  # a block's numbers take less memory
        head = head[_keep_in_block(torch.cat([overlaps(block, boxes_N[head]) for block in better]))]
        kept.append(head)
        if len(rest):
            rest = rest[~overlaps(boxes_N[head], boxes_N[rest]).any(0)]
    return torch.cat(kept)


def _keep_in_block(overlap_NN: Tensor) -> Tensor:
    """Return the indices of the kept boxes of a block. The loop reads a copy: each read of a GPU would wait for it."""
    overlap = overlap_NN.cpu().numpy()
    suppressed = np.zeros(len(overlap), bool)
    kept = []
    for box in range(len(overlap)):
        if not suppressed[box]:
            kept.append(box)
            suppressed |= overlap[box]
    return torch.tensor(kept, device=overlap_NN.device)


def iou(a: Any, b: Any, offset: int, library: Any = torch) -> Any:
    """Return intersection over union of boxes, two arrays x1, y1, x2, y2 of `library` that broadcast."""
    width = (library.minimum(a[2], b[2]) - library.maximum(a[0], b[0]) + offset).clip(min=0)
    height = (library.minimum(a[3], b[3]) - library.maximum(a[1], b[1]) + offset).clip(min=0)
    area_a, area_b = ((box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b))
    shared = width * height
    return shared / (area_a + area_b - shared)


@np.errstate(all='ignore')  # boxes without an area, and numbers that are not finite
def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Lower the scores of boxes that overlap a chosen box, and drop boxes below `min_score` (Soft-NMS).

    Args:
        dets: (N, 5), receives the chosen boxes with the scores of their choice.
        method: 0 sets the score to 0, 1 multiplies by 1 - IoU, from `iou_threshold` on; 2 multiplies by
            exp(-IoU^2 / sigma).

    Returns:
        Indices of the chosen boxes, in the order of the choice.
    """
    boxes_5N = _make_columns(torch.cat([boxes, scores[:, None]], 1))  # in a loop numpy takes a third of torch's time
    index = np.arange(len(boxes))
    size = len(boxes)
    chosen = 0
    while chosen < size:
        # As in mmcv, the first of equal scores is chosen, and the chosen box changes places with the first of the rest.
        # NaN, the score of a box without an area, is chosen if it is the first: no score is greater.
        candidates = boxes_5N[4, chosen:size]
        best = chosen
        if not np.isnan(candidates[0]):
            best += int(np.where(np.isnan(candidates), -np.inf, candidates).argmax())
        boxes_5N[:, [chosen, best]], index[[chosen, best]] = boxes_5N[:, [best, chosen]], index[[best, chosen]]
        rest = slice(chosen + 1, size)
        overlap = iou(boxes_5N[:4, chosen], boxes_5N[:4, rest], offset, np)
        if method == 2:
            weight = np.exp(-(overlap * overlap) / np.float32(sigma))
        else:
            lower = 1 - overlap if method == 1 else np.float32(0)
            weight = np.where(overlap >= np.float32(iou_threshold), lower, np.float32(1))
        boxes_5N[4, rest] *= weight
        size = _drop(boxes_5N, index, chosen + 1, size, min_score)
        chosen += 1
    dets[:size] = torch.from_numpy(boxes_5N[:, :size].T)
    return torch.from_numpy(index[:size])


def _drop(boxes_5N: Array, index: Array, begin: int, end: int, min_score: float) -> int:
    """Replace each dropped box by the last kept box, and return the new number of boxes."""
    stays = ~(boxes_5N[4, begin:end] < np.float32(min_score))
    size = begin + int(stays.sum())
    holes = begin + np.flatnonzero(~stays[: size - begin])
    last = size + np.flatnonzero(stays[size - begin :])[::-1]
    boxes_5N[:, holes], index[holes] = boxes_5N[:, last], index[last]
    return size


@np.errstate(all='ignore')
def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Return groups of (N, 5) boxes with scores: a kept box, then its suppressed boxes by falling score. A box is
    suppressed from the threshold on."""
    order = dets[:, 4].sort(0, descending=True)[1]
    boxes = _make_columns(dets[order, :4])
    rest = order.numpy()
    groups = []
    while len(rest):
        near = iou(boxes[:, 0], boxes, 0, np) >= np.float32(iou_threshold)
        near[0] = True
        groups.append(rest[near].tolist())
        boxes, rest = boxes[:, ~near], rest[~near]
    return groups


def _make_columns(rows: Tensor) -> Array:
    """Return the columns of a tensor (N, C), as float32 (C, N)."""
    return rows.detach().float().t().contiguous().numpy()


def nms_rotated(
    dets: Tensor,
    scores: Tensor,
    order: Tensor,
    dets_sorted: Tensor,
    labels: Tensor,
    iou_threshold: float,
    multi_label: int,
) -> Tensor:
    """Return `nms` of (N, 5) rotated boxes; `dets_sorted` has the boxes by falling score, `order` the indices.

    As in mmcv, a CPU suppresses at the threshold and above, a GPU above the threshold. With `multi_label` the last
    column is the label, and a GPU compares only boxes of equal labels.
    """
    return order[_keep_rotated(widen(dets_sorted), find_rotated_corners, iou_threshold, multi_label)]


def nms_quadri(
    dets: Tensor, scores: Tensor, order: Tensor, dets_sorted: Tensor, iou_threshold: float, multi_label: int
) -> Tensor:
    """Return `nms_rotated` of (N, 8) quadrilaterals x1, y1, ..., y4; the label is the last column."""
    return order[_keep_rotated(widen(dets_sorted), split_corners, iou_threshold, multi_label)]


def _keep_rotated(boxes: Tensor, corners: Callable[[Tensor], Tensor], threshold: float, multi_label: int) -> Tensor:
    on_cpu = boxes.device.type == 'cpu'

    def overlaps(better: Tensor, worse: Tensor) -> Tensor:
        overlap_NM = compute_overlaps(corners(better)[:, None], corners(worse))
        near = overlap_NM >= threshold if on_cpu else overlap_NM > threshold
        if multi_label and not on_cpu:
            near &= better[:, None, -1] == worse[:, -1]
        return near

    return _suppress(boxes, overlaps)
