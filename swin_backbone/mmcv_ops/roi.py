"""RoIAlign of upright regions.

The conventions are mmcv's (mmcv/ops/csrc): starts of bins, numbers of samples, values outside of a map.

Letters: R regions, P bins of all regions; bags.py has further letters.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..backends.native import detection
from . import providers
from .bags import MAX_ENTRIES, Bags, corner_rows, number_entries, parts, pool_bags, unpool_bags, wide

MAX_SAMPLES = 2**24  # of a region: 2 GiB of memory


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Pool (R, 5) regions of (B, C, H, W) maps into `output` (R, C, I, J), as RoIAlign of mmcv.

    Args:
        argmax_y, argmax_x: unused: mmcv's places of maxima.
        sampling_ratio: samples of a bin along each axis; 0 for a sample per pixel of the bin's length.
        pool_mode: 1, the mean of the samples.
        aligned: the centre of a pixel lies at +0.5, and a region may be smaller than a pixel.
    """
    if pool_mode != 1:
        raise NotImplementedError(
            "roi_align: of pool_mode='max' there is only mmcv's compiled operator, which is not installed; "
            '`MMCV=compiled make install` builds it'
        )
    if not len(rois):
        return
    bins = aligned_height, aligned_width
    if providers.library_takes(input):
        detection.roi_align(input, rois, output, bins, spatial_scale, sampling_ratio, aligned)
    elif input.is_cuda and providers.torchvision_takes('roi_align', input):  # on CPUs: one thread, and no bfloat16
        pooled = torch.ops.torchvision.roi_align(input, rois, spatial_scale, *bins, sampling_ratio, aligned)
        output.copy_(pooled)
    else:
        bags = _upright_bags(rois, bins, spatial_scale, sampling_ratio, aligned, input.shape)
        pool_bags(input, bags, output)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Add the gradient of `roi_align_forward` in the maps to `grad_input`."""
    if not len(rois):
        return
    bins = aligned_height, aligned_width
    if providers.library_takes(grad_input):
        detection.roi_align_backward(grad_output, rois, grad_input, bins, spatial_scale, sampling_ratio, aligned)
    elif grad_input.is_cuda and providers.torchvision_takes('_roi_align_backward', grad_input):
        sizes = *bins, *grad_input.shape
        grad_input += torch.ops.torchvision._roi_align_backward(
            grad_output, rois, spatial_scale, *sizes, sampling_ratio, aligned
        )
    else:
        bags = _upright_bags(rois, bins, spatial_scale, sampling_ratio, aligned, grad_input.shape)
        unpool_bags(grad_output, bags, grad_input)


class Axis:
    """The samples of all regions along an axis: sample g of bin i of region r lies at
    `start[r] + i * step[r] + (g + 0.5) * step[r] / samples[r]`."""

    def __init__(self, start_R: Tensor, length_R: Tensor, num_bins: int, sampling_ratio: int):
        self.start_R, self.num_bins = start_R, num_bins
        self.step_R = length_R / num_bins
        if sampling_ratio > 0:
            self.samples_R = torch.full_like(start_R, sampling_ratio, dtype=torch.long)
        else:
            # An infinite or NaN region has no samples, and the bins are 0.
            self.samples_R = self.step_R.nan_to_num(0, 0, 0).ceil().clamp(0, 2 * MAX_SAMPLES).long()

    def at(self, region_S: Tensor, bin_S: Tensor, sample_S: Tensor) -> Tensor:
        step_S = self.step_R[region_S]
        return self.start_R[region_S] + bin_S * step_S + (sample_S + 0.5) * step_S / self.samples_R[region_S]


class Samples(NamedTuple):
    """The samples of consecutive regions, bin by bin.

    Attributes:
        part: slice of the regions.
        count_P: number of samples of each bin.
        bin_S, region_S: bin within the part, and region.
        down_S, across_S: positions along the axes.
    """

    part: slice
    count_P: Tensor
    bin_S: Tensor
    region_S: Tensor
    down_S: Tensor
    across_S: Tensor


def samples_of(axes: tuple[Axis, Axis]) -> Iterator[Samples]:
    """Yield all samples, for at most `MAX_ENTRIES` corners at a time, or those of a single region.

    Raises:
        ValueError: for a huge region, whose samples do not fit into memory.
    """
    down, across = axes
    num_bins = down.num_bins * across.num_bins
    samples_R = down.samples_R * across.samples_R
    if int(samples_R.max()) * num_bins > MAX_SAMPLES:
        raise ValueError(
            f'rois: a region with more than {MAX_SAMPLES} samples is far larger than its map: clip it, or set '
            'sampling_ratio'
        )
    for part in parts(samples_R * num_bins, MAX_ENTRIES // 4):
        count_P = samples_R[part].repeat_interleave(num_bins)
        number_S, sample_S = number_entries(count_P, int(count_P.sum()))
        region_S, bin_S = part.start + number_S // num_bins, number_S % num_bins
        samples_across_S = across.samples_R[region_S]
        down_S = down.at(region_S, bin_S // across.num_bins, sample_S // samples_across_S)
        across_S = across.at(region_S, bin_S % across.num_bins, sample_S % samples_across_S)
        yield Samples(part, count_P, number_S, region_S, down_S, across_S)


def mean_bags(samples: Samples, y_S: Tensor, x_S: Tensor, rois: Tensor, shape: torch.Size) -> tuple[slice, Bags]:
    """Return the regions of samples at (y, x), and a bag for the mean of each bin."""
    rows, weights = corner_rows(rois[:, 0].long()[samples.region_S], y_S, x_S, shape)
    weights = weights / samples.count_P[samples.bin_S, None]
    return samples.part, Bags(rows.flatten(), weights.flatten(), 4 * (samples.count_P.cumsum(0) - samples.count_P))


def _upright_bags(
    rois: Tensor, bins: tuple[int, int], scale: float, sampling_ratio: int, aligned: bool, shape: torch.Size
) -> Iterator[tuple[slice, Bags]]:
    x1_R, y1_R, x2_R, y2_R = (wide(rois[:, 1:]) * scale - (0.5 if aligned else 0)).unbind(1)
    height_R, width_R = y2_R - y1_R, x2_R - x1_R
    if not aligned:
        height_R, width_R = height_R.clamp(min=1), width_R.clamp(min=1)
    axes = Axis(y1_R, height_R, bins[0], sampling_ratio), Axis(x1_R, width_R, bins[1], sampling_ratio)
    for samples in samples_of(axes):
        yield mean_bags(samples, samples.down_S, samples.across_S, rois, shape)
