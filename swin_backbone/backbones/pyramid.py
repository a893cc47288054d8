"""What Swin V1 and V2 share: figure 3a of the paper (Liu et al. 2021, arXiv 2103.14030), with a norm and an output at
each stage that a neck or head asks for.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Callable, Sequence
from typing import Optional, Union

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, PretrainedInit, initialize
from torch import Tensor, nn

from ..archs import Arch
from ..checkpoints import adapt_state_dict, load_checkpoint
from ..layers import PatchEmbed, PatchMerging, SwinBlock, is_watched, normalised_output
from ..ops.blocked import StripTokens, saves_memory
from ..ops.position import resize_absolute_position_embedding
from ..ops.windows import Size
from . import arguments


class SwinStage(BaseModule):
    """Blocks at one resolution, every other one with shifted windows, and a patch merging, behind or before them."""

    def __init__(self, blocks: list[SwinBlock], downsample: Optional[PatchMerging]):
        super().__init__()
        self.blocks = ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x_BHWC: Tensor, overwrite: bool = False) -> Tensor:
        """A batch of maps to one of the same shape; `overwrite`: nobody needs the former any more."""
        for block in self.blocks:
            x_BHWC = block(x_BHWC, overwrite) if isinstance(block, SwinBlock) else block(x_BHWC)
        return x_BHWC


class SwinPyramid(BaseModule):
    """Patch embedding, stages of blocks, patch merging between them, and normalised outputs.

    The arguments are those of `SwinBackbone`, and:

    Args:
        arch: width, depths and heads.
        window_sizes: (Wh, Ww) of each stage.
        make_block: makes a block, from `stage`, `index` (in the stage) and the arguments of `SwinBlock` that V1 and
            V2 share.
        merging_first: whether a stage has the patch merging that leads to it, as in mmpretrain's Swin V2, or the one
            that leads on, as in mmdet's and mmseg's Swin. It says what a checkpoint calls them, not what is computed.
        post_norm: whether patch merging normalises what it has projected, or what it projects.
    """

    def __init__(
        self,
        arch: Arch,
        window_sizes: Sequence[Size],
        make_block: Callable[..., SwinBlock],
        merging_first: bool,
        post_norm: bool,
        pretrain_img_size: Union[int, Sequence[int]],
        in_channels: int,
        patch_size: Union[int, Sequence[int]],
        mlp_ratio: float,
        strides: Sequence[int],
        out_indices: Sequence[int],
        patch_norm: bool,
        drop_rate: float,
        attn_drop_rate: float,
        drop_path_rate: float,
        use_abs_pos_embed: bool,
        act_cfg: dict,
        norm_cfg: dict,
        with_cp: bool,
        frozen_stages: int,
        init_cfg: Optional[dict],
        small_map: str,
        mask_padding: bool,
        strip_tokens: StripTokens,
        attention_backend: str,
    ):
        super().__init__(init_cfg=init_cfg)
        embed_dims, depths, num_heads = arch
        strides = arguments.check_strides(strides, patch_size, len(depths))
        self.in_channels = arguments.positive_int('in_channels', in_channels)
        self.out_indices = arguments.check_out_indices(out_indices, len(depths))
        self.frozen_stages = arguments.check_frozen_stages(frozen_stages, len(depths))
        self.merging_first = merging_first
        self.num_features = [embed_dims << stage for stage in range(len(depths))]
        self.out_channels = [self.num_features[stage] for stage in self.out_indices]

        patch_size = (strides[0], strides[0])
        patch_norm_cfg = norm_cfg if patch_norm else None
        self.patch_embed = PatchEmbed(in_channels, embed_dims, patch_size, patch_norm_cfg, strip_tokens)
        if use_abs_pos_embed:
            height, width = arguments.pair('pretrain_img_size', pretrain_img_size)
            self.pretrain_map_size = height // patch_size[0], width // patch_size[1]
            num_patches = self.pretrain_map_size[0] * self.pretrain_map_size[1]
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, num_patches, embed_dims))
            nn.init.trunc_normal_(self.absolute_pos_embed, std=0.02)
        else:
            self.absolute_pos_embed = None
        self.drop_after_pos = nn.Dropout(arguments.check_rate('drop_rate', drop_rate))

        last_rate = arguments.check_rate('drop_path_rate', drop_path_rate)
        drop_path_rates = iter(torch.linspace(0, last_rate, sum(depths), device='cpu').tolist())
        self.stages = ModuleList()
        for stage, (width, depth, heads, window_size) in enumerate(
            zip(self.num_features, depths, num_heads, window_sizes)
        ):
            blocks = [
                make_block(
                    stage=stage,
                    index=index,
                    embed_dims=width,
                    num_heads=heads,
                    window_size=window_size,
                    shift=(window_size[0] // 2, window_size[1] // 2) if index % 2 else (0, 0),
                    feedforward_channels=int(arguments.check_mlp_ratio(mlp_ratio) * width),
                    drop_rate=drop_rate,
                    attn_drop_rate=arguments.check_rate('attn_drop_rate', attn_drop_rate),
                    drop_path_rate=next(drop_path_rates),
                    act_cfg=act_cfg,
                    norm_cfg=norm_cfg,
                    with_cp=with_cp,
                    small_map=arguments.check_choice('small_map', small_map, ('pad', 'shrink')),
                    mask_padding=mask_padding,
                    strip_tokens=arguments.check_strip_tokens(strip_tokens),
                    attention_backend=arguments.check_attention_backend(attention_backend, attn_drop_rate),
                )
                for index in range(depth)
            ]
            coarser = stage if merging_first else stage + 1  # the stage that the patch merging of this one leads to
            downsample = None
            if 0 < coarser < len(depths):
                to = self.num_features[coarser]
                downsample = PatchMerging(to // 2, to, strides[coarser], patch_norm_cfg, strip_tokens, post_norm)
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

        own = self._owns(x_BHWC, x_BCHW)
        outputs = []
        for index, stage in enumerate(self.stages):
            x_BHWC = stage(x_BHWC, overwrite=own)
            if index in self.out_indices:
                outputs.append(normalised_output(getattr(self, f'norm{index}'), x_BHWC))
            if index == self.out_indices[-1]:
                break  # nobody sees what comes after
            x_BHWC = (self.stages[index + 1] if self.merging_first else stage).downsample(x_BHWC)
        return tuple(outputs)

    def _owns(self, x_BHWC: Tensor, images: Tensor) -> bool:
        """Whether nobody but this forward needs what goes from layer to layer, so that it may be overwritten.

        A gradient may, and a hook; and somebody's layer in another's place may hand on the images themselves.
        """
        if torch.is_grad_enabled() or not saves_memory('auto', x_BHWC) or is_watched(self):
            return False
        return x_BHWC.untyped_storage().data_ptr() != images.untyped_storage().data_ptr()

    def layer_order(self) -> list[list[str]]:
        """The layers from the images up, each as the prefixes of its parameters' names.

        Layer 0 is the patch embedding with the position embedding, layer l the l-th block. A patch merging and an
        output norm belong to the block before them, whatever stage's name they carry.
        """
        layers = [['patch_embed', 'absolute_pos_embed']]
        for index, stage in enumerate(self.stages):
            layers += [[f'stages.{index}.blocks.{block}'] for block in range(len(stage.blocks))]
            if index in self.out_indices:
                layers[-1].append(f'norm{index}')
            if index + 1 < len(self.stages):
                layers[-1].append(f'stages.{index + self.merging_first}.downsample')
        return layers

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

    def train(self, mode: bool = True) -> 'SwinPyramid':
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
