"""Functions that call the operators with a layer's weights and settings, and checks whether they can be used.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.block import BlockSettings, BlockWeights
from ..ops.grid import Size
from .library import is_available
from .packing import Packed

LARGEST_WINDOW = 16
HEAD_DIMS = range(8, 65, 8)
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


def takes_block(x_BHWC: Tensor, qkv_weight: Tensor, fc1_weight: Tensor, settings: BlockSettings) -> bool:
    """Whether the operator computes the same as the functions of `ops`, for a block of a stage that it supports."""
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


def block(
    x_BHWC: Tensor, w: BlockWeights, way: Way, by_torch: Callable[[Tensor, BlockWeights], Tensor], overwrite: bool
) -> Tensor:
    """Compute one block on float32 maps (B, H, W, C). It is a Swin V2 block if its weights have a cosine scale.

    For backward it stores only its input and weights; backward recomputes the rest.

    Args:
        w: weights in their own dtype, not cast for autocast.
        by_torch: computes the same block from map and weights by torch, for a second derivative.
        overwrite: write the result into `x_BHWC`, if no gradient is needed.
    """
    x_BHWC = x_BHWC.contiguous()
    if torch.is_grad_enabled():
        return _Block.apply(way, by_torch, x_BHWC, *w)
    if overwrite:
        torch.ops.swin_backbone.block_(x_BHWC, *_arguments(w, way))
        return x_BHWC
    return torch.ops.swin_backbone.block(x_BHWC, *_arguments(w, way))


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


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, way, by_torch, x_BHWC, *weights):
        ctx.save_for_backward(x_BHWC, *weights)
        ctx.way, ctx.by_torch = way, by_torch
        return torch.ops.swin_backbone.block(x_BHWC, *_arguments(BlockWeights(*weights), way))

    @staticmethod
    def backward(ctx, grad_BHWC):
        x_BHWC, *weights = ctx.saved_tensors
        w, needed = BlockWeights(*weights), ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # a second derivative is needed
            inputs = [tensor for tensor, n in zip((x_BHWC, *weights), needed) if n]
            found = iter(torch.autograd.grad(ctx.by_torch(x_BHWC, w), inputs, grad_BHWC, create_graph=True))
            return None, None, *(next(found) if n else None for n in needed)
        heads, linear = len(w.position_bias_hNN), _linear_weights(w)
        units = 1, x_BHWC.shape[-1] // heads, 1, 1
        transposed = [
            torch.ops.swin_backbone.pack_linear(weight, ctx.way.dtype, unit, transposed=True)
            for weight, unit in zip(linear, units)
        ]
        packed, *others = _arguments(w, ctx.way)
        grad_x_BHWC, *grads = torch.ops.swin_backbone.block_backward(
            x_BHWC, grad_BHWC.contiguous(), packed, transposed, *others
        )
        by_name = dict(zip(GRADIENTS, grads))
        by_weight = (by_name.get(name) if n else None for name, n in zip(w._fields, needed[1:]))
        return None, None, grad_x_BHWC if needed[0] else None, *by_weight
