"""Attention, features and class activation maps drawn over the picture, as figures of matplotlib.

A picture (H, W, 3) is uint8 RGB in the size of the backbone's input, without the padding of the batch. Token (y, x) of
a map covers the pixels from (y * stride, x * stride).

Layout: H W height and width, C channels, h heads.
"""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from .attention import AttentionMap, receptive_fields
from .cam import find_principal_components

HEAT = 'inferno'
LARGEST_ROW = 6  # pictures side by side


def attention_figure(
    picture_HW3: NDArray[Any],
    shifted: Sequence[AttentionMap],
    plain: Sequence[AttentionMap],
    pixel: tuple[int, int],
    strides: Sequence[int],
    stage: int = 1,
    block: int = 1,
    head: int = 1,
) -> Figure:
    """Draw the attention of a token, and its receptive field after 1, 2, ... blocks, with and without shift.

    Args:
        picture_HW3: see above.
        shifted: result of `attention_maps`.
        plain: result with shift=False.
        pixel: a pixel of the token, (row, column).
        strides: strides of the backbone's stages, see `list_strides`.
        stage, block, head: numbers, from 1.

    Raises:
        ValueError: if there is no such token, stage, block or head.
    """
    blocks = [attention for attention in shifted if attention.stage == stage]
    plain_blocks = [attention for attention in plain if attention.stage == stage]
    heads = blocks[0].weights_LhNN.shape[1] if blocks else 0
    stages = sorted({attention.stage for attention in shifted})
    for name, number, most in (('stage', stage, stages[-1]), ('block', block, len(blocks)), ('head', head, heads)):
        if not 1 <= number <= most:
            raise ValueError(f'{name} must be from 1 to {most}, got {number}')
    height, width = picture_HW3.shape[:2]
    stride = strides[stage - 1]
    y, x = pixel[0] // stride, pixel[1] // stride
    attention_hHW = blocks[block - 1].of_token(y, x)
    counts = sorted({round(count) for count in np.linspace(1, len(blocks), min(LARGEST_ROW, len(blocks)))})
    columns = max(4, len(counts))
    figure = Figure(figsize=(2.6 * columns, 2.75 * 3 * min(1.4, max(0.6, height / width)) + 1.2), layout='constrained')
    top, middle, bottom = (list(row) for row in figure.subplots(3, columns, squeeze=False))
    shown = [(f'the token, {stride} pixels wide', None), (f'head {head}', attention_hHW[head - 1])]
    shown += [(f'mean of {heads} heads', attention_hHW.mean(0)), (f'largest of {heads} heads', attention_hHW.amax(0))]
    for axis, (title, map_HW) in zip(top, shown):
        _draw(axis, picture_HW3, title, map_HW, stride, (y, x))
    for row, maps, name in ((middle, blocks, 'with shift'), (bottom, plain_blocks, 'without shift')):
        fields = receptive_fields(maps, y, x)
        for axis, count in zip(row, counts):
            title = f'{name}, after {count} block{"s" if count > 1 else ""}'
            _draw(axis, picture_HW3, title, fields[count - 1], stride, (y, x), outline=True)
    for axis in [*top[len(shown) :], *middle[len(counts) :], *bottom[len(counts) :]]:
        axis.set_axis_off()
    kind = 'shifted windows' if any(blocks[block - 1].shift) else 'windows without shift'
    figure.suptitle(
        f'Stage {stage}: where the token of the pixel in row {pixel[0]}, column {pixel[1]} looks\n'
        f'above: attention of block {block} ({kind}); below: what it has seen of the stage\'s input, outlined',
        fontsize=11,
        wrap=True,
    )  # fmt: skip
    return figure


def features_figure(picture_HW3: NDArray[Any], maps: Sequence[tuple[str, Tensor]], strides: Sequence[int]) -> Figure:
    """Draw the three first principal components of maps as red, green and blue, beside the picture.

    Args:
        picture_HW3: see above.
        maps: names and maps (C, H, W).
        strides: strides of the maps.
    """
    columns = len(maps) + 1
    height, width = picture_HW3.shape[:2]
    figure = Figure(figsize=(2.1 * columns, 2.1 * min(1.5, height / width) + 0.6), layout='constrained')
    axes = figure.subplots(1, columns)
    _draw(axes[0], picture_HW3, f'the picture, {height}x{width}')
    for axis, (name, map_CHW), stride in zip(axes[1:], maps, strides):
        C, H, W = map_CHW.shape
        _show(axis, find_principal_colours(map_CHW), stride, interpolation='nearest')
        _cut_axis(axis, picture_HW3, f'{name}: {C} channels, {H}x{W}')
    figure.suptitle(
        'Feature maps, their three first principal components as red, green and blue', fontsize=11, wrap=True
    )
    return figure


def cam_figure(
    picture_HW3: NDArray[Any], map_HW: Tensor, stride: int, title: str, box: Optional[Sequence[float]]
) -> Figure:
    """Draw a class activation map from 0 to 1 over the picture, and its box (x1, y1, x2, y2)."""
    height, width = picture_HW3.shape[:2]
    figure = Figure(figsize=(8.6, 4 * min(1.5, height / width) + 0.6), layout='constrained')
    left, right = figure.subplots(1, 2)
    _draw(left, picture_HW3, 'the picture')
    left.set_axis_off()
    right.imshow(picture_HW3)
    image = _show(right, map_HW.detach().cpu().numpy(), stride, interpolation='bilinear', cmap=HEAT, alpha=0.65)
    image.set_clim(0, 1)
    _cut_axis(right, picture_HW3, 'what the score depends on')
    for axis in (left, right) if box is not None else ():
        x1, y1, x2, y2 = box  # type: ignore[misc]
        axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor='#56B4E9', linewidth=2))
    figure.colorbar(image, ax=right, shrink=0.8)
    figure.suptitle(title, fontsize=11, wrap=True)
    return figure


def find_principal_colours(map_CHW: Tensor) -> NDArray[Any]:
    """Return three principal components of a map's channels, (H, W, 3), from the 1st to the 99th percentile."""
    _C, H, W = map_CHW.shape
    values = find_principal_components(map_CHW.detach().cpu()[None], 3)[0].numpy()
    low, high = np.percentile(values, [1, 99], axis=0)
    colours = np.zeros((H * W, 3))
    colours[:, : values.shape[1]] = np.clip(
        (values - low) / np.maximum(high - low, 1e-6 * np.abs(values).max() + 1e-12), 0, 1
    )
    return colours.reshape(H, W, 3)


def _draw(
    axis: Axes,
    picture_HW3: NDArray[Any],
    title: str,
    map_HW: Optional[Tensor] = None,
    stride: int = 1,
    token: Optional[tuple[int, int]] = None,
    outline: bool = False,
) -> None:
    """Draw a picture, a map over it, and the square of a token."""
    axis.imshow(picture_HW3)
    if map_HW is not None:
        values = map_HW.detach().float().cpu().numpy()
        # The second largest value is the brightest: the token's own value is often far larger.
        peak = np.partition(values.ravel(), -2)[-2] if values.size > 1 else values.max()
        strength = np.sqrt(np.clip(values / max(peak, 1e-12), 0, 1))
        heat = colormaps[HEAT](strength)
        heat[..., 3] = np.where(values > 0, 0.35 + 0.5 * strength, 0.0)
        _show(axis, heat, stride, interpolation='nearest')
        if outline:
            rows, columns = np.nonzero(values > 0)
            corner = columns.min() * stride - 0.5, rows.min() * stride - 0.5
            across, down = (int(np.ptp(axis) + 1) * stride for axis in (columns, rows))
            axis.add_patch(Rectangle(corner, across, down, fill=False, edgecolor='#56B4E9', linewidth=1.5))
            title += f'\n{len(rows)} of {values.size} tokens'
    if token is not None:
        y, x = token
        square = Rectangle((x * stride - 0.5, y * stride - 0.5), stride, stride, fill=False, edgecolor='#00FFFF')
        axis.add_patch(square)
    _cut_axis(axis, picture_HW3, title)


def _show(axis: Axes, values: NDArray[Any], stride: int, **how: Any) -> AxesImage:
    """Draw a map over the picture."""
    height, width = values.shape[:2]
    return axis.imshow(values, extent=(-0.5, width * stride - 0.5, height * stride - 0.5, -0.5), **how)


def _cut_axis(axis: Axes, picture_HW3: NDArray[Any], title: str) -> None:
    """Cut off the part of the map beyond the picture, which is padding of the batch."""
    height, width = picture_HW3.shape[:2]
    axis.set_xlim(-0.5, width - 0.5)
    axis.set_ylim(height - 0.5, -0.5)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(title, fontsize=9)
