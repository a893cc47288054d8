"""The names that published Swin checkpoints give their weights: one table an origin, used in both directions.

A row is (name here, name there). Names here are mmdet's and mmseg's; `norm` and `head`, which no backbone has, stand
for a classifier's last norm and its head. {s} is a stage and {b} a block; {s+1}, {2s+1}, {2s+2} are numbers that an
origin counts otherwise. A name is renamed by the first row that it, or what it begins with, matches.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .errors import CheckpointError

Rows = tuple[tuple[str, str], ...]

V1, V2, MLP = 'Swin V1', 'Swin V2', 'Swin-MLP'  # families, whose weights fit no other


class Format(NamedTuple):
    name: str  # what --to takes
    origin: str  # what a report says
    anchor: str  # regular expression of a name that every checkpoint of this origin has, less its prefix
    rows: Rows
    merging: str = 'columns'  # the order of merged channels, see `reorder_merging`
    separate_qkv: bool = False  # query, key and value are three linear layers
    spellings: tuple[tuple[str, str], ...] = ()  # of other releases of the origin, to those of the rows
    family: str = V1


_BLOCK = 'stages.{s}.blocks.{b}'
_LAYERS: Rows = (  # microsoft/Swin-Transformer, SimMIM, Swin-Transformer-{Object-Detection,Semantic-Segmentation}, timm
    ('patch_embed.projection', 'patch_embed.proj'),
    ('patch_embed.norm', 'patch_embed.norm'),
    ('absolute_pos_embed', 'absolute_pos_embed'),
    (f'{_BLOCK}.attn.w_msa', 'layers.{s}.blocks.{b}.attn'),
    (f'{_BLOCK}.ffn.layers.0.0', 'layers.{s}.blocks.{b}.mlp.fc1'),
    (f'{_BLOCK}.ffn.layers.1', 'layers.{s}.blocks.{b}.mlp.fc2'),
    (_BLOCK, 'layers.{s}.blocks.{b}'),
    ('norm{s}', 'norm{s}'),
    ('norm', 'norm'),
)
_LAYERS_ANCHOR = r'layers[._]0\.blocks\.0\.attn\.relative_position_bias_table'
_STAGES: Rows = (
    ('patch_embed', 'patch_embed'),
    ('absolute_pos_embed', 'absolute_pos_embed'),
    ('stages', 'stages'),
)
_STAGES_ANCHOR = r'stages\.0\.blocks\.0\.attn\.w_msa\.relative_position_bias_table'
_HF_BLOCK = 'swin.encoder.layers.{s}.blocks.{b}'

MMDET = Format(
    'mmdet',
    'mmdet or mmseg',
    _STAGES_ANCHOR,
    (*_STAGES, ('norm{s}', 'norm{s}'), ('norm', 'norm'), ('head', 'head')),
    merging='channels',
)
MMPRETRAIN = Format(  # its classifiers call their last norm what a detector calls the last stage's output norm
    'mmpretrain',
    'mmpretrain',
    _STAGES_ANCHOR,
    (*_STAGES, ('norm', 'norm3'), ('norm', 'norm'), ('head', 'head.fc')),
    merging='channels',
)
OFFICIAL = Format(
    'official',
    'microsoft/Swin-Transformer',
    _LAYERS_ANCHOR,
    (*_LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
)
TIMM = Format(  # patches are merged before the blocks of a stage; before timm 0.9 they were merged after them
    'timm',
    'timm',
    _LAYERS_ANCHOR,
    (*_LAYERS, ('stages.{s}.downsample', 'layers.{s+1}.downsample'), ('head', 'head.fc')),
    spellings=((r'^layers_(?=\d)', 'layers.'),),  # features_only=True
)
TORCHVISION = Format(
    'torchvision',
    'torchvision',
    r'features\.1\.0\.attn\.relative_position_bias_table',
    (
        ('patch_embed.projection', 'features.0.0'),
        ('patch_embed.norm', 'features.0.2'),
        ('absolute_pos_embed', 'absolute_pos_embed'),  # torchvision's own models have none
        (f'{_BLOCK}.attn.w_msa', 'features.{2s+1}.{b}.attn'),
        (f'{_BLOCK}.ffn.layers.0.0', 'features.{2s+1}.{b}.mlp.0'),
        (f'{_BLOCK}.ffn.layers.1', 'features.{2s+1}.{b}.mlp.3'),
        (_BLOCK, 'features.{2s+1}.{b}'),
        ('stages.{s}.downsample', 'features.{2s+2}'),
        ('norm{s}', 'norm{s}'),
        ('norm', 'norm'),
        ('head', 'head'),
    ),
)
HUGGING_FACE = Format(
    'hf',
    'Hugging Face',
    r'(?:swin\.)?encoder\.layers\.0\.blocks\.0\.attention\.\w+\.relative_position_bias_table',
    (
        ('patch_embed.projection', 'swin.embeddings.patch_embeddings.projection'),
        ('patch_embed.norm', 'swin.embeddings.norm'),
        ('absolute_pos_embed', 'swin.embeddings.position_embeddings'),
        (f'{_BLOCK}.norm1', f'{_HF_BLOCK}.layernorm_before'),
        (f'{_BLOCK}.attn.w_msa.proj', f'{_HF_BLOCK}.attention.output.dense'),
        (f'{_BLOCK}.attn.w_msa', f'{_HF_BLOCK}.attention.self'),
        (f'{_BLOCK}.norm2', f'{_HF_BLOCK}.layernorm_after'),
        (f'{_BLOCK}.ffn.layers.0.0', f'{_HF_BLOCK}.intermediate.dense'),
        (f'{_BLOCK}.ffn.layers.1', f'{_HF_BLOCK}.output.dense'),
        ('stages.{s}.downsample', 'swin.encoder.layers.{s}.downsample'),
        ('norm{s}', 'hidden_states_norms.stage{s+1}'),
        ('norm', 'swin.layernorm'),
        ('head', 'classifier'),
    ),
    separate_qkv=True,
    spellings=(
        (r'^(?=(embeddings|encoder\.layers|layernorm)\.)', 'swin.'),
        # What the modules of transformers 5 are called in memory; its files keep the names above.
        (r'\.attention\.q_proj\.', '.attention.self.query.'),
        (r'\.attention\.k_proj\.', '.attention.self.key.'),
        (r'\.attention\.v_proj\.', '.attention.self.value.'),
        (r'\.attention\.o_proj\.', '.attention.output.dense.'),
        (r'\.attention\.relative_position_bias\.', '.attention.self.'),
        (r'\.mlp\.fc1\.', '.intermediate.dense.'),
        (r'\.mlp\.fc2\.', '.output.dense.'),
    ),
)

# Swin V2. Names here are mmpretrain's `SwinTransformerV2`'s: a stage begins with the patch merging that leads to it.
_LAYERS_ANCHOR_V2 = r'layers[._]0\.blocks\.0\.attn\.logit_scale'
_STAGES_ANCHOR_V2 = r'stages\.0\.blocks\.0\.attn\.w_msa\.logit_scale'
_HF_BLOCK_V2 = _HF_BLOCK.replace('swin.', 'swinv2.')

# Own names are the toolboxes', had they a Swin V2.
OWN_V2 = MMDET._replace(origin='SwinV2Backbone', anchor=_STAGES_ANCHOR_V2, family=V2)
MMPRETRAIN_V2 = MMPRETRAIN._replace(origin='mmpretrain, Swin V2', anchor=_STAGES_ANCHOR_V2, family=V2)
OFFICIAL_V2 = OFFICIAL._replace(
    origin='microsoft/Swin-Transformer, Swin V2',
    anchor=_LAYERS_ANCHOR_V2,
    rows=(*_LAYERS, ('stages.{s+1}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
    family=V2,
)
TIMM_V2 = TIMM._replace(
    origin='timm, Swin V2',
    anchor=_LAYERS_ANCHOR_V2,
    rows=(*_LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head.fc')),
    family=V2,
)
HUGGING_FACE_V2 = Format(
    'hf',
    'Hugging Face, Swin V2',
    r'(?:swinv2\.)?encoder\.layers\.0\.blocks\.0\.attention\.self\.logit_scale',
    (
        ('patch_embed.projection', 'swinv2.embeddings.patch_embeddings.projection'),
        ('patch_embed.norm', 'swinv2.embeddings.norm'),
        ('absolute_pos_embed', 'swinv2.embeddings.position_embeddings'),
        (f'{_BLOCK}.norm1', f'{_HF_BLOCK_V2}.layernorm_before'),
        (f'{_BLOCK}.attn.w_msa.q_bias', f'{_HF_BLOCK_V2}.attention.self.query.bias'),
        (f'{_BLOCK}.attn.w_msa.v_bias', f'{_HF_BLOCK_V2}.attention.self.value.bias'),
        (f'{_BLOCK}.attn.w_msa.cpb_mlp', f'{_HF_BLOCK_V2}.attention.self.continuous_position_bias_mlp'),
        (f'{_BLOCK}.attn.w_msa.proj', f'{_HF_BLOCK_V2}.attention.output.dense'),
        (f'{_BLOCK}.attn.w_msa', f'{_HF_BLOCK_V2}.attention.self'),
        (f'{_BLOCK}.norm2', f'{_HF_BLOCK_V2}.layernorm_after'),
        (f'{_BLOCK}.norm3', f'{_HF_BLOCK_V2}.norm3'),  # which Hugging Face's own models have not
        (f'{_BLOCK}.ffn.layers.0.0', f'{_HF_BLOCK_V2}.intermediate.dense'),
        (f'{_BLOCK}.ffn.layers.1', f'{_HF_BLOCK_V2}.output.dense'),
        ('stages.{s+1}.downsample', 'swinv2.encoder.layers.{s}.downsample'),
        ('norm{s}', 'norm{s}'),
        ('norm', 'swinv2.layernorm'),
        ('head', 'classifier'),
    ),
    separate_qkv=True,
    spellings=((r'^(?=(embeddings|encoder\.layers|layernorm)\.)', 'swinv2.'),),
    family=V2,
)

# Swin-MLP
_MLP_BLOCK = r'\.0\.blocks\.0\.spatial_mlp\.weight'
OFFICIAL_MLP = OFFICIAL._replace(
    origin='microsoft/Swin-Transformer, Swin-MLP', anchor=rf'layers{_MLP_BLOCK}', family=MLP
)
OWN_MLP = MMDET._replace(origin='SwinMLPBackbone', anchor=rf'stages{_MLP_BLOCK}', family=MLP)

# All that is recognised; of those that share an anchor, the first.
ALL = (
    *(OFFICIAL, MMDET, TIMM, TORCHVISION, HUGGING_FACE, MMPRETRAIN),
    *(OFFICIAL_V2, OWN_V2, TIMM_V2, HUGGING_FACE_V2, MMPRETRAIN_V2),
    *(OFFICIAL_MLP, OWN_MLP),
)
# By family and name, what can be written: what mmpretrain reads is named as in mmdet too.
WRITTEN = {(format.family, format.name): format for format in ALL if format.name != 'mmpretrain'}
NAMES = tuple(name for family, name in WRITTEN if family == V1)  # which the other families have some of

_QKV = ('query', 'key', 'value')


def name_here(key: str, format: Format) -> Optional[str]:
    """The name here of what an origin calls `key`; None for what is no weight of a Swin Transformer."""
    for pattern, spelling in format.spellings:
        key = re.sub(pattern, spelling, key)
    return rename(key, format.rows, source=1)


def to_here(weights: dict[str, Tensor], format: Format) -> dict[str, Tensor]:
    """Weights under their names here, their values as an origin has them, made ours: merged channels, qkv."""
    if format.separate_qkv:
        weights = _fuse_qkv(weights)
    return reorder_merging(weights, format.merging, 'channels')


def from_here(weights: dict[str, Tensor], format: Format) -> dict[str, Tensor]:
    """Our weights, and a classifier's `norm` and `head`, as an origin names and orders them."""
    weights = reorder_merging(weights, 'channels', format.merging)
    if format.separate_qkv:
        weights = _split_qkv(weights)
    renamed = {}
    for key, value in weights.items():
        there = rename(key, format.rows, source=0)
        if there is None:
            raise CheckpointError(f'{key} is no weight that {format.origin} has a name for')
        renamed[there] = value
    return renamed


def _fuse_qkv(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    fused = {}
    for key, value in weights.items():
        owner, _, leaf = key.rpartition('.')
        part = owner.rpartition('.')[2]
        if part == 'query':
            stem = owner.removesuffix('query')
            parts = [weights[name] for name in (f'{stem}{part}.{leaf}' for part in _QKV) if name in weights]
            if len(parts) < len(_QKV):
                raise CheckpointError(f'{stem}query.{leaf} is there without its key or value')
            if any(part.dim() == 0 for part in parts):
                raise CheckpointError(f'{stem}query.{leaf}, or its key or value, has shape (): the file is damaged')
            fused[f'{stem}qkv.{leaf}'] = torch.cat(parts)
        elif part not in ('key', 'value'):
            fused[key] = value
    return fused


def _split_qkv(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    split = {}
    for key, value in weights.items():
        stem, qkv, leaf = key.rpartition('qkv.')
        if qkv:
            split.update({f'{stem}{name}.{leaf}': part for name, part in zip(_QKV, value.chunk(3))})
        else:
            split[key] = value
    return split


_NUMBER = re.compile(r'\{(\d*)([sb])(?:\+(\d+))?\}')


def rename(key: str, rows: Rows, source: int) -> Optional[str]:
    """What a name in column `source` of `rows` is in the other; None: no row has it."""
    for row in rows:
        match = _pattern(row[source]).match(key)
        numbers = _numbers(row[source], match) if match else None
        if match and numbers is not None:
            return _fill(row[1 - source], numbers) + key[match.end() :]
    return None


def _numbers(template: str, match: re.Match[str]) -> Optional[dict[str, int]]:
    """Stage and block in a name that matches a row's, or None if there is no such stage."""
    numbers = {}
    for factor, letter, offset in _NUMBER.findall(template):
        numbers[letter], remainder = divmod(int(match[letter]) - int(offset or 0), int(factor or 1))
        if remainder or numbers[letter] < 0:
            return None
    return numbers


def _fill(template: str, numbers: dict[str, int]) -> str:
    return _NUMBER.sub(lambda n: str(int(n[1] or 1) * numbers[n[2]] + int(n[3] or 0)), template)


@lru_cache(maxsize=256)
def _pattern(template: str) -> re.Pattern[str]:
    """What matches a row's name at the start of a key, up to a dot or the end."""
    literals = [re.escape(literal) for literal in _NUMBER.sub('\0', template).split('\0')]
    letters = [letter for _, letter, _ in _NUMBER.findall(template)]
    numbers = [f'(?P<{letter}>\\d+)' for letter in letters]
    return re.compile(''.join(a + b for a, b in zip(literals, [*numbers, ''])) + r'(?=\.|$)')


def reorder_merging(weights: dict[str, Tensor], source: str, target: str) -> dict[str, Tensor]:
    """Weights under their names here, with the channels that patch merging concatenates in the order `target`.

    A map's neighbours (dy, dx) with C channels each become 4 C channels:

    - 'channels', of mmdet, mmseg and mmpretrain, is `nn.Unfold`'s: (C, dy, dx), each channel's neighbours together;
    - 'columns', of microsoft/Swin-Transformer, timm, torchvision and transformers, is (dx, dy, C): they concatenate
      [0::2, 0::2], [1::2, 0::2], [0::2, 1::2], [1::2, 1::2] (timm by a permutation that amounts to the same).

    The weights that see merged channels are the norm over them and the reduction's columns.
    """
    if source == target:
        return weights
    reorder = _columns_to_channels if target == 'channels' else _channels_to_columns
    return {key: reorder(value) if _sees_merged_channels(key, weights) else value for key, value in weights.items()}


def _sees_merged_channels(key: str, weights: dict[str, Tensor]) -> bool:
    owner, downsample, leaf = key.rpartition('.downsample.')
    reduction = weights.get(f'{owner}.downsample.reduction.weight')
    if not downsample or reduction is None:
        return False
    if leaf == 'reduction.weight' and (reduction.dim() != 2 or reduction.shape[1] % 4):
        raise CheckpointError(
            f'{key} has shape {tuple(reduction.shape)}, and its columns are four neighbours: the file is damaged'
        )
    # A norm behind the reduction, as in Swin V2, is as wide as what the reduction gives, and has no such order.
    return leaf == 'reduction.weight' or weights[key].shape[-1:] == reduction.shape[-1:]


def _columns_to_channels(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (2, 2, -1))  # ..., dx, dy, C
    return x.movedim(-1, -3).transpose(-1, -2).flatten(-3).contiguous()


def _channels_to_columns(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (-1, 2, 2))  # ..., C, dy, dx
    return x.transpose(-1, -2).movedim(-3, -1).flatten(-3).contiguous()
