"""A graph of mmseg's EncoderDecoder: from pixels to the classes of pixels.

Layout: B batch, K classes, C channels, H W height and width, h w height and width of the picture.
"""

import copy
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from ...windows.grid import Size
from ..graph import BackboneMaps, ExportError, Graph, Port, check_shape, example_size, most_pixels, refusal
from ..picture import Normalise, picture_port, preprocessing
from .mask2former import SemanticHead

PIXELS = ('UPerHead', 'FCNHead', 'PSPHead', 'SegformerHead', 'ASPPHead', 'DepthwiseSeparableASPPHead')
HEADS = (*PIXELS, 'IterativeDecodeHead', 'Mask2FormerHead')  # verified in the tests


class AdaptiveAvgPool(nn.Module):
    """Adaptive average pooling with bins computed from the size of the map.

    An exporter would fix the bins of `nn.AdaptiveAvgPool2d` to the example's size.

    Bin i of n on an axis of length L averages floor(i L / n) to ceil((i + 1) L / n). Every axis has a matrix (n, L).
    """

    def __init__(self, output_size: Size):
        super().__init__()
        self.output_size = output_size

    def forward(self, x_BCHW: Tensor) -> Tensor:
        H, W = x_BCHW.shape[-2:]
        rows_nH, columns_mW = (_bins(n, length, x_BCHW) for n, length in zip(self.output_size, (H, W)))
        return rows_nH @ x_BCHW @ columns_mW.t()


def _bins(number: int, length: int, like: Tensor) -> Tensor:
    bin_n1 = torch.arange(number, device=like.device)[:, None]
    place_L = torch.arange(length, device=like.device)
    # i L // n <= place and place < ceil((i + 1) L / n), without a division
    inside_nL = ((place_L + 1) * number > bin_n1 * length) & (place_L * number < (bin_n1 + 1) * length)
    weights_nL = inside_nL.to(like.dtype)
    return weights_nL / weights_nL.sum(1, keepdim=True)


class PixelHead(nn.Module):
    """Turns maps into the logits of classes, at the size of the image, with a convolutional head.

    Args:
        head: mmseg's head, copied, not changed.
    """

    def __init__(self, head: Any):
        super().__init__()
        self.head = copy.deepcopy(head)
        for parent in list(self.head.modules()):
            for name, layer in parent.named_children():
                if isinstance(layer, nn.AdaptiveAvgPool2d):
                    size: Any = layer.output_size
                    setattr(parent, name, AdaptiveAvgPool(size if isinstance(size, tuple) else (size, size)))

    def forward(self, maps: Sequence[Tensor], image_size: Size) -> Tensor:
        return F.interpolate(self.head(maps), size=image_size, mode='bilinear', align_corners=False)


class Segmentor(nn.Module):
    """From pixels to logits and labels at the picture's own size.

    Args:
        model: mmseg's EncoderDecoder.
    """

    def __init__(self, model: Any):
        super().__init__()
        divisor = (model.data_preprocessor.test_cfg or {}).get('size_divisor', 1) or 1
        self.normalise = Normalise(model.data_preprocessor, divisor)
        self.maps = BackboneMaps(model.backbone, model.neck if model.with_neck else None)
        masks = type(model.decode_head).__name__ == 'Mask2FormerHead'
        self.head = SemanticHead(model.decode_head) if masks else PixelHead(model.decode_head)
        self.threshold: Any = getattr(model.decode_head, 'threshold', None)  # of a single class

    def forward(self, picture: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        image = self.normalise(picture)
        # Like in mmseg: resize to the size of the image, remove the padding, then resize to the original picture.
        logits = self.head(self.maps(image), image.shape[-2:])
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
    if type(model).__name__ != 'EncoderDecoder' or type(head).__name__ not in HEADS:
        raise refusal(
            f'{type(model).__name__} with {type(head).__name__}', (f'EncoderDecoder with {one}' for one in HEADS)
        )
    is_knet = type(head).__name__ == 'IterativeDecodeHead'
    if is_knet and type(head.kernel_generate_head).__name__ not in PIXELS:
        raise refusal(f'IterativeDecodeHead.kernel_generate_head of {type(head.kernel_generate_head).__name__}', PIXELS)
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
    batch, height, width = (1 if is_knet else 'batch', 'height', 'width') if shape is None else (1, *shape)
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
