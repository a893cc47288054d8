"""Sizes of a backbone that its weights do not tell, in the metadata of its state_dict.

A bias table of 105 rows is for a window of 4x8 or 8x4, a position embedding of 32 patches for 4x8 or 8x4 patches.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from torch import Tensor

from ..sizes import Size
from .formats import BIAS_TABLE, INDEX_TABLES, SPATIAL_MLP

SIZES_KEY = 'swin_backbone'  # key of the sizes in the metadata of a backbone


class StoredSizes(NamedTuple):
    """Sizes in the metadata. None where the metadata has no valid size."""

    window_sizes: tuple[Optional[Size], ...] = ()  # of each stage
    pretrained_window_sizes: tuple[Optional[Size], ...] = ()  # of each stage of Swin V2; stored as 'scaled_by'
    map_size: Optional[Size] = None  # patches of the position embedding


def write_sizes(backbone: Any, state_dict: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Store the sizes of a backbone in its metadata: a hook of `state_dict`."""
    pretrained = getattr(backbone, 'pretrained_window_sizes', [])
    metadata[SIZES_KEY] = dict(
        window_size=backbone.window_size,
        scaled_by=[size or window for size, window in zip(pretrained, backbone.window_size)],
        map_size=None if backbone.absolute_pos_embed is None else backbone.pretrain_map_size,
    )


def read_sizes(metadata: Any) -> StoredSizes:
    """Return the sizes in the metadata of a backbone."""
    sizes = metadata.get(SIZES_KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(sizes, Mapping):
        return StoredSizes()
    lists = [sizes.get(key) for key in ('window_size', 'scaled_by')]
    used, pretrained = (tuple(map(_read_size, entry)) if isinstance(entry, (list, tuple)) else () for entry in lists)
    return StoredSizes(used, pretrained, _read_size(sizes.get('map_size')))


def _read_size(size: Any) -> Optional[Size]:
    is_size = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
    return size if is_size else None


def drop_index_tables(backbone: Any, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Leave index tables out: a pre-hook of `load_state_dict`."""
    for key in [key for key in state_dict if key.startswith(prefix) and INDEX_TABLES.search(key)]:
        del state_dict[key]


def check_stored_sizes(
    backbone: Any,
    state_dict: dict[str, Tensor],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Report weights of another size in an equal shape: a pre-hook of `load_state_dict`.

    `load_checkpoint` resizes these weights.
    """
    sizes = read_sizes(metadata)
    pairs = [
        (f'stages.{stage}.blocks.0.{weight}', window, backbone.window_size[stage])
        for stage, window in enumerate(sizes.window_sizes[: len(backbone.stages)])
        for weight in (BIAS_TABLE, SPATIAL_MLP)
    ]
    parameters = dict(backbone.named_parameters())
    for name, source, target in (*pairs, ('absolute_pos_embed', sizes.map_size, backbone.pretrain_map_size)):
        value, parameter = state_dict.get(prefix + name), parameters.get(name)
        if source in (None, target) or value is None or parameter is None or value.shape != parameter.shape:
            continue
        errors.append(f'{prefix}{name} is for {source}, and the backbone has {target}: load it by load_checkpoint')
