"""Two-stage detectors: Faster, Mask, Cascade and Cascade Mask R-CNN, and HTC.

Layout: B batch, M anchors, N proposals of an image, R = B*N regions, K classes, n objects, H W height and width.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..graph import make_refusal, require_class
from . import boxes
from .operators import NEVER

ROI_HEADS = ('StandardRoIHead', 'CascadeRoIHead', 'HybridTaskCascadeRoIHead')  # verified in the tests
BOX_HEADS = ('Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead', 'ConvFCBBoxHead')
MASK_HEADS = ('FCNMaskHead', 'HTCMaskHead')


class RegionHead(boxes.Head):
    """The heads of mmdet's TwoStageDetector."""

    def __init__(self, model: Any):
        super().__init__()
        rpn, roi = model.rpn_head, model.roi_head
        self.stages = _make_module_list(roi.bbox_head)
        self.with_masks = roi.with_mask
        self.mask_heads = _make_module_list(roi.mask_head) if self.with_masks else nn.ModuleList()
        require_class(rpn, 'RPNHead')
        require_class(roi, *ROI_HEADS)
        for heads, names in ((self.stages, BOX_HEADS), (self.mask_heads, MASK_HEADS)):
            for head in heads:
                require_class(head, *names)
        if getattr(roi, 'with_shared_head', False) or any(stage.custom_activation for stage in self.stages):
            raise make_refusal('a head shared by stages, or with an activation of its own,')
        for cfg in (rpn.test_cfg.nms, roi.test_cfg.nms):
            boxes.require_nms(cfg)
        self.rpn, self.cfg, self.max_objects = rpn, roi.test_cfg, roi.test_cfg.max_per_img
        self.planes = self.max_objects if self.with_masks else 1  # of the picture's size
        self.regions = nn.ModuleList(map(boxes.Regions, _make_module_list(roi.bbox_roi_extractor)))
        if self.with_masks:
            shared = getattr(roi, 'share_roi_extractor', False)
            extractors = roi.bbox_roi_extractor if shared else roi.mask_roi_extractor
            self.mask_regions = nn.ModuleList(map(boxes.Regions, _make_module_list(extractors)))
        self.is_htc = type(roi).__name__ == 'HybridTaskCascadeRoIHead'
        self.semantic = roi.semantic_head if self.is_htc and roi.with_semantic else None
        if self.semantic is not None:
            self.semantic_regions = boxes.Regions(roi.semantic_roi_extractor)
        self.fusion = roi.semantic_fusion if self.semantic is not None else ()
        self.passes_on = self.is_htc and roi.mask_info_flow  # a mask head takes the features of the previous mask head

    def forward(self, maps: tuple[Tensor, ...], view: boxes.View) -> tuple[Tensor, ...]:
        proposals_BN4, is_valid_BN = self._propose(maps, view.image_size)
        semantic = None if self.semantic is None else self.semantic(maps)[1]
        scores_BNK, boxes_BNK4 = self._refine(maps, semantic, proposals_BN4, view.image_size)
        B, N, K = scores_BNK.shape
        scores_BNK = torch.where(is_valid_BN[..., None] & (scores_BNK > self.cfg.score_thr), scores_BNK, NEVER)
        if not self.with_masks:
            boxes_BNK4 = boxes_BNK4 / view.zoom_4
        boxes_BM4 = boxes_BNK4.expand(B, N, K, 4).reshape(B, N * K, 4)
        label_BM = torch.arange(K, device=scores_BNK.device).expand(B, N, K).reshape(B, N * K)
        kept = boxes.suppress(boxes_BM4, scores_BNK.reshape(B, N * K), label_BM, self.cfg.nms, self.cfg.max_per_img)
        image_n, box_n4, score_n, label_n, _ = boxes.list_objects(*kept[:3])
        if not self.with_masks:
            return image_n, box_n4, score_n, label_n
        masks_nYX = self._compute_masks(maps, semantic, box_n4, image_n, label_n)
        box_n4 = box_n4 / view.zoom_4
        pasted_nhw = boxes.paste(masks_nYX, box_n4, *(view.picture_size or ()))
        return image_n, box_n4, score_n, label_n, (pasted_nhw >= self.cfg.mask_thr_binary).to(torch.uint8)

    def _propose(self, maps: Sequence[Tensor], image_size: Tensor) -> tuple[Tensor, Tensor]:
        """Return proposals (B, N, 4), and True for valid proposals: (B, N)."""
        rpn, cfg = self.rpn, self.rpn.test_cfg
        outputs = rpn(maps)
        sizes = [tuple(level.shape[-2:]) for level in outputs[0]]
        priors = rpn.prior_generator.grid_priors(sizes, dtype=torch.float32, device=image_size.device)
        by_level = []
        for level, (score, delta, prior_M4) in enumerate(zip(*outputs, priors)):
            scores_BMK = boxes.list_priors(score, rpn.cls_out_channels)
            scores_BM = scores_BMK[..., 0].sigmoid() if rpn.use_sigmoid_cls else scores_BMK.softmax(-1)[..., 0]
            scores_BN, index_BN = boxes.find_best(scores_BM, cfg.nms_pre)
            deltas_BN4 = boxes.take_rows(boxes.list_priors(delta, 4), index_BN)
            by_level.append((scores_BN, prior_M4[index_BN], deltas_BN4, torch.full_like(index_BN, level)))
        scores_BM, prior_BM4, deltas_BM4, level_BM = (torch.cat(tensors, 1) for tensors in zip(*by_level))
        boxes_R4 = boxes.decode_boxes(rpn.bbox_coder, prior_BM4.flatten(0, 1), deltas_BM4.flatten(0, 1), image_size)
        boxes_BM4 = boxes_R4.view_as(deltas_BM4)
        min_side = cfg.get('min_bbox_size', -1)
        kept = boxes.suppress(boxes_BM4, scores_BM, level_BM, cfg.nms, cfg.max_per_img, min_side)
        return kept[1], kept[0] > NEVER

    def _refine(
        self, maps: Sequence[Tensor], semantic: Optional[Tensor], boxes_BN4: Tensor, image_size: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, N, K) and boxes (B, N, K or 1, 4) of proposals, after all stages."""
        B, N, _ = boxes_BN4.shape
        image_R = torch.arange(B, device=boxes_BN4.device)[:, None].expand(B, N).reshape(B * N)
        box_R4 = boxes_BN4.reshape(B * N, 4)
        sum_RK: Any = 0
        for stage, (head, regions) in enumerate(zip(self.stages, self.regions)):
            features = self._fuse('bbox', regions(maps, box_R4, image_R), semantic, box_R4, image_R)
            logits_RK, deltas = head(features)
            sum_RK = sum_RK + logits_RK
            num_boxes = 1 if head.reg_class_agnostic else int(head.num_classes)  # type: ignore[arg-type]
            boxes_RK4 = boxes.decode_boxes(head.bbox_coder, box_R4, deltas, image_size).unflatten(1, (num_boxes, 4))
            if stage < len(self.stages) - 1:
                label_R = torch.zeros_like(image_R) if num_boxes == 1 else logits_RK[:, :-1].argmax(1)
                box_R4 = boxes.take_rows(boxes_RK4, label_R[:, None])[:, 0]
        scores_RK = (sum_RK / len(self.stages)).softmax(-1)[:, :-1]
        return scores_RK.reshape(B, N, -1), boxes_RK4.reshape(B, N, num_boxes, 4)

    def _fuse(self, kind: str, features: Tensor, semantic: Optional[Tensor], box_R4: Tensor, image_R: Tensor) -> Tensor:
        """Add the features of HTC's semantic map to the features of regions."""
        if semantic is None or kind not in self.fusion:
            return features
        semantic_features = self.semantic_regions([semantic], box_R4, image_R)
        return features + F.adaptive_avg_pool2d(semantic_features, (features.shape[-2], features.shape[-1]))

    def _compute_masks(
        self, maps: Sequence[Tensor], semantic: Optional[Tensor], box_n4: Tensor, image_n: Tensor, label_n: Tensor
    ) -> Tensor:
        """Return the masks of objects inside the boxes, from 0 to 1: (n, Y, X)."""
        if torch.compiler.is_exporting():
            torch._check(label_n.shape[0] >= 1)  # for batch norms; the graph is right without objects too
        total: Any = 0
        features = passed = None
        for index, head in enumerate(self.mask_heads):
            if features is None or (len(self.mask_regions) > 1 and not self.is_htc):
                regions = self.mask_regions[-1 if self.is_htc else min(index, len(self.mask_regions) - 1)]
                features = self._fuse('mask', regions(maps, box_n4, image_n), semantic, box_n4, image_n)
            logits: Any = head(features, passed) if self.passes_on else head(features)
            logits, passed = (logits, None) if isinstance(logits, Tensor) else logits
            masks_nKYX = logits.sigmoid()
            place_n = torch.arange(label_n.shape[0], device=label_n.device)
            mask = masks_nKYX[:, 0] if head.class_agnostic else masks_nKYX[place_n, label_n]
            total = mask if self.is_htc else total + mask  # HTC uses only the last mask, like in mmdet
        mean: Tensor = total if self.is_htc else total / len(self.mask_heads)
        return mean


def _make_module_list(modules: Any) -> nn.ModuleList:
    return modules if isinstance(modules, nn.ModuleList) else nn.ModuleList([modules])
