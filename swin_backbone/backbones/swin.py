"""Swin Transformer (Liu et al. 2021, arXiv 2103.14030) as a backbone: figure 3a of the paper, with a norm and an
output at each stage that a neck or head asks for.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Sequence
from typing import Optional, Union

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, PretrainedInit, initialize
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..checkpoints import adapt_state_dict, load_checkpoint
from ..layers import PatchEmbed, PatchMerging, SwinBlock, normalised_output
from ..ops.blocked import StripTokens
from ..ops.position import resize_absolute_position_embedding
from . import arguments


class SwinStage(BaseModule):
    """Blocks at one resolution, every other one with shifted windows, and the patch merging that follows."""

    def __init__(self, blocks: list[SwinBlock], downsample: Optional[PatchMerging]):
        super().__init__()
        self.blocks = ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x_BHWC: Tensor) -> Tensor:
        for block in self.blocks:
            x_BHWC = block(x_BHWC)
        return x_BHWC


@MODELS.register_module()
class SwinBackbone(BaseModule):
    """Swin Transformer for detection and segmentation, with the arguments of mmdet's `SwinTransformer`.

    Args:
        pretrain_img_size: height and width of the pre-training images; sizes the absolute position embedding.
        in_channels: channels of the input.
        embed_dims: channels of the first stage; each further stage has twice as many. Default: of `arch`, or 96.
        patch_size: side of a patch in pixels; equals strides[0], patches do not overlap.
        window_size: side of a window in tokens, or (height, width).
        mlp_ratio: hidden channels of an MLP, in channels of its stage.
        depths: blocks in each stage. Default: of `arch`, or (2, 2, 6, 2).
        num_heads: attention heads in each stage. Default: of `arch`, or (3, 6, 12, 24).
        strides: of the patch embedding and of each patch merging.
        out_indices: the stages to emit.
        qkv_bias: whether query, key and value have a bias.
        qk_scale: the factor on q k^T. Default: head_dim ** -0.5.
        patch_norm: whether patch embedding and patch merging have a norm.
        drop_rate: dropout of tokens and after linear layers.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 over all blocks.
        use_abs_pos_embed: add an absolute position embedding, resized (bicubic) to the input.
        act_cfg: activation of the MLPs.
        norm_cfg: norm of everything, applied over the last dimension.
        with_cp: recompute each block in backward instead of keeping what is inside; strips do so anyway.
        pretrained: deprecated in mmdet; the same as init_cfg=dict(type='Pretrained', checkpoint=pretrained).
        convert_weights: accepted and not needed: official weights are recognised by their names.
        frozen_stages: -1: none; 0: the patch embedding; n: that and the first n stages, with their output norms.
            Frozen parts get no gradient and stay in eval mode.
        init_cfg: dict(type='Pretrained', checkpoint=PATH_OR_URL), or any initializer of mmengine.
        arch: a published size, one of `swin_backbone.ARCHS`; an explicit argument beats it.
        small_map: what happens to a map smaller than the window. 'pad': it is padded up to it, as mmdet and
            mmseg do; 'shrink': the window becomes the map's smaller side and does not shift, as
            microsoft/Swin-Transformer's classifiers do.
        mask_padding: keep tokens from attending to the zeros that pad a map to whole windows. False is how all
            published weights were trained.
        strip_tokens: how many tokens (of windows, padding included) are run through a block at a time. Strips keep
            a block's input alone for backward and recompute the rest there, strip by strip; they have no second
            derivative. 'auto': strips that fit in cache on a CPU, as None elsewhere; None: all at once, and what
            autograd keeps, or with `with_cp` the input alone.

    Raises:
        ValueError, TypeError: for an argument out of its range or of the wrong type, naming it.
    """

    def __init__(
        self,
        pretrain_img_size: Union[int, Sequence[int]] = 224,
        in_channels: int = 3,
        embed_dims: Optional[int] = None,
        patch_size: Union[int, Sequence[int]] = 4,
        window_size: Union[int, Sequence[int]] = 7,
        mlp_ratio: float = 4,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        strides: Sequence[int] = (4, 2, 2, 2),
        out_indices: Sequence[int] = (0, 1, 2, 3),
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: dict = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: dict = dict(type='LN'),  # noqa: B006
        with_cp: bool = False,
        pretrained: Optional[str] = None,
        convert_weights: bool = False,
        frozen_stages: int = -1,
        init_cfg: Optional[dict] = None,
        *,
        arch: Optional[str] = None,
        small_map: str = 'pad',
        mask_padding: bool = False,
        strip_tokens: StripTokens = 'auto',
    ):
        super().__init__(init_cfg=arguments.merge_pretrained(pretrained, init_cfg))
        embed_dims, depths, num_heads = arguments.resolve_arch(arch, embed_dims, depths, num_heads)
        strides = arguments.check_strides(strides, patch_size, len(depths))
        self.window_size = window_size = arguments.pair('window_size', window_size)
        self.in_channels = arguments.positive_int('in_channels', in_channels)
        self.out_indices = arguments.check_out_indices(out_indices, len(depths))
        self.frozen_stages = arguments.check_frozen_stages(frozen_stages, len(depths))
        self.num_features = [embed_dims << stage for stage in range(len(depths))]
        self.out_channels = [self.num_features[stage] for stage in self.out_indices]

        patch_size = (strides[0], strides[0])
        patch_norm_cfg = norm_cfg if patch_norm else None
        self.patch_embed = PatchEmbed(in_channels, embed_dims, patch_size, patch_norm_cfg)
        if use_abs_pos_embed:
            height, width = arguments.pair('pretrain_img_size', pretrain_img_size)
            self.pretrain_map_size = height // patch_size[0], width // patch_size[1]
            num_patches = self.pretrain_map_size[0] * self.pretrain_map_size[1]
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, num_patches, embed_dims))
            nn.init.trunc_normal_(self.absolute_pos_embed, std=0.02)
        else:
            self.absolute_pos_embed = None
        self.drop_after_pos = nn.Dropout(arguments.check_rate('drop_rate', drop_rate))

        drop_path_rates = iter(
            torch.linspace(
                0, arguments.check_rate('drop_path_rate', drop_path_rate), sum(depths), device='cpu'
            ).tolist()
        )
        self.stages = ModuleList()
        for stage, (width, depth, heads) in enumerate(zip(self.num_features, depths, num_heads)):
            blocks = [
                SwinBlock(
                    embed_dims=width,
                    num_heads=heads,
                    window_size=window_size,
                    shift=(window_size[0] // 2, window_size[1] // 2) if index % 2 else (0, 0),
                    feedforward_channels=int(arguments.check_mlp_ratio(mlp_ratio) * width),
                    qkv_bias=qkv_bias,
                    qk_scale=qk_scale,
                    drop_rate=drop_rate,
                    attn_drop_rate=arguments.check_rate('attn_drop_rate', attn_drop_rate),
                    drop_path_rate=next(drop_path_rates),
                    act_cfg=act_cfg,
                    norm_cfg=norm_cfg,
                    with_cp=with_cp,
                    small_map=arguments.check_choice('small_map', small_map, ('pad', 'shrink')),
                    mask_padding=mask_padding,
                    strip_tokens=arguments.check_strip_tokens(strip_tokens),
                )
                for index in range(depth)
            ]
            is_last = stage == len(depths) - 1
            downsample = None
            if not is_last:
                downsample = PatchMerging(width, 2 * width, strides[stage + 1], patch_norm_cfg, strip_tokens)
            self.stages.append(SwinStage(blocks, downsample))
        for stage in self.out_indices:
            self.add_module(f'norm{stage}', build_norm_layer(norm_cfg, self.num_features[stage])[1])

        self._register_load_state_dict_pre_hook(adapt_state_dict)
        self._freeze()

    def forward(self, x_BCHW: Tensor) -> tuple[Tensor, ...]:
        """Images to feature maps.

        Args:
            x_BCHW: (B, in_channels, H, W), of any size from 1x1 up.

        Returns:
            A map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each stage i of `out_indices`, ascending, at strides
            s of 4, 8, 16 and 32 by default, in contiguous memory.

        Raises:
            TypeError, ValueError: if the input is not such a tensor, saying what it is.
        """
        arguments.check_images(x_BCHW, self.in_channels)
        x_BHWC = self.patch_embed(x_BCHW)
        if self.absolute_pos_embed is not None:
            _B, H, W, C = x_BHWC.shape
            embedding = resize_absolute_position_embedding(self.absolute_pos_embed, self.pretrain_map_size, (H, W))
            x_BHWC = x_BHWC + embedding.view(1, H, W, C)
        x_BHWC = self.drop_after_pos(x_BHWC)

        outputs = []
        for index, stage in enumerate(self.stages):
            x_BHWC = stage(x_BHWC)
            if index in self.out_indices:
                outputs.append(normalised_output(getattr(self, f'norm{index}'), x_BHWC))
            if index == self.out_indices[-1]:
                break  # nobody sees what comes after
            x_BHWC = stage.downsample(x_BHWC)
        return tuple(outputs)

    def init_weights(self) -> None:
        """Initialise as the paper's code does, then load `init_cfg`'s checkpoint or apply its initializers."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        init_cfgs = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg or {}]
        pretrained = [cfg for cfg in init_cfgs if cfg.get('type') in ('Pretrained', PretrainedInit)]
        if pretrained:
            initialize(self, [cfg for cfg in init_cfgs if cfg not in pretrained])
            for cfg in pretrained:
                load_checkpoint(self, cfg['checkpoint'], prefix=cfg.get('prefix'))
        elif self.init_cfg:
            super().init_weights()
        self._is_init = True

    def train(self, mode: bool = True) -> 'SwinBackbone':
        """Set training or eval mode; frozen parts stay in eval mode."""
        super().train(mode)
        self._freeze()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [self.patch_embed, self.drop_after_pos]
        for stage in range(self.frozen_stages):
            frozen.append(self.stages[stage])
            if stage in self.out_indices:
                frozen.append(getattr(self, f'norm{stage}'))
        for module in frozen:
            module.eval().requires_grad_(False)
        if self.absolute_pos_embed is not None:
            self.absolute_pos_embed.requires_grad_(False)
