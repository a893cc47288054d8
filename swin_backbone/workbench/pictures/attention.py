"""Attention weights of each block, and receptive fields of tokens through several blocks.

A forward keeps no attention weights: `attention_maps` computes them from the inputs of each attention module.

Layout: B batch, H W height and width of a map, L windows of all images, N places of a window, h heads, C channels.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...models.layers.attention import WindowAttention
from ...models.layers.swin_v2_block import WindowAttentionV2
from ...models.pyramid import SwinPyramid
from ...models.windows import Windows, find_tokens
from ...sizes import Size


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one block.

    Attributes:
        stage, block: numbers from 1; block 2 of stage 1 is `stages.0.blocks.1`.
        weights_LhNN: weight of each key (column) for each query (row), in each window and head. Rows sum to 1; rows of
            padding have no meaning. Windows of the rolled map, row by row, image after image.
        token_at_LN: number of the token at each place of each window, (b * H + y) * W + x; -1 for padding.
        batch: B.
        size: (H, W), without padding.
        window_size: (Wh, Ww).
        shift: (rows, columns); (0, 0) for none.
    """

    stage: int
    block: int
    weights_LhNN: Tensor
    token_at_LN: Tensor
    batch: int
    size: Size
    window_size: Size
    shift: Size

    def number_of(self, y: int, x: int, image: int = 0) -> int:
        """Return the number, as in `token_at_LN`, of the token in row `y` and column `x`.

        Raises:
            ValueError: if there is no such token.
        """
        H, W = self.size
        if not (0 <= y < H and 0 <= x < W and 0 <= image < self.batch):
            raise ValueError(
                f'there is no token in row {y}, column {x} of image {image}: {self.batch} images have {H}x{W} tokens'
            )
        return (image * H + y) * W + x

    def of_token(self, y: int, x: int, image: int = 0) -> Tensor:
        """Return the attention of the token in row `y` and column `x` to each token: (h, H, W).

        The sum of a head is 1 minus the attention to padding.

        Raises:
            ValueError: if there is no such token.
        """
        H, W = self.size
        window, query = (self.token_at_LN == self.number_of(y, x, image)).nonzero()[0].tolist()
        tokens_N = self.token_at_LN[window]
        weights_hN = self.weights_LhNN[window, :, query]
        is_token_N = tokens_N >= 0
        map_hT = weights_hN.new_zeros(len(weights_hN), H * W)
        map_hT[:, tokens_N[is_token_N] - image * H * W] = weights_hN[:, is_token_N]
        return map_hT.view(-1, H, W)

    def pull_back(self, share_BHW: Tensor) -> Tensor:
        """Return the share of each input token in the block's output, which is weighted by `share_BHW`.

        Attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928, equation 1): half the mean of the heads, half the
        shortcut. The attention to padding is lost.
        """
        share_T = share_BHW.flatten()
        padded_T = torch.cat([share_T, share_T.new_zeros(1)])
        from_LN = torch.einsum('lq,lqk->lk', padded_T[self.token_at_LN], self.weights_LhNN.mean(1))
        attended_T = torch.zeros_like(padded_T).index_put((self.token_at_LN.flatten(),), from_LN.flatten(), True)
        return (0.5 * share_T + 0.5 * attended_T[:-1]).view_as(share_BHW)


def attention_maps(model: nn.Module, images_BCHW: Tensor, shift: bool = True) -> list[AttentionMap]:
    """Return the attention weights of every block, of one forward of a copy in eval mode without gradients.

    All weights are in memory at once: 0.5 GB an image for Swin-T at 800x1344 in float32.

    Args:
        model: a `SwinBackbone` or `SwinV2Backbone`, or a model with a single such backbone.
        images_BCHW: normalised images.
        shift: False leaves out the shift in every block.

    Returns:
        Maps from the first block to the last that the backbone runs.

    Raises:
        ValueError: if the model has no such backbone or several, or a block has an attention of another package.

    Examples:
        >>> import torch
        >>> from swin_backbone import SwinBackbone
        >>> from swin_backbone.workbench.pictures.attention import attention_maps
        >>> maps = attention_maps(SwinBackbone(arch='nano'), torch.rand(1, 3, 56, 56))
        >>> maps[0].weights_LhNN.shape  # block 1 of stage 1: windows, heads, queries, keys
        torch.Size([4, 2, 49, 49])
        >>> maps[0].of_token(3, 5).shape  # attention of the token in row 3, column 5: heads, height, width
        torch.Size([2, 14, 14])
    """
    backbone = copy.deepcopy(find_backbone(model)).eval()
    maps: list[AttentionMap] = []
    for stage_index, stage in enumerate(backbone.stages[: max(backbone.out_indices) + 1]):
        for block_index, block in enumerate(stage.blocks):
            attention = getattr(getattr(block, 'attn', None), 'w_msa', None)
            if not isinstance(attention, (WindowAttention, WindowAttentionV2)):
                raise ValueError(f'stages.{stage_index}.blocks.{block_index} has no attention of this package')
            attention.register_forward_pre_hook(partial(_append_map, maps, stage_index + 1, block_index + 1, shift))
    with torch.no_grad():
        backbone(images_BCHW)
    return maps


def _append_map(
    maps: list[AttentionMap], stage: int, block: int, shift: bool, attention: Any, inputs: tuple[Tensor, Windows]
) -> tuple[Tensor, Windows]:
    """Append the attention map of a module's call to `maps`, and return the inputs, with or without the shift."""
    x_BHWC, windows = inputs
    windows = windows if shift else windows._replace(shift=(0, 0))
    bias_hNN = attention.position_bias(windows.window_size)
    qkv_LN3C = attention.project(windows.partition(x_BHWC))
    q, k, _ = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    bias_LhNN = bias_hNN.to(q.dtype)[None]
    masked_G1NN = windows.make_mask(q.device)
    if masked_G1NN is not None:
        bias_LhNN = bias_LhNN.masked_fill(masked_G1NN, -torch.inf).repeat(x_BHWC.shape[0], 1, 1, 1)
    weights_LhNN = torch.softmax((q * attention.scale) @ k.transpose(-2, -1) + bias_LhNN, dim=-1, dtype=q.dtype)
    batch = x_BHWC.shape[0]
    size = windows.height, windows.width
    num_tokens = math.prod(size)
    token_at_P = find_tokens(windows, x_BHWC.device)
    first_B1 = torch.arange(batch, device=x_BHWC.device)[:, None] * num_tokens
    token_at_LN = torch.where(token_at_P < num_tokens, token_at_P + first_B1, -1).view(len(weights_LhNN), -1)
    window = windows.window_size
    maps.append(AttentionMap(stage, block, weights_LhNN, token_at_LN, batch, size, window, windows.shift))
    return x_BHWC, windows


def receptive_fields(maps: Sequence[AttentionMap], y: int, x: int) -> list[Tensor]:
    """Return the share of each input token in one of the first image after 1, 2, ... blocks of a stage: (H, W) each.

    Attention rollout over the first blocks; see `AttentionMap.pull_back`.

    Raises:
        ValueError: if the maps are of several stages, or there is no such token.
    """
    if len({attention.stage for attention in maps}) != 1:
        raise ValueError(f'maps must be of one stage, got stages {sorted({a.stage for a in maps})}')
    fields = []
    for count in range(1, len(maps) + 1):
        share_BHW = maps[0].weights_LhNN.new_zeros(maps[0].batch, *maps[0].size)
        share_BHW.view(-1)[maps[0].number_of(y, x)] = 1
        for attention in reversed(maps[:count]):
            share_BHW = attention.pull_back(share_BHW)
        fields.append(share_BHW[0])
    return fields


def find_backbone(model: nn.Module) -> SwinPyramid:
    """Return the single backbone of this package in a model.

    Raises:
        ValueError: if there is no such backbone, or several.
    """
    backbones = [module for module in model.modules() if isinstance(module, SwinPyramid)]
    if len(backbones) != 1:
        raise ValueError(
            'model must be or have one SwinBackbone or SwinV2Backbone, '
            f'got a {type(model).__name__} with {len(backbones)}'
        )
    return backbones[0]


def list_strides(model: nn.Module) -> list[int]:
    """Return the side of a token in pixels, for each stage of the backbone in a model."""
    backbone = find_backbone(model)
    merges = [getattr(stage, 'downsample', None) for stage in backbone.stages]
    strides = [backbone.patch_embed.projection.stride[0]]
    strides += [merge.stride for merge in merges if merge is not None]
    return [math.prod(strides[: index + 1]) for index in range(len(strides))]
