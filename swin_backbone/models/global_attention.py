"""Attention over a whole map, behind the last stage of a backbone.

Layout: B batch, C channels, H W height and width of a map, T = H*W tokens.
"""

from collections.abc import Sequence
from typing import Any, Optional

from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class GlobalAttention(BaseModule):
    """A transformer block over all tokens of the last map. In a config the block is the first neck.

    The HTC++ runs of Liu et al. 2021 (section 4.2) have "an extra global self-attention layer appended at the output
    of the last stage". The code was not published. A block of 12 C^2 weights explains the paper's parameters and
    multiply-adds of the two HTC++ runs.

    Args:
        embed_dims: channels of the last map.
        num_heads: attention heads; must divide embed_dims.
        mlp_ratio: hidden channels of the MLP, divided by embed_dims.
        norm_cfg: norm before attention and before the MLP.
        init_cfg: any initializer of mmengine.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float = 4,
        norm_cfg: dict[str, Any] = dict(type='LN'),  # noqa: B006 - the toolboxes' own way to write a config
        init_cfg: Optional[dict[str, Any]] = None,
    ):
        super().__init__(init_cfg=init_cfg)
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = nn.MultiheadAttention(embed_dims, num_heads, batch_first=True)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(embed_dims, int(mlp_ratio * embed_dims), act_cfg=dict(type='GELU'), add_identity=False)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Take maps (B, C_i, H_i, W_i), change the last map, and return all maps."""
        *others, last_BCHW = maps
        x_BTC = last_BCHW.flatten(2).transpose(1, 2)
        normed = self.norm1(x_BTC)
        x_BTC = x_BTC + self.attn(normed, normed, normed, need_weights=False)[0]
        x_BTC = x_BTC + self.ffn(self.norm2(x_BTC))
        return (*others, x_BTC.transpose(1, 2).reshape(last_BCHW.shape))
