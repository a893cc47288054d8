"""From pixels to the input of a model's backbone, inside the graph.

Layout: B batch, C channels, H W height and width.
"""

import copy
import logging
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor, nn

from ...positions import Size
from .graph import ExportError, Port

MOST_PIXELS = 1 << 26  # of a picture, before or after the resize
MOST_VALUES = 1 << 31  # of all masks or logits of a picture: 8 GiB of float32


def picture_ports(model: Any, batch: Optional[int], shape: Optional[Size]) -> list[Port]:
    """Return the inputs of a whole model: pixels, uint8 for three bands and else float32, and the picture's own size.

    Args:
        batch: the model's only batch size; None: any.
        shape: height and width after the resize, for batch size 1; None: free.
    """
    bands = bands_of(model.backbone)
    lengths = (batch or 'batch', 'height', 'width') if shape is None else (1, *shape)
    pixels = Port('picture', 'uint8' if bands == 3 else 'float32', (*lengths, bands))
    return [pixels, Port('size', 'int64', (2,))]


def bands_of(backbone: Any) -> int:
    """Return the number of input bands of a backbone or of settings."""
    if isinstance(backbone, dict):
        return int(backbone.get('in_channels', 3))
    return int(getattr(backbone, 'in_channels', 3))


def multiples(sides: Sequence[int], divisor: int) -> Sequence[int]:
    """Return sides, maybe symbolic, rounded up to multiples of a divisor."""
    return [(side + divisor - 1) // divisor * divisor for side in sides]


class Normalise(nn.Module):
    """mmdet's and mmseg's data preprocessors in a test: channel order, mean, std, padding.

    Attributes:
        divisor: height and width are padded at the bottom and on the right to multiples of `divisor`.
    """

    def __init__(self, preprocessor: Any):
        super().__init__()
        self.flip_channels = bool(preprocessor._channel_conversion)
        self.mean_C, self.std_C = torch.zeros(1), torch.ones(1)
        if preprocessor._enable_normalize:
            self.mean_C, self.std_C = preprocessor.mean.flatten().float(), preprocessor.std.flatten().float()
        # mmseg pads pictures of a test only by `test_cfg`
        test_cfg = getattr(preprocessor, 'test_cfg', dict(size_divisor=preprocessor.pad_size_divisor)) or {}
        self.divisor: int = test_cfg.get('size_divisor') or 1
        self.pad_value = float(preprocessor.pad_value)

    def forward(self, picture_BHWC: Tensor) -> Tensor:
        """Turn pixels (B, H, W, C), BGR for three bands, into a normalised image (B, C, H', W')."""
        x_BHWC = picture_BHWC.flip(-1) if self.flip_channels and picture_BHWC.shape[-1] == 3 else picture_BHWC
        x_BCHW = ((x_BHWC.float() - self.mean_C) / self.std_C).permute(0, 3, 1, 2)
        if self.divisor > 1:
            H, W = x_BCHW.shape[-2:]
            rows, columns = multiples((H, W), self.divisor)
            x_BCHW = F.pad(x_BCHW, (0, columns - W, 0, rows - H), value=self.pad_value)
        return x_BCHW

    def settings(self) -> dict[str, Any]:
        """Return the entries for `deploy.json`."""
        return dict(
            mean=self.mean_C.tolist(),
            std=self.std_C.tolist(),
            channels='RGB' if self.flip_channels else 'BGR',
            pad_divisor=self.divisor,
            pad_value=self.pad_value,
        )


class Padding(nn.Module):
    """The Pad step of a test pipeline, on the right and at the bottom of a resized picture.

    Attributes:
        size: height and width after padding. None: pad to multiples of `divisor`.
        example_size: a size below `size`, for the capture of a graph.

    Raises:
        ExportError: for a square whose side depends on the picture.
    """

    def __init__(self, pipeline: Sequence[dict[str, Any]]):
        super().__init__()
        step: dict[str, Any] = next((step for step in pipeline if step['type'].split('.')[-1] == 'Pad'), {})
        value, rule = step.get('pad_val', 0), resize_rule(pipeline)
        value = value.get('img', 0) if isinstance(value, dict) else value
        self.value = float(value[0] if isinstance(value, Sequence) else value)
        self.divisor = int(step.get('size_divisor') or 1)
        self.size: Optional[Size] = tuple(step['size'])[::-1] if step.get('size') else None
        if step.get('pad_to_square'):
            if not rule or not rule['keep_ratio'] or rule['scale'][0] != rule['scale'][1]:
                raise ExportError('the test pipeline has a Pad whose size depends on the picture: give Pad a size')
            height, width = multiples(rule['scale'], self.divisor)
            self.size = height, width
        self.example_size = self.size and (self.size[0] - 5, self.size[1] - 14)

    def forward(self, picture_BHWC: Tensor) -> Tensor:
        if self.size is None and self.divisor == 1:
            return picture_BHWC
        H, W = picture_BHWC.shape[1:3]
        rows, columns = self.size or multiples((H, W), self.divisor)
        return F.pad(picture_BHWC.float(), (0, 0, 0, columns - W, 0, rows - H), value=self.value)


def resize_rule(pipeline: Sequence[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Return the rule of a test pipeline's Resize step for `runtime.resize`. None: no Resize step.

    Raises:
        ExportError: for any further step with a change of pixels.
    """
    rule = None
    for step in pipeline:
        kind = step['type'].split('.')[-1]
        if kind.startswith(('Load', 'Pack')) or (kind == 'Pad' and rule is not None):  # see `Padding`
            continue
        if kind != 'Resize' or 'scale' not in step or rule is not None:
            raise ExportError(
                f'the test pipeline has {kind!r}, which an exported model does not do: load, resize once to a scale, '
                'and pack is what can be exported'
            )
        if step.get('backend', 'cv2') != 'cv2' or step.get('interpolation', 'bilinear') != 'bilinear':
            raise ExportError('the test pipeline resizes by other means than bilinear interpolation by OpenCV')
        scale = step['scale']
        scale = [scale, scale] if isinstance(scale, int) else [int(side) for side in scale]
        rule = dict(scale=scale, keep_ratio=bool(step.get('keep_ratio', False)))
    return rule


def at_one_size(cfg: Config, shape: Size) -> Config:
    """Return a config with pictures of the size `shape`, height and width. A warning names changed proportions.

    Raises:
        ExportError: see `resize_rule`.
    """
    cfg = copy.deepcopy(cfg)
    dataset = cfg.test_dataloader.dataset
    rule = resize_rule(dataset.pipeline)
    if rule and rule['keep_ratio']:
        print_log(
            f'--shape {shape[0]} {shape[1]} stretches all pictures to this size, and the config keeps proportions: '
            'take the proportions of your pictures, as results are worse for others',
            'current',
            logging.WARNING,
        )
    kinds = [step['type'].split('.')[-1] for step in dataset.pipeline]
    load, *others = (
        step
        for kind, step in zip(kinds, dataset.pipeline)
        if kind != 'Resize' and (kind != 'Pad' or step.get('size_divisor'))
    )
    dataset.pipeline = [load, dict(type='Resize', scale=shape[::-1], keep_ratio=False), *others]
    return cfg


def picture_settings(cfg: Config, normalise: Normalise, planes: int, objects: Optional[int] = None) -> dict[str, Any]:
    """Return the entries of `deploy.json` for a whole model, which contains the preprocessing after `resize`.

    Args:
        planes: number of masks or logits of the picture's size.
        objects: the largest number of objects; None: any.
    """
    pixels = min(MOST_PIXELS, MOST_VALUES // planes)
    return dict(
        preprocessing=dict(resize=resize_rule(cfg.test_dataloader.dataset.pipeline), **normalise.settings()),
        limits=dict(pixels=pixels, objects=objects) if objects else dict(pixels=pixels),
    )
