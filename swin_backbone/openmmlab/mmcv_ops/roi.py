"""RoIAlign of upright regions.

The conventions are mmcv's (mmcv/ops/csrc): starts of bins, numbers of samples, values outside of a map.

Letters: R regions, P bins of all regions; bags.py has further letters.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import providers
from .bags import MAX_ENTRIES, Bags, find_corner_rows, number_entries, pool_bags, slice_within, unpool_bags, widen

MAX_SAMPLES = 2**24  # samples of a region: 2 GiB of memory


class Pooling(NamedTuple):
    """Settings of RoIAlign.

    Attributes:
        bins: numbers of bins of a region, down and across.
        scale: side of a region on the map, divided by the side in `rois_R5`.
        sampling_ratio: samples of a bin along each axis; 0 for a sample per pixel of the bin's length.
        aligned: whether the centre of a pixel lies at +0.5, and a region may be smaller than a pixel.
    """

    bins: tuple[int, int]
    scale: float
    sampling_ratio: int
    aligned: bool


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, *settings: Any, **named: Any
) -> None:
    """Pool (R, 5) regions of (B, C, H, W) maps into `output` (R, C, I, J), as RoIAlign of mmcv.

    Args:
        argmax_y, argmax_x: unused: mmcv's places of maxima.
        settings, named: settings of `_read_pooling`.
    """
    pooling = _read_pooling(*settings, **named)
    if providers.library_takes(input) and _takes_sizes(input, rois, pooling):
        from ...kernels.detection import regions

        regions.roi_align(input, rois, output, pooling)
    elif input.is_cuda and providers.torchvision_takes('roi_align', input):  # on CPUs: one thread, and no bfloat16
        sizes = pooling.scale, *pooling.bins, pooling.sampling_ratio, pooling.aligned
        output.copy_(torch.ops.torchvision.roi_align(input, rois, *sizes))
    else:
        pool_bags(input, _make_upright_bags(rois, pooling, input.shape), output)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    *settings: Any,
    **named: Any,
) -> None:
    """Add the gradient of `roi_align_forward` in the maps to `grad_input`."""
    pooling = _read_pooling(*settings, **named)
    if providers.library_takes(grad_input) and _takes_sizes(grad_input, rois, pooling):
        from ...kernels.detection import regions

        regions.add_roi_align_gradient(grad_output, rois, grad_input, pooling)
    elif grad_input.is_cuda and providers.torchvision_takes('_roi_align_backward', grad_input):
        sizes = pooling.scale, *pooling.bins, *grad_input.shape, pooling.sampling_ratio, pooling.aligned
        grad_input += torch.ops.torchvision._roi_align_backward(grad_output, rois, *sizes)
    else:
        unpool_bags(grad_output, _make_upright_bags(rois, pooling, grad_input.shape), grad_input)


def _takes_sizes(maps: Tensor, rois: Tensor, pooling: Pooling) -> bool:
    """Return whether the compiled library, which is there, takes the sizes."""
    from ...kernels.native.memory import takes_sizes

    sizes = *maps.shape, len(rois), *pooling.bins, max(pooling.sampling_ratio, 0)
    return maps.dim() == 4 and takes_sizes('roi_align', *sizes)


def _read_pooling(
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int, pool_mode: int, aligned: bool
) -> Pooling:
    """Return the settings of mmcv in the names of this package. `pool_mode` is 1, the mean of the samples."""
    if pool_mode != 1:
        raise NotImplementedError(
            "roi_align: of pool_mode='max' there is only mmcv's compiled operator, which is not installed; "
            '`MMCV=compiled make install` builds it'
        )
    return Pooling((aligned_height, aligned_width), spatial_scale, sampling_ratio, aligned)


class SampledAxis:
    """The samples of all regions along an axis: sample g of bin i of region r lies at
    `start[r] + i * step[r] + (g + 0.5) * step[r] / samples[r]`."""

    def __init__(self, start_R: Tensor, length_R: Tensor, num_bins: int, sampling_ratio: int):
        self.start_R = start_R
        self.num_bins = num_bins
        self.sampling_ratio = sampling_ratio
        self.step_R = length_R / num_bins
        if sampling_ratio > 0:
            self.samples_R = torch.full_like(start_R, sampling_ratio, dtype=torch.long)
        else:
            # An infinite or NaN region has no samples, and the bins are 0.
            self.samples_R = self.step_R.nan_to_num(0, 0, 0).ceil().clamp(0, 2 * MAX_SAMPLES).long()

    def locate(self, region_S: Tensor, bin_S: Tensor, sample_S: Tensor) -> Tensor:
        step_S = self.step_R[region_S]
        return self.start_R[region_S] + bin_S * step_S + (sample_S + 0.5) * step_S / self.samples_R[region_S]


def make_mean_bags(
    image_R: Tensor,
    down: SampledAxis,
    across: SampledAxis,
    shape: torch.Size,
    turn: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Iterator[tuple[slice, Bags]]:
    """Yield slices of regions, and a bag for the mean of each bin. A slice has at most `MAX_ENTRIES` corners, or a
    single region.

    Args:
        image_R: the image of each region.
        shape: shape of the maps, (B, C, H, W).
        turn: function of region and positions along the axes, to y and x on the map.

    Raises:
        ValueError: for a huge region, whose samples do not fit into memory.
    """
    if not len(image_R):
        return
    num_bins = down.num_bins * across.num_bins
    # Without a sampling ratio the numbers of samples depend on the regions: a GPU waits once, for this list.
    cost_R = [down.sampling_ratio**2 * num_bins] * len(image_R)
    if down.sampling_ratio <= 0:
        cost_R = (down.samples_R * across.samples_R * num_bins).tolist()
    if max(cost_R) > MAX_SAMPLES:
        raise ValueError(
            f'rois: a region with more than {MAX_SAMPLES} samples is far larger than its map: clip it, or set '
            'sampling_ratio'
        )
    for span in slice_within(cost_R, MAX_ENTRIES // 4):
        count_P = (down.samples_R[span] * across.samples_R[span]).repeat_interleave(num_bins)
        number_S, sample_S = number_entries(count_P, sum(cost_R[span]))
        region_S, bin_S = span.start + number_S // num_bins, number_S % num_bins
        samples_across_S = across.samples_R[region_S]
        down_S = down.locate(region_S, bin_S // across.num_bins, sample_S // samples_across_S)
        across_S = across.locate(region_S, bin_S % across.num_bins, sample_S % samples_across_S)
        rows, weights = find_corner_rows(image_R[region_S], *turn(region_S, down_S, across_S), shape)
        weights = weights / count_P[number_S, None]
        yield span, Bags(rows.flatten(), weights.flatten(), 4 * (count_P.cumsum(0) - count_P))


def _make_upright_bags(rois: Tensor, pooling: Pooling, shape: torch.Size) -> Iterator[tuple[slice, Bags]]:
    x1_R, y1_R, x2_R, y2_R = (widen(rois[:, 1:]) * pooling.scale - (0.5 if pooling.aligned else 0)).unbind(1)
    height_R, width_R = y2_R - y1_R, x2_R - x1_R
    if not pooling.aligned:
        height_R, width_R = height_R.clamp(min=1), width_R.clamp(min=1)
    down = SampledAxis(y1_R, height_R, pooling.bins[0], pooling.sampling_ratio)
    across = SampledAxis(x1_R, width_R, pooling.bins[1], pooling.sampling_ratio)
    return make_mean_bags(rois[:, 0].long(), down, across, shape, lambda region_S, down_S, across_S: (down_S, across_S))
