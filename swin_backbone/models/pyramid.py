"""The network of Swin V1, V2 and Swin-MLP: figure 3a of the paper (Liu et al. 2021, arXiv 2103.14030).

A stage of `out_indices` has a norm for its output.

Layout: B batch, C channels, H W height and width.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..checkpoints.load import load_checkpoint
from ..checkpoints.stored_sizes import check_stored_sizes, drop_index_tables, write_sizes
from ..checks import check_choice, check_int, check_number, check_size, refusal
from ..compat import is_exporting, symbolic_views
from ..modes import find_autocast_dtype, find_tracer
from ..positions import resize_absolute_position_embedding
from ..replace import BACKENDS, is_replaceable, is_replaced, library_disabled, replaceable
from .arguments import DEFAULT_STRIDES, InitCfg, Pair, StageSizes, build_norm, check_out_indices, check_patches
from .initializers import apply_initializers, split_init_cfg
from .layers import PatchEmbed, PatchMerging


def checkpoint_block(block: nn.Module, x_BHWC: Tensor) -> Tensor:
    """Run a block, and store its input alone for backward.

    A block with a plan recomputes itself in the library's backward. Any other block runs under
    `torch.utils.checkpoint`, with the library disabled: the recomputation must repeat the first run, even if the mode
    of torch that kept the library away has ended.
    """
    run: Any = block
    # A graph records the library's operator inside the checkpoint
    if find_tracer(x_BHWC) is None and is_replaceable(block):
        if is_replaced(block, x_BHWC):
            return block(x_BHWC)  # makes the plan again: hooks of the block run first
        run = partial(_run_in_torch, block)
    from torch.utils.checkpoint import checkpoint  # with torch 2.6, it imports sympy, which takes half a second

    return checkpoint(run, x_BHWC, use_reentrant=False)


def _run_in_torch(block: nn.Module, x_BHWC: Tensor) -> Tensor:
    with library_disabled():
        return block(x_BHWC)


class SwinStage(nn.Module):
    """Blocks at one resolution, and a patch merging after the blocks. Every second block shifts its windows.

    The patch merging runs in `forward`, and not in that of `SwinPyramid`: FSDP gathers a stage's parameters only while
    the stage's `forward` runs.

    Args:
        backbone_stages: (channels, blocks) of each stage of the backbone: the library decides from them
            which blocks store activations in training.
    """

    backend = 'auto'

    def __init__(
        self,
        blocks: list[nn.Module],
        downsample: Optional[PatchMerging],
        backbone_stages: tuple[tuple[int, int], ...],
    ):
        super().__init__()
        self.backbone_stages = backbone_stages
        self.blocks: Any = nn.ModuleList(blocks)
        self.downsample: Any = downsample

    @replaceable
    def forward(self, x_BHWC: Tensor, needs_next: bool = True) -> tuple[Tensor, Tensor]:
        """Return the output of the blocks, in the shape of the input (B, H, W, C), and the input of the next stage.

        Args:
            needs_next: False: the patch merging does not run, and the output of the blocks is returned twice.
        """
        can_checkpoint = find_tracer(x_BHWC) not in ('torch.export', 'torch.func')  # both refuse checkpoints
        for block in self.blocks:
            is_checkpointed = getattr(block, 'with_cp', False) and torch.is_grad_enabled() and can_checkpoint
            x_BHWC = checkpoint_block(block, x_BHWC) if is_checkpointed else block(x_BHWC)
        return x_BHWC, self.downsample(x_BHWC) if needs_next and self.downsample is not None else x_BHWC

    # A method, because a replaceable forward needs a module with `backend`; the backbone owns the norms, as in mmdet.
    @replaceable
    def normalise_output(self, x_BHWC: Tensor, norm: nn.Module) -> Tensor:
        """Normalise a stage's output and return the map for necks and heads: (B, C, H, W), contiguous.

        The map is not a channels_last view, because mmcv's RoIAlign ignores strides.
        """
        # `clone`, because `contiguous` compares sizes, which is a guard of torch.compile
        return norm(x_BHWC).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


class MergingFirstStage(SwinStage):
    """A stage with the patch merging before the blocks."""

    def forward(self, x_BHWC: Tensor, needs_next: bool = True) -> tuple[Tensor, Tensor]:
        """Return the output of the blocks, which is the input of the next stage too."""
        return super().forward(self.downsample(x_BHWC), False)  # the next stage merges


class SwinPyramid(nn.Module):
    """Patch embedding, stages of blocks, patch merging between stages, and normalised outputs.

    For arguments not listed here see `SwinBackbone`.

    Args:
        sizes: of the stages.
        make_block: makes a block from the stage, its index in the stage and the arguments of all kinds of blocks.
        merging_first: changes parameter names in checkpoints, not results. True: a stage owns the patch merging before
            the blocks, as in mmpretrain's Swin V2. False: after the blocks, as in mmdet's and mmseg's Swin.
        merging_norm: 'before' or 'after' the projection of patch merging, or 'none'.
        out_indices: the stages to emit; None: the last stage.
    """

    def __init__(
        self,
        sizes: StageSizes,
        make_block: Callable[..., nn.Module],
        merging_first: bool,
        merging_norm: str,
        *,
        pretrain_img_size: Pair,
        in_channels: int = 3,
        patch_size: Any = 4,
        mlp_ratio: float = 4,
        strides: Any = DEFAULT_STRIDES,
        out_indices: Any = (0, 1, 2, 3),
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: dict[str, Any] = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: dict[str, Any] = dict(type='LN'),  # noqa: B006
        with_cp: bool = False,
        frozen_stages: int = -1,
        init_cfg: InitCfg = None,
        small_map: str = 'pad',
        backend: str = 'auto',
    ):
        super().__init__()
        self.init_cfg = copy.deepcopy(init_cfg)
        self.is_init = False  # mmengine initialises a module once
        widths, num_stages = sizes.widths, len(sizes.depths)
        self.merging_first = merging_first
        self.in_channels = in_channels
        self.window_size = sizes.window_sizes  # (Wh, Ww) of each stage
        self.num_features = list(widths)
        strides, patch = check_patches(strides, patch_size, num_stages)
        self.out_indices = check_out_indices(out_indices, num_stages)
        self.out_channels = [self.num_features[stage] for stage in self.out_indices]
        self.frozen_stages = check_int('frozen_stages', frozen_stages)
        if not -1 <= self.frozen_stages <= num_stages:
            raise ValueError(refusal('frozen_stages', f'-1 to {num_stages}, the number of stages', frozen_stages))
        self.small_map = check_choice('small_map', small_map, ['pad', 'shrink'])
        allowed = f'a number of at least 1 / {min(widths)}, one hidden channel'
        check_number('mlp_ratio', mlp_ratio, allowed, lambda ratio: ratio * min(widths) >= 1)
        # A rate of 1 would divide by 0.
        check_number('drop_path_rate', drop_path_rate, 'a rate from 0 to below 1', lambda rate: 0 <= rate < 1)

        self.patch_embed = PatchEmbed(in_channels, widths[0], patch, norm_cfg if patch_norm else None)
        height, width = check_size('pretrain_img_size', pretrain_img_size)
        self.pretrain_map_size = rows, columns = (height // patch[0], width // patch[1])
        if use_abs_pos_embed:
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, rows * columns, widths[0]))
            nn.init.trunc_normal_(self.absolute_pos_embed, std=0.02)
        else:
            self.register_parameter('absolute_pos_embed', None)
        self.drop_after_pos = nn.Dropout(drop_rate)

        rates = torch.linspace(0, drop_path_rate, sum(sizes.depths), dtype=torch.float32, device='cpu')
        drop_path_rates = iter(rates.tolist())
        self.stages: Any = nn.ModuleList()  # of SwinStage
        for stage, (width, depth, num_heads, (Wh, Ww)) in enumerate(zip(*sizes)):
            common = dict(
                embed_dims=width,
                num_heads=num_heads,
                window_size=(Wh, Ww),
                feedforward_channels=int(mlp_ratio * width),
                drop_rate=drop_rate,
                act_cfg=act_cfg,
                norm_cfg=norm_cfg,
                small_map=small_map,
            )
            shifts = (0, 0), (Wh // 2, Ww // 2)  # of even and odd blocks
            blocks = [
                make_block(stage, index, shift=shifts[index % 2], drop_path_rate=next(drop_path_rates), **common)
                for index in range(depth)
            ]
            merging = stage - 1 if merging_first else stage  # merging m is between the stages m and m + 1
            downsample = None
            if 0 <= merging < num_stages - 1:
                downsample = PatchMerging(
                    widths[merging],
                    widths[merging + 1],
                    strides[merging + 1],
                    None if merging_norm == 'none' else norm_cfg,
                    post_norm=merging_norm == 'after',
                )
            stage_class = MergingFirstStage if merging_first and stage else SwinStage
            self.stages.append(stage_class(blocks, downsample, tuple(zip(widths, sizes.depths))))
        for stage in self.out_indices:
            self.add_module(f'norm{stage}', build_norm(norm_cfg, widths[stage]))

        self._register_state_dict_hook(write_sizes)  # type: ignore[no-untyped-call]  # of torch
        self._register_load_state_dict_pre_hook(drop_index_tables, with_module=True)  # type: ignore[no-untyped-call]  # of torch
        self._register_load_state_dict_pre_hook(check_stored_sizes, with_module=True)  # type: ignore[no-untyped-call]  # of torch
        self._freeze()
        self.backend = backend
        self.with_cp = with_cp

    def forward(
        self,
        x_BCHW: Tensor,
        hide: Optional[Callable[[Tensor], Tensor]] = None,
        out_indices: Optional[Sequence[int]] = None,
    ) -> tuple[Tensor, ...]:
        """Return the feature maps of images.

        Args:
            x_BCHW: (B, in_channels, H, W), of any size from 1x1 up, in the dtype of the weights. Under autocast any
                floating-point dtype is allowed.
            hide: replaces some tokens of the patch embedding, (B, H, W, C), for SimMIM.
            out_indices: the stages to emit in the call. Default: the backbone's `out_indices`. A stage without an
                output norm emits the map without a norm.

        Returns:
            A map (B, C_i, ceil(H / s_i), ceil(W / s_i)) for each stage i of `out_indices`, ascending. Default strides s
            are 4, 8, 16 and 32. The maps are in contiguous memory.

        Raises:
            ValueError: if the shape of the input is wrong, or a stage of `out_indices` does not exist.
        """
        if x_BCHW.ndim != 4 or x_BCHW.shape[1] != self.in_channels:
            raise ValueError(f'the input must be 4-D (B, {self.in_channels}, H, W), got shape {tuple(x_BCHW.shape)}')
        emitted = self.out_indices if out_indices is None else check_out_indices(out_indices, len(self.stages))
        if x_BCHW.dtype == torch.float64 and find_autocast_dtype(x_BCHW.device.type):
            x_BCHW = x_BCHW.float()  # autocast does not cast float64
        with symbolic_views() if is_exporting() else nullcontext():  # a call fewer in eager mode
            x_BHWC = self.patch_embed(x_BCHW)
            if hide is not None:
                x_BHWC = hide(x_BHWC)
            if self.absolute_pos_embed is not None:
                _B, H, W, C = x_BHWC.shape
                embedding = resize_absolute_position_embedding(self.absolute_pos_embed, self.pretrain_map_size, (H, W))
                x_BHWC = x_BHWC + embedding.view(1, H, W, C)
            x_BHWC = self.drop_after_pos(x_BHWC)

            outputs: list[Tensor] = []
            last = emitted[-1]
            for index, stage in zip(range(last + 1), self.stages):
                map_BHWC, x_BHWC = stage(x_BHWC, index < last)
                if index in emitted:
                    norm = getattr(self, f'norm{index}') if index in self.out_indices else nn.Identity()
                    outputs.append(stage.normalise_output(map_BHWC, norm))
                del map_BHWC  # before the next stage takes memory
        return tuple(outputs)

    def map_sizes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Return channels, height and width of the stages' maps, for images of height x width pixels."""
        H, W = (-(-side // patch) for side, patch in zip((height, width), self.patch_embed.patch_size))
        sizes = []
        for index, (stage, channels) in enumerate(zip(self.stages, self.num_features)):
            if index:  # patch merging is the first layer of a stage, or the last layer of the stage before
                stride = (stage if self.merging_first else self.stages[index - 1]).downsample.stride
                H, W = -(-H // stride), -(-W // stride)
            sizes.append((channels, H, W))
        return sizes

    def layer_order(self) -> list[list[str]]:
        """Return the layers from input to output. A layer is a list of prefixes of parameter names.

        Layer 0 is the patch embedding with the position embedding, layer l the l-th block. A patch merging and an
        output norm belong to the preceding block, though V2 names the merging after the next stage.
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
        """Initialise like the paper's code, then apply the initializers of `init_cfg`, then load its checkpoints."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d)):  # Swin-MLP mixes places by a Conv1d
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        initializers, checkpoints = split_init_cfg(self.init_cfg)
        apply_initializers(self, initializers)
        for cfg in checkpoints:
            load_checkpoint(self, cfg['checkpoint'], prefix=cfg.get('prefix'))
        self.is_init = True

    @property
    def backend(self) -> str:
        """The way to compute the layers, see `SwinBackbone`; a new name can be set at any time."""
        return self._backend

    @backend.setter
    def backend(self, backend: str) -> None:
        self._backend: str = check_choice('backend', backend, BACKENDS)
        for module in self.modules():
            if module is not self and hasattr(module, 'backend'):
                module.backend = backend  # type: ignore[assignment]  # torch types it as a tensor or module

    @property
    def with_cp(self) -> bool:
        """Whether blocks are recomputed in backward, see `SwinBackbone`; a new value can be set at any time."""
        return any(getattr(block, 'with_cp', False) for stage in self.stages for block in stage.blocks)

    @with_cp.setter
    def with_cp(self, with_cp: bool) -> None:
        for stage in self.stages:
            for block in stage.blocks:
                block.with_cp = bool(with_cp)

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
