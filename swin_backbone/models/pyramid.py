"""The network of Swin V1, V2 and Swin-MLP: figure 3a of the paper (Liu et al. 2021, arXiv 2103.14030).

Stages for necks and heads have a norm and an output.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Optional

import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList, PretrainedInit, initialize
from torch import Tensor, nn

from ..checkpoints import adapt_state_dict, load_checkpoint
from ..compat import has_global_hooks, is_exporting, symbolic_views
from ..windows.position import resize_absolute_position_embedding
from . import arguments
from .layers import (
    PatchEmbed,
    PatchMerging,
    SwinBlock,
    SwinMLPBlock,
    SwinV2Block,
    normalise_output,
    write_normalised_output,
)
from .layers.layer import is_hooked


class SwinStage(BaseModule):
    """Blocks at a resolution, every second block with shifted windows, and a patch merging after or before the blocks.

    `forward` runs the blocks alone; the pyramid calls the patch merging.
    """

    def __init__(self, blocks: list[SwinBlock], downsample: Optional[PatchMerging]):
        super().__init__()
        self.blocks = ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x_BHWC: Tensor, overwrites: bool = False) -> Tensor:
        """Run the blocks; the output has the shape of the input, (B, H, W, C).

        Args:
            overwrites: whether the output may take the memory of the input.
        """
        for block in self.blocks:
            x_BHWC = block(x_BHWC, overwrites=overwrites) if overwrites else block(x_BHWC)
        return x_BHWC


# Layers of the package. The layers keep no map after a call.
_OWN = {PatchEmbed, nn.Dropout, SwinStage, SwinBlock, SwinV2Block, SwinMLPBlock, PatchMerging}


class SwinPyramid(BaseModule):
    """Patch embedding, stages of blocks, patch merging between stages, and normalised outputs.

    Args:
        settings: a backbone's arguments, from `arguments.check`.
        make_block: makes a block, from `stage`, `index` (in the stage) and the common arguments of all kinds of
            `SwinBlock`.
        merging_first: whether a stage owns the patch merging before the blocks, as in mmpretrain's Swin V2. In mmdet's
            and mmseg's Swin a stage owns the patch merging after the blocks. The choice changes parameter names in
            checkpoints, not results.
        post_norm: whether patch merging has the norm after the projection (True) or before the projection (False).
        merging_norm: whether patch merging has a norm.
    """

    def __init__(
        self,
        settings: SimpleNamespace,
        make_block: Callable[..., SwinBlock],
        merging_first: bool,
        post_norm: bool,
        merging_norm: bool = True,
    ):
        super().__init__(init_cfg=settings.init_cfg)
        s, (embed_dims, depths, num_heads) = settings, settings.size
        self.in_channels = s.in_channels
        self.out_indices = s.out_indices
        self.frozen_stages = s.frozen_stages
        self.merging_first = merging_first
        self.window_size = s.window_size  # (Wh, Ww) of each stage
        self.num_features = [embed_dims << stage for stage in range(len(depths))]
        self.out_channels = [self.num_features[stage] for stage in self.out_indices]

        self.small_map = s.small_map

        self.patch_embed = PatchEmbed(s.in_channels, embed_dims, s.patch_size, s.norm_cfg if s.patch_norm else None)
        if s.use_abs_pos_embed:
            self.pretrain_map_size = (
                s.pretrain_img_size[0] // s.patch_size[0],
                s.pretrain_img_size[1] // s.patch_size[1],
            )
            num_patches = self.pretrain_map_size[0] * self.pretrain_map_size[1]
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, num_patches, embed_dims))
            nn.init.trunc_normal_(self.absolute_pos_embed, std=0.02)
        else:
            self.register_parameter('absolute_pos_embed', None)
        self.drop_after_pos = nn.Dropout(s.drop_rate)

        drop_path_rates = iter(torch.linspace(0, s.drop_path_rate, sum(depths), device='cpu').tolist())
        self.stages = ModuleList()
        for stage, (width, depth, heads, window_size) in enumerate(
            zip(self.num_features, depths, num_heads, s.window_size)
        ):
            blocks = [
                make_block(
                    stage=stage,
                    index=index,
                    embed_dims=width,
                    num_heads=heads,
                    window_size=window_size,
                    shift=(window_size[0] // 2, window_size[1] // 2) if index % 2 else (0, 0),
                    feedforward_channels=int(s.mlp_ratio * width),
                    drop_rate=s.drop_rate,
                    attn_drop_rate=s.attn_drop_rate,
                    drop_path_rate=next(drop_path_rates),
                    act_cfg=s.act_cfg,
                    norm_cfg=s.norm_cfg,
                    small_map=s.small_map,
                    mask_padding=s.mask_padding,
                    with_cp=s.with_cp,
                    stages=tuple(zip(self.num_features, depths)),
                )
                for index in range(depth)
            ]
            coarser = stage if merging_first else stage + 1  # the stage after the patch merging of `stage`
            downsample = None
            if 0 < coarser < len(depths):
                to = self.num_features[coarser]
                merging_norm_cfg = s.norm_cfg if merging_norm else None
                downsample = PatchMerging(to // 2, to, s.strides[coarser], merging_norm_cfg, post_norm)
            self.stages.append(SwinStage(blocks, downsample))
        for stage in self.out_indices:
            self.add_module(f'norm{stage}', build_norm_layer(s.norm_cfg, self.num_features[stage])[1])

        self._register_load_state_dict_pre_hook(adapt_state_dict)
        self._freeze()
        self.backend = s.backend

    def forward(
        self,
        x_BCHW: Tensor,
        hide: Optional[Callable[[Tensor], Tensor]] = None,
        out_indices: Optional[Sequence[int]] = None,
        out: Optional[Sequence[Tensor]] = None,
    ) -> tuple[Tensor, ...]:
        """Return the feature maps of images.

        Args:
            x_BCHW: (B, in_channels, H, W), of any size from 1x1 up, in the dtype of the weights. Under autocast any
                floating-point dtype is allowed.
            hide: replaces some tokens of the patch embedding, (B, H, W, C), for SimMIM.
            out_indices: the stages to emit in the call. Default: the backbone's `out_indices`. A stage without an
                output norm emits the map without a norm.
            out: tensors of the maps' shapes, of any floating dtype. `forward` writes the maps into `out`, a few rows at
                a time. Memory-mapped files can hold maps larger than memory (docs/measurements/memory.md), under
                `torch.inference_mode()`. `map_sizes` returns the shapes.

        Returns:
            A map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each stage i of `out_indices`, ascending; or `out`. Default
            strides s are 4, 8, 16 and 32. The maps are in contiguous memory.

        Raises:
            ValueError: if the shape of the input or of `out` is wrong.
        """
        if x_BCHW.ndim != 4 or x_BCHW.shape[1] != self.in_channels:
            raise ValueError(f'the input must be 4-D (B, {self.in_channels}, H, W), got shape {tuple(x_BCHW.shape)}')
        stages = self.out_indices if out_indices is None else sorted(set(out_indices))
        if out is not None:
            sizes, shapes = self.map_sizes(*x_BCHW.shape[2:]), [tuple(tensor.shape) for tensor in out]
            if shapes != [(len(x_BCHW), *sizes[stage]) for stage in stages]:
                raise ValueError(f'out takes maps of {[sizes[stage] for stage in stages]} for each image, got {shapes}')
        with symbolic_views() if is_exporting() else nullcontext():
            x_BHWC = self.patch_embed(x_BCHW)
            if hide is not None:
                x_BHWC = hide(x_BHWC)
            if self.absolute_pos_embed is not None:
                _B, H, W, C = x_BHWC.shape
                embedding = resize_absolute_position_embedding(self.absolute_pos_embed, self.pretrain_map_size, (H, W))
                x_BHWC = x_BHWC + embedding.view(1, H, W, C)
            x_BHWC = self.drop_after_pos(x_BHWC)

            outputs, overwrites = [], not torch.is_grad_enabled() and self._owns_maps()
            for index, stage in enumerate(self.stages):
                x_BHWC = stage(x_BHWC, overwrites) if overwrites else stage(x_BHWC)
                if index in stages:
                    norm = getattr(self, f'norm{index}') if index in self.out_indices else nn.Identity()
                    if out is None:
                        outputs.append(normalise_output(norm, x_BHWC, self._backend))
                    else:
                        write_normalised_output(norm, x_BHWC, self._backend, out[len(outputs)])
                        outputs.append(out[len(outputs)])
                if index == stages[-1]:
                    break  # later stages have no output
                downsample = (self.stages[index + 1] if self.merging_first else stage).downsample
                x_BHWC = downsample(x_BHWC)
        return tuple(outputs)

    def _owns_maps(self) -> bool:
        """Return whether blocks may overwrite maps: no hook and no layer of a user keeps a map."""
        layers: list[nn.Module] = [self.patch_embed, self.drop_after_pos]
        for stage in self.stages:
            layers += [stage, *stage.blocks, *([] if stage.downsample is None else [stage.downsample])]
        return not has_global_hooks() and not any(type(x) not in _OWN or is_hooked(x) for x in layers)

    def map_sizes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Return channels, height and width of the stages' maps, for images of height x width pixels."""
        patch_height, patch_width = self.patch_embed.patch_size
        H, W = -(-height // patch_height), -(-width // patch_width)
        sizes = []
        for index, (stage, channels) in enumerate(zip(self.stages, self.num_features)):
            if index:  # patch merging is the first layer of a stage, or the last layer of the stage before
                stride = (stage if self.merging_first else self.stages[index - 1]).downsample.stride
                H, W = -(-H // stride), -(-W // stride)
            sizes.append((channels, H, W))
        return sizes

    @property
    def backend(self) -> str:
        """The way to compute the layers, see `SwinBackbone`; a new name can be set at any time."""
        return self._backend

    @backend.setter
    def backend(self, backend: str) -> None:
        self._backend: str = arguments.check_backend(backend)
        for module in self.modules():
            if module is not self and hasattr(module, 'backend'):
                module.backend = backend

    @property
    def with_cp(self) -> bool:
        """Whether blocks are recomputed in backward, see `SwinBackbone`; a new value can be set at any time."""
        return any(block.with_cp for stage in self.stages for block in stage.blocks)

    @with_cp.setter
    def with_cp(self, with_cp: bool) -> None:
        for module in self.modules():
            if isinstance(module, SwinBlock):
                module.with_cp = bool(with_cp)

    def layer_order(self) -> list[list[str]]:
        """Return the layers from input to output. A layer is a list of prefixes of parameter names.

        Layer 0 is the patch embedding with the position embedding, layer l the l-th block. A patch merging and an
        output norm belong to the block before, even if the names belong to the next stage.
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
        """Initialise like the paper's code, then load the checkpoint of `init_cfg` or apply the initializers."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d)):  # Swin-MLP mixes places by a Conv1d
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
        frozen: list[nn.Module] = [self.patch_embed, self.drop_after_pos]
        for stage in range(self.frozen_stages):
            frozen.append(self.stages[stage])
            if stage in self.out_indices:
                frozen.append(getattr(self, f'norm{stage}'))
        for module in frozen:
            module.eval().requires_grad_(False)
        if self.absolute_pos_embed is not None:
            self.absolute_pos_embed.requires_grad_(False)
