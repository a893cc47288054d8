"""The necks and heads that read a backbone's maps, and the settings that depend on the maps' number and width.

Each new map takes the place of an old one, so only channels change. Maps that nothing reads are left out, and indices
are renumbered: distributed training stops with an error if the parameters of a norm get no gradient.
A setting that cannot follow is a ValueError with its key.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from mmengine.config import ConfigDict

from ..config_parts import type_name, walk
from .probe import MapShape, find_neck_maps

ALL_MAPS_HEADS = ('MaskFormerHead', 'Mask2FormerHead')  # heads of mmseg that read every map, and ignore in_index
HEADS_OF_MAPS = ('decode_head', 'auxiliary_head', 'kernel_generate_head')  # in mmseg's segmentors and heads
READ_FROM_START = ('FPN', 'PAFPN', 'FPN_CARAFE', 'NASFPN', 'FPG')  # necks that work with any start_level


class SwappedMaps(NamedTuple):
    """The maps before and after a swap, one by one."""

    old: Sequence[MapShape]
    new: Sequence[MapShape]

    def list_widths(self) -> tuple[list[int], list[int]]:
        """Return the channels of the old and of the new maps."""
        return [shape.channels for shape in self.old], [shape.channels for shape in self.new]


def rewire_neck(neck: ConfigDict, maps: SwappedMaps, key: str) -> list[int]:
    """Write the new channels into a neck, and return the indices of the maps that the neck uses."""
    old, new = maps.list_widths()
    for name in ('rfp_backbone', 'embed_dim'):
        if name in neck:
            raise ValueError(
                f'{key}.{name}: a {type_name(neck)} is made for its own backbone, and cannot be given another'
            )
    if 'in_channels' not in neck:
        raise ValueError(f'{key}: a {type_name(neck)} has no in_channels')
    channels = neck.in_channels
    if isinstance(channels, int):
        if channels != old[-1]:
            raise ValueError(f'{key}.in_channels is {channels}, and the last map of the backbone has {old[-1]}')
        neck.in_channels = new[-1]
        return [len(old) - 1]
    outputs = neck.get('out_channels')
    if not isinstance(outputs, (int, type(None))) and list(outputs[: len(channels)]) == list(channels):
        raise ValueError(f'{key}.out_channels: a {type_name(neck)} passes on the maps of the backbone it was made for')
    if list(channels) == old[::-1] != old:  # a neck of YOLOv3: the deepest map comes first
        neck.in_channels = type(channels)(new[::-1])
        return list(range(len(old)))
    if not channels or list(channels) != old[: len(channels)]:  # some necks read only the first maps
        raise ValueError(f'{key}.in_channels is {list(channels)}, and the maps of the backbone have {old}')
    old = old[: len(channels)]
    start, end = neck.get('start_level', 0), neck.get('end_level', -1)
    used = list(range(start, len(old) if end < 0 else min(end + 1, len(old))))
    if start and type_name(neck) in READ_FROM_START and used[-1] == len(old) - 1:
        neck.start_level = 0
    else:
        used = list(range(len(old)))
    neck.in_channels = type(channels)(new[index] for index in used)
    if 'scales' in neck and len({shape.stride for shape in maps.old}) == 1:
        neck.scales = [1.0 for _ in used]  # MultiLevelNeck makes a pyramid of equal maps; Swin's maps are a pyramid
    return used


def find_maps_after_neck(
    old_neck: ConfigDict, new_neck: ConfigDict, maps: SwappedMaps, used: list[int], key: str
) -> Optional[SwappedMaps]:
    """Return the maps after a neck, or None for a neck with `out_channels`, whose maps stay.

    Raises:
        ValueError: if the neck runs on the old maps, but not on the new maps. Some necks add maps of equal size.
    """
    has_out_channels = 'out_channels' in old_neck
    try:
        before = find_neck_maps(old_neck, maps.old, key)
    except ValueError:
        if has_out_channels:  # the likely reason is a missing operator, and the neck cannot be tried
            return None
        raise
    try:
        after = find_neck_maps(new_neck, [maps.new[index] for index in used], key)
    except ValueError as error:
        raise ValueError(
            f'{key}: a {type_name(new_neck)} takes the maps of the backbone that it was made for, and not a '
            f"Swin's: {error.__cause__ or error}"
        ) from error
    return None if has_out_channels else SwappedMaps(before, after)


def leaves_maps_unread(model: ConfigDict, neck_name: str) -> bool:
    """Return whether a neck or head takes maps without using them. The output norms then get no gradient."""
    neck = model.get(neck_name) or []
    for first in neck[:1] if isinstance(neck, (list, tuple)) else [neck]:
        if not isinstance(first.in_channels, int) and (
            first.get('start_level') or first.get('end_level', -1) not in (-1, len(first.in_channels) - 1)
        ):
            return True
    head = model.get('decode_head')
    return not neck and isinstance(head, dict) and type_name(head) == 'EncHead' and not head.get('add_lateral')


def rewire_detector(model: ConfigDict, maps: SwappedMaps, key: str) -> list[int]:
    """Write the new channels into the heads of a detector without a neck, and return the indices of the used maps."""
    if 'shared_head' in (model.get('roi_head') or {}):
        raise ValueError(f'{key}.roi_head.shared_head: it is the last stage of the backbone that it was made for')
    old, new = maps.list_widths()
    used: set[int] = set()
    for head_key, node, name in _iter_channel_settings(model, key):
        channels = node[name]
        if isinstance(channels, int) and channels == old[-1]:
            node[name] = new[-1]
            used.add(len(old) - 1)
        elif not isinstance(channels, int) and list(channels) == old:
            node[name] = type(channels)(new)
            used.update(range(len(old)))
        else:
            raise ValueError(f'{head_key}.{name} is {channels}, and the maps of the backbone have {old}')
    if not used:
        raise ValueError(f'{key} takes a neck or a head with in_channels, and has neither')
    return sorted(used)


def _iter_channel_settings(model: ConfigDict, key: str) -> Iterator[tuple[str, ConfigDict, str]]:
    """Yield (key of the dict, dict, name) of each setting with the backbone's channels."""
    for head_name, head in model.items():
        if head_name.endswith('_head') and isinstance(head, dict):
            if head_name == 'roi_head':
                for inner, child in head.items():
                    name = 'out_channels' if inner.endswith('roi_extractor') else 'in_channels'
                    if isinstance(child, dict) and name in child:
                        yield f'{key}.{head_name}.{inner}', child, name
            elif 'in_channels' in head:
                yield f'{key}.{head_name}', head, 'in_channels'


def rewire_segmentor(model: ConfigDict, maps: SwappedMaps, key: str, prune: bool) -> list[int]:
    """Write the new channels and indices into the heads of a segmentor, and return the indices of the used maps.

    Args:
        prune: whether the backbone will emit only the used maps.
    """
    # All heads of a cascade, and the head of K-Net that makes the kernels
    nodes = walk(model, key, lambda name, _: name.isdecimal() or name in HEADS_OF_MAPS)
    heads: list[tuple[str, ConfigDict]]
    heads = [(head_key, head) for head_key, head in nodes if isinstance(head, dict) and 'in_channels' in head]
    if not heads:
        raise ValueError(f'{key} takes a neck or a head with in_channels, and has neither')
    reads = [(head_key, head, _find_maps(head_key, head, maps)) for head_key, head in heads]
    for index_in_front, (_, head, indices) in enumerate(reads[1:]):
        if type_name(head) == 'OCRHead' and isinstance(indices, int):
            reads[index_in_front] = (*reads[index_in_front][:2], indices)  # which finds the regions on the same map
    used = {index for *_, indices in reads for index in (indices if isinstance(indices, list) else [indices])}
    if any(head.get('c1_in_channels') for _, head in heads):
        used.add(0)  # DeepLabV3+ reads the first map, beside in_index
    emitted = sorted(used) if prune else list(range(len(maps.new)))
    old, new = maps.list_widths()
    for head_key, head, indices in reads:
        if isinstance(indices, list):
            head.in_channels = type(head.in_channels)(new[index] for index in indices)
        else:
            head.in_channels = new[indices]
        if not head.get('num_convs', 1) and head.get('channels') == old[indices]:
            head.channels = new[indices]  # without a convolution in front of the classifier
        _set_index(head, indices, emitted, len(old))
        if head.get('c1_in_channels'):
            if head.c1_in_channels != old[0]:
                raise ValueError(f'{head_key}.c1_in_channels is {head.c1_in_channels}, and the first map has {old[0]}')
            head.c1_in_channels = new[0]
    return emitted


def _find_maps(key: str, head: ConfigDict, maps: SwappedMaps) -> Any:
    """Return the index of the map that a head reads, or the list of indices."""
    old = maps.list_widths()[0]
    channels = head.in_channels
    index = head.get('in_index', -1)
    if isinstance(channels, int):
        if not isinstance(index, int) or not -len(old) <= index < len(old):
            raise ValueError(f'{key}.in_index is {index}, with in_channels {channels} and {len(old)} maps')
        indices: Any = index % len(old)
        expected: Any = old[indices]
    else:
        reads_all = 'in_index' not in head or type_name(head) in ALL_MAPS_HEADS
        index = range(len(old)) if reads_all else [index] if isinstance(index, int) else index
        if not all(-len(old) <= i < len(old) for i in index):
            raise ValueError(f'{key}.in_index is {list(index)}, and there are {len(old)} maps')
        indices = [i % len(old) for i in index]
        channels = list(channels)
        expected = [old[i] for i in indices]
    if channels != expected:
        raise ValueError(f'{key}.in_channels is {channels}, and the maps it reads have {expected}')
    return indices


def _set_index(head: ConfigDict, indices: Any, emitted: list[int], count: int) -> None:
    index = head.get('in_index')
    if index is None or emitted == list(range(count)):
        return
    if isinstance(index, int):
        head.in_index = emitted.index(indices if isinstance(indices, int) else indices[0])
    else:
        head.in_index = type(index)(emitted.index(i) for i in indices)
