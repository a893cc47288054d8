"""From pixels to the input of a model's backbone, inside the graph.

Layout: B batch, C channels, H W height and width.
"""

import copy
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import TRANSFORMS
from numpy.typing import NDArray
from torch import Tensor, nn

from ...openmmlab.config_parts import count_bands, type_name
from ...sizes import Size
from ..configs.data_parts import find_tested_dataset
from ..data.load_picture import LoadPicture
from .graph import ExportError, Port
from .runtime import compute_resized_size, resize

Content = tuple[Tensor, Tensor]  # of rows (H,) and of columns (W,) of a padded picture: whether they are content
LOADERS = ('LoadPicture', 'LoadImageFromFile')  # classes of steps
LOAD_DEFAULTS = dict(color_type='color', imdecode_backend='cv2')  # of these classes
MAX_PIXELS = 1 << 26  # of a picture, before or after the resize
MAX_VALUES = 1 << 31  # of all masks or logits of a picture: 8 GiB of float32


def make_picture_ports(model: Any, batch_size: Optional[int], shape: Optional[Size]) -> list[Port]:
    """Return the inputs of a whole model: pixels, uint8 for three bands and else float32, and the picture's own size.

    Args:
        batch_size: the model's only batch size; None: any.
        shape: height and width after the resize, for batch size 1; None: free.
    """
    bands = count_bands(model.backbone)
    lengths = (batch_size or 'batch', 'height', 'width') if shape is None else (1, *shape)
    pixels = Port('picture', 'uint8' if bands == 3 else 'float32', (*lengths, bands))
    return [pixels, Port('size', 'int64', (2,))]


def round_up(sides: Sequence[int], divisor: int) -> Sequence[int]:
    """Return sides, maybe symbolic, rounded up to multiples of a divisor."""
    return [(side + divisor - 1) // divisor * divisor for side in sides]


class Normalise(nn.Module):
    """mmdet's and mmseg's data preprocessors in a test: channel order, mean, std, padding.

    Attributes:
        divisor: height and width are padded at the bottom and on the right to multiples of `divisor`.
    """

    def __init__(self, preprocessor: Any):
        super().__init__()
        # OpenMMLab's mmsegmentation has other names: channel_conversion, pad_val
        conversions = [getattr(preprocessor, name, False) for name in ('channel_conversion', '_channel_conversion')]
        self.flip_channels = any(conversions)
        self.mean_C, self.std_C = torch.zeros(1), torch.ones(1)
        if preprocessor._enable_normalize:
            self.mean_C, self.std_C = preprocessor.mean.flatten().float(), preprocessor.std.flatten().float()
        # mmseg pads pictures of a test only by `test_cfg`
        if hasattr(preprocessor, 'test_cfg'):
            self.divisor: int = (preprocessor.test_cfg or {}).get('size_divisor') or 1
        else:
            self.divisor = preprocessor.pad_size_divisor
        self.pad_value = float(preprocessor.pad_val if hasattr(preprocessor, 'pad_val') else preprocessor.pad_value)

    def forward(self, picture_BHWC: Tensor) -> Tensor:
        """Turn pixels (B, H, W, C), BGR for three bands, into a normalised image (B, C, H', W')."""
        x_BHWC = picture_BHWC.flip(-1) if self.flip_channels and picture_BHWC.shape[-1] == 3 else picture_BHWC
        x_BCHW = ((x_BHWC.float() - self.mean_C) / self.std_C).permute(0, 3, 1, 2)
        if self.divisor > 1:
            H, W = x_BCHW.shape[-2:]
            rows, columns = round_up((H, W), self.divisor)
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
    """The padding of a test pipeline, on the right and at the bottom of a resized picture.

    Attributes:
        size: height and width after padding. None: pad to multiples of `divisor`.
        fit_size: height and width into which a `Letterbox` fits a picture. None: no Letterbox.
        counts_as_picture: whether mmdet's heads take the padded size for that of the picture, as behind a Pad step.
        example_size: a size below `size`, for the capture of a graph.

    Raises:
        ExportError: for a square whose side depends on the picture.
    """

    def __init__(self, pipeline: Sequence[dict[str, Any]]):
        super().__init__()
        pad = _find_step(pipeline, 'Pad')
        letterbox = _find_step(pipeline, Letterbox.__name__)
        resize_rule = find_resize_rule(pipeline)
        self.values = letterbox.get('values') or _read_pad_values(pad)
        self.divisor = int(pad.get('size_divisor') or 1)
        self.fit_size: Optional[Size] = letterbox.get('shape')
        self.counts_as_picture: bool = letterbox.get('counts_as_picture', True)
        self.size: Optional[Size] = letterbox.get('size') or (tuple(pad['size'])[::-1] if pad.get('size') else None)
        if pad.get('pad_to_square'):
            if not resize_rule or (resize_rule['keep_ratio'] and resize_rule['scale'][0] != resize_rule['scale'][1]):
                raise ExportError('the test pipeline has a Pad whose size depends on the picture: give Pad a size')
            height, width = round_up([max(resize_rule['scale'])] * 2, self.divisor)
            self.size = height, width
        self.example_size = self.size and (self.size[0] - 5, self.size[1] - 14)

    def forward(self, picture_BHWC: Tensor, size: Tensor) -> tuple[Tensor, Optional[Content]]:
        """Return the padded picture, and the place of the content in a letterboxed picture.

        Args:
            size: height and width of the original picture, (2,).
        """
        if self.size is None and self.divisor == 1:
            return picture_BHWC, None
        height, width = picture_BHWC.shape[1:3]
        rows, columns = self.size or round_up((height, width), self.divisor)
        pad_widths = (0, 0, 0, columns - width, 0, rows - height)
        if len(set(self.values)) == 1 or self.fit_size is not None:
            x_BHWC = F.pad(picture_BHWC.float(), pad_widths, value=self.values[0])
        else:
            values_C = torch.tensor(self.values)
            x_BHWC = F.pad(picture_BHWC - values_C, pad_widths) + values_C
        if self.fit_size is None:
            return x_BHWC, None
        (h, w), (H, W) = size, self.fit_size
        y_H, x_W = torch.arange(rows), torch.arange(columns)
        is_row_H = ((2 * y_H + 1) * w <= 2 * h * W) & (y_H < H)  # `runtime.compute_resized_size` without a division
        is_column_W = ((2 * x_W + 1) * h <= 2 * w * H) & (x_W < W)
        values_C = torch.tensor(self.values)
        return torch.where((is_row_H[:, None] & is_column_W)[..., None], x_BHWC, values_C), (is_row_H, is_column_W)


def measure_content(content: Content) -> Tensor:
    """Return height and width of the content, (2,) int64."""
    return torch.stack([mask.sum() for mask in content])


def crop(x_BCHW: Tensor, content: Content) -> Tensor:
    """Remove the padding of a map of the padded picture's size."""
    rows, columns = measure_content(content).tolist()
    for side, padded_side in ((rows, x_BCHW.shape[2]), (columns, x_BCHW.shape[3])):
        torch._check(side >= 1)
        torch._check(side <= padded_side)
    return x_BCHW[:, :, :rows, :columns]


@TRANSFORMS.register_module()
class Letterbox:
    """The last step of a test pipeline: fit a picture into a size with its proportions, then pad it, as a file does.

    Args:
        shape: height and width for the resized picture.
        size: height and width after padding.
        values: pixel values of the padding, by band.
        counts_as_picture: see `Padding`.
    """

    def __init__(self, shape: Size, size: Size, values: Sequence[float], counts_as_picture: bool):
        self.shape, self.size, self.values, self.counts_as_picture = shape, size, values, counts_as_picture

    def __call__(self, packed: dict[str, Any]) -> dict[str, Any]:
        picture = packed['inputs'].permute(1, 2, 0).numpy()
        resize_rule = make_letterbox_rule(self.shape)
        h, w = picture.shape[:2]
        H, W = compute_resized_size((h, w), resize_rule)
        padded = np.empty((*self.size, picture.shape[2]), np.float32)
        padded[:] = self.values
        padded[:H, :W] = resize(picture, resize_rule)[:H, :W]
        packed['inputs'] = torch.from_numpy(padded).permute(2, 0, 1)
        packed['data_samples'].set_metainfo(
            dict(
                img_shape=self.size if self.counts_as_picture else (H, W),
                scale_factor=(W / w, H / h),
                pad_shape=self.size,  # for mmseg, like the next
                padding_size=(0, self.size[1] - W, 0, self.size[0] - H),
            )
        )
        return packed


def make_letterbox_rule(shape: Size) -> dict[str, Any]:
    """Return the rule of `runtime.resize` for a fit into height and width."""
    return dict(scale=[shape[1], shape[0]], keep_ratio=True, pad=True)


def _find_step(pipeline: Sequence[dict[str, Any]], class_name: str) -> dict[str, Any]:
    """Return the settings of the first step of a class, empty without one."""
    return next((step for step in pipeline if type_name(step) == class_name), {})


def _read_pad_values(step: dict[str, Any]) -> list[float]:
    value = step.get('pad_val', 0)
    value = value.get('img', 0) if isinstance(value, dict) else value
    return [float(number) for number in (value if isinstance(value, Sequence) else [value])]


def find_resize_rule(pipeline: Sequence[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Return the rule of a test pipeline's resizing step for `runtime.resize`. None: no such step.

    Raises:
        ExportError: for any further step with a change of pixels.
    """
    resize_rule = None
    for step in pipeline:
        name = type_name(step)
        if name in LOADERS or name.startswith('Pack') or 'Annotations' in name:
            continue
        if name == 'Pad' and resize_rule is not None:  # see `Padding`
            continue
        if name == Letterbox.__name__ and resize_rule is None:
            resize_rule = make_letterbox_rule(step['shape'])
            continue
        if name != 'Resize' or 'scale' not in step or resize_rule is not None:
            raise ExportError(
                f'the test pipeline has {name!r}, which an exported model does not do: load, resize once to a scale, '
                'and pack is what can be exported'
            )
        if step.get('backend', 'cv2') != 'cv2' or step.get('interpolation', 'bilinear') != 'bilinear':
            raise ExportError('the test pipeline resizes by other means than bilinear interpolation by OpenCV')
        scale = step['scale']
        scale = [scale, scale] if isinstance(scale, int) else [int(side) for side in scale]
        resize_rule = dict(scale=scale, keep_ratio=bool(step.get('keep_ratio', False)))
    return resize_rule


def find_load_settings(pipeline: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `LoadPicture` with which a test pipeline decodes; none without a loader of files."""
    step: Optional[dict[str, Any]] = next((step for step in pipeline if type_name(step) in LOADERS), None)
    return {} if step is None else {name: step.get(name, default) for name, default in LOAD_DEFAULTS.items()}


def load_bands(path: str, load_settings: dict[str, Any]) -> NDArray[Any]:
    """Return the pixels of a file (h, w, bands) for an exported model.

    Args:
        load_settings: see `find_load_settings`.

    Raises:
        OSError: if the file cannot be read.
    """
    return np.atleast_3d(LoadPicture(**load_settings).read(path))


def fix_size(cfg: Config, shape: Size) -> Config:
    """Return a config with pictures of the size `shape`, height and width.

    Pictures are stretched or, if the config keeps proportions, fitted and padded: by the values of the Pad step or,
    without one, of the data preprocessor.
    """
    cfg = copy.deepcopy(cfg)
    dataset = find_tested_dataset(cfg)
    pad = _find_step(dataset.pipeline, 'Pad')
    names = [type_name(step) for step in dataset.pipeline]
    if any(step.get('keep_ratio') for name, step in zip(names, dataset.pipeline) if name == 'Resize'):
        preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor', {})
        size: Any = shape
        # mmseg pads by `test_cfg`, and removes only the padding that it added itself.
        for settings in (pad, preprocessor.pop('test_cfg', None) or {}):
            size = tuple(round_up(size, settings.get('size_divisor') or 1))
        values = _read_pad_values(pad) if pad else _find_neutral_values(preprocessor, count_bands(cfg.model.backbone))
        letterbox = dict(type=Letterbox.__name__, shape=shape, size=size, values=values, counts_as_picture=bool(pad))
        dataset.pipeline = [step for name, step in zip(names, dataset.pipeline) if name not in ('Resize', 'Pad')]
        dataset.pipeline.append(letterbox)
        return cfg
    loading_step, *others = (
        step
        for name, step in zip(names, dataset.pipeline)
        if name != 'Resize' and (name != 'Pad' or step.get('size_divisor'))
    )
    dataset.pipeline = [loading_step, dict(type='Resize', scale=shape[::-1], keep_ratio=False), *others]
    return cfg


def _find_neutral_values(preprocessor: dict[str, Any], bands: int) -> list[float]:
    """Return the pixel values, by band of a file, that become a data preprocessor's pad value."""
    mean, std = (
        np.broadcast_to(preprocessor.get(name) or [default], bands) for name, default in (('mean', 0), ('std', 1))
    )
    values = mean + std * preprocessor.get('pad_value', preprocessor.get('pad_val', 0))
    is_flipped = bands == 3 and (preprocessor.get('bgr_to_rgb') or preprocessor.get('rgb_to_bgr'))
    return [float(value) for value in (values[::-1] if is_flipped else values)]


def make_settings(cfg: Config, normalise: Normalise, planes: int, objects: Optional[int] = None) -> dict[str, Any]:
    """Return the entries of `deploy.json` for a whole model, which contains the preprocessing after `resize`.

    Args:
        planes: number of masks or logits of the picture's size.
        objects: the largest number of objects; None: any.
    """
    pipeline = find_tested_dataset(cfg).pipeline
    load, resize_rule = find_load_settings(pipeline), find_resize_rule(pipeline)
    pixels = min(MAX_PIXELS, MAX_VALUES // planes)
    return dict(
        preprocessing=dict(load=load, resize=resize_rule, **normalise.settings()),
        limits=dict(pixels=pixels, objects=objects) if objects else dict(pixels=pixels),
    )
