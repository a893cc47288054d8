"""RoIAlign of upright regions.

The conventions are mmcv's (mmcv/ops/csrc): starts of bins, numbers of samples, values outside of a map.

Letters: R regions, I and J bins down and across, G samples of a bin along an axis; bags.py has further letters.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from . import providers
from .bags import (
    MAX_ENTRIES,
    MAX_VALUES,
    Bags,
    as_rows,
    channel_numbers,
    clamped_corners,
    number_entries,
    parts,
    sample,
    spread_bags,
    spread_to_pixels,
    sum_bags,
    wide,
)

# Samples along an axis, of all regions of a call: 1 GiB of memory.
MAX_SAMPLES = 2**25


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
        return
    map_MC = as_rows(input)
    for part, bags in _upright_bags(rois, axes, input.shape):
        pooled_PC = sum_bags(map_MC, bags)
        output[part] = pooled_PC.view(-1, *bins, input.shape[1]).permute(0, 3, 1, 2)


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
        return
    if pool_mode == 0:
        image_R = rois[:, 0].long().view(-1, 1, 1, 1)
        chosen = wide(grad_output) * (argmax_y != -1)
        spread_to_pixels(grad_input, chosen, image_R, channel_numbers(grad_input), wide(argmax_y), wide(argmax_x))
        return
    axes = _axes(rois, bins, spatial_scale, sampling_ratio, aligned)
    num_images, channels, height, width = grad_input.shape
    for part, bags in _upright_bags(rois, axes, grad_input.shape):
        grad_PC = wide(grad_output[part]).permute(0, 2, 3, 1).reshape(-1, channels)
        grad_MC = spread_bags(grad_PC, bags, num_images * height * width)
        grad_input += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


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
            self.samples_R = self.step_R.nan_to_num(0, 0, 0).ceil().clamp(min=0).long()

    def at(self, region_S: Tensor, bin_S: Tensor, sample_S: Tensor) -> Tensor:
        step_S = self.step_R[region_S]
        return self.start_R[region_S] + bin_S * step_S + (sample_S + 0.5) * step_S / self.samples_R[region_S]


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


def refuse_too_many(samples: int) -> None:
    """Raise an error for huge regions, whose samples do not fit into memory."""
    if samples > MAX_SAMPLES:
        raise ValueError(
            f'rois: regions with {samples} samples along an axis, more than {MAX_SAMPLES}: they are far larger than '
            'their maps, so clip them, or set sampling_ratio'
        )


def refuse_other_maps(rois: Tensor, num_maps: int) -> None:
    """Raise an error for a wrong image index on a CPU, as the library. On a GPU the check would stall the host."""
    if rois.device.type == 'cpu':
        there_R = (rois[:, 0] > -1) & (rois[:, 0] < num_maps)
        if not there_R.all():
            first = rois[~there_R, 0][0]
            raise ValueError(f"rois: a region's image must be from 0 to {num_maps - 1}, got {first:g}")


class _Reached:
    """The pixels of each bin along an axis, with mean weights.

    A mean over a grid of bilinear samples is separable: the weight of a pixel is a product of a weight per axis.
    Neighbouring samples of a bin share pixels. Weights of shared pixels are summed first, if this saves entries.
    """

    def __init__(self, axis: Axis, size: int):
        num_bins = axis.num_bins
        count_P = axis.samples_R.repeat_interleave(num_bins)
        total = int(count_P.sum())
        refuse_too_many(total)
        bag_S, sample_S = number_entries(count_P, total)
        region_S = bag_S // num_bins
        corners = clamped_corners(axis.at(region_S, bag_S - region_S * num_bins, sample_S), size)
        samples_S = axis.samples_R[region_S]
        low_S, high_S = corners.weight_low / samples_S, corners.weight_high / samples_S

        first_P = torch.full_like(count_P, size).scatter_reduce_(0, bag_S, corners.low, 'amin')
        last_P = torch.full_like(count_P, -1).scatter_reduce_(0, bag_S, corners.high, 'amax')
        reach_P = (last_P - first_P + 1).clamp(min=0)
        num_reached = int(reach_P.sum())
        if num_reached <= 2 * total:
            starts_P = reach_P.cumsum(0) - reach_P
            bag_E, number_E = number_entries(reach_P, num_reached)
            self.pixels_E = first_P[bag_E] + number_E
            place_S = (starts_P - first_P)[bag_S]
            self.weights_E = low_S.new_zeros(num_reached)
            self.weights_E.index_add_(0, place_S + corners.low, low_S)
            self.weights_E.index_add_(0, place_S + corners.high, high_S)
        else:
            reach_P = 2 * count_P
            starts_P = reach_P.cumsum(0) - reach_P
            self.pixels_E = torch.stack([corners.low, corners.high], 1).flatten()
            self.weights_E = torch.stack([low_S, high_S], 1).flatten()
        self.reach_RI, self.starts_RI = reach_P.view(-1, num_bins), starts_P.view(-1, num_bins)


def _upright_bags(rois: Tensor, axes: tuple[Axis, Axis], shape: torch.Size) -> Iterator[tuple[slice, Bags]]:
    """Yield slices of regions, with a bag for each bin of the regions."""
    _, _, height, width = shape
    down, across = (_Reached(axis, size) for axis, size in zip(axes, (height, width)))
    image_R = rois[:, 0].long()
    for part in parts(down.reach_RI.sum(1) * across.reach_RI.sum(1), MAX_ENTRIES):
        # 32 bits if possible: half the memory traffic, and a vectorised division.
        dtype = torch.int32 if shape[0] * height * width < 2**31 else torch.int64
        reach_y, reach_x = down.reach_RI[part, :, None], across.reach_RI[part, None, :]
        bins = (reach_y * reach_x).shape
        count_P = (reach_y * reach_x).flatten().to(dtype)
        total = int(count_P.sum())
        bag_E, number_E = number_entries(count_P, total)
        reach_x_E = reach_x.expand(bins).flatten().to(dtype)[bag_E]
        y_E = number_E.div(reach_x_E, rounding_mode='floor')
        x_E = number_E - y_E * reach_x_E
        y_E += down.starts_RI[part, :, None].expand(bins).flatten().to(dtype)[bag_E]
        x_E += across.starts_RI[part, None, :].expand(bins).flatten().to(dtype)[bag_E]
        first_row_P = (image_R[part, None, None] * (height * width)).expand(bins).flatten().to(dtype)
        rows_E = first_row_P[bag_E] + (down.pixels_E * width).to(dtype)[y_E] + across.pixels_E.to(dtype)[x_E]
        yield part, Bags(rows_E, down.weights_E[y_E] * across.weights_E[x_E], (count_P.cumsum(0) - count_P).to(dtype))


def _align_max(
    input: Tensor, rois: Tensor, axes: tuple[Axis, Axis], output: Tensor, argmax_y: Tensor, argmax_x: Tensor
) -> None:
    """Write the maximum over the samples of each bin, and the position of the first maximal sample. As in mmcv, a bin
    without samples above -10000 gets -10000 at (-1, -1)."""
    down, across = axes
    channels, height, width = input.shape[1:]
    map_MC, image_R = as_rows(input), rois[:, 0].long()
    cost_R = down.samples_R * across.samples_R * (down.num_bins * across.num_bins * channels)
    # Regions of similar size form a part, because regions are padded to the largest of a part.
    order_R = cost_R.argsort()
    for part in parts(cost_R[order_R], MAX_VALUES):
        r = order_R[part]
        y_RIG, x_RJG = (_padded(axis, r) for axis in axes)
        valid = (torch.arange(y_RIG.shape[-1], device=r.device) < down.samples_R[r, None])[:, :, None] & (
            torch.arange(x_RJG.shape[-1], device=r.device) < across.samples_R[r, None]
        )[:, None, :]
        grid = (len(r), down.num_bins, across.num_bins, y_RIG.shape[-1], x_RJG.shape[-1])
        y = y_RIG[:, :, None, :, None].expand(grid).flatten(-2)
        x = x_RJG[:, None, :, None, :].expand(grid).flatten(-2)
        if not y.numel():
            output[r], argmax_y[r], argmax_x[r] = -10000, -1, -1
            continue
        values = sample(map_MC, image_R[r].view(-1, 1, 1, 1), y, x, height, width)
        values = values.masked_fill(~valid.flatten(-2)[:, None, None, :, None], -torch.inf)
        best, where = values.max(3)
        none = best <= -10000
        output[r] = best.masked_fill(none, -10000).permute(0, 3, 1, 2).to(output)
        for argmax, at in ((argmax_y, y), (argmax_x, x)):
            argmax[r] = at.gather(3, where).masked_fill(none, -1).permute(0, 3, 1, 2).to(argmax)


def _padded(axis: Axis, r: Tensor) -> Tensor:
    """Return the positions of the samples of each bin, (R, I, G), with the largest G of all regions."""
    most = int(axis.samples_R[r].max())
    refuse_too_many(most * len(r))
    bins = torch.arange(axis.num_bins, device=r.device)[None, :, None]
    return axis.at(r[:, None, None], bins, torch.arange(most, device=r.device))
