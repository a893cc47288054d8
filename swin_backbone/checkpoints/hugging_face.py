"""Folders of transformers: files of weights and the config.json that `from_pretrained` reads."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checks import list_first
from ..sizes import Size
from .errors import CheckpointError, name_in_errors
from .formats import BIAS_TABLE, LOGIT_SCALE, SWIN_V2
from .recognise import SwinWeights
from .shapes import FIRST_LINEAR, PROJECTION, find_sizes

CONFIG, WEIGHTS_FILE, PICKLE = 'config.json', 'model.safetensors', 'pytorch_model.bin'
INDEX_SUFFIX = '.index.json'  # ending of a file that lists the shards of weights
FILES = (WEIGHTS_FILE, f'{WEIGHTS_FILE}{INDEX_SUFFIX}', PICKLE, f'{PICKLE}{INDEX_SUFFIX}')  # in transformers' order
_FILE_SUFFIXES = ('.safetensors', '.pth', '.pt', '.bin', '.ckpt', '.pkl')
WRITE_A_FILE = 'write a file (a name that ends in .safetensors)'  # of an error


def is_folder_target(target: Path) -> bool:
    """Return whether a target is a folder, or has no suffix of a file of weights."""
    return target.is_dir() or target.suffix not in _FILE_SUFFIXES


def find_weights_file(folder: Path) -> Path:
    """Return the file of weights in a folder of transformers, or the index of its shards.

    Raises:
        CheckpointError: without a file of weights.
    """
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f'it is a folder without {WEIGHTS_FILE} or {PICKLE}; name a file in it')


def read_shards(index: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    """Return the weights of all shards that an index of transformers lists.

    Args:
        read: reads a shard.

    Raises:
        CheckpointError: if the index is damaged, or a shard or a weight of the index is missing.
    """
    try:
        shard_of: dict[str, str] = json.loads(index.read_bytes())['weight_map']
        shards = sorted({index.with_name(Path(name).name) for name in shard_of.values()})
        if any(shard.name.endswith(INDEX_SUFFIX) for shard in shards):
            raise ValueError('an index in the place of a shard')
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f'{index.name} lists no shards of weights: the file is damaged') from error
    weights: dict[str, Any] = {}
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f'{index.name} lists {shard.name}, and there is no such file')
        with name_in_errors(shard.name):
            contents = read(shard)
        if not isinstance(contents, dict):
            raise CheckpointError(f'{shard.name} holds a {type(contents).__name__}, and no weights')
        weights.update(contents)
    if missing := [name for name in shard_of if name not in weights]:
        raise CheckpointError(f'{index.name} lists weights that its shards lack: {list_first(missing)}')
    return weights


def make_config_json(weights: SwinWeights, missing: list[str]) -> bytes:
    """Return config.json: arguments of `transformers.SwinConfig` or `Swinv2Config`, from names and shapes of weights.

    Raises:
        CheckpointError: if weights are missing, transformers has no such model, or the window is unknown.
    """
    if missing:
        raise CheckpointError(f'{CONFIG} needs complete weights; missing: {list_first(missing)}')
    tensors = weights.backbone
    is_v2 = weights.format.family == SWIN_V2
    not_computed = {
        'no norm of patches': 'patch_embed.norm.weight' not in tensors,
        'a third norm in a block': any('.norm3.' in name for name in tensors),
        'an absolute position embedding': is_v2 and 'absolute_pos_embed' in tensors,  # it has one place more there
    }
    for part, is_here in not_computed.items():
        if is_here:
            raise CheckpointError(f'transformers computes no {weights.format.family} with {part}: {WRITE_A_FILE}')
    projection_DCHW = tensors[PROJECTION]
    width, depths, heads = find_sizes(tensors, weights.format.family)
    patch = projection_DCHW.shape[2]
    window_side, last_window_side = _find_window_sides(weights, len(depths), is_v2)
    head = weights.classifier.get('head.weight')
    name = 'Swinv2' if is_v2 else 'Swin'
    # transformers' Swin V2 has no norms of outputs
    normed_stages = [stage for stage in range(len(depths)) if f'norm{stage}.weight' in tensors and not is_v2]
    kind = 'ForImageClassification' if head is not None else 'Backbone' if normed_stages else 'Model'
    config: dict[str, Any] = dict(
        architectures=[f'{name}{kind}'],
        model_type=name.lower(),
        # The map of the last stage is one window, because transformers shrinks larger windows.
        image_size=last_window_side * patch * 2 ** (len(depths) - 1),
        patch_size=patch,
        num_channels=projection_DCHW.shape[1],
        embed_dim=width,
        depths=list(depths),
        num_heads=list(heads),
        window_size=window_side,
        mlp_ratio=tensors[FIRST_LINEAR].shape[0] / width,
        qkv_bias=any(f'stages.0.blocks.0.attn.w_msa.{bias}' in tensors for bias in ('qkv.bias', 'q_bias')),
        use_absolute_embeddings='absolute_pos_embed' in tensors,
        hidden_act='gelu',
        layer_norm_eps=1e-5,
    )
    if config['use_absolute_embeddings']:
        side = math.isqrt(tensors['absolute_pos_embed'].shape[1])
        sizes = [patch * length for length in weights.map_size or (side, side)]
        config['image_size'] = sizes if len(set(sizes)) > 1 else sizes[0]
    if head is not None:
        labels = [f'LABEL_{index}' for index in range(len(head))]
        config.update(
            id2label={str(index): label for index, label in enumerate(labels)},
            label2id={label: index for index, label in enumerate(labels)},
        )
    if kind == 'Backbone':
        config.update(out_features=[f'stage{stage + 1}' for stage in normed_stages])
    if is_v2:
        names = [f'stages.{stage}.blocks.0.{LOGIT_SCALE}' for stage in range(len(depths))]
        trained_sizes = [weights.pretrained_window_sizes.get(name) for name in names]
        config['pretrained_window_sizes'] = [
            0 if size in (None, (window_side,) * 2, (last_window_side,) * 2) else size[0] for size in trained_sizes
        ]
    return (json.dumps(config, indent=2) + '\n').encode()


def _find_window_sides(weights: SwinWeights, stages: int, is_v2: bool) -> tuple[int, int]:
    """Return the side of the window of all stages, and of the last one, which may be smaller in Swin V2."""
    sizes: list[Size] = []
    for stage in range(stages):
        key = f'stages.{stage}.blocks.0.{BIAS_TABLE}'
        window = weights.find_window_size(key)
        if window is None:
            raise CheckpointError(
                f'its weights do not say the window, which {CONFIG} needs: {WRITE_A_FILE}, and make the model of '
                'transformers with a configuration of your own'
            )
        sizes.append(window)
    if any(height != width for height, width in sizes) or len(set(sizes if not is_v2 else sizes[:-1])) > 1:
        raise CheckpointError(f'transformers has one square window for all stages, these are {sizes}')
    return sizes[0][0], sizes[-1][0]
