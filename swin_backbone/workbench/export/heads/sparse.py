"""Sparse R-CNN: stages of heads refine learned proposals, without NMS.

Layout: B batch, N proposals of an image, R = B*N regions, C channels, K classes.
"""

from typing import Any

import torch
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy
from torch import Tensor, nn

from ..graph import make_refusal, require_class
from . import boxes


class SparseHead(boxes.Head):
    """The heads of mmdet's SparseRCNN."""

    def __init__(self, model: Any):
        super().__init__()
        roi = model.roi_head
        require_class(model.rpn_head, 'EmbeddingRPNHead')
        require_class(roi, 'SparseRoIHead')
        for head in roi.bbox_head:
            require_class(head, 'DIIHead')
        if roi.with_mask:
            raise make_refusal(f'{type(roi).__name__}.mask_head')
        self.proposals, self.stages = model.rpn_head, roi.bbox_head
        self.regions = nn.ModuleList(map(boxes.Regions, roi.bbox_roi_extractor))
        self.max_objects = roi.test_cfg.max_per_img

    def forward(self, maps: tuple[Tensor, ...], view: boxes.View) -> tuple[Tensor, ...]:
        centred_N4 = self.proposals.init_proposal_bboxes.weight
        start_N4 = bbox_cxcywh_to_xyxy(centred_N4) * view.image_size.flip(0).repeat(2)
        feature_NC = self.proposals.init_proposal_features.weight
        B, N = maps[0].shape[0], start_N4.shape[0]
        box_R4 = start_N4.expand(B, N, 4).flatten(0, 1)
        feature_BNC = feature_NC.expand(B, *feature_NC.shape)
        image_R = torch.arange(B, device=box_R4.device)[:, None].expand(B, N).flatten()
        for head, regions in zip(self.stages, self.regions):
            logits_BNK, deltas_BN4, feature_BNC, _ = head(regions(maps, box_R4, image_R), feature_BNC)
            box_R4 = boxes.decode_boxes(head.bbox_coder, box_R4, deltas_BN4.flatten(0, 1), view.image_size)
        uses_sigmoid = self.stages[-1].loss_cls.use_sigmoid
        scores_BNK = logits_BNK.sigmoid() if uses_sigmoid else logits_BNK.softmax(-1)[..., :-1]
        ranked = boxes.rank_pairs(scores_BNK, box_R4.unflatten(0, (B, N)), self.max_objects, view)
        return boxes.list_objects(*ranked)[:4]
