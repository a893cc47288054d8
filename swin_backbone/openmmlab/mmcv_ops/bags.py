"""Weighted sums of a map's rows, and the transpose of the sums. All operators with samples of a map consist of these.

A bag is the sum for an output: a list of entries with the index of a row and a weight. `embedding_bag` of torch sums
bags of any sizes, vectorised and on all threads.

Letters: M rows of the map, C channels, P bags, E entries, S samples.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Indices and weights of the two neighbours of each sample along an axis, (2, ...)
Corners = tuple[Tensor, Tensor]
# Entries per call: indices and weights stay below 64 MiB.
MAX_ENTRIES = 2**22


class Bags(NamedTuple):
    """The entries of P consecutive bags.

    Attributes:
        rows_E: indices of rows of the map.
        weights_E: weights of the rows, float32 or float64.
        starts_P: index of the first entry of each bag.
    """

    rows_E: Tensor
    weights_E: Tensor
    starts_P: Tensor


def sum_bags(map_MC: Tensor, bags: Bags) -> Tensor:
    """Return the sum of each bag, (P, C): the sparse (P, M) matrix `bags` times the map."""
    weights_E = bags.weights_E.to(map_MC.dtype)
    return F.embedding_bag(bags.rows_E, map_MC, bags.starts_P, mode='sum', per_sample_weights=weights_E)


def spread_bags(grad_PC: Tensor, bags: Bags, num_rows: int) -> Tensor:
    """Return the transposed product, (M, C). With a bag for each row, no two threads write a row, and the order of each
    sum is fixed."""
    num_bags, num_entries = len(bags.starts_P), len(bags.rows_E)
    ends_P = torch.cat([bags.starts_P[1:], bags.starts_P.new_full((min(num_bags, 1),), num_entries)])
    bag_E = number_entries(ends_P - bags.starts_P, num_entries)[0]
    sorted_E, order_E = bags.rows_E.sort(stable=True)
    starts_M = torch.searchsorted(sorted_E, torch.arange(num_rows, dtype=sorted_E.dtype, device=sorted_E.device))
    return sum_bags(grad_PC, Bags(bag_E[order_E].to(starts_M), bags.weights_E[order_E], starts_M))


def number_entries(count_P: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return the bag of each entry, and the entry's number in the bag. `total` is the sum of the counts."""
    ids_P = torch.arange(len(count_P), device=count_P.device, dtype=count_P.dtype)
    bag_E = torch.repeat_interleave(ids_P, count_P, output_size=total)
    starts_P = (count_P.cumsum(0) - count_P).to(count_P)
    return bag_E, torch.arange(total, device=count_P.device, dtype=count_P.dtype) - starts_P[bag_E]


def clamp_corners(at_S: Tensor, size: int) -> Corners:
    """Return the neighbours of RoIAlign. A sample up to one pixel outside moves to the border; a sample further outside
    has weight 0."""
    is_inside_S = (at_S >= -1) & (at_S <= size)
    at_S = torch.where(is_inside_S, at_S, 0).clamp(0, size - 1)
    low_S = at_S.long().clamp(max=size - 1)
    share_S = at_S - low_S
    return torch.stack([low_S, (low_S + 1).clamp(max=size - 1)]), torch.stack([1 - share_S, share_S]) * is_inside_S


def find_zero_padded_corners(at_S: Tensor, size: int) -> Corners:
    """Return the neighbours of a deformable convolution, on a zero-padded map. Differentiable in `at_S`."""
    is_inside_S = (at_S > -1) & (at_S < size)
    at_S = torch.where(is_inside_S, at_S, 0)
    floor_S = at_S.detach().floor()
    share_S, low_S = at_S - floor_S, floor_S.long()
    index_2S = torch.stack([low_S, low_S + 1])
    is_on_map_2S = is_inside_S & (index_2S >= 0) & (index_2S < size)
    return index_2S.clamp(0, size - 1), torch.stack([1 - share_S, share_S]) * is_on_map_2S


def combine_axes(y: Corners, x: Corners, width: int) -> tuple[Tensor, Tensor]:
    """Return index and weight of the four corners of each sample, (..., 4), in a map of a given width."""
    (y_index, y_weight), (x_index, x_weight) = y, x
    rows, weights = y_index[:, None] * width + x_index, y_weight[:, None] * x_weight
    return rows.flatten(0, 1).movedim(0, -1), weights.flatten(0, 1).movedim(0, -1)


def make_even_bags(rows: Tensor, weights: Tensor) -> Bags:
    """Return bags of equal size: the length of the last axis."""
    size = rows.shape[-1]
    starts_P = torch.arange(0, rows.numel(), size, device=rows.device)
    return Bags(rows.reshape(-1), weights.reshape(-1), starts_P)


def flatten_map(x_BCHW: Tensor) -> Tensor:
    """Return a map as rows, (B*H*W, C), in the dtype of sums. A float32 map in channels_last memory is not copied."""
    return widen(x_BCHW).permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])


def widen(x: Tensor) -> Tensor:
    """Return half precision as float32, for sums and coordinates, and float32 and float64 unchanged."""
    return x if x.dtype == torch.float64 else x.float()


def slice_within(cost_R: list[int], budget: int) -> Iterator[slice]:
    """Yield slices of consecutive regions whose cost is within the budget, or of a single region."""
    begin = spent = 0
    for index, cost in enumerate(cost_R):
        if spent + cost > budget and index > begin:
            yield slice(begin, index)
            begin = index
            spent = 0
        spent += cost
    yield slice(begin, len(cost_R))


def find_corner_rows(image: Tensor, y: Tensor, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return rows and weights (..., 4) of bilinear samples at (y, x) in the images' maps of `shape` (B, C, H, W)."""
    height, width = shape[2:]
    rows, weights = combine_axes(clamp_corners(y, height), clamp_corners(x, width), width)
    return rows + image[..., None] * (height * width), weights


def pool_bags(x_BCHW: Tensor, bags_of_spans: Iterable[tuple[slice, Bags]], output: Tensor) -> None:
    """Write the sums of bags into `output` (R, C, I, J). The bags are the bins of slices of regions."""
    map_MC = flatten_map(x_BCHW)
    _, channels, height, width = output.shape
    for span, bags in bags_of_spans:
        output[span] = sum_bags(map_MC, bags).view(-1, height, width, channels).permute(0, 3, 1, 2).to(output)


def unpool_bags(grad_output: Tensor, bags_of_spans: Iterable[tuple[slice, Bags]], grad_BCHW: Tensor) -> None:
    """Add the gradient of `pool_bags` in the maps to `grad_BCHW`."""
    batch, channels, height, width = grad_BCHW.shape
    for span, bags in bags_of_spans:
        grad_MC = spread_bags(flatten_map(grad_output[span]), bags, batch * height * width)
        grad_BCHW += grad_MC.view(batch, height, width, channels).permute(0, 3, 1, 2)


def differentiate(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad_output: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of `function(*inputs)` in the inputs."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        output = function(*leaves)
    return torch.autograd.grad(output, leaves, grad_output)
