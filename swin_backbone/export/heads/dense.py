"""One-stage detectors: RetinaNet, ATSS.

Layout: B batch, M anchors, K classes, N candidates.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..graph import refusal
from . import boxes

HEADS = ('RetinaHead', 'ATSSHead')  # the tests export and verify these


class DenseHead(nn.Module):
    """Turns maps into objects, in pixels of the original picture.

    Args:
        model: mmdet's SingleStageDetector.

    Raises:
        ExportError: for a head that cannot be exported.
    """

    with_masks = False
    planes = 1

    def __init__(self, model: Any):
        super().__init__()
        head, cfg = model.bbox_head, model.bbox_head.test_cfg
        if type(head).__name__ not in HEADS or not head.use_sigmoid_cls:
            raise refusal(type(head).__name__, HEADS)
        boxes.check_nms(cfg.nms)
        boxes.check_coder(head.bbox_coder)
        self.head, self.cfg, self.most = head, cfg, cfg.max_per_img

    def forward(self, maps: tuple[Tensor, ...], image_size: Tensor, zoom_4: Tensor) -> tuple[Tensor, ...]:
        """
        Args:
            image_size: height and width without padding, (2,).
            zoom_4: divides a box of the resized picture to give one of the original picture.
        """
        head, cfg = self.head, self.cfg
        outputs = head(maps)
        levels = zip(*outputs, boxes.priors(head.prior_generator, outputs[0]))
        parts = []
        for scores_BCHW, deltas_BCHW, *centerness, prior_M4 in levels:
            scores_BMK = boxes.per_prior(scores_BCHW, head.cls_out_channels).sigmoid()
            deltas_BM4 = boxes.per_prior(deltas_BCHW, 4)
            B, M, K = scores_BMK.shape
            clear = torch.where(scores_BMK > cfg.score_thr, scores_BMK, boxes.NEVER).reshape(B, M * K)
            scores_BN, index_BN = boxes.best(clear, cfg.get('nms_pre', 1000))
            anchor_BN, label_BN = index_BN // K, index_BN % K
            found_BN4 = boxes.decode(
                head.bbox_coder, prior_M4[anchor_BN], boxes.take(deltas_BM4, anchor_BN), image_size
            )
            if centerness:
                factor_BM1 = boxes.per_prior(centerness[0], 1).sigmoid()
                weighed_BN = scores_BN * boxes.take(factor_BM1, anchor_BN)[..., 0]
                scores_BN = torch.where(scores_BN > boxes.NEVER, weighed_BN, boxes.NEVER)
            parts.append((scores_BN, found_BN4 / zoom_4, label_BN))
        scores_BN, found_BN4, label_BN = (torch.cat(part, 1) for part in zip(*parts))
        scores_BN, index_BN = boxes.suppress_large(cfg, found_BN4, scores_BN, label_BN)
        found_BN4, label_BN = boxes.take(found_BN4, index_BN), label_BN.gather(1, index_BN)
        return boxes.objects(scores_BN, found_BN4, label_BN)
