"""Mask2Former of mmseg (classes of pixels) and of mmdet (instances).

mmdet's pixel decoder stores the sizes of the maps in tensors, whose values an exporter would fix. Here they stay free:
see `compute_mask_features`.

Layout: B batch, C channels, H W height and width, T tokens of all levels, h heads, d channels of a head, P points of a
head and level, Q queries, K classes, N objects of an image.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph import make_refusal, require_class
from ..picture import crop
from .boxes import Head, View
from .layers import copy_for_graph, find_token_centres, flatten_maps, list_level_sizes


def compute_mask_features(decoder: Any, maps: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Compute mmdet's MSDeformAttnPixelDecoder.

    Returns:
        The map of mask features, and the maps for the queries' attention, from low resolution to high.
    """
    projected, positions = [], []
    for level, convolve in enumerate(decoder.input_convs):
        feature = maps[decoder.num_input_levels - level - 1]
        position = decoder.postional_encoding(torch.zeros_like(feature[:, 0], dtype=torch.bool))
        projected.append(convolve(feature))
        positions.append(position + decoder.level_encoding.weight[level].view(1, -1, 1, 1))
    x_BTC, position_BTC = flatten_maps(projected), flatten_maps(positions)
    sizes = list_level_sizes(projected)
    locations = find_token_centres(sizes, x_BTC.new_ones(1, len(sizes), 2))
    for layer in decoder.encoder.layers:
        x_BTC = layer(x_BTC, position_BTC, None, spatial_shapes=sizes, reference_points=locations)
    levels = x_BTC.transpose(1, 2).split([H * W for H, W in sizes], 2)
    outs = [level.unflatten(2, size) for level, size in zip(levels, sizes)]
    for index in range(decoder.num_input_levels - decoder.num_encoder_levels - 1, -1, -1):
        lateral = decoder.lateral_convs[index](maps[index])
        above = F.interpolate(outs[-1], size=lateral.shape[-2:], mode='bilinear', align_corners=False)
        outs.append(decoder.output_convs[index](lateral + above))
    return decoder.mask_feature(outs[-1]), outs[: decoder.num_outs]


def copy_query_head(head: Any) -> Any:
    """Copy Mask2FormerHead of mmdet or mmseg, with a pixel decoder for every size.

    Raises:
        ExportError: for a different decoder.
    """
    require_class(head.pixel_decoder, 'MSDeformAttnPixelDecoder')
    head = copy_for_graph(head)
    head.pixel_decoder.forward = partial(compute_mask_features, head.pixel_decoder)
    return head


def compute_logits(head: Any, maps: Sequence[Tensor], image_size: tuple[int, int]) -> Tensor:
    """Return mmseg's logits of classes from maps, at the size of the image."""
    (*_, classes_BQK), (*_, masks_BQHW) = head(list(maps), None)
    masks_BQHW = F.interpolate(masks_BQHW, size=image_size, mode='bilinear', align_corners=False)
    return torch.einsum('bqk,bqhw->bkhw', classes_BQK.softmax(-1)[..., :-1], masks_BQHW.sigmoid())


class InstanceHead(Head):
    """The head of mmdet's Mask2Former for instances."""

    with_masks = True

    def __init__(self, model: Any):
        super().__init__()
        fusion = model.panoptic_fusion_head
        if type(model.panoptic_head).__name__ != 'Mask2FormerHead' or not fusion.test_cfg.get('instance_on', False):
            raise make_refusal(type(model.panoptic_head).__name__, ('Mask2FormerHead with test_cfg.instance_on=True',))
        self.head = copy_query_head(model.panoptic_head)
        self.num_classes, self.num_things = fusion.num_classes, fusion.num_things_classes
        self.max_objects = fusion.test_cfg.get('max_per_image', 100)
        self.planes = model.panoptic_head.num_queries

    def forward(self, maps: Sequence[Tensor], view: View) -> tuple[Tensor, ...]:
        (*_, classes_BQK), (*_, masks_BQHW) = self.head(list(maps), None)
        masks = F.interpolate(masks_BQHW, size=view.padded, mode='bilinear', align_corners=False)
        inner, content = view.inner, view.content
        masks = masks[:, :, : inner[0], : inner[1]] if content is None else crop(masks, content)
        masks = F.interpolate(masks, size=view.picture_size, mode='bilinear', align_corners=False)
        B, Q = classes_BQK.shape[:2]
        scores_BM = classes_BQK.softmax(-1)[..., :-1].reshape(B, Q * self.num_classes)
        scores_BN, index_BN = scores_BM.topk(self.max_objects, dim=1)
        label_BN = index_BN % self.num_classes
        image_n, index_n = (label_BN < self.num_things).nonzero().unbind(1)
        flat_n = image_n * self.max_objects + index_n
        query_n = image_n * Q + index_BN.reshape(-1)[flat_n] // self.num_classes
        logits_nhw = masks.reshape(B * Q, *(view.picture_size or ()))[query_n]
        inside_nhw = logits_nhw > 0
        mask_score_n = (logits_nhw.sigmoid() * inside_nhw).sum((1, 2)) / (inside_nhw.sum((1, 2)) + 1e-6)
        score_n = scores_BN.reshape(-1)[flat_n] * mask_score_n
        box_n4 = find_boxes(inside_nhw)
        return image_n, box_n4, score_n, label_BN.reshape(-1)[flat_n], inside_nhw.to(torch.uint8)


def find_boxes(masks_nhw: Tensor) -> Tensor:
    """Return the boxes around masks, all 0 for an empty mask: (n, 4)."""
    ends = []
    for axis in (1, 2):  # columns and rows with a pixel
        filled_nL = masks_nhw.any(axis).to(torch.float32)
        position_L = torch.arange(filled_nL.shape[1], device=filled_nL.device).to(torch.float32)
        last_n = (filled_nL * (position_L + 1)).amax(1)
        first_n = filled_nL.shape[1] - (filled_nL * (filled_nL.shape[1] - position_L)).amax(1)
        ends.append((torch.minimum(first_n, last_n), last_n))
    (x1, x2), (y1, y2) = ends
    return torch.stack([x1, y1, x2, y2], 1)
