"""Functions that call the operators with a layer's weights and settings, and checks whether they can be used.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...windows.grid import Size
from ..block import BlockSettings, BlockWeights
from .gradients import Operator
from .library import is_available
from .packing import Packed

LARGEST_WINDOW = 16
HEAD_DIMS = range(8, 65, 8)
# With fewer channels, or in bfloat16, a block's values are computed again for backward as fast as they are written and
# read.
SAVED_CHANNELS = 384
# The order of weights in the operators' arguments, and of the gradients that `block_backward` returns after that of x.
VECTORS = (
    *('norm1_weight', 'norm1_bias', 'qkv_bias', 'proj_bias', 'norm2_weight', 'norm2_bias'),
    *('fc1_bias', 'fc2_bias', 'norm3_weight', 'norm3_bias'),
)
GRADIENTS = (
    *('qkv_weight', 'proj_weight', 'fc1_weight', 'fc2_weight', *VECTORS),
    *('position_bias_hNN', 'cosine_scale_h'),
)


def takes_stage(dtype: torch.dtype, window_size: Size, head_dim: int) -> bool:
    """Whether the operators can compute blocks with this window and head size in `dtype` on this machine."""
    return max(window_size) <= LARGEST_WINDOW and head_dim in HEAD_DIMS and is_available(dtype)


def saves_block(dtype: torch.dtype, channels: int) -> bool:
    """Whether a forward that need not save memory should save a block's intermediate values for backward."""
    return dtype == torch.float32 and channels >= SAVED_CHANNELS


def takes_block(x_BHWC: Tensor, qkv_weight: Tensor, fc1_weight: Tensor, settings: BlockSettings) -> bool:
    """Whether the operator computes the same as torch, for a block of a stage that it supports."""
    return (
        x_BHWC.dtype == qkv_weight.dtype == torch.float32
        and fc1_weight.shape[0] % 8 == 0
        and type(settings.activation) is nn.GELU
        and settings.activation.approximate == 'none'
        and not any((settings.attn_drop, settings.proj_drop, settings.hidden_drop, settings.ffn_drop))
    )


class Way(NamedTuple):
    """How a block is computed, besides its weights."""

    dtype: torch.dtype  # of matrix products; sums, norms, softmax and the block's output are float32
    settings: BlockSettings
    packed: Packed
    window_size: Size
    shift: Size
    mask_padding: bool
    save: bool  # intermediate values for backward, which otherwise recomputes them


def block(
    x_BHWC: Tensor, w: BlockWeights, way: Way, by_torch: Callable[[Tensor, BlockWeights], Tensor], overwrite: bool
) -> Tensor:
    """Compute one block on float32 maps (B, H, W, C). It is a Swin V2 block if its weights have a cosine scale.

    Args:
        w: weights in their own dtype, not cast for autocast.
        by_torch: computes the same block from map and weights by torch, for a second derivative.
        overwrite: write the result into `x_BHWC`, if no gradient is needed.
    """
    x_BHWC = x_BHWC.contiguous()
    if overwrite and not torch.is_grad_enabled():
        torch.ops.swin_backbone.block_(x_BHWC, *_arguments(w, way))
        return x_BHWC

    saves = way.save and torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x_BHWC, *w))

    def compute(x, *weights):
        arguments = x, *_arguments(BlockWeights(*weights), way)
        if saves:
            return torch.ops.swin_backbone.block_saving(*arguments)
        return (torch.ops.swin_backbone.block(*arguments),)

    def gradients(grad, _, x, *stored):
        w = BlockWeights(*stored[: len(BlockWeights._fields)])
        saved = stored[-1] if saves else None
        packed, *others = _arguments(w, way)
        units = 1, x.shape[-1] // len(w.position_bias_hNN), 1, 1
        transposed = [
            torch.ops.swin_backbone.pack_linear(weight, way.dtype, unit, transposed=True)
            for weight, unit in zip(_linear_weights(w), units)
        ]
        of_x, *of_weights = torch.ops.swin_backbone.block_backward(x, grad, packed, transposed, *others, saved)
        by_name = dict(zip(GRADIENTS, of_weights))
        return of_x, *(by_name.get(name) for name in w._fields)

    def with_second_derivative(x, *weights):
        return by_torch(x, BlockWeights(*weights))

    return Operator.apply(compute, gradients, with_second_derivative, x_BHWC, *w)


def _arguments(w: BlockWeights, way: Way) -> tuple:
    """The operators' arguments after the maps."""
    heads, C = len(w.position_bias_hNN), len(w.qkv_weight) // 3
    vectors = [getattr(w, name) for name in VECTORS]
    return (
        *(way.packed.get(_linear_weights(w), way.dtype, (C // heads, 1, 1, 1)), vectors, w.position_bias_hNN),
        *(w.cosine_scale_h, w.drop_path_2B, heads, list(way.window_size), list(way.shift), way.mask_padding),
        *(way.settings.scale, list(way.settings.eps)),
    )


def _linear_weights(w: BlockWeights) -> tuple[Tensor, ...]:
    return w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight
