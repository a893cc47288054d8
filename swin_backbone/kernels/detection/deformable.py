"""Deformable attention by the compiled library, with gradients (Zhu et al. 2021, arXiv 2010.04159, equation 2).

Layout: B batch, Q queries, S tokens of all maps of an image, h heads, d channels of a head, L maps, P points of a map.
"""

from collections.abc import Sequence
from ctypes import byref
from functools import partial
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..native.layers import run_operator
from ..native.library import Deformable
from ..native.memory import address, libswin


def deformable_attention(values_BShd: Tensor, shapes_L2: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums of bilinear samples of the maps, (B, Q, h d), of the dtype of `values_BShd`.

    Args:
        values_BShd: tokens, map after map. Sums are in float32.
        shapes_L2: height and width of each map, int64.
        places: (B, Q, h, L, P, 2), x and y of samples, 0 to 1 across a map. Neighbours outside a map are 0.
        weights: (B, Q, h, L, P), of samples.

    Raises:
        ValueError: if the arguments do not fit.
    """
    tensors = (x.float().contiguous() for x in (values_BShd, places, weights))
    y_BQhd = run_operator(_Deformable(shapes_L2.contiguous()), partial(_by_torch, shapes_L2), *tensors)
    return y_BQhd.flatten(2).to(values_BShd.dtype)


class _Deformable(NamedTuple):
    """See `native.layers.Operator`."""

    shapes_L2: Tensor

    def compute(self, values: Tensor, places: Tensor, weights: Tensor) -> Sequence[Tensor]:
        described, arrays, y_BQhd = self.describe(values, places, weights)
        libswin().deformable_forward(byref(described), *arrays, y_BQhd.data_ptr())
        return (y_BQhd,)

    def describe(
        self, values: Tensor, places: Tensor, weights: Tensor
    ) -> tuple[Deformable, list[Optional[int]], Tensor]:
        """Return the library's description, the addresses of the inputs, and memory for the output."""
        (B, S, h, d), (_, Q, _, L, P) = values.shape, weights.shape
        arrays = [
            address('values', values, (B, S, h, d)),
            address('places', places, (B, Q, h, L, P, 2)),
            address('weights', weights, (B, Q, h, L, P)),
        ]
        shapes = address('shapes', self.shapes_L2, (L, 2), torch.int64)
        described = Deformable(torch.get_num_threads(), B, Q, S, h, d, L, P, shapes)
        return described, arrays, values.new_empty(B, Q, h, d)

    def gradients(
        self, grad_BQhd: Tensor, _: Sequence[bool], values: Tensor, places: Tensor, weights: Tensor
    ) -> Sequence[Optional[Tensor]]:
        described, arrays, y_BQhd = self.describe(values, places, weights)
        gradients = torch.zeros_like(values), torch.empty_like(places), torch.empty_like(weights)
        grad = address('grad', grad_BQhd, y_BQhd.shape)
        libswin().deformable_backward(byref(described), *arrays, grad, *(one.data_ptr() for one in gradients))
        return gradients


def _by_torch(shapes_L2: Tensor, values: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Return the sums by `grid_sample`, (B, Q, h, d)."""
    B, Q, h, _, P = weights.shape
    sums, first = [], 0
    for level, (height, width) in enumerate(shapes_L2.tolist()):
        maps = values[:, first : first + height * width].permute(0, 2, 3, 1).reshape(B * h, -1, height, width)
        grid = (2 * places[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        samples = F.grid_sample(maps, grid, 'bilinear', 'zeros', align_corners=False)  # (B h, d, Q, P)
        sums.append((samples * weights[:, :, :, level].transpose(1, 2).reshape(B * h, 1, Q, P)).sum(-1))
        first += height * width
    return torch.stack(sums).sum(0).view(B, h, -1, Q).permute(0, 3, 1, 2)
