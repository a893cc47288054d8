"""Pre-trained weights into a backbone."""

import logging
import math
import re

from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from ..ops.position import resize_absolute_position_embedding, resize_relative_position_bias_table
from .official import from_official, is_official

# What some implementations save and this one computes.
INDEX_TABLES = re.compile(r'(^|\.)(relative_position_index|attn_mask)$')


def adapt_state_dict(state_dict: dict[str, Tensor], prefix: str, *_) -> None:
    """A load_state_dict pre-hook: index tables in a checkpoint are ignored, also with strict=True."""
    for key in [key for key in state_dict if key.startswith(prefix) and INDEX_TABLES.search(key)]:
        del state_dict[key]


def load_pretrained(backbone: nn.Module, checkpoint: str) -> None:
    """Load a backbone's pre-trained weights, and say in the log what was left at its random initialisation.

    Args:
        backbone: with the attributes `window_size` and `pretrain_map_size`, to which position tables are resized.
        checkpoint: path or URL, anything mmengine loads. A classifier or backbone of microsoft/Swin-Transformer,
            or a backbone, detector or segmentor of mmdet or mmseg.

    Raises:
        ValueError: if nothing in the checkpoint fits, or a weight has another shape.
    """
    loaded = CheckpointLoader.load_checkpoint(checkpoint, map_location='cpu', logger='current')
    state_dict = _backbone_weights(loaded)
    own = backbone.state_dict()
    state_dict = {key: value for key, value in state_dict.items() if key in own}
    if not state_dict:
        raise ValueError(
            f'checkpoint {checkpoint!r} holds no weight of this backbone; its first names are {list(loaded)[:5]}'
        )
    for key, value in state_dict.items():
        state_dict[key] = _resize(key, value, backbone)
        if state_dict[key].shape != own[key].shape:
            raise ValueError(
                f'checkpoint {checkpoint!r} has {key} of shape {tuple(value.shape)}, the backbone takes '
                f'{tuple(own[key].shape)}: they differ in width, depth, heads or input channels'
            )
    missing = backbone.load_state_dict(state_dict, strict=False).missing_keys
    print_log(f'Loaded {len(state_dict)} weights of {len(own)} from {checkpoint}', logger='current')
    if missing:
        print_log(f'Left at their initialisation: {", ".join(missing)}', logger='current', level=logging.WARNING)


def _backbone_weights(loaded: dict) -> dict[str, Tensor]:
    for container in ('state_dict', 'model'):
        if isinstance(loaded.get(container), dict):
            loaded = loaded[container]
            break
    weights = {key.removeprefix('module.'): value for key, value in loaded.items() if isinstance(value, Tensor)}
    if any(key.startswith('backbone.') for key in weights):
        weights = {key.removeprefix('backbone.'): v for key, v in weights.items() if key.startswith('backbone.')}
    return from_official(weights) if is_official(weights) else weights


def _resize(key: str, value: Tensor, backbone: nn.Module) -> Tensor:
    """A position table of a square window or image, at the backbone's window or image size."""
    if key.endswith('relative_position_bias_table'):
        side = (math.isqrt(value.shape[0]) + 1) // 2
        if (2 * side - 1) ** 2 == value.shape[0] != _num_offsets(backbone.window_size):
            return resize_relative_position_bias_table(value, (side, side), backbone.window_size)
    if key == 'absolute_pos_embed':
        side = math.isqrt(value.shape[1])
        if side * side == value.shape[1] != math.prod(backbone.pretrain_map_size):
            return resize_absolute_position_embedding(value, (side, side), backbone.pretrain_map_size)
    return value


def _num_offsets(window_size: tuple[int, int]) -> int:
    return (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
