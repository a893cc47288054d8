"""Shapes of the weights of a Swin backbone: its sizes, missing weights and damaged ones.

Names are this package's (see formats.py). A shape is a row of sides, each a number times a letter:

    C  width of the stage: the width of stage 0, doubled in each further stage
    h  attention heads
    A  width of queries, keys and values: C, or less where heads were pruned
    H  hidden width of the MLP
    R  rows of a relative position bias table: offsets of a window, an odd number
    J  hidden width of the position bias network of Swin V2
    N  places of a window, G = h N
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from .errors import CheckpointError
from .formats import MLP, V1, V2

Shapes = dict[str, str]

_FFN: Shapes = {
    'norm1.weight': 'C',
    'norm1.bias': 'C',
    'norm2.weight': 'C',
    'norm2.bias': 'C',
    'ffn.layers.0.0.weight': 'H C',
    'ffn.layers.0.0.bias': 'H',
    'ffn.layers.1.weight': 'C H',
    'ffn.layers.1.bias': 'C',
}
_ATTENTION: Shapes = {
    'attn.w_msa.qkv.weight': '3A C',
    'attn.w_msa.proj.weight': 'C A',
    'attn.w_msa.proj.bias': 'C',
}
_BLOCK_SHAPES: dict[str, Shapes] = {
    V1: {
        'attn.w_msa.relative_position_bias_table': 'R h',
        'attn.w_msa.qkv.bias': '3A',
        **_ATTENTION,
        **_FFN,
    },
    V2: {
        'attn.w_msa.logit_scale': 'h 1 1',
        'attn.w_msa.cpb_mlp.0.weight': 'J 2',
        'attn.w_msa.cpb_mlp.0.bias': 'J',
        'attn.w_msa.cpb_mlp.2.weight': 'h J',
        'attn.w_msa.q_bias': 'A',
        'attn.w_msa.v_bias': 'A',
        **_ATTENTION,
        **_FFN,
    },
    MLP: {'spatial_mlp.weight': 'G N 1', 'spatial_mlp.bias': 'G', **_FFN},
}
# Patch merging: V1 and Swin-MLP merge behind the blocks of a stage, V2 before them.
MERGING: dict[str, Shapes] = {
    V1: {'downsample.norm.weight': '4C', 'downsample.norm.bias': '4C', 'downsample.reduction.weight': '2C 4C'},
    V2: {'downsample.norm.weight': 'C', 'downsample.norm.bias': 'C', 'downsample.reduction.weight': 'C 2C'},
}
MERGING[MLP] = MERGING[V1]
PATCHES: Shapes = {
    'patch_embed.projection.weight': 'C channels height width',
    'patch_embed.projection.bias': 'C',
    'patch_embed.norm.weight': 'C',
    'patch_embed.norm.bias': 'C',
    'absolute_pos_embed': '1 tokens C',
}
# A head may follow a layer of another width.
CLASSIFIER: Shapes = {'norm.weight': 'C', 'norm.bias': 'C', 'head.weight': 'classes features', 'head.bias': 'classes'}

# Weights that a Swin may lack altogether. A bias of attention is in all blocks or in none.
_OPTIONAL = re.compile(r'patch_embed\.norm\.|absolute_pos_embed|norm|head\.')
_OPTIONAL_IN_BLOCKS = ('attn.w_msa.qkv.bias', 'attn.w_msa.q_bias', 'attn.w_msa.v_bias')
_BLOCK_NAME = re.compile(r'stages\.(\d+)\.blocks\.(\d+)\.(.+)')


class Sizes(NamedTuple):
    """Width of the first stage, blocks and heads of each stage."""

    width: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]

    def __str__(self) -> str:
        return f'width {self.width}, depths {self.depths} and heads {self.heads}'


class _Place(NamedTuple):
    shape: str
    stage: int
    block: int  # -1 outside blocks


_Letter = tuple[str, int, int]  # a letter, its stage and its block; -1 for all


def sizes_of(weights: Mapping[str, Tensor], family: str) -> Sizes:
    """Return the sizes of a backbone, 0 for an unknown size."""
    sides = _sides(weights, _places(weights, family))
    depths = _depths(weights)
    heads = []
    for stage in range(len(depths)):
        own = {letter: side for (letter, of, _), side in sides.items() if of == stage}
        heads.append(own['G'] // own['N'] if 'N' in own else own.get('h', 0))
    return Sizes(sides.get(('C', -1, -1), 0), depths, tuple(heads))


def missing_weights(weights: Mapping[str, Tensor], family: str) -> list[str]:
    """Return the names of weights that a Swin of these depths has and `weights` lacks, in the order of the model.

    Args:
        weights: a backbone, with or without a classifier's `norm` and `head`.
    """
    leaves = {match[3] for match in map(_BLOCK_NAME.fullmatch, weights) if match}
    missing = []
    for name in _places(weights, family):
        match = _BLOCK_NAME.fullmatch(name)
        if name in weights or (match and match[3] in _OPTIONAL_IN_BLOCKS and match[3] not in leaves):
            continue
        owner, _, leaf = name.rpartition('.')
        if _OPTIONAL.match(name) and f'{owner}.{"bias" if leaf == "weight" else "weight"}' not in weights:
            continue
        missing.append(name)
    return missing


def check_shapes(weights: Mapping[str, Tensor], family: str) -> None:
    """Compare the shapes of weights.

    Args:
        weights: a backbone, with or without a classifier's `norm` and `head`. Other names are not checked.

    Raises:
        CheckpointError: with the name of the first weight whose shape does not fit the weights before it.
    """
    places = _places(weights, family)
    sides = _sides(weights, places)
    for name, place in places.items():
        expected = tuple(factor * sides.get(letter, 0) for factor, letter in _terms(place))
        if name in weights and tuple(weights[name].shape) != expected:
            raise CheckpointError(
                f'{name} has shape {tuple(weights[name].shape)}, and its other weights are of a Swin with shape '
                f'{expected}: the file is damaged'
            )


def _depths(weights: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Blocks of each stage."""
    depths: dict[int, int] = {}
    for match in filter(None, map(_BLOCK_NAME.fullmatch, weights)):
        stage = int(match[1])
        depths[stage] = max(depths.get(stage, 0), int(match[2]) + 1)
    return tuple(depths.get(stage, 0) for stage in range(max(depths, default=-1) + 1))


def _places(weights: Mapping[str, Tensor], family: str) -> dict[str, _Place]:
    """Name every weight that a Swin of these depths may have."""
    depths = [max(depth, 1) for depth in _depths(weights)]
    merges_behind = family != V2
    if merges_behind and f'stages.{len(depths) - 1}.downsample.reduction.weight' in weights:
        depths.append(1)  # the last stage is missing
    places = {name: _Place(shape, 0, -1) for name, shape in PATCHES.items()}
    for stage, depth in enumerate(depths):
        for block in range(depth):
            for leaf, shape in _BLOCK_SHAPES[family].items():
                places[f'stages.{stage}.blocks.{block}.{leaf}'] = _Place(shape, stage, block)
        if stage < len(depths) - 1 if merges_behind else stage > 0:
            places.update(
                (f'stages.{stage}.{leaf}', _Place(shape, stage, -1)) for leaf, shape in MERGING[family].items()
            )
    for stage in range(len(depths)):
        places.update((f'norm{stage}.{leaf}', _Place('C', stage, -1)) for leaf in ('weight', 'bias'))
    places.update((name, _Place(shape, len(depths) - 1, -1)) for name, shape in CLASSIFIER.items())
    return places


def _terms(place: _Place) -> Iterator[tuple[int, _Letter]]:
    """Yield each side of a shape as a factor and a letter in its scope."""
    for term in place.shape.split():
        factor, letter = re.fullmatch(r'(\d*)(\w*)', term).groups()  # type: ignore[union-attr]
        if letter == 'C':
            yield int(factor or 1) << place.stage, ('C', -1, -1)
        else:
            yield int(factor or 1), (letter, place.stage, -1 if letter in 'GNR' else place.block)


def _sides(weights: Mapping[str, Tensor], places: Mapping[str, _Place]) -> dict[_Letter, int]:
    """Return the value of each letter, by the first weight of the right rank."""
    sides: dict[_Letter, int] = {}
    for name, place in places.items():
        terms = list(_terms(place))
        shape = weights[name].shape if name in weights else ()
        if len(shape) == len(terms):
            for side, (factor, letter) in zip(shape, terms):
                sides.setdefault(letter, side // factor)
    return sides
