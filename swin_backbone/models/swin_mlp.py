"""Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer (models/swin_mlp.py), as a backbone."""

from collections.abc import Sequence
from typing import Any, Optional

from ..archs import ARCHS_MLP
from .arguments import Pair, WindowSize, check_sizes
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
        more: the other arguments of `SwinBackbone` but those of attention, pretrained and convert_weights.

    Raises:
        ValueError, TypeError: for wrong sizes, stages, windows or names. The message names the argument.
    """

    def __init__(
        self,
        *,
        pretrain_img_size: Pair = 256,
        embed_dims: Optional[int] = None,
        window_size: WindowSize = 8,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        arch: Optional[str] = None,
        **more: Any,
    ):
        sizes = check_sizes(ARCHS_MLP, arch, embed_dims, depths, num_heads, window_size)
        super().__init__(
            sizes,
            lambda stage, index, **common: SwinMLPBlock(**common),
            merging_first=False,
            merging_norm='before',
            pretrain_img_size=pretrain_img_size,
            **more,
        )
