"""Sizes of a Swin by the shapes of its weights, missing weights and damaged ones.

Names are this package's (see formats.py).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from torch import Tensor

from .errors import CheckpointError
from .formats import MARKERS, MLP, V2

PROJECTION = 'patch_embed.projection.weight'
FIRST_LINEAR = 'stages.0.blocks.0.ffn.layers.0.0.weight'  # of the MLP
_BLOCK_PATTERN = re.compile(r'stages\.(\d{1,3})\.blocks\.(\d{1,3})\.')
_OUTSIDE_STAGES = re.compile(r'(patch_embed\.\w+|norm\d*|head)\.(weight|bias)')


class SwinSizes(NamedTuple):
    """Width of the first stage, blocks and attention heads of each stage; 0 is unknown."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]

    def __str__(self) -> str:
        return f'width {self.embed_dims}, depths {self.depths} and heads {self.num_heads}'


def swin_sizes(weights: Mapping[str, Tensor], family: str) -> SwinSizes:
    """Return the sizes of a backbone, 0 for an unknown size."""
    depths: dict[int, int] = {}
    num_heads: dict[int, int] = {}
    for match in filter(None, map(_BLOCK_PATTERN.match, weights)):
        stage, block = int(match[1]), int(match[2])
        depths[stage] = max(depths.get(stage, 0), block + 1)
        if not num_heads.get(stage):  # of the first block that has the weight
            num_heads[stage] = _heads(weights.get(_BLOCK_PATTERN.sub(match[0], MARKERS[family])), family)
    stages = range(max(depths, default=-1) + 1)
    projection = weights.get(PROJECTION)
    width = 0 if projection is None or projection.dim() != 4 else projection.shape[0]
    return SwinSizes(
        width, tuple(depths.get(stage, 0) for stage in stages), tuple(num_heads.get(stage, 0) for stage in stages)
    )


def _heads(marker: Optional[Tensor], family: str) -> int:
    """Return the heads of a weight (offsets, heads) of Swin V1, (heads, 1, 1) of V2, (heads N, N, 1) of Swin-MLP."""
    if marker is None or marker.dim() < 2 or not marker.shape[1]:
        return 0
    return marker.shape[0] // marker.shape[1] if family == MLP else marker.shape[0 if family == V2 else 1]


def missing_weights(weights: Mapping[str, Tensor], family: str) -> list[str]:
    """Return the names of missing weights.

    Weights of a block or a patch merging are in all blocks or mergings. A weight outside the stages has a bias.

    Args:
        weights: a backbone, with or without a classifier's `norm` and `head`.
    """
    depths = swin_sizes(weights, family).depths
    first = 1 if family == V2 else 0  # V2 merges before the blocks of a stage
    if not first and f'stages.{len(depths) - 1}.downsample.reduction.weight' in weights:
        depths = (*depths, 1)  # the last stage is missing
    blocks = [f'stages.{stage}.blocks.{block}.' for stage, depth in enumerate(depths) for block in range(depth)]
    mergings = [f'stages.{first + stage}.downsample.' for stage in range(len(depths) - 1)]
    expected = [PROJECTION, FIRST_LINEAR]
    for match in filter(None, map(_OUTSIDE_STAGES.fullmatch, weights)):
        expected += [f'{match[1]}.weight', f'{match[1]}.bias']
    for owners in (blocks, mergings):
        leaves = dict.fromkeys(
            name.removeprefix(owner) for owner in owners for name in weights if name.startswith(owner)
        )
        # `norm3` is in every n-th block of Swin V2
        expected += [owner + leaf for owner in owners for leaf in leaves if not leaf.startswith('norm3.')]
    return list(dict.fromkeys(name for name in expected if name not in weights))


def check_shapes(weights: Mapping[str, Tensor]) -> None:
    """Compare each weight with its bias, the sides of patches and reductions, and the dimensions of a block's weights.

    Raises:
        CheckpointError: with the name and shape of the first damaged weight.
    """
    dimensions: dict[str, int] = {}  # by the name within a block
    for name, weight in weights.items():
        shape, bias = tuple(weight.shape), weights.get(f'{name.removesuffix("weight")}bias')
        is_damaged = bias is not None and bias.shape != shape[:1]
        is_damaged |= name == 'absolute_pos_embed' and len(shape) != 3
        if name == PROJECTION:
            is_damaged |= len(shape) != 4 or shape[2] != shape[3]
        if name.endswith('reduction.weight'):
            is_damaged |= len(shape) != 2 or shape[1] != 2 * shape[0]
        if _BLOCK_PATTERN.match(name):
            is_damaged |= dimensions.setdefault(_BLOCK_PATTERN.sub('', name), len(shape)) != len(shape)
        if is_damaged:
            others = '' if bias is None else f' and its bias {tuple(bias.shape)}'
            raise CheckpointError(f'{name} has shape {shape}{others}: the file is damaged')
