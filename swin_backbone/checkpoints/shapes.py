"""Sizes of a Swin by the shapes of its weights. Names are this package's (see formats.py)."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from torch import Tensor

from .formats import MARKERS, SWIN_MLP, SWIN_V2

PROJECTION = 'patch_embed.projection.weight'
FIRST_LINEAR = 'stages.0.blocks.0.ffn.layers.0.0.weight'  # of the MLP
BLOCK_PATTERN = re.compile(r'stages\.(\d{1,3})\.blocks\.(\d{1,3})\.')


class SwinSizes(NamedTuple):
    """Width of the first stage, blocks and attention heads of each stage; 0 is unknown."""

    embed_dims: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]

    def __str__(self) -> str:
        return f'width {self.embed_dims}, depths {self.depths} and heads {self.num_heads}'


def find_sizes(weights: Mapping[str, Tensor], family: str) -> SwinSizes:
    """Return the sizes of a backbone, 0 for an unknown size."""
    depths: dict[int, int] = {}
    num_heads: dict[int, int] = {}
    for match in filter(None, map(BLOCK_PATTERN.match, weights)):
        stage, block = int(match[1]), int(match[2])
        depths[stage] = max(depths.get(stage, 0), block + 1)
        if not num_heads.get(stage):  # of the first block that has the weight
            num_heads[stage] = _find_num_heads(weights.get(BLOCK_PATTERN.sub(match[0], MARKERS[family])), family)
    stages = range(max(depths, default=-1) + 1)
    projection = weights.get(PROJECTION)
    width = 0 if projection is None or projection.dim() != 4 else projection.shape[0]
    return SwinSizes(
        width, tuple(depths.get(stage, 0) for stage in stages), tuple(num_heads.get(stage, 0) for stage in stages)
    )


def _find_num_heads(marker: Optional[Tensor], family: str) -> int:
    """Return the heads of a weight (offsets, heads) of Swin V1, (heads, 1, 1) of V2, (heads N, N, 1) of Swin-MLP."""
    if marker is None or marker.dim() < 2 or not marker.shape[1]:
        return 0
    return marker.shape[0] // marker.shape[1] if family == SWIN_MLP else marker.shape[0 if family == SWIN_V2 else 1]
