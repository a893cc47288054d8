"""Swin Transformer V2 (Liu et al. 2022, arXiv 2111.09883) as a backbone."""

from collections.abc import Sequence
from typing import Any, Optional, Union

from ..archs import ARCHS_V2, EXTRA_NORM_OF_ARCH
from .arguments import Pair, WindowSize, check_pretrained_window_sizes, check_sizes
from .layers import SwinV2Block
from .pyramid import SwinPyramid


class SwinV2Backbone(SwinPyramid):
    """Swin Transformer V2 for detection and segmentation; parameters are named as in mmpretrain's `SwinTransformerV2`.

    The backbone has residual post-norm, scaled cosine attention and a log-spaced continuous position bias. A map is
    padded to whole windows before the shift: tokens never attend to tokens of the opposite edge. For arguments not
    listed here see `SwinBackbone`.

    Args:
        pretrain_img_size: see `SwinBackbone`.
        window_size: side of a window in tokens, or (height, width); or a list of the windows of the stages. Published
            weights of window 16 at 256x256 have window 8 in the last stage: (16, 16, 16, 8). Weights of window 24 at
            384x384 have window 12 in the last stage. Two ints are always (height, width), of all stages: a backbone of
            two stages takes ((3, 3), (13, 13)).
        qkv_bias: whether query and value have a bias; the key has no bias.
        patch_norm: whether the patch embedding has a norm. Patch merging always has a norm, as in
            microsoft/Swin-Transformer.
        frozen_stages: see `SwinBackbone`. A stage is frozen with the preceding patch merging, as in mmpretrain.
        arch: a published size, a key of `swin_backbone.ARCHS_V2`; explicit embed_dims, depths and num_heads take
            precedence.
        pretrained_window_sizes: the windows of the checkpoint's training, if different from `window_size`. A stage has
            an int, a pair, or 0 for an equal window. Published weights fine-tuned from window 12 to window 16 or 24
            need (12, 12, 12, 6). The position bias is computed for the window in use; no table is resized.
        extra_norm_every_n_blocks: a norm on the shortcut after every n-th block of a stage; 0: no norm. Default by
            `arch`: 6 for 'huge' and 'giant', 0 for smaller sizes.
        small_map: as in `SwinBackbone`; under 'shrink' the bias belongs to the smaller window.
        more: the other arguments of `SwinBackbone` but qk_scale, pretrained and convert_weights.

    Raises:
        ValueError, TypeError: for wrong sizes, stages, windows or names. The message names the argument.

    Examples:
        >>> import torch
        >>> from swin_backbone import SwinV2Backbone
        >>> backbone = SwinV2Backbone(arch='nano', window_size=(8, 8, 8, 4), out_indices=(2, 3)).eval()
        >>> [tuple(x.shape) for x in backbone(torch.rand(1, 3, 64, 96))]
        [(1, 128, 4, 6), (1, 256, 2, 3)]
    """

    def __init__(
        self,
        *,
        pretrain_img_size: Pair = 256,
        embed_dims: Optional[int] = None,
        window_size: WindowSize = 8,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        arch: Optional[str] = None,
        pretrained_window_sizes: Optional[Sequence[Union[int, Sequence[int]]]] = None,
        extra_norm_every_n_blocks: Optional[int] = None,
        mask_padding: bool = False,
        **more: Any,
    ):
        sizes = check_sizes(ARCHS_V2, arch, embed_dims, depths, num_heads, window_size)
        pretrained_sizes = check_pretrained_window_sizes(pretrained_window_sizes, len(sizes.depths))
        if extra_norm_every_n_blocks is None:
            extra_norm_every_n_blocks = EXTRA_NORM_OF_ARCH.get(arch or '', 0)

        def make_block(stage: int, index: int, **common: Any) -> SwinV2Block:
            return SwinV2Block(
                pretrained_window=pretrained_sizes[stage],
                qkv_bias=qkv_bias,
                attn_drop_rate=attn_drop_rate,
                extra_norm=bool(extra_norm_every_n_blocks) and (index + 1) % extra_norm_every_n_blocks == 0,
                mask_padding=mask_padding,
                **common,
            )

        super().__init__(
            sizes,
            make_block,
            merging_first=True,
            merging_norm='after',
            pretrain_img_size=pretrain_img_size,
            **more,
        )
        self.pretrained_window_sizes = pretrained_sizes  # of each stage
