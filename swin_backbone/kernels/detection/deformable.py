"""Deformable attention by the compiled library, with gradients (Zhu et al. 2021, arXiv 2010.04159, equation 2).

Layout: B batch, Q queries, S tokens of all maps of an image, h heads, d channels of a head, L maps, P points of a map.
"""

from collections.abc import Sequence
from ctypes import byref
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..native.interface import MakeWeights, Weights
from ..native.library import DeformableStruct, get_libswin
from ..native.memory import empty, require_address, takes_sizes
from ..native.plans import run_computation


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
    values, *others = (x.float().contiguous() for x in (values_BShd, places, weights))
    shapes_L2 = shapes_L2.contiguous()
    y_BQhd = run_computation(_Deformable(shapes_L2), partial(_sample_by_torch, shapes_L2), values, *others)
    return y_BQhd.flatten(2).to(values_BShd.dtype)


def takes_attention(values_BSC: Tensor, shapes_L2: Tensor, heads: int, num_queries: int, num_points: int) -> bool:
    """Return whether the library takes the sizes of a layer. Torch raises errors for wrong sizes."""
    B, S, C = values_BSC.shape
    sizes = B, num_queries, S, heads, C // heads, len(shapes_L2), num_points
    return takes_sizes('deformable', *sizes) and int(shapes_L2.prod(1).sum()) == S


class _Deformable(NamedTuple):
    """See `native.interface.Computation`, and for `shapes_L2`, which is contiguous, `deformable_attention`."""

    shapes_L2: Tensor

    def prepare(self, _: Sequence[int], parameters: Sequence[Any], make_weights: MakeWeights) -> Sequence[Any]:
        return parameters

    def forward(self, values: Tensor, prepared: Sequence[Any]) -> Sequence[Tensor]:
        places, weights = prepared
        structure, arrays, y_BQhd = self.make_structure(values, places, weights)
        get_libswin().deformable_forward(byref(structure), *arrays, require_address('y', y_BQhd))
        return (y_BQhd,)

    def make_structure(
        self, values: Tensor, places: Tensor, weights: Tensor
    ) -> tuple[DeformableStruct, list[Optional[int]], Tensor]:
        """Return the structure of a call, the addresses of the inputs, and memory for the output."""
        (B, S, h, d), (_, Q, _, L, P) = values.shape, weights.shape
        arrays = [
            require_address('values', values, (B, S, h, d)),
            require_address('places', places, (B, Q, h, L, P, 2)),
            require_address('weights', weights, (B, Q, h, L, P)),
        ]
        structure = DeformableStruct(
            threads=torch.get_num_threads(), batch=B, queries=Q, tokens=S, heads=h, channels=d, levels=L, points=P,
            shapes=require_address('shapes', self.shapes_L2, (L, 2), torch.int64),
        )  # fmt: skip
        return structure, arrays, empty(B, Q, h, d)

    def backward(
        self,
        grad_BQhd: Tensor,
        _: Sequence[bool],
        values: Tensor,
        prepared: Any,
        parameters: Sequence[Any],
        saved: Sequence[Tensor],
    ) -> Weights:
        places, weights = parameters
        structure, arrays, y_BQhd = self.make_structure(values, places, weights)
        gradients = torch.zeros_like(values), torch.empty_like(places), torch.empty_like(weights)
        grad = require_address('gradient', grad_BQhd, y_BQhd.shape)
        grad_addresses = [require_address('gradient', tensor) for tensor in gradients]
        get_libswin().deformable_backward(byref(structure), *arrays, grad, *grad_addresses)
        return gradients


def _sample_by_torch(shapes_L2: Tensor, values: Tensor, places: Tensor, weights: Tensor) -> Tensor:
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
