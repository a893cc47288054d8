"""UPerHead (Xiao et al. 2018, arXiv 1807.10221): small maps are convolved before they are enlarged.

Letters: B images, C channels, D output channels, h w and H W height and width before and after resizing; K a tap.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from mmseg.models.decode_heads import UPerHead as OfMMSeg
from mmseg.models.utils import resize
from torch import Tensor
from torch.nn import functional as F

from ...compat import has_global_hooks
from ...kernels.changes import is_changed
from ...kernels.native.memory import Cache, find_cache
from ...modes import find_tracer
from .conv3x3 import convolve_3x3, is_conv_3x3


class UPerHead(OfMMSeg):
    """mmseg's UPerHead. Arguments and parameters are equal, results are equal up to rounding.

    mmseg enlarges the maps of all levels to the largest map, then convolves. Here a coarse map is convolved at its own
    size, see `convolve_resized`. Graphs are mmseg's.
    """

    def psp_forward(self, inputs: Sequence[Tensor]) -> Tensor:
        x = inputs[-1]
        if not _is_plain(self.bottleneck, x):
            return super().psp_forward(inputs)
        pooled = [branch(x) for branch in self.psp_modules]
        return _run_fused(self.bottleneck, [x, *pooled], self.align_corners)

    def _forward_feature(self, inputs: Sequence[Tensor]) -> Tensor:
        if not _is_plain(self.fpn_bottleneck, inputs[0]):
            return super()._forward_feature(inputs)
        inputs = self._transform_inputs(inputs)
        maps = [conv(x) for conv, x in zip(self.lateral_convs, inputs)] + [self.psp_forward(inputs)]
        for level in range(len(maps) - 1, 0, -1):
            finer = maps[level - 1]
            maps[level - 1] = finer + resize(
                maps[level], size=finer.shape[2:], mode='bilinear', align_corners=self.align_corners
            )
        maps[:-1] = [conv(x) for conv, x in zip(self.fpn_convs, maps)]
        return _run_fused(self.fpn_bottleneck, maps, self.align_corners)


def _is_plain(module: Any, x: Tensor) -> bool:
    """Return whether a ConvModule is a plain 3x3 convolution, then norm and activation, without hooks, on a CPU."""
    conv = module.conv
    return (
        x.device.type == 'cpu'
        and find_tracer(x) is None
        and is_conv_3x3(conv)
        and module.order == ('conv', 'norm', 'act')
        and not (has_global_hooks() or is_changed(module) or is_changed(conv))
    )


def _run_fused(module: Any, maps: Sequence[Tensor], align_corners: bool) -> Tensor:
    """Return the output of a ConvModule for maps that are resized to the first map's size and concatenated."""
    conv = module.conv
    y: Tensor = convolve_resized(maps, conv.weight, conv.bias, align_corners, find_cache(conv))
    if module.with_norm:
        y = module.norm(y)
    return module.activate(y) if module.with_activation else y


def convolve_resized(
    maps: Sequence[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    align_corners: bool,
    cache: Optional[Cache] = None,
) -> Tensor:
    """Return a 3x3 convolution, padded by 1, of maps resized bilinearly to the first map's size and concatenated.

    Resizing and convolution are linear. A resize is a matrix along each axis. A tap is a 1x1 convolution and a shift.
    The 1x1 convolution of a resized map equals the resized 1x1 convolution. So each coarse map is convolved at its own
    size, with 9 D output channels. A product with a matrix (H, 3h), then with a matrix (W, 3w), resizes and sums.

    Args:
        maps: (B, C_i, h_i, w_i); the first map has the size (H, W).
        weight: (D, sum of C_i, 3, 3).
        bias: (D,) or None.
        cache: cache of packed weights of the first map, see `convolve_3x3`.

    Returns:
        (B, D, H, W).
    """
    finest, *coarse = maps
    weights = weight.split([x.shape[1] for x in maps], 1)
    y_BDHW = convolve_3x3(finest, weights[0], bias, cache)
    for x, weight_of_x in zip(coarse, weights[1:]):
        if x.shape[2:] == finest.shape[2:]:
            y_BDHW = y_BDHW + convolve_3x3(x, weight_of_x, None)
        else:
            y_BDHW = _add_resized_conv(y_BDHW, x, weight_of_x, align_corners)
    return y_BDHW


def _add_resized_conv(y_BDHW: Tensor, x_BChw: Tensor, weight: Tensor, align_corners: bool) -> Tensor:
    """Return the sum of `y` and the convolution of a map, which is resized to the size of `y`."""
    (B, D, H, W), (_, C, h, w) = y_BDHW.shape, x_BChw.shape
    dtype = torch.promote_types(weight.dtype, torch.float32)
    down_KHh, across_KWw = (_make_taps(n, N, align_corners, dtype, weight.device) for n, N in ((h, H), (w, W)))
    # Output channels are (row, column, D) of the 9 taps. The product with the matrix sums over rows.
    weight_9DC11 = weight.permute(2, 3, 0, 1).reshape(9 * D, C, 1, 1)
    taps_Bhw9D = F.conv2d(x_BChw, weight_9DC11).permute(0, 2, 3, 1)
    rows = taps_Bhw9D.reshape(B, h, w, 3, 3 * D).permute(0, 3, 1, 2, 4).reshape(B, 3 * h, w * 3 * D)
    down_HKh = down_KHh.permute(1, 0, 2).reshape(H, 3 * h).to(rows)
    across_WwK = across_KWw.permute(1, 2, 0).reshape(W, 3 * w).to(rows)
    columns = torch.matmul(down_HKh, rows).view(B * H, w * 3, D)
    y_BHWD = y_BDHW.permute(0, 2, 3, 1).reshape(B * H, W, D)
    summed = torch.baddbmm(y_BHWD, across_WwK.expand(B * H, W, 3 * w), columns)
    return summed.view(B, H, W, D).permute(0, 3, 1, 2)


def _make_taps(n: int, N: int, align_corners: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrices (3, N, n) of a resize from n to N pixels and a shift by each of 3 taps."""
    unit_1nn1 = torch.eye(n, dtype=dtype, device=device).view(1, n, n, 1)
    resized_Nn = F.interpolate(unit_1nn1, (N, 1), mode='bilinear', align_corners=align_corners)[0, :, :, 0].t()
    padded = F.pad(resized_Nn, (0, 0, 1, 1))
    return torch.stack([padded[tap : tap + N] for tap in range(3)])
