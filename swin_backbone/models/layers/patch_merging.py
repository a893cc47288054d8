"""Patch merging between stages, and the norm of a stage's output.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ...backends.graph import in_order
from ...backends.linear import eager_linear
from ...backends.native.patches import merge, output_norm
from ...backends.patches import MergingWeights, merge_patches, neighbours_first, normalise_output, row_strips
from ...backends.plan import Plan, run
from .layer import CompiledLayer, norm_values
from .snapshot import has_hooks, is_as_built, known_layer, remember_layers


@known_layer
class PatchMerging(CompiledLayer):
    """Concatenate 2 x 2 neighbours and project them to `out_channels`, at half the resolution.

    The concatenated channels are in the order of `nn.Unfold`, channel-major, as in mmdet and mmseg. A map that the
    stride does not divide is zero-padded on the right and at the bottom.

    Args:
        stride: distance between neighbourhoods; they are 2 x 2 for any stride.
        norm_cfg: the norm before or after the projection; None: no norm.
        post_norm: whether the norm is after the projection, as in Swin V2.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, norm_cfg: Optional[dict], post_norm: bool = False
    ):
        super().__init__()
        self.stride = stride
        self.post_norm = post_norm
        num_normed = out_channels if post_norm else 4 * in_channels
        self.norm: Any = build_norm_layer(norm_cfg, num_normed)[1] if norm_cfg else nn.Identity()
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)
        remember_layers(self)

    def forward(self, x_BHWC: Tensor, plan: Plan = Plan()) -> Tensor:  # noqa: B008 - it has constants alone
        """(B, H, W, C) to (B, ceil(H / stride), ceil(W / stride), out_channels)."""
        if self.stride != 2 or not (plan.as_built or is_as_built(self)):
            return self._by_modules(x_BHWC)
        weight, (norm_weight, norm_bias, eps), post_norm = self.reduction.weight, norm_values(self.norm), self.post_norm
        if plan.compiled is not None and x_BHWC.dtype == weight.dtype == torch.float32:
            norm = norm_weight, norm_bias, eps, post_norm
            return merge(x_BHWC, plan.compiled, weight, *norm, self.packed)
        if not post_norm:  # the norm is over the concatenated channels
            norm_weight, norm_bias = neighbours_first(norm_weight), neighbours_first(norm_bias)
        weights = MergingWeights(norm_weight, norm_bias, neighbours_first(plan.cast(weight)))
        if plan.strip_tokens is None:
            return merge_patches(x_BHWC, weights, eps, post_norm)
        B, H, W, C = x_BHWC.shape
        if H % 2 == 0:  # then all images can be stacked into one tall image
            x_BHWC = x_BHWC.reshape(1, B * H, W, C)
        rows = row_strips(x_BHWC.shape, (2, 2), plan.strip_tokens)
        y_BHWC = run(
            lambda x, _rows, w, **_: merge_patches(x, w, eps, post_norm, eager_linear), x_BHWC, rows, weights, plan
        )
        return y_BHWC.view(B, (H + 1) // 2, (W + 1) // 2, -1)

    def _by_modules(self, x_BHWC: Tensor) -> Tensor:
        stride, (H, W) = self.stride, x_BHWC.shape[1:3]
        out_height, out_width = -(-H // stride), -(-W // stride)
        reach_height, reach_width = (out_height - 1) * stride + 1, (out_width - 1) * stride + 1
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, max(0, reach_width + 1 - W), 0, max(0, reach_height + 1 - H)))
        neighbours = [
            x_BHWC[:, dy : dy + reach_height : stride, dx : dx + reach_width : stride] for dy in (0, 1) for dx in (0, 1)
        ]
        x_BHWC = torch.stack(neighbours, dim=-1).flatten(3)
        return self.norm(self.reduction(x_BHWC)) if self.post_norm else self.reduction(self.norm(x_BHWC))


def normalised_output(norm: Any, x_BHWC: Tensor, plan: Plan) -> Tensor:
    """Normalise a stage's output and return it as necks and heads read it: (B, C, H, W).

    The result is in contiguous memory, not a channels_last view, because mmcv's RoIAlign reads any memory as if it were
    contiguous (B, C, H, W).
    """
    plain = type(norm) is nn.LayerNorm and not has_hooks(norm) and 'forward' not in norm.__dict__
    if plain and plan.compiled is not None and x_BHWC.dtype == torch.float32:
        return output_norm(x_BHWC, norm.weight, norm.bias, norm.eps)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (x_BHWC, *norm.parameters()))
    if plain and not needs_grad and plan.strip_tokens is not None:
        return normalise_output(x_BHWC, norm.weight, norm.bias, norm.eps)
    return in_order(norm(x_BHWC).permute(0, 3, 1, 2))
