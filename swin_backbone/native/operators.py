"""The operators as functions of a block's weights and settings, and when they can be taken.

Layout: B batch, H W height and width of a map, C channels.
"""

from typing import Optional

import torch
from torch import Tensor, nn

from ..ops.block import BlockSettings, BlockWeights
from ..ops.grid import Size
from ..ops.patches import neighbours_first
from .library import is_available
from .packing import Packed

LARGEST_WINDOW = 16
HEAD_DIMS = range(8, 65, 8)


def takes_stage(dtype: torch.dtype, window_size: Size, head_dim: int) -> bool:
    """Whether the operators compute blocks of such windows and heads in `dtype`, here and now, without gradients."""
    return max(window_size) <= LARGEST_WINDOW and head_dim in HEAD_DIMS and is_available(dtype)


def takes_block(x_BHWC: Tensor, w: BlockWeights, settings: BlockSettings) -> bool:
    """Whether the operator computes what the functions of `ops` would, of a stage that it takes."""
    return (
        x_BHWC.dtype == w.qkv_weight.dtype == torch.float32
        and w.fc1_weight.shape[0] % 8 == 0
        and type(settings.activation) is nn.GELU
        and settings.activation.approximate == 'none'
        and not any((settings.attn_drop, settings.proj_drop, settings.hidden_drop, settings.ffn_drop))
    )


def block(
    x_BHWC: Tensor,
    dtype: torch.dtype,
    w: BlockWeights,
    settings: BlockSettings,
    packed: Packed,
    window_size: Size,
    shift: Size,
    mask_padding: bool,
    overwrite: bool = False,
) -> Tensor:
    """One block, of Swin V2 if its weights have a cosine scale, on float32 maps (B, H, W, C).

    Args:
        dtype: that products are computed in; sums, norms, softmax and what goes from block to block are float32.
        w: weights in their own dtype, not cast for autocast.
        overwrite: put the result in the place of `x_BHWC`.
    """
    weights = w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight
    heads = len(w.position_bias_hNN)
    panels = packed.get(weights, dtype, (x_BHWC.shape[-1] // heads, 1, 1, 1))
    vectors = [
        *(w.norm1_weight, w.norm1_bias, w.qkv_bias, w.proj_bias, w.norm2_weight, w.norm2_bias),
        *(w.fc1_bias, w.fc2_bias, w.norm3_weight, w.norm3_bias),
    ]
    args = (
        *(panels, vectors, w.position_bias_hNN, w.cosine_scale_h, w.drop_path_2B, heads),
        *(list(window_size), list(shift), mask_padding, settings.scale, list(settings.eps)),
    )
    x_BHWC = x_BHWC.contiguous()
    if overwrite:
        torch.ops.swin_backbone.block_(x_BHWC, *args)
        return x_BHWC
    return torch.ops.swin_backbone.block(x_BHWC, *args)


def embed(
    image_BCHW: Tensor,
    dtype: torch.dtype,
    weight: Tensor,
    bias: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    packed: Packed,
) -> Tensor:
    """Patches to tokens (B, H', W', C), by the weight of a convolution (C, channels, rows, columns).

    Args:
        image_BCHW: float32, in any memory.
        eps: of the norm behind; None: there is none.
    """
    (panels,) = packed.get((weight,), dtype, (1,))
    return torch.ops.swin_backbone.embed(image_BCHW, panels, bias, norm_weight, norm_bias, eps, list(weight.shape[2:]))


def merge(
    x_BHWC: Tensor,
    dtype: torch.dtype,
    weight: Tensor,
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    post_norm: bool,
    packed: Packed,
) -> Tensor:
    """2 x 2 neighbours to tokens (B, H/2, W/2, C'), by weights over channels in the order of `nn.Unfold`: (C, 2, 2).

    Args:
        eps: of the norm, over what is concatenated or, with `post_norm`, projected; None: there is none.
    """
    (panels,) = packed.get((weight,), dtype, (1,), neighbours_first)
    if not post_norm:
        norm_weight, norm_bias = (None if w is None else neighbours_first(w) for w in (norm_weight, norm_bias))
    return torch.ops.swin_backbone.merge(x_BHWC.contiguous(), panels, norm_weight, norm_bias, eps, post_norm)


def output_norm(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Layer norm of a float32 map, transposed: (B, C, H, W)."""
    return torch.ops.swin_backbone.output_norm(x_BHWC.contiguous(), weight, bias, eps)
