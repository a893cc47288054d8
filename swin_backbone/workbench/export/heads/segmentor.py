"""A graph of mmseg's EncoderDecoder: from pixels to the classes of pixels.

Layout: B batch, K classes, C channels, H W height and width, h w height and width of the picture.
"""

import inspect
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads import IterativeDecodeHead, Mask2FormerHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

from ....sizes import Size
from ...configs.data_parts import find_tested_dataset
from ..graph import BackboneMaps, ExportError, Graph, Port, choose_example_size, make_refusal
from ..picture import Normalise, Padding, crop, make_picture_ports, make_settings
from .layers import copy_for_graph
from .mask2former import compute_logits, copy_query_head


class Segmentor(nn.Module):
    """From pixels to logits and labels at the picture's own size.

    Args:
        model: mmseg's EncoderDecoder.
    """

    def __init__(self, model: Any, padding: Padding):
        super().__init__()
        self.padding = padding
        self.normalise = Normalise(model.data_preprocessor)
        self.maps = BackboneMaps(model.backbone, model.neck if model.with_neck else None)
        self.has_masks = isinstance(model.decode_head, Mask2FormerHead)
        self.head = copy_query_head(model.decode_head) if self.has_masks else copy_for_graph(model.decode_head)
        self.threshold: Any = getattr(model.decode_head, 'threshold', None)  # of a single class

    def forward(self, picture: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        picture, content = self.padding(picture, size)  # the padding of a Pad step stays in the logits, like in mmseg
        image = self.normalise(picture)
        maps = self.maps(image)
        # Like in mmseg: resize to the size of the image, remove the padding, then resize to the original picture.
        if self.has_masks:
            logits = compute_logits(self.head, maps, image.shape[-2:])
        else:
            logits = F.interpolate(self.head(maps), size=image.shape[-2:], mode='bilinear', align_corners=False)
        logits = logits[:, :, : picture.shape[1], : picture.shape[2]] if content is None else crop(logits, content)
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


def build_segmentor_graph(model: Any, cfg: Config, shape: Optional[Size]) -> Graph:
    """Return the graph of a whole segmentor. Arguments and errors: see `export_model`."""
    head, test_cfg = model.decode_head, model.test_cfg
    if type(model) is not EncoderDecoder:
        raise make_refusal(f'{type(model).__name__} with {type(head).__name__}', ('EncoderDecoder',))
    if not isinstance(head, Mask2FormerHead):
        for method in ('predict', 'predict_by_feat'):
            if inspect.unwrap(getattr(type(head), method)) is not getattr(BaseDecodeHead, method):
                raise make_refusal(f'{type(head).__name__}.{method}, which differs from that of BaseDecodeHead,')
    if test_cfg.get('mode', 'whole') != 'whole':
        raise ExportError("test_cfg.mode='slide' cannot be exported: give --cfg-options model.test_cfg.mode=whole")
    if head.align_corners or head.out_channels > 256 or (model.data_preprocessor.test_cfg or {}).get('size'):
        raise ExportError(
            'a segmentor with align_corners=True, more than 256 classes, or data_preprocessor.test_cfg.size cannot be '
            'exported whole: use --part neck or backbone'
        )
    example = choose_example_size(model.backbone, shape)
    padding = Padding(find_tested_dataset(cfg).pipeline)
    example = padding.example_size or example
    module = Segmentor(model, padding).eval()
    # K-Net counts the images of a batch in Python
    inputs = make_picture_ports(model, 1 if isinstance(head, IterativeDecodeHead) else None, shape)
    batch_size = inputs[0].shape[0]
    outputs = [
        Port('labels', 'uint8', (batch_size, 'own_height', 'own_width')),
        Port('logits', 'float32', (batch_size, head.out_channels, 'own_height', 'own_width')),
    ]
    settings = make_settings(cfg, module.normalise, max(head.out_channels, getattr(head, 'num_queries', 1)))
    return Graph(module, 'segmentation', inputs, outputs, shape is None, example, settings)
