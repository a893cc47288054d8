"""A graph of mmseg's EncoderDecoder: from pixels to the classes of pixels.

Layout: B batch, K classes, C channels, H W height and width, h w height and width of the picture.
"""

import copy
from functools import partial
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads import IterativeDecodeHead, Mask2FormerHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from ...windows.grid import Size
from ..graph import BackboneMaps, ExportError, Graph, Port, check_shape, example_size, most_pixels, refusal
from ..picture import Normalise, picture_port, preprocessing
from .mask2former import query_head, semantic_logits


def adaptive_avg_pool(output_size: Any, x_BCHW: Tensor) -> Tensor:
    """Compute `F.adaptive_avg_pool2d`. An exporter would fix the bins to the example's size.

    Bin i of n on an axis of length L averages floor(i L / n) to ceil((i + 1) L / n). Every axis has a matrix (n, L).
    """
    numbers = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    rows_nH, columns_mW = (_bins(n, length, x_BCHW) for n, length in zip(numbers, x_BCHW.shape[-2:]))
    return rows_nH @ x_BCHW @ columns_mW.t()


def _bins(number: int, length: int, like: Tensor) -> Tensor:
    bin_n1 = torch.arange(number, device=like.device)[:, None]
    place_L = torch.arange(length, device=like.device)
    # i L // n <= place and place < ceil((i + 1) L / n), without a division
    inside_nL = ((place_L + 1) * number > bin_n1 * length) & (place_L * number < (bin_n1 + 1) * length)
    weights_nL = inside_nL.to(like.dtype)
    return weights_nL / weights_nL.sum(1, keepdim=True)


def with_free_pooling(head: nn.Module) -> Any:
    """Copy a head, with adaptive pooling for every size."""
    head = copy.deepcopy(head)
    for layer in head.modules():
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            layer.forward = partial(adaptive_avg_pool, layer.output_size)  # type: ignore[method-assign]
    return head


class Segmentor(nn.Module):
    """From pixels to logits and labels at the picture's own size.

    Args:
        model: mmseg's EncoderDecoder.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.normalise = Normalise(model.data_preprocessor)
        self.maps = BackboneMaps(model.backbone, model.neck if model.with_neck else None)
        self.has_masks = isinstance(model.decode_head, Mask2FormerHead)
        self.head = query_head(model.decode_head) if self.has_masks else with_free_pooling(model.decode_head)
        self.threshold: Any = getattr(model.decode_head, 'threshold', None)  # of a single class

    def forward(self, picture: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        image = self.normalise(picture)
        maps = self.maps(image)
        # Like in mmseg: resize to the size of the image, remove the padding, then resize to the original picture.
        if self.has_masks:
            logits = semantic_logits(self.head, maps, image.shape[-2:])
        else:
            logits = F.interpolate(self.head(maps), size=image.shape[-2:], mode='bilinear', align_corners=False)
        logits = logits[:, :, : picture.shape[1], : picture.shape[2]]
        height, width = size.tolist()
        for side in (height, width):
            torch._check(side >= 1)
        logits = F.interpolate(logits, size=(height, width), mode='bilinear', align_corners=False)
        if logits.shape[1] == 1:
            logits = logits.sigmoid()
            labels = (logits > self.threshold).squeeze(1)
        else:
            labels = logits.argmax(1)
        return labels.to(torch.uint8), logits


def segmentor_graph(model: Any, cfg: Config, shape: Optional[Size]) -> Graph:
    """Return the graph of a whole segmentor.

    Args:
        shape: height and width after the resize, for batch size 1. None: free batch, height and width.

    Raises:
        ExportError: for an unsupported segmentor.
    """
    head, test_cfg = model.decode_head, model.test_cfg
    if type(model) is not EncoderDecoder:
        raise refusal(f'{type(model).__name__} with {type(head).__name__}', ('EncoderDecoder',))
    if not isinstance(head, Mask2FormerHead):
        for method in ('predict', 'predict_by_feat'):
            if getattr(type(head), method) is not getattr(BaseDecodeHead, method):
                raise refusal(f'{type(head).__name__}.{method}, which differs from that of BaseDecodeHead,')
    if test_cfg.get('mode', 'whole') != 'whole':
        raise ExportError("test_cfg.mode='slide' cannot be exported: give --cfg-options model.test_cfg.mode=whole")
    if head.align_corners or head.out_channels > 256 or (model.data_preprocessor.test_cfg or {}).get('size'):
        raise ExportError(
            'a segmentor with align_corners=True, more than 256 classes, or data_preprocessor.test_cfg.size cannot be '
            'exported whole: use --part neck or backbone'
        )
    check_shape(model.backbone, shape)
    module = Segmentor(model).eval()
    # K-Net counts the images of a batch in Python
    free_batch = 1 if isinstance(head, IterativeDecodeHead) else 'batch'
    batch, height, width = (free_batch, 'height', 'width') if shape is None else (1, *shape)
    return Graph(
        module,
        'segmentation',
        [picture_port(model, batch, height, width), Port('size', 'int64', (2,))],
        [
            Port('labels', 'uint8', (batch, 'own_height', 'own_width')),
            Port('logits', 'float32', (batch, head.out_channels, 'own_height', 'own_width')),
        ],
        shape is None,
        example_size(model.backbone),
        dict(
            preprocessing=preprocessing(cfg, module.normalise),
            limits=dict(pixels=most_pixels(max(head.out_channels, getattr(head, 'num_queries', 1)))),
        ),
    )
