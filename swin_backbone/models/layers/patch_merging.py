"""Patch merging between stages, and the norm of a stage's output.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ...backends.functions.block import contiguous_copy
from ...backends.protocol import MergingWeights, Plan
from .layer import BackendLayer, norm_values
from .snapshot import is_changed, is_unmodified, known_layer, take_snapshot

WRITTEN_AT_ONCE = 1 << 24  # numbers of a map: 64 MiB


@known_layer
class PatchMerging(BackendLayer):
    """Concatenate 2 x 2 neighbours and project them to `out_channels`, at half the resolution.

    The concatenated channels are in the order of `nn.Unfold`, channel-major, as in mmdet and mmseg. A map that the
    stride does not divide is zero-padded on the right and at the bottom.

    Args:
        stride: distance between neighbourhoods; they are 2 x 2 for any stride.
        norm_cfg: the norm before or after the projection; None: no norm.
        post_norm: whether the norm is after the projection, as in Swin V2.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: Optional[dict[str, Any]],
        post_norm: bool = False,
    ):
        super().__init__()
        self.stride = stride
        self.post_norm = post_norm
        num_normed = out_channels if post_norm else 4 * in_channels
        self.norm: nn.Module = build_norm_layer(norm_cfg, num_normed)[1] if norm_cfg else nn.Identity()
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)
        take_snapshot(self)

    def forward(self, x_BHWC: Tensor, plan: Optional[Plan] = None) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / stride), ceil(W / stride), out_channels).

        Args:
            plan: how it is computed; None: each module is called.
        """
        if plan is None or self.stride != 2 or not (plan.unmodified or is_unmodified(self)):
            return self._by_modules(x_BHWC)
        norm_weight, norm_bias, eps = norm_values(self.norm)
        weights = MergingWeights(self.reduction.weight, norm_weight, norm_bias)
        return plan.backend.merge(x_BHWC, weights, eps, self.post_norm, plan, self.cache)

    def _by_modules(self, x_BHWC: Tensor) -> Tensor:
        stride, (H, W) = self.stride, x_BHWC.shape[1:3]
        out_height, out_width = -(-H // stride), -(-W // stride)
        reach_height, reach_width = (out_height - 1) * stride + 1, (out_width - 1) * stride + 1
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, max(0, reach_width + 1 - W), 0, max(0, reach_height + 1 - H)))
        neighbours = [
            x_BHWC[:, dy : dy + reach_height : stride, dx : dx + reach_width : stride] for dy in (0, 1) for dx in (0, 1)
        ]
        x_BHWC = torch.stack(neighbours, dim=-1).flatten(3)
        y_BHWC: Tensor = self.norm(self.reduction(x_BHWC)) if self.post_norm else self.reduction(self.norm(x_BHWC))
        return y_BHWC


def normalised_output(norm: nn.Module, x_BHWC: Tensor, plan: Plan) -> Tensor:
    """Normalise a stage's output and return it as necks and heads read it: (B, C, H, W).

    The result is in contiguous memory, not a channels_last view, because mmcv's RoIAlign reads any memory as if it were
    contiguous (B, C, H, W).
    """
    if isinstance(norm, nn.LayerNorm) and _is_layer_norm(norm, plan):  # the first is for mypy
        return plan.backend.output_norm(x_BHWC, norm.weight, norm.bias, norm.eps, plan)
    return contiguous_copy(norm(x_BHWC).permute(0, 3, 1, 2))


def write_normalised_output(norm: nn.Module, x_BHWC: Tensor, plan: Plan, out_BCHW: Tensor) -> None:
    """`normalised_output`, put into `out_BCHW` some rows at a time, so that no other memory is as large as a map.

    A norm that a user put there may look at more than one token: it gets the whole map.
    """
    B, H, W, C = x_BHWC.shape
    by_token = type(norm) is nn.Identity or _is_layer_norm(norm, plan)
    rows = max(1, WRITTEN_AT_ONCE // (W * C)) if by_token else H
    for image in range(B):
        for top in range(0, H, rows):
            part_1HWC = x_BHWC[image : image + 1, top : top + rows]
            out_BCHW[image : image + 1, :, top : top + rows] = normalised_output(norm, part_1HWC, plan)


def _is_layer_norm(norm: nn.Module, plan: Plan) -> bool:
    """Whether it is the norm that a backend computes."""
    return type(norm) is nn.LayerNorm and (plan.unmodified or not is_changed(norm))
