"""Swin Transformer (Liu et al. 2021, arXiv 2103.14030) as a backbone."""

from collections.abc import Sequence
from typing import Any, Optional

from ..archs import ARCHS, DEFAULT_WINDOW
from ..checks import refusal
from .arguments import DEFAULT_STRIDES, InitCfg, Pair, WindowSize, check_sizes
from .layers import SwinBlock
from .pyramid import SwinPyramid


class SwinBackbone(SwinPyramid):
    """Swin Transformer for detection and segmentation, with the arguments of mmdet's `SwinTransformer`.

    Args:
        pretrain_img_size: height and width of the pre-training images; gives the size of the absolute position
            embedding.
        in_channels: channels of the input.
        embed_dims: channels of the first stage; every further stage has twice the channels. Default: of `arch`, or 96.
        patch_size: side of a patch in pixels; must equal strides[0], since patches do not overlap.
        window_size: side of a window in tokens, 7 by default, or (height, width). A list has the windows of the stages,
            for example timm's Swin-S3: (7, 7, 14, 7). Two ints are always (height, width), of all stages: a backbone of
            two stages takes ((7, 7), (14, 14)).
        mlp_ratio: hidden channels of an MLP, divided by the channels of the stage.
        depths: blocks in each stage. Default: of `arch`, or (2, 2, 6, 2).
        num_heads: attention heads in each stage. Default: of `arch`, or (3, 6, 12, 24).
        strides: of the patch embedding and of the patch mergings, a number for every stage.
        out_indices: the stages to emit.
        qkv_bias: whether query, key and value have a bias.
        qk_scale: the factor on q k^T. Default: head_dim ** -0.5.
        patch_norm: whether patch embedding and patch merging have a norm, as in mmdet. (In microsoft/Swin-Transformer
            patch merging always has a norm.)
        drop_rate: dropout of tokens and after linear layers.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; the rate rises linearly from 0 over all blocks.
        use_abs_pos_embed: add an absolute position embedding, resized (bicubic) to the input.
        act_cfg: activation of the MLPs.
        norm_cfg: all norms. A norm is over the channels of each token.
        with_cp: recompute blocks in backward instead of storing activations.
        pretrained: deprecated in mmdet; equal to init_cfg=dict(type='Pretrained', checkpoint=pretrained).
        convert_weights: accepted, but has no effect: official weights are recognised by parameter names.
        frozen_stages: -1: nothing; 0: the patch embedding; n: the patch embedding and the first n stages, with output
            norms. Frozen parts get no gradient and stay in eval mode.
        init_cfg: dict(type='Pretrained', checkpoint=PATH_OR_URL), or any initializer of mmengine.
        arch: a published size, a key of `swin_backbone.ARCHS`; explicit embed_dims, depths and num_heads take
            precedence.
        small_map: the treatment of a map smaller than the window. 'pad': the map is padded to the window, as in mmdet
            and mmseg. 'shrink': the window becomes the map's smaller side and does not shift, as in
            microsoft/Swin-Transformer's classifiers.
        mask_padding: mask the padding, zeros that fill a map to whole windows: no token attends to it. All published
            weights were trained with False.
        backend: the way to compute the layers, chosen anew for every layer and forward. 'auto': on CPUs the compiled
            library ('native') for the layers of the library, on CUDA in half precision or TF32 a kernel ('triton') for
            attention, and plain torch ('torch') for the rest. 'native': CPUs, float32 and autocast to bfloat16
            (docs/measurements/native.md). 'torch': everything, on every device. 'triton': CUDA, windows of at most
            16x16; the kernel has no second derivative. A named backend raises a
            ValueError with the reason if the backend cannot compute. `python -m swin_backbone info` lists all backends.

    Raises:
        ValueError, TypeError: for wrong sizes, stages, windows or names. The message names the argument.

    Examples:
        >>> import torch
        >>> from swin_backbone import SwinBackbone
        >>> backbone = SwinBackbone(arch='nano').eval()
        >>> [tuple(x.shape) for x in backbone(torch.rand(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
        >>> SwinBackbone(arch='nano', num_heads=(5, 4, 8, 16))
        Traceback (most recent call last):
        ValueError: num_heads[0] takes a divisor of the width of stage 0, embed_dims * 1 = 32, got 5
    """

    def __init__(
        self,
        pretrain_img_size: Pair = 224,
        in_channels: int = 3,
        embed_dims: Optional[int] = None,
        patch_size: Pair = 4,
        window_size: WindowSize = DEFAULT_WINDOW,
        mlp_ratio: float = 4,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        strides: Sequence[int] = DEFAULT_STRIDES,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: dict[str, Any] = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: dict[str, Any] = dict(type='LN'),  # noqa: B006
        with_cp: bool = False,
        pretrained: Optional[str] = None,
        convert_weights: bool = False,
        frozen_stages: int = -1,
        init_cfg: InitCfg = None,
        *,
        arch: Optional[str] = None,
        small_map: str = 'pad',
        mask_padding: bool = False,
        backend: str = 'auto',
    ):
        if isinstance(pretrain_img_size, str):  # a frequent mistake: SwinBackbone('swin-t')
            allowed = f"a size; a published size is a keyword, arch='tiny', of {list(ARCHS)}"
            raise TypeError(refusal('pretrain_img_size', allowed, pretrain_img_size))
        if pretrained is not None and not isinstance(pretrained, str):
            raise TypeError(refusal('pretrained', 'a path or an address', pretrained))
        if pretrained:
            if init_cfg:
                raise ValueError(f'pretrained and init_cfg exclude each other, got {pretrained!r}')
            init_cfg = dict(type='Pretrained', checkpoint=pretrained)
        sizes = check_sizes(ARCHS, arch, embed_dims, depths, num_heads, window_size)

        def make_block(stage: int, index: int, **common: Any) -> SwinBlock:
            return SwinBlock(
                qkv_bias=qkv_bias, qk_scale=qk_scale, attn_drop_rate=attn_drop_rate, mask_padding=mask_padding, **common
            )

        super().__init__(
            sizes,
            make_block,
            merging_first=False,
            merging_norm='before' if patch_norm else 'none',
            pretrain_img_size=pretrain_img_size,
            in_channels=in_channels,
            patch_size=patch_size,
            mlp_ratio=mlp_ratio,
            strides=strides,
            out_indices=out_indices,
            patch_norm=patch_norm,
            drop_rate=drop_rate,
            drop_path_rate=drop_path_rate,
            use_abs_pos_embed=use_abs_pos_embed,
            act_cfg=act_cfg,
            norm_cfg=norm_cfg,
            with_cp=with_cp,
            frozen_stages=frozen_stages,
            init_cfg=init_cfg,
            small_map=small_map,
            backend=backend,
        )
