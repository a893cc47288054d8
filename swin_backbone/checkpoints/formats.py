"""Names of a Swin's weights in each origin. Each origin has a table, read in both directions.

A row is (name here, name there). Names here are mmdet's and mmseg's. `norm` and `head` stand for a classifier's last
norm and its head, which a backbone lacks. {s} is a stage, {b} a block; {s+1}, {2s+1}, {2s+2} are an origin's numbers
for stage s. The first row that matches the beginning of a name renames it; the rest of the name is kept.

Names alone decide: see `recognise.extract_swin`. Values differ from ours in two ways;
`convert_to_ours` and `convert_to_format` convert them.

| origin | block | patch merging behind stage s | columns of merging | query, key, value |
|---|---|---|---|---|
| here, mmdet, mmseg, mmpretrain | stages.{s}.blocks.{b} | stages.{s}.downsample | channels | one `qkv` |
| microsoft, also detectors and SimMIM | layers.{s}.blocks.{b} | layers.{s}.downsample | columns | one `qkv` |
| timm from 0.9 | the same; layers_{s} with features_only | layers.{s+1}.downsample | columns | one `qkv` |
| torchvision | features.{2s+1}.{b} | features.{2s+2} | columns | one `qkv`, in Swin V2 too |
| transformers | encoder.layers.{s}.blocks.{b} | encoder.layers.{s}.downsample | columns | three layers |

- Columns of merging: `downsample.reduction.weight` (2C, 4C) and, in Swin V1 and Swin-MLP, `downsample.norm` (4C) are
  permuted; `reorder_merging` has both orders. The norm of Swin V2 (2C) comes behind the reduction and stays.
- Three layers: `query`, `key` and `value`, each (C, C) and (C), are concatenated in this order to `qkv` (3C, C), (3C).
  Swin V2 has biases of query and value only, `q_bias` and `v_bias`; torchvision's is (3C), and the key's is not used.
- Swin V2 here and in mmpretrain begins a stage with its merging: stages.{s+1}.downsample for the merging behind
  stage s. timm does the same, microsoft and transformers do not.
- The last norm of a classifier is `norm3` in mmpretrain, the name of an output norm elsewhere.
- `relative_position_index`, `relative_coords_table` and `attn_mask` are computed here, and not loaded.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .errors import CheckpointError

Rows = tuple[tuple[str, str], ...]
HERE, THERE = 0, 1  # columns of `Rows`: names of this package, and of the origin

SWIN_V1, SWIN_V2, SWIN_MLP = 'Swin V1', 'Swin V2', 'Swin-MLP'  # families; weights of a family fit no other
# Saved by some implementations, computed here.
INDEX_TABLES = re.compile(r'(^|\.)(relative_position_index|relative_coords_table|attn_mask)$')
BIAS_TABLE, LOGIT_SCALE = 'attn.w_msa.relative_position_bias_table', 'attn.w_msa.logit_scale'  # in a block
SPATIAL_MLP = 'spatial_mlp.weight'
# A name in every backbone of a family, which tells the prefix of the backbone in a model and the heads of a stage.
MARKERS = {
    SWIN_V1: f'stages.0.blocks.0.{BIAS_TABLE}',
    SWIN_V2: f'stages.0.blocks.0.{LOGIT_SCALE}',
    SWIN_MLP: f'stages.0.blocks.0.{SPATIAL_MLP}',
}


class Format(NamedTuple):
    """The names and orders of an origin."""

    name: str
    title: str  # in reports
    rows: Rows
    merging: str = 'columns'  # order of merged channels, see `reorder_merging`
    separate_qkv: bool = False  # query, key and value are three linear layers
    has_key_bias: bool = False  # Swin V2 has a bias (3C,) of query, key and value
    has_index_tables: bool = False  # the origin loads nothing without index tables
    is_of_classifiers: bool = False  # all published files are of classifiers
    container: Optional[str] = None  # the entry of a file with the weights
    spellings: tuple[tuple[str, str], ...] = ()  # (regular expression, name in the rows) for other releases
    family: str = SWIN_V1


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
_STAGES: Rows = (
    ('patch_embed', 'patch_embed'),
    ('absolute_pos_embed', 'absolute_pos_embed'),
    ('stages', 'stages'),
)


def _make_hugging_face_rows(model: str) -> Rows:
    block = f'{model}.encoder.layers.{{s}}.blocks.{{b}}'
    return (
        ('patch_embed.projection', f'{model}.embeddings.patch_embeddings.projection'),
        ('patch_embed.norm', f'{model}.embeddings.norm'),
        ('absolute_pos_embed', f'{model}.embeddings.position_embeddings'),
        (f'{_BLOCK}.norm1', f'{block}.layernorm_before'),
        (f'{_BLOCK}.attn.w_msa.proj', f'{block}.attention.output.dense'),
        (f'{_BLOCK}.attn.w_msa', f'{block}.attention.self'),
        (f'{_BLOCK}.norm2', f'{block}.layernorm_after'),
        (f'{_BLOCK}.ffn.layers.0.0', f'{block}.intermediate.dense'),
        (f'{_BLOCK}.ffn.layers.1', f'{block}.output.dense'),
        ('norm', f'{model}.layernorm'),
        ('head', 'classifier'),
    )


MMDET = Format(
    'mmdet',
    'mmdet or mmseg',
    (*_STAGES, ('norm{s}', 'norm{s}'), ('norm', 'norm'), ('head', 'head')),
    merging='channels',
    container='state_dict',
    spellings=((r'^head\.fc\.', 'head.'),),  # mmpretrain
)
MMPRETRAIN = MMDET._replace(  # the last norm of its classifiers has the name of an output norm
    name='mmpretrain',
    title='mmpretrain',
    rows=(*_STAGES, ('norm', 'norm{s}'), ('norm', 'norm'), ('head', 'head')),
)
OFFICIAL = Format(
    'official',
    'microsoft/Swin-Transformer',
    (*_LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
    container='model',
)
TIMM = Format(  # before timm 0.9: the names of microsoft/Swin-Transformer
    'timm',
    'timm',
    (*_LAYERS, ('stages.{s}.downsample', 'layers.{s+1}.downsample'), ('head', 'head.fc')),
    is_of_classifiers=True,
    spellings=((r'^layers_(?=\d)', 'layers.'),),  # features_only=True
)
TORCHVISION = Format(
    'torchvision',
    'torchvision',
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
    has_index_tables=True,
    is_of_classifiers=True,
)
HUGGING_FACE = Format(
    'hf',
    'Hugging Face',
    (
        *_make_hugging_face_rows('swin'),
        ('stages.{s}.downsample', 'swin.encoder.layers.{s}.downsample'),
        ('norm{s}', 'hidden_states_norms.stage{s+1}'),
        ('norm{s}', 'hidden_states_norms.{s}'),  # MaskFormerSwinBackbone, with its model inside
    ),
    separate_qkv=True,
    spellings=(
        (r'^(model\.)?(?=(embeddings|encoder\.layers|layernorm)\.)', 'swin.'),
        (r'^model\.(?=hidden_states_norms\.)', ''),
        # Modules of transformers 5 in memory; its files have the names above.
        (r'\.attention\.q_proj\.', '.attention.self.query.'),
        (r'\.attention\.k_proj\.', '.attention.self.key.'),
        (r'\.attention\.v_proj\.', '.attention.self.value.'),
        (r'\.attention\.o_proj\.', '.attention.output.dense.'),
        (r'\.attention\.relative_position_bias\.', '.attention.self.'),
        (r'\.mlp\.fc1\.', '.intermediate.dense.'),
        (r'\.mlp\.fc2\.', '.output.dense.'),
    ),
)

# Swin V2. Names here are those of mmpretrain's `SwinTransformerV2`: a stage begins with patch merging.
_HF_BLOCK_V2 = 'swinv2.encoder.layers.{s}.blocks.{b}'

OWN_V2 = MMDET._replace(title='SwinV2Backbone', family=SWIN_V2)
MMPRETRAIN_V2 = MMPRETRAIN._replace(title='mmpretrain, Swin V2', family=SWIN_V2)
OFFICIAL_V2 = OFFICIAL._replace(
    title='microsoft/Swin-Transformer, Swin V2',
    rows=(*_LAYERS, ('stages.{s+1}.downsample', 'layers.{s}.downsample'), ('head', 'head')),
    spellings=((r'\.rpe_mlp\.', '.cpb_mlp.'),),  # SimMIM
    family=SWIN_V2,
)
TIMM_V2 = TIMM._replace(
    title='timm, Swin V2',
    rows=(*_LAYERS, ('stages.{s}.downsample', 'layers.{s}.downsample'), ('head', 'head.fc')),
    family=SWIN_V2,
)
TORCHVISION_V2 = TORCHVISION._replace(
    title='torchvision, Swin V2',
    rows=tuple(
        ('stages.{s+1}.downsample' if here == 'stages.{s}.downsample' else here, there)
        for here, there in TORCHVISION.rows
    ),
    has_key_bias=True,
    family=SWIN_V2,
)
HUGGING_FACE_V2 = Format(
    'hf',
    'Hugging Face, Swin V2',
    (
        (f'{_BLOCK}.attn.w_msa.q_bias', f'{_HF_BLOCK_V2}.attention.self.query.bias'),
        (f'{_BLOCK}.attn.w_msa.v_bias', f'{_HF_BLOCK_V2}.attention.self.value.bias'),
        (f'{_BLOCK}.attn.w_msa.cpb_mlp', f'{_HF_BLOCK_V2}.attention.self.continuous_position_bias_mlp'),
        *_make_hugging_face_rows('swinv2'),
        (f'{_BLOCK}.norm3', f'{_HF_BLOCK_V2}.norm3'),  # not in Hugging Face's own models
        ('stages.{s+1}.downsample', 'swinv2.encoder.layers.{s}.downsample'),
        ('norm{s}', 'norm{s}'),
    ),
    separate_qkv=True,
    spellings=((r'^(?=(embeddings|encoder\.layers|layernorm)\.)', 'swinv2.'),),
    family=SWIN_V2,
)

# Swin-MLP
OFFICIAL_MLP = OFFICIAL._replace(title='microsoft/Swin-Transformer, Swin-MLP', family=SWIN_MLP)
OWN_MLP = MMDET._replace(title='SwinMLPBackbone', family=SWIN_MLP)

# Recognised origins. The first of two with equal names of blocks is taken; `recognise` then tells the two apart.
ALL_FORMATS = (
    *(OFFICIAL, MMDET, TIMM, TORCHVISION, HUGGING_FACE, MMPRETRAIN),
    *(OFFICIAL_V2, OWN_V2, TIMM_V2, TORCHVISION_V2, HUGGING_FACE_V2, MMPRETRAIN_V2),
    *(OFFICIAL_MLP, OWN_MLP),
)
# Formats to write, by family and name. mmpretrain's is missing, because mmpretrain reads mmdet's.
WRITABLE_FORMATS = {(format.family, format.name): format for format in ALL_FORMATS if format.name != 'mmpretrain'}

_QKV = ('query', 'key', 'value')


def find_our_name(key: str, format: Format) -> Optional[str]:
    """Return our name of an origin's weight; None if no row matches."""
    for pattern, spelling in format.spellings:
        key = re.sub(pattern, spelling, key)
    return rename(key, format.rows, source=THERE)


def convert_to_ours(weights: dict[str, Tensor], format: Format) -> dict[str, Tensor]:
    """Convert the values of an origin's weights, under our names: permute merged channels, concatenate qkv."""
    if format.separate_qkv:
        weights = fuse(weights, _QKV, 'qkv.')
    if format.has_key_bias:
        weights = _split_bias(weights)
    return reorder_merging(weights, format.merging, 'channels', format.family)


def convert_to_format(weights: dict[str, Tensor], format: Format) -> dict[str, Tensor]:
    """Convert our weights, and a classifier's `norm` and `head`, to the names and orders of an origin."""
    weights = reorder_merging(weights, 'channels', format.merging, format.family)
    if format.separate_qkv:
        weights = _split_qkv(weights)
    if format.has_key_bias:
        weights = _join_bias(weights)
    renamed = {}
    for key, value in weights.items():
        name = rename(key, format.rows, source=HERE)
        if name is None:
            raise CheckpointError(f'{key} is no weight that {format.title} has a name for')
        renamed[name] = value
    return renamed


def fuse(weights: dict[str, Tensor], parts: tuple[str, str, str], fused: str) -> dict[str, Tensor]:
    """Concatenate the weights of three layers, PARTS.weight and PARTS.bias, under names that begin with `fused`.

    If a layer is missing, the others keep their names.
    """
    pattern = re.compile(rf'(.*\.)({"|".join(parts)})\.(\w+)')
    result = {}
    for key, value in weights.items():
        match = pattern.fullmatch(key)
        names = [f'{match[1]}{part}.{match[3]}' for part in parts] if match else []
        if not match or not all(name in weights for name in names):
            result[key] = value
        elif key == names[0]:
            values = [weights[name] for name in names]
            if any(value.dim() == 0 or value.shape[1:] != values[0].shape[1:] for value in values):
                shapes = ', '.join(str(tuple(value.shape)) for value in values)
                raise CheckpointError(f'{key}, and its key and value, have shapes {shapes}: the file is damaged')
            result[f'{match[1]}{fused}{match[3]}'] = torch.cat(values)
    return result


def _split_qkv(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    split = {}
    for key, value in weights.items():
        stem, qkv, leaf = key.rpartition('qkv.')
        if qkv:
            split.update({f'{stem}{name}.{leaf}': part for name, part in zip(_QKV, value.chunk(3))})
        else:
            split[key] = value
    return split


def _split_bias(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace the biases of query, key and value by those of query and value."""
    split = {}
    for key, value in weights.items():
        attention, qkv_bias, _ = key.rpartition('qkv.bias')
        if qkv_bias:
            if value.dim() != 1 or len(value) % 3:
                raise CheckpointError(
                    f'{key} has shape {tuple(value.shape)}, and is of three layers: the file is damaged'
                )
            split[f'{attention}q_bias'], _, split[f'{attention}v_bias'] = value.chunk(3)
        else:
            split[key] = value
    return split


def _join_bias(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace the biases of query and value by those of query, key (zeros) and value."""
    joined = dict(weights)
    for key, query in weights.items():
        attention, q_bias, _ = key.rpartition('q_bias')
        if q_bias and (value := joined.pop(f'{attention}v_bias', None)) is not None:
            joined[f'{attention}qkv.bias'] = torch.cat([joined.pop(key), torch.zeros_like(query), value])
    return joined


_NUMBER = re.compile(r'\{(\d*)([sb])(?:\+(\d+))?\}')


def rename(key: str, rows: Rows, source: int) -> Optional[str]:
    """Translate a name from column `source` of `rows` to the other; None if no row matches."""
    for row in rows:
        match = _compile_pattern(row[source]).match(key)
        numbers = _read_numbers(row[source], match) if match else None
        if match and numbers is not None:
            return _fill(row[1 - source], numbers) + key[match.end() :]
    return None


def _read_numbers(template: str, match: re.Match[str]) -> Optional[dict[str, int]]:
    """Return stage and block in a name, or None if the number is of no stage."""
    numbers = {}
    for factor, letter, offset in _NUMBER.findall(template):
        numbers[letter], remainder = divmod(int(match[letter]) - int(offset or 0), int(factor or 1))
        if remainder or numbers[letter] < 0:
            return None
    return numbers


def _fill(template: str, numbers: dict[str, int]) -> str:
    return _NUMBER.sub(lambda n: str(int(n[1] or 1) * numbers[n[2]] + int(n[3] or 0)), template)


@lru_cache(maxsize=256)
def _compile_pattern(template: str) -> re.Pattern[str]:
    """Compile a row's name; the match ends at a dot or the end of the key."""
    literals = [re.escape(literal) for literal in _NUMBER.sub('\0', template).split('\0')]
    letters = [letter for _, letter, _ in _NUMBER.findall(template)]
    numbers = [f'(?P<{letter}>\\d{{1,3}})' for letter in letters]
    return re.compile(''.join(a + b for a, b in zip(literals, [*numbers, ''])) + r'(?=\.|$)')


def reorder_merging(weights: dict[str, Tensor], source: str, target: str, family: str) -> dict[str, Tensor]:
    """Permute the channels that patch merging concatenates, from order `source` to `target`.

    Four neighbours (dy, dx) with C channels each become 4 C channels:

    - 'channels', of mmdet, mmseg and mmpretrain, is the order of `nn.Unfold`: (C, dy, dx);
    - 'columns', of microsoft/Swin-Transformer, timm, torchvision and transformers, is (dx, dy, C): they concatenate
      [0::2, 0::2], [1::2, 0::2], [0::2, 1::2], [1::2, 1::2].

    Permuted are the columns of the reduction, and the norm over merged channels.
    """
    if source == target:
        return weights
    reorder = columns_to_channels if target == 'channels' else _channels_to_columns
    return {
        key: reorder(value) if _has_merged_channels(key, weights, family) else value for key, value in weights.items()
    }


def _has_merged_channels(key: str, weights: dict[str, Tensor], family: str) -> bool:
    owner, downsample, leaf = key.rpartition('.downsample.')
    reduction = weights.get(f'{owner}.downsample.reduction.weight')
    if not downsample:
        return False
    if reduction is None:  # of a file that lacks weights
        return family != SWIN_V2 and weights[key].shape[-1] % 4 == 0
    if leaf == 'reduction.weight' and (reduction.dim() != 2 or reduction.shape[1] % 4):
        raise CheckpointError(
            f'{key} has shape {tuple(reduction.shape)}, and its columns are four neighbours: the file is damaged'
        )
    # The norm of Swin V2 comes behind the reduction, and has its width.
    return leaf == 'reduction.weight' or weights[key].shape[-1:] == reduction.shape[-1:]


def columns_to_channels(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (2, 2, -1))  # ..., dx, dy, C
    return x.movedim(-1, -3).transpose(-1, -2).flatten(-3).contiguous()


def _channels_to_columns(value: Tensor) -> Tensor:
    x: Tensor = value.unflatten(-1, (-1, 2, 2))  # ..., C, dy, dx
    return x.transpose(-1, -2).movedim(-3, -1).flatten(-3).contiguous()
