"""RoIAlign of upright regions.

The conventions are mmcv's (mmcv/ops/csrc): starts of bins, numbers of samples, values outside of a map.

Letters: R regions, P bins of all regions; bags.py has further letters.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import providers
from .bags import (
    MAX_ENTRIES,
    Bags,
    as_rows,
    corner_rows,
    even_bags,
    number_entries,
    parts,
    pool_bags,
    spread_to_pixels,
    sum_bags,
    unpool_bags,
    wide,
)

MAX_SAMPLES = 2**24  # of a region: 2 GiB of memory
MAX_VALUES = 2**24  # of the samples of a call: 64 MiB in float32
NO_MAXIMUM = -10000  # mmcv's value of a bin without samples


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
        argmax_y, argmax_x: position of the maximal sample, in the shape of `output`; used by pool_mode 0 alone.
        sampling_ratio: samples of a bin along each axis; 0 for a sample per pixel of the bin's length.
        pool_mode: 0 for the maximum of the samples, 1 for the mean.
        aligned: the centre of a pixel lies at +0.5, and a region may be smaller than a pixel.
    """
    if not len(rois):
        return
    bins = (aligned_height, aligned_width)
    kernel = providers.find('roi_align_max' if pool_mode == 0 else 'roi_align', input)
    if kernel is not None:
        where = None if pool_mode == 1 else (torch.empty_like(wide(argmax_y)), torch.empty_like(wide(argmax_x)))
        kernel(input, rois, output, where, bins, spatial_scale, sampling_ratio, aligned)
        if where is not None:
            argmax_y.copy_(where[0]), argmax_x.copy_(where[1])
        return
    refuse_other_maps(rois, len(input))
    axes = _axes(rois, bins, spatial_scale, sampling_ratio, aligned)
    if pool_mode == 0:
        _align_max(input, rois, axes, output, argmax_y, argmax_x)
    else:
        pool_bags(input, _upright_bags(rois, axes, input.shape), output)


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
    bins = (aligned_height, aligned_width)
    kernel = providers.find('roi_align_max_backward' if pool_mode == 0 else 'roi_align_backward', grad_input)
    if kernel is not None:
        where = None if pool_mode == 1 else (wide(argmax_y).contiguous(), wide(argmax_x).contiguous())
        kernel(grad_output, rois, where, grad_input, bins, spatial_scale, sampling_ratio, aligned)
    elif pool_mode == 0:
        chosen = wide(grad_output) * (argmax_y != -1)
        spread_to_pixels(grad_input, chosen, rois[:, 0].long(), wide(argmax_y), wide(argmax_x))
    else:
        axes = _axes(rois, bins, spatial_scale, sampling_ratio, aligned)
        unpool_bags(grad_output, _upright_bags(rois, axes, grad_input.shape), grad_input)


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


def samples_of(axes: tuple[Axis, Axis], most: int) -> Iterator[Samples]:
    """Yield all samples, at most `most` at a time, or those of a single region.

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
    for part in parts(samples_R * num_bins, most):
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


def _upright_bags(rois: Tensor, axes: tuple[Axis, Axis], shape: torch.Size) -> Iterator[tuple[slice, Bags]]:
    for samples in samples_of(axes, MAX_ENTRIES // 4):
        yield mean_bags(samples, samples.down_S, samples.across_S, rois, shape)


def _axes(rois: Tensor, bins: tuple[int, int], scale: float, sampling_ratio: int, aligned: bool) -> tuple[Axis, Axis]:
    """Return the samples down and across."""
    x1_R, y1_R, x2_R, y2_R = (wide(rois[:, 1:]) * scale - (0.5 if aligned else 0)).unbind(1)
    lengths = [y2_R - y1_R, x2_R - x1_R]
    if aligned:
        refuse_negative(lengths, rois)
    else:
        lengths = [length_R.clamp(min=1) for length_R in lengths]
    return (
        Axis(y1_R, lengths[0], bins[0], sampling_ratio),
        Axis(x1_R, lengths[1], bins[1], sampling_ratio),
    )


def refuse_negative(lengths: list[Tensor], rois: Tensor) -> None:
    """Raise an error for a negative length on a CPU, as mmcv. On a GPU the check would stall the host, and a region of
    negative length has no samples."""
    if rois.device.type == 'cpu' and any(bool((length_R < 0).any()) for length_R in lengths):
        raise ValueError('rois: a region ends before it begins, which RoIAlign with aligned=True does not take')


def refuse_other_maps(rois: Tensor, num_maps: int) -> None:
    """Raise an error for a wrong image index on a CPU, as the library. On a GPU the check would stall the host."""
    if rois.device.type == 'cpu':
        there_R = (rois[:, 0] > -1) & (rois[:, 0] < num_maps)
        if not there_R.all():
            first = rois[~there_R, 0][0]
            raise ValueError(f"rois: a region's image must be from 0 to {num_maps - 1}, got {first:g}")


def _align_max(
    input: Tensor, rois: Tensor, axes: tuple[Axis, Axis], output: Tensor, argmax_y: Tensor, argmax_x: Tensor
) -> None:
    """Write the maximum over the samples of each bin, and the position of the first maximal sample, or (-1, -1)."""
    map_MC, image_R = as_rows(input), rois[:, 0].long()
    for part, count_P, bin_S, region_S, y_S, x_S in samples_of(axes, MAX_VALUES // input.shape[1]):
        values_SC = sum_bags(map_MC, even_bags(*corner_rows(image_R[region_S], y_S, x_S, input.shape)))
        bin_SC = bin_S[:, None].expand_as(values_SC)
        best_PC = values_SC.new_full((len(count_P), input.shape[1]), NO_MAXIMUM)
        best_PC.scatter_reduce_(0, bin_SC, values_SC, 'amax')
        is_best_SC = (values_SC == best_PC[bin_S]) & (values_SC > NO_MAXIMUM)
        number_SC = torch.arange(len(bin_S), device=bin_S.device)[:, None].where(is_best_SC, len(bin_S))
        first_PC = torch.full_like(best_PC, len(bin_S), dtype=torch.long)
        first_PC.scatter_reduce_(0, bin_SC, number_SC, 'amin')
        y_PC, x_PC = (F.pad(at_S, (0, 1), value=-1)[first_PC] for at_S in (y_S, x_S))
        for target, found_PC in ((output, best_PC), (argmax_y, y_PC), (argmax_x, x_PC)):
            target[part] = found_PC.view(-1, *output.shape[2:], input.shape[1]).permute(0, 3, 1, 2).to(target)
