"""Regions of a map, pooled to one size: RoIAlign, upright and rotated, RoIPool, BorderAlign, rotated feature alignment.

The conventions of each are mmcv's (mmcv/ops/csrc): where bins begin, how many samples a bin has, what is outside.

Letters: R regions, I and J bins down and across, G samples of a bin along one axis, the others as in bags.py.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from . import providers
from .bags import (
    MAX_ENTRIES,
    Bags,
    as_rows,
    clamped_corners,
    cross,
    even_bags,
    number_entries,
    spread_bags,
    sum_bags,
    wide,
)

# Values that one call of a maximum may hold, 64 MiB in float32.
MAX_VALUES = 2**24


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
    """RoIAlign of mmcv: (R, 5) regions of (B, C, H, W) maps into `output` (R, C, I, J).

    Args:
        argmax_y, argmax_x: of pool_mode 0, the maximum, where its sample lies, as `output`; unused otherwise.
        sampling_ratio: samples of a bin along each axis; 0 takes one for each pixel that the bin is long.
        pool_mode: 0 the maximum of the samples, 1 their mean.
        aligned: whether the centre of a pixel lies at +0.5, and a region may be smaller than a pixel.
    """
    if not len(rois):
        return
    bins = (aligned_height, aligned_width)
    if pool_mode == 1:
        kernel = providers.find('roi_align', input)
        if kernel is not None:
            output.copy_(kernel(input, rois, spatial_scale, *bins, sampling_ratio, aligned))
            return
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
    """The gradient of `roi_align_forward` in the maps, added to `grad_input`."""
    if not len(rois):
        return
    bins = (aligned_height, aligned_width)
    if pool_mode == 0:
        image_R = rois[:, 0].long().view(-1, 1, 1, 1)
        chosen = wide(grad_output) * (argmax_y != -1)
        _spread_to_pixels(grad_input, chosen, image_R, _channels(grad_input), wide(argmax_y), wide(argmax_x))
        return
    kernel = providers.find('roi_align_backward', grad_input)
    if kernel is not None:
        grad_input += kernel(grad_output, rois, spatial_scale, *bins, *grad_input.shape, sampling_ratio, aligned)
        return
    axes = _axes(rois, bins, spatial_scale, sampling_ratio, aligned)
    num_images, channels, height, width = grad_input.shape
    for part, bags in _upright_bags(rois, axes, grad_input.shape):
        grad_PC = wide(grad_output[part]).permute(0, 2, 3, 1).reshape(-1, channels)
        grad_MC = spread_bags(grad_PC, bags, num_images * height * width)
        grad_input += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


class _Axis:
    """The samples of all regions along one axis: sample g of bin i of region r lies at
    `start[r] + i * step[r] + (g + 0.5) * step[r] / samples[r]`."""

    def __init__(self, start_R: Tensor, length_R: Tensor, num_bins: int, sampling_ratio: int):
        self.start_R, self.num_bins = start_R, num_bins
        self.step_R = length_R / num_bins
        if sampling_ratio > 0:
            self.samples_R = torch.full_like(start_R, sampling_ratio, dtype=torch.long)
        else:
            # A region that is not finite has no samples, so its bins are 0.
            self.samples_R = self.step_R.nan_to_num(0, 0, 0).ceil().clamp(min=0).long()

    def at(self, region_S: Tensor, bin_S: Tensor, sample_S: Tensor) -> Tensor:
        step_S = self.step_R[region_S]
        return self.start_R[region_S] + bin_S * step_S + (sample_S + 0.5) * step_S / self.samples_R[region_S]


def _axes(rois: Tensor, bins: tuple[int, int], scale: float, sampling_ratio: int, aligned: bool) -> tuple[_Axis, _Axis]:
    """Down and across."""
    x1_R, y1_R, x2_R, y2_R = (wide(rois[:, 1:]) * scale - (0.5 if aligned else 0)).unbind(1)
    lengths = [y2_R - y1_R, x2_R - x1_R]
    if aligned:
        _refuse_negative(lengths, rois)
    else:
        lengths = [length_R.clamp(min=1) for length_R in lengths]
    return (
        _Axis(y1_R, lengths[0], bins[0], sampling_ratio),
        _Axis(x1_R, lengths[1], bins[1], sampling_ratio),
    )


def _refuse_negative(lengths: list[Tensor], rois: Tensor) -> None:
    """As mmcv does on a CPU; on a GPU, where asking would make the host wait, such a region has no samples."""
    if rois.device.type == 'cpu' and any(bool((length_R < 0).any()) for length_R in lengths):
        raise ValueError('rois: a region ends before it begins, which RoIAlign with aligned=True does not take')


class _Reached:
    """Along one axis, the pixels that each bin reaches, and the mean weight that it gives them.

    A mean over a grid of bilinear samples is separable: its weight of a pixel is the product of one along each axis. In
    one bin neighbouring samples share pixels, so their weights are added up first, where that makes fewer entries.
    """

    def __init__(self, axis: _Axis, size: int):
        num_bins = axis.num_bins
        count_P = axis.samples_R.repeat_interleave(num_bins)
        total = int(count_P.sum())
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


def _upright_bags(rois: Tensor, axes: tuple[_Axis, _Axis], shape: torch.Size) -> Iterator[tuple[slice, Bags]]:
    """The bags of some regions at a time: which, and a bag for each of their bins."""
    _, _, height, width = shape
    down, across = (_Reached(axis, size) for axis, size in zip(axes, (height, width)))
    image_R = rois[:, 0].long()
    for part in _parts(down.reach_RI.sum(1) * across.reach_RI.sum(1), MAX_ENTRIES):
        # Numbers of 32 bits where they suffice: half the traffic, and a division that is vectorised.
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


def _parts(cost_R: Tensor, budget: int) -> Iterator[slice]:
    """Regions in runs that cost at most the budget, or a single region."""
    ends = cost_R.cumsum(0).tolist()
    begin = spent = 0
    for index, end in enumerate(ends):
        if end - spent > budget and index > begin:
            yield slice(begin, index)
            begin, spent = index, ends[index - 1]
    yield slice(begin, len(ends))


def _align_max(
    input: Tensor, rois: Tensor, axes: tuple[_Axis, _Axis], output: Tensor, argmax_y: Tensor, argmax_x: Tensor
) -> None:
    """The maximum over the samples of each bin, and where the first that has it lies; -10000 at (-1, -1) if a bin has no
    sample above that, as in mmcv."""
    down, across = axes
    channels, height, width = input.shape[1:]
    map_MC, image_R = as_rows(input), rois[:, 0].long()
    cost_R = down.samples_R * across.samples_R * (down.num_bins * across.num_bins * channels)
    # Regions of like size together, since each is padded to the largest of its part.
    order_R = cost_R.argsort()
    for part in _parts(cost_R[order_R], MAX_VALUES):
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
        values = _sample(map_MC, image_R[r].view(-1, 1, 1, 1), y, x, height, width)
        values = values.masked_fill(~valid.flatten(-2)[:, None, None, :, None], -torch.inf)
        best, where = values.max(3)
        none = best <= -10000
        output[r] = best.masked_fill(none, -10000).permute(0, 3, 1, 2).to(output)
        for argmax, at in ((argmax_y, y), (argmax_x, x)):
            argmax[r] = at.gather(3, where).masked_fill(none, -1).permute(0, 3, 1, 2).to(argmax)


def _padded(axis: _Axis, r: Tensor) -> Tensor:
    """Where the samples of each bin lie, (R, I, G), for the G of the region that has most."""
    most = int(axis.samples_R[r].max())
    bins = torch.arange(axis.num_bins, device=r.device)[None, :, None]
    return axis.at(r[:, None, None], bins, torch.arange(most, device=r.device))


def _sample(map_MC: Tensor, image: Tensor, y: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear samples (..., C) of the images' maps at (y, x), which have one shape."""
    rows, weights = cross(clamped_corners(y, height), clamped_corners(x, width), width)
    rows = rows + image[..., None] * (height * width)
    return sum_bags(map_MC, even_bags(rows, weights)).view(*y.shape, -1)


def _spread_to_pixels(grad_map: Tensor, grad: Tensor, image: Tensor, channel: Tensor, y: Tensor, x: Tensor) -> None:
    """The transpose of bilinear samples that lie elsewhere in each channel, added to (B, C, H, W) `grad_map`."""
    height, width = grad_map.shape[2:]
    pixels, weights = cross(clamped_corners(y, height), clamped_corners(x, width), width)
    pixels = pixels + ((image * grad_map.shape[1] + channel) * (height * width))[..., None]
    spread = torch.zeros(grad_map.numel(), dtype=grad.dtype, device=grad.device)
    spread.index_add_(0, pixels.flatten(), (weights * grad[..., None]).flatten())
    grad_map += spread.view(grad_map.shape)


def _channels(x_BCHW: Tensor) -> Tensor:
    return torch.arange(x_BCHW.shape[1], device=x_BCHW.device).view(1, -1, 1, 1)


def roi_align_rotated_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> None:
    """RoIAlign of (R, 6) regions: image, centre, width, height, and angle in radians."""
    map_MC = as_rows(input)
    bins = (pooled_height, pooled_width)
    for r, bags in _rotated_bags(rois, bins, spatial_scale, sampling_ratio, aligned, clockwise, input.shape):
        output[r] = sum_bags(map_MC, bags).view(-1, *bins, input.shape[1]).permute(0, 3, 1, 2).to(output)


def roi_align_rotated_backward(
    grad_output: Tensor,
    rois: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
) -> None:
    """The gradient of `roi_align_rotated_forward` in the maps, added to `grad_input`."""
    num_images, channels, height, width = grad_input.shape
    bins = (pooled_height, pooled_width)
    for r, bags in _rotated_bags(rois, bins, spatial_scale, sampling_ratio, aligned, clockwise, grad_input.shape):
        grad_PC = wide(grad_output[r]).permute(0, 2, 3, 1).reshape(-1, channels)
        grad_MC = spread_bags(grad_PC, bags, num_images * height * width)
        grad_input += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


def _rotated_bags(
    rois: Tensor,
    bins: tuple[int, int],
    scale: float,
    sampling_ratio: int,
    aligned: bool,
    clockwise: bool,
    shape: torch.Size,
) -> Iterator[tuple[slice, Bags]]:
    """As `_upright_bags`; a rotated grid is not separable, so each sample has four entries of its own."""
    if not len(rois):
        return
    height, width = shape[2:]
    x_R, y_R, width_R, height_R = (wide(rois[:, 1:5]) * scale).unbind(1)
    angle_R = -wide(rois[:, 5]) if clockwise else wide(rois[:, 5])
    if aligned:
        _refuse_negative([height_R, width_R], rois)
        x_R, y_R = x_R - 0.5, y_R - 0.5
    else:
        width_R, height_R = width_R.clamp(min=1), height_R.clamp(min=1)
    down = _Axis(-height_R / 2, height_R, bins[0], sampling_ratio)
    across = _Axis(-width_R / 2, width_R, bins[1], sampling_ratio)
    cos_R, sin_R, image_R = angle_R.cos(), angle_R.sin(), rois[:, 0].long()

    samples_R = down.samples_R * across.samples_R
    num_bins = bins[0] * bins[1]
    for part in _parts(samples_R * (4 * num_bins), MAX_ENTRIES):
        count_P = samples_R[part].repeat_interleave(num_bins)
        total = int(count_P.sum())
        bag_S, sample_S = number_entries(count_P, total)
        region_S = bag_S // num_bins
        bin_S = bag_S - region_S * num_bins
        region_S = region_S + part.start
        samples_x_S = across.samples_R[region_S]
        up_S = down.at(region_S, bin_S // bins[1], sample_S // samples_x_S)
        right_S = across.at(region_S, bin_S % bins[1], sample_S % samples_x_S)
        y_S = up_S * cos_R[region_S] - right_S * sin_R[region_S] + y_R[region_S]
        x_S = up_S * sin_R[region_S] + right_S * cos_R[region_S] + x_R[region_S]
        rows, weights = cross(clamped_corners(y_S, height), clamped_corners(x_S, width), width)
        rows = rows + (image_R[region_S] * (height * width))[:, None]
        weights = weights / samples_R[region_S][:, None]
        yield part, Bags(rows.flatten(), weights.flatten(), 4 * (count_P.cumsum(0) - count_P))


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """RoIPool of mmcv: the maximum over all pixels of a bin, whose sides are rounded outwards; `argmax` (int32) is the
    first pixel that has it, or -1 for a bin without pixels, which is 0."""
    if not len(rois):
        return
    channels, height, width = input.shape[1:]
    map_MC, image_R = as_rows(input), rois[:, 0].long()
    x1_R, y1_R, x2_R, y2_R = (wide(rois[:, 1:]) + wide(rois.new_tensor([0, 0, 1, 1]))).mul(spatial_scale).unbind(1)
    real_R = (x2_R > x1_R) & (y2_R > y1_R)
    first_y, end_y = _pixels(y1_R, y2_R, pooled_height, height)
    first_x, end_x = _pixels(x1_R, x2_R, pooled_width, width)
    high_R = ((end_y - first_y) * real_R[:, None]).amax(1)
    wide_R = ((end_x - first_x) * real_R[:, None]).amax(1)
    cost_R = high_R * wide_R * (pooled_height * pooled_width * channels)
    order_R = cost_R.argsort()
    for part in _parts(cost_R[order_R], MAX_VALUES):
        r = order_R[part]
        high, broad = int(high_R[r].max()), int(wide_R[r].max())
        if not high * broad:
            output[r], argmax[r] = 0, -1
            continue
        y = first_y[r, :, None] + torch.arange(high, device=r.device)
        x = first_x[r, :, None] + torch.arange(broad, device=r.device)
        valid = ((y < end_y[r, :, None]) & real_R[r, None, None])[:, :, None, :, None] & (x < end_x[r, :, None])[
            :, None, :, None, :
        ]
        pixel = y.clamp(max=height - 1)[:, :, None, :, None] * width + x.clamp(max=width - 1)[:, None, :, None, :]
        pixel, valid = pixel.flatten(-2), valid.flatten(-2)
        values = map_MC[(pixel + image_R[r].view(-1, 1, 1, 1) * (height * width))]
        best, where = values.masked_fill(~valid[..., None], -torch.inf).max(3)
        none = best == -torch.inf
        output[r] = best.masked_fill(none, 0).permute(0, 3, 1, 2).to(output)
        argmax[r] = pixel.gather(3, where).masked_fill(none, -1).permute(0, 3, 1, 2).to(argmax)


def _pixels(start_R: Tensor, end_R: Tensor, num_bins: int, size: int) -> tuple[Tensor, Tensor]:
    """First pixel of each bin and the one after its last, (R, I)."""
    step_R = ((end_R - start_R) / num_bins)[:, None]
    bins_I = torch.arange(num_bins + 1, device=start_R.device)
    edges = bins_I * step_R + start_R[:, None]
    first = edges[:, :-1].floor().clamp(0, size).long()
    return first, torch.maximum(edges[:, 1:].ceil().clamp(0, size).long(), first)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """The gradient of `roi_pool_forward` in the maps, added to `grad_input`."""
    channels, height, width = grad_input.shape[1:]
    plane = rois[:, 0].long().view(-1, 1, 1, 1) * channels + _channels(grad_input)
    pixel = plane * (height * width) + argmax.clamp(min=0)
    spread = torch.zeros(grad_input.numel(), dtype=wide(grad_output).dtype, device=grad_input.device)
    spread.index_add_(0, pixel.flatten(), (wide(grad_output) * (argmax >= 0)).flatten())
    grad_input += spread.view(grad_input.shape)


def border_align_forward(input: Tensor, boxes: Tensor, output: Tensor, argmax_idx: Tensor, pool_size: int) -> None:
    """BorderDet's pooling: the maximum of pool_size + 1 samples along each side of each box.

    Args:
        input: (B, 4C, H, W), channels of the top, left, bottom and right side.
        boxes: (B, N, 4) in pixels of the map.
        output: (B, C, N, 4).
        argmax_idx: int32, as output: which sample, counted from the box's first corner, or from its last for bottom and
            right.
    """
    num_images, channels, height, width = input.shape
    num_boxes = boxes.shape[1]
    map_MC = wide(input).view(num_images, 4, channels // 4, height * width).transpose(2, 3).reshape(-1, channels // 4)
    y, x = _border_samples(boxes, torch.arange(pool_size + 1, device=boxes.device).view(-1, 1), pool_size)
    plane = torch.arange(num_images * 4, device=boxes.device).view(num_images, 1, 1, 4)
    values = _sample(map_MC, plane.expand(y.shape), y, x, height, width)
    best, where = values.view(num_images, num_boxes, pool_size + 1, 4, -1).max(2)
    output.copy_(best.permute(0, 3, 1, 2))
    argmax_idx.copy_(where.permute(0, 3, 1, 2))


def border_align_backward(
    grad_output: Tensor, boxes: Tensor, argmax_idx: Tensor, grad_input: Tensor, pool_size: int
) -> None:
    """The gradient of `border_align_forward` in the maps, added to `grad_input`."""
    channels = grad_input.shape[1] // 4
    # (B, C, N, 4): the samples of the maxima, which lie elsewhere in each channel.
    which = argmax_idx.permute(0, 2, 1, 3)
    y, x = (at.transpose(1, 2) for at in _border_samples(boxes, which, pool_size))
    image = torch.arange(len(boxes), device=boxes.device).view(-1, 1, 1, 1)
    side = torch.arange(4, device=boxes.device) * channels
    channel = side + torch.arange(channels, device=boxes.device).view(1, -1, 1, 1)
    _spread_to_pixels(grad_input, wide(grad_output), image, channel, y, x)


def _border_samples(boxes: Tensor, which: Tensor, pool_size: int) -> tuple[Tensor, Tensor]:
    """Where samples of the sides lie, (B, N, samples, 4). `which` broadcasts to that: 0 is a side's first, pool_size its
    last."""
    x1, y1, x2, y2 = wide(boxes)[:, :, None].unbind(-1)
    top, left, bottom, right = (which / pool_size).expand(*which.shape[:-1], 4).unbind(-1)
    box_width, box_height = x2 - x1, y2 - y1
    x = [x1 + top * box_width, x1 + 0 * left, x2 - bottom * box_width, x2 + 0 * right]
    y = [y1 + 0 * top, y1 + left * box_height, y2 + 0 * bottom, y2 - right * box_height]
    return torch.stack(y, -1), torch.stack(x, -1)


def rotated_feature_align_forward(
    features: Tensor, best_bboxes: Tensor, output: Tensor, spatial_scale: float, points: int
) -> None:
    """R3Det's feature refinement: each position and the samples at the centre (and, with 5 points, the corners) of its
    box, summed. (B, C, H, W) maps, (B, H, W, 5) boxes."""
    pooled_MC = sum_bags(as_rows(features), _refining_bags(best_bboxes, features.shape, spatial_scale, points))
    num_images, channels, height, width = features.shape
    output.copy_(pooled_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2))


def rotated_feature_align_backward(
    top_grad: Tensor, best_bboxes: Tensor, bottom_grad: Tensor, spatial_scale: float, points: int
) -> None:
    """The gradient of `rotated_feature_align_forward` in the maps, added to `bottom_grad`."""
    num_images, channels, height, width = bottom_grad.shape
    bags = _refining_bags(best_bboxes, bottom_grad.shape, spatial_scale, points)
    grad_MC = spread_bags(as_rows(top_grad), bags, num_images * height * width)
    bottom_grad += grad_MC.view(num_images, height, width, channels).permute(0, 3, 1, 2)


def _refining_bags(boxes: Tensor, shape: torch.Size, scale: float, points: int) -> Bags:
    num_images, _, height, width = shape
    # mmcv reads the first number of a box as y and the second as x.
    y_M, x_M, width_M, height_M = (wide(boxes).reshape(-1, 5)[:, :4] * scale).unbind(1)
    y_MS, x_MS = y_M[:, None], x_M[:, None]
    if points > 1:
        cos_M, sin_M = wide(boxes).reshape(-1, 5)[:, 4].cos(), wide(boxes).reshape(-1, 5)[:, 4].sin()
        along = torch.tensor([0, 1, -1, -1, 1], device=boxes.device) / 2
        aside = torch.tensor([0, 1, 1, -1, -1], device=boxes.device) / 2
        x_MS = x_MS + along * (cos_M * width_M)[:, None] - aside * (sin_M * height_M)[:, None]
        y_MS = y_MS + along * (sin_M * width_M)[:, None] + aside * (cos_M * height_M)[:, None]
    rows, weights = cross(clamped_corners(y_MS, height), clamped_corners(x_MS, width), width)
    itself_M = torch.arange(num_images * height * width, device=boxes.device)
    rows = rows + (itself_M // (height * width) * (height * width))[:, None, None]
    rows = torch.cat([itself_M[:, None], rows.flatten(1)], 1)
    return even_bags(rows, torch.cat([weights.new_ones(len(rows), 1), weights.flatten(1)], 1))

