"""One-stage detectors: mmdet's dense heads with decoded boxes and NMS.

The head's own code decodes the boxes. The code takes a single image, so the batch is folded into a tall image. Only the
choice of the best boxes is replaced, because the number of boxes above a score depends on the data.

Layout: B batch, M priors, K classes, N candidates, C channels, H W height and width, n objects, P prototypes.
"""

from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph import make_refusal
from . import boxes
from .layers import copy_for_graph
from .operators import NEVER

CHOICE = 'filter_scores_and_topk'  # mmdet's function for the choice of boxes


class DenseHead(boxes.Head):
    """The head of mmdet's SingleStageDetector."""

    def __init__(self, model: Any):
        from mmdet.models.dense_heads import RTMDetInsHead, TOODHead, YOLOXHead
        from mmdet.models.dense_heads.base_dense_head import BaseDenseHead

        super().__init__()
        self.head: Any = copy_for_graph(model.bbox_head)
        cls = type(self.head)
        self.with_masks = isinstance(self.head, RTMDetInsHead)
        self.is_yolox = isinstance(self.head, YOLOXHead)
        if not self.with_masks and not self.is_yolox:
            for method in ('predict_by_feat', '_bbox_post_process'):
                if getattr(cls, method, None) is not getattr(BaseDenseHead, method):
                    raise make_refusal(f'{cls.__name__}.{method}, which differs from that of BaseDenseHead,')
            if CHOICE not in cls._predict_by_feat_single.__code__.co_names:
                raise make_refusal(f'{cls.__name__}._predict_by_feat_single, which does not call {CHOICE},')
        self.cfg: Any = self.head.test_cfg
        boxes.require_nms(self.cfg.nms)
        self.batch_size = 1 if isinstance(self.head, TOODHead) else None  # TOODHead.forward counts the images in Python
        self.max_objects = self.cfg.get('max_per_img')
        if self.with_masks:
            self.planes = self.max_objects or 1

    def forward(self, maps: tuple[Tensor, ...], view: boxes.View) -> tuple[Tensor, ...]:
        outputs = self.head(maps)
        candidates = self._decode_yolox(*outputs) if self.is_yolox else self._decode(outputs, view.image_size)
        min_side = self.cfg.get('min_bbox_size', -1)
        boxes_BN4 = candidates.bboxes / view.zoom_4
        scores_BN, boxes_BN4, label_BN, index_BN = boxes.suppress(
            boxes_BN4, candidates.scores, candidates.labels, self.cfg.nms, self.max_objects, min_side
        )
        image_n, box_n4, score_n, label_n, chosen_n = boxes.list_objects(scores_BN, boxes_BN4, label_BN)
        if not self.with_masks:
            return image_n, box_n4, score_n, label_n
        kernel_nC, prior_n4 = (
            boxes.take_rows(rows, index_BN).flatten(0, 1)[chosen_n] for rows in (candidates.kernels, candidates.priors)
        )
        masks = self._compute_masks(outputs[-1], image_n, kernel_nC, prior_n4, view)
        return image_n, box_n4, score_n, label_n, masks

    def _decode(self, outputs: Any, image_size: Tensor) -> Any:
        """Return the candidates by image, from the head's own method: bboxes (B, N, 4), scores and labels (B, N)."""
        head = self.head
        B = outputs[0][0].shape[0]
        counts: list[Any] = []  # candidates by level

        def choose(scores: Tensor, threshold: float, count: int, rows: dict[str, Tensor]) -> tuple[Any, ...]:
            M, K = scores.shape[0] // B, scores.shape[1]
            counted_BM = torch.where(scores > threshold, scores, NEVER).reshape(B, M * K)
            scores_BN, index_BN = boxes.find_best(counted_BM, count if count > 0 else M * K)
            counts.append(index_BN.shape[1])
            first_B1 = torch.arange(B, device=scores.device)[:, None] * M
            row = (index_BN // K + first_B1).flatten()
            return (
                scores_BN.flatten(),
                (index_BN % K).flatten(),
                row,
                {name: values[row] for name, values in rows.items()},
            )

        def split_by_image(x: Tensor) -> Tensor:
            levels = x.split([B * count for count in counts])
            return torch.cat([level.unflatten(0, (B, count)) for level, count in zip(levels, counts)], 1)

        def fold(levels: Any) -> list[Tensor]:
            return [level.transpose(0, 1).flatten(1, 2) for level in levels]

        def collect(results: Any, **_: Any) -> Any:
            return SimpleNamespace(**{name: split_by_image(x) for name, x in vars(results).items()})

        def decode(priors: Tensor, values: Tensor, max_shape: Any) -> Tensor:
            return boxes.decode_boxes(head.bbox_coder, priors, values, image_size)

        sizes = [tuple(level.shape[-2:]) for level in outputs[0]]
        stride = dict(with_stride=True) if self.with_masks else {}
        priors = head.prior_generator.grid_priors(sizes, dtype=torch.float32, device=image_size.device, **stride)
        lists: dict[str, Any] = dict(cls_score_list=fold(outputs[0]), bbox_pred_list=fold(outputs[1]))
        factors = None if self.with_masks or len(outputs) == 2 else outputs[2]
        lists['score_factor_list'] = [None] * len(sizes) if factors is None else fold(factors)
        if self.with_masks:
            lists.update(kernel_pred_list=fold(outputs[2]), mask_feat=None)
        coder = SimpleNamespace(encode_size=head.bbox_coder.encode_size, decode=decode)
        replaced = _Replaced(head, bbox_coder=coder, _bbox_post_process=collect, _bbox_mask_post_process=collect)
        single = copy_with_globals(
            type(head)._predict_by_feat_single, **{CHOICE: choose, 'InstanceData': SimpleNamespace}
        )
        repeated = [level.repeat(B, 1) for level in priors]
        candidates = single(replaced, **lists, mlvl_priors=repeated, img_meta=dict(img_shape=None), cfg=None)
        if factors is not None and hasattr(candidates, 'score_factors'):
            weighed_BN = candidates.scores * candidates.score_factors
            candidates.scores = torch.where(candidates.scores > NEVER, weighed_BN, NEVER)
        return candidates

    def _decode_yolox(self, classes: Any, deltas: Any, objectness: Any) -> Any:
        head = self.head
        sizes = [tuple(level.shape[-2:]) for level in classes]
        priors = head.prior_generator.grid_priors(sizes, device=classes[0].device, with_stride=True)
        logits_BMK, deltas_BM4, objectness_BM1 = (
            torch.cat([boxes.list_priors(level, values) for level in levels], 1)
            for levels, values in ((classes, head.cls_out_channels), (deltas, 4), (objectness, 1))
        )
        scores_BM, label_BM = logits_BMK.sigmoid().max(-1)
        scores_BM = scores_BM * objectness_BM1[..., 0].sigmoid()
        scores_BM = torch.where(scores_BM >= self.cfg.score_thr, scores_BM, NEVER)
        boxes_BM4 = head._bbox_decode(torch.cat(priors), deltas_BM4)
        return SimpleNamespace(bboxes=boxes_BM4, scores=scores_BM, labels=label_BM)

    def _compute_masks(
        self, map_BPHW: Tensor, image_n: Tensor, kernel_nC: Tensor, prior_n4: Tensor, view: boxes.View
    ) -> Tensor:
        """Return the masks of RTMDet. The layers of an object are matrix products with the map and relative places."""
        head, zoom_4 = self.head, view.zoom_4
        picture_size = view.picture_size or (1, 1)
        H, W = map_BPHW.shape[-2:]
        point_M2 = head.prior_generator.single_level_grid_priors((H, W), level_idx=0, device=map_BPHW.device)
        offset_n2M = (prior_n4[:, None, :2] - point_M2).transpose(1, 2) / (prior_n4[:, 2, None, None] * 8)
        x = torch.cat([offset_n2M, map_BPHW.flatten(2)[image_n]], 1)
        parameters = kernel_nC.split([*head.weight_nums, *head.bias_nums], 1)
        layers = len(head.weight_nums)
        for index, (weight, bias) in enumerate(zip(parameters[:layers], parameters[layers:])):
            outputs = head.bias_nums[index]
            x = weight.unflatten(1, (outputs, head.weight_nums[index] // outputs)) @ x + bias[..., None]
            x = x.relu() if index < layers - 1 else x
        stride = head.prior_generator.strides[0][0]
        logits = F.interpolate(x.unflatten(2, (H, W)), scale_factor=stride, mode='bilinear')
        sides = torch.stack([torch.ceil(H * stride / zoom_4[1]), torch.ceil(W * stride / zoom_4[0])])
        height, width = sides.long().tolist()
        for side, picture_side in ((height, picture_size[0]), (width, picture_size[1])):
            torch._check(side >= picture_side)
        logits = F.interpolate(logits, size=(height, width), mode='bilinear', align_corners=False)
        masks: Tensor = logits[:, 0, : picture_size[0], : picture_size[1]].sigmoid() > self.cfg.mask_thr_binary
        return masks.to(torch.uint8)


class _Replaced:
    """An object with some attributes replaced. A copy of a module would be unknown to `torch.export`."""

    def __init__(self, original: Any, **attributes: Any):
        vars(self).update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def copy_with_globals(function: Any, **names: Any) -> Any:
    """Copy a function, with different objects under some global names."""
    return FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
