"""Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer (models/swin_mlp.py), as a backbone."""

from collections.abc import Sequence
from typing import Any, Optional

from ..archs import ARCHS_MLP
from .arguments import DEFAULT_STRIDES, InitCfg, Pair, WindowSize, check_sizes
from .layers import SwinMLPBlock
from .pyramid import SwinPyramid


class SwinMLPBackbone(SwinPyramid):
    """Swin-MLP for detection and segmentation: a linear layer over the places of a window replaces attention.

    All channels of a head share a linear layer. All windows are treated alike, without mask and position bias. Padding
    is zeros and adds nothing. Windows shift by padding: windows of side w, shifted by w // 2, begin w - w // 2 places
    before the map. Parameters are named as in `SwinBackbone`, and `spatial_mlp` as in the official code. For arguments
    not listed here see `SwinBackbone`.

    Args:
        pretrain_img_size: see `SwinBackbone`.
        window_size: see `SwinBackbone`. Published weights have window 8, or 7 for 'base'; the weights do not
            load into a window of another size.
        num_heads: groups of channels in each stage, with a mixing layer for every group.
        patch_norm: whether the patch embedding has a norm. Patch merging always has a norm, as in
            microsoft/Swin-Transformer.
        arch: a published size, a key of `swin_backbone.ARCHS_MLP`; explicit embed_dims, depths and num_heads take
            precedence.
        small_map: 'pad': windows shift on every map. 'shrink': windows do not shift on a map with a side no longer than
            the window's, as in microsoft/Swin-Transformer's classifiers. A small map is always padded to the window.
        backend: 'auto' or 'torch'. 'native' and 'triton' have no block of Swin-MLP, and raise a ValueError.

    Raises:
        ValueError, TypeError: for wrong sizes, stages, windows or names. The message names the argument.
    """

    def __init__(
        self,
        *,
        pretrain_img_size: Pair = 256,
        in_channels: int = 3,
        embed_dims: Optional[int] = None,
        patch_size: Pair = 4,
        window_size: WindowSize = 8,
        mlp_ratio: float = 4,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        strides: Sequence[int] = DEFAULT_STRIDES,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: dict[str, Any] = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: dict[str, Any] = dict(type='LN'),  # noqa: B006
        with_cp: bool = False,
        frozen_stages: int = -1,
        init_cfg: InitCfg = None,
        arch: Optional[str] = None,
        small_map: str = 'pad',
        backend: str = 'auto',
    ):
        sizes = check_sizes(ARCHS_MLP, arch, embed_dims, depths, num_heads, window_size)

        super().__init__(
            sizes,
            lambda stage, index, **common: SwinMLPBlock(**common),
            merging_first=False,
            merging_norm='before',
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
