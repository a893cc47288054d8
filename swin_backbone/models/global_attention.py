"""Attention over a whole map, behind the last stage of a backbone.

Layout: B batch, C channels, H W height and width of a map, T = H*W tokens.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .arguments import InitCfg, build_norm
from .initializers import apply_initializers, split_init_cfg
from .layers.block import build_mlp


class GlobalAttention(nn.Module):
    """A transformer block over all tokens of the last map. In a config the block is the first neck.

    The HTC++ runs of Liu et al. 2021 (section 4.2) have "an extra global self-attention layer appended at the output
    of the last stage". The code was not published. A block of 12 C^2 weights explains the paper's parameters and
    multiply-adds of the two HTC++ runs.

    Args:
        embed_dims: channels of the last map.
        num_heads: attention heads; must divide embed_dims.
        mlp_ratio: hidden channels of the MLP, divided by embed_dims.
        norm_cfg: norm before attention and before the MLP.
        init_cfg: initializers of mmengine.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float = 4,
        norm_cfg: dict[str, Any] = dict(type='LN'),  # noqa: B006 - the toolboxes' own way to write a config
        init_cfg: InitCfg = None,
    ):
        super().__init__()
        self.init_cfg = copy.deepcopy(init_cfg)
        self.is_init = False
        self.norm1 = build_norm(norm_cfg, embed_dims)
        self.attn = nn.MultiheadAttention(embed_dims, num_heads, batch_first=True)
        self.norm2 = build_norm(norm_cfg, embed_dims)
        self.ffn = build_mlp(embed_dims, int(mlp_ratio * embed_dims), dict(type='GELU'))

    def init_weights(self) -> None:
        """Apply the initializers of `init_cfg`."""
        initializers, checkpoints = split_init_cfg(self.init_cfg)
        apply_initializers(self, [*initializers, *checkpoints])
        self.is_init = True

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Take maps (B, C_i, H_i, W_i), change the last map, and return all maps."""
        *others, last_BCHW = maps
        x_BTC = last_BCHW.flatten(2).transpose(1, 2)
        normed = self.norm1(x_BTC)
        x_BTC = x_BTC + self.attn(normed, normed, normed, need_weights=False)[0]
        x_BTC = x_BTC + self.ffn(self.norm2(x_BTC))
        return (*others, x_BTC.transpose(1, 2).reshape(last_BCHW.shape))
