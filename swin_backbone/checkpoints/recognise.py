"""Recognise the origin of a Swin by the names of its weights, and find the weights of its backbone."""

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from ..sizes import Size
from .damage import check_axes, check_floating, check_tables
from .errors import CheckpointError
from .formats import ALL_FORMATS, BIAS_TABLE, INDEX_TABLES, LOGIT_SCALE, MARKERS, Format, convert_to_ours, find_our_name
from .resize import infer_square, infer_window_of_coordinates, infer_window_of_index
from .stored_sizes import StoredSizes, read_sizes

# Entries of a checkpoint with weights. Averaged weights are before them (`state_dict_ema` of timm, `ema` of RT-DETR).
# mmengine stores averaged weights in `state_dict` and the others in `ema_state_dict`.
UNAVERAGED_OF_MMENGINE = 'ema_state_dict'
CONTAINERS = ('state_dict', 'model', UNAVERAGED_OF_MMENGINE, 'module')
# Parts of names of layers inside data-parallel models, torch.compile, FSDP and activation checkpointing.
WRAPPERS = {'module', '_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
CONTAINER_DEPTH = 2  # dicts inside an entry of a checkpoint, one in the other, that may be around the weights
_MARKER_ENDS = ('relative_position_bias_table', 'logit_scale', 'spatial_mlp.weight')
_NUMBERS = re.compile(r'(?<=\.)\d+(?=\.)')  # of stages and blocks in names
_AVERAGED = re.compile(r'(^|[._])(ema|teacher)')


@dataclass
class SwinWeights:
    """A Swin backbone under our names, in our orders."""

    format: Format
    prefix: str  # of the origin's names
    backbone: dict[str, Tensor] = field(default_factory=dict)
    classifier: dict[str, Tensor] = field(default_factory=dict)  # a classifier's `norm` and `head`
    classifier_names: dict[str, list[str]] = field(default_factory=dict)  # of `norm` and `head`: the origin's
    index_tables: list[str] = field(default_factory=list)  # the origin's names of index tables and masks
    unknown: list[str] = field(default_factory=list)  # the origin's names inside the backbone
    outside: list[str] = field(default_factory=list)  # the origin's names outside the backbone
    window_sizes: dict[str, Size] = field(default_factory=dict)  # by the name of the bias table
    pretrained_window_sizes: dict[str, Size] = field(default_factory=dict)  # of V2, by the name of the logit scale
    map_size: Optional[Size] = None  # (height, width) of an absolute position embedding stored as a map

    def find_window_size(self, table: str) -> Optional[Size]:
        """Return the window of a relative position bias table: the file's, or a square by the rows. None: unknown."""
        return self.window_sizes.get(table) or (infer_square(self.backbone[table]) if table in self.backbone else None)


def find_tensors(loaded: Any) -> dict[str, Tensor]:
    """Return the named tensors in the contents of a file or in a state_dict.

    Names lose WRAPPERS: see `shorten_names`.

    Raises:
        CheckpointError: without any tensor, or with a tensor that is sparse, nested or on the meta device.
    """
    while isinstance(loaded, dict) and (inner := _find_container(loaded)) is not None:
        loaded = inner
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    if isinstance(loaded, dict):
        names = shorten_names(map(str, loaded))
        for key, value in loaded.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in 'fiub' and value.itemsize <= 8:  # of detectron2
                value = torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))
            if isinstance(value, Tensor):
                if value.layout != torch.strided or value.is_meta or value.is_nested:
                    kind = (
                        'on the meta device, without numbers' if value.is_meta else f'a tensor of layout {value.layout}'
                    )
                    raise CheckpointError(f'{key} is {kind}: save dense weights, on the CPU or another device')
                tensors[names[str(key)]] = value.detach()
        tensors._metadata = _shorten_metadata_names(getattr(loaded, '_metadata', None))  # type: ignore[attr-defined]
    if not tensors:
        inside = f'a dict with {list(loaded)[:5]}' if isinstance(loaded, dict) else f'a {type(loaded).__name__}'
        raise CheckpointError(f'it holds no weights: a dict of tensors was expected, it is {inside}')
    return tensors


def _shorten_metadata_names(stored: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of a state_dict by names without wrappers. An entry without wrappers overrides.

    The metadata has versions of modules, by which some modules rename weights, and sizes: `stored_sizes.write_sizes`.
    """
    metadata: dict[str, dict[str, Any]] = {}
    names = stored if isinstance(stored, dict) else {}
    for name in sorted(names, key=lambda name: strip_wrapper_parts(str(name)) == name):
        if isinstance(stored[name], dict):
            metadata.setdefault(strip_wrapper_parts(str(name)), {}).update(stored[name])
    return metadata


def strip_wrapper_parts(name: str) -> str:
    """Return a name without the parts of wrappers."""
    return '.'.join(part for part in name.split('.') if part not in WRAPPERS)


def shorten_names(names: Iterable[str], shorten: Callable[[str], str] = strip_wrapper_parts) -> dict[str, str]:
    """Return the short form of each name. A name stays whole if its short form is another name, or another's form."""
    names = list(names)
    taken, plain = set(names), {}
    for name in sorted(names, key=len):
        shorter = shorten(name)
        plain[name] = name if shorter in taken else shorter
        taken.add(plain[name])
    return {name: plain[name] for name in names}


def _find_container(loaded: dict[Any, Any]) -> Optional[dict[Any, Any]]:
    """Return the entry of a checkpoint with a Swin, at most `CONTAINER_DEPTH` dicts inside, averaged weights first.

    None: the names of a Swin are in `loaded` itself, or there is no entry. Without any Swin, the entry is one of
    `CONTAINERS`.
    """
    if _holds_swin(loaded, 0):
        return None
    entries = {str(name): value for name, value in loaded.items() if isinstance(value, dict)}
    names = [name for name, entry in entries.items() if _holds_swin(entry, CONTAINER_DEPTH)]
    names = names or [name for name in entries if name in CONTAINERS]
    return entries[min(names, key=_rank_container)] if names else None


def _rank_container(name: str) -> int:
    """Return the rank of an entry among the entries of a checkpoint with weights."""
    if _AVERAGED.search(name) and name != UNAVERAGED_OF_MMENGINE:
        return -1
    return CONTAINERS.index(name) if name in CONTAINERS else len(CONTAINERS)


def _holds_swin(entry: dict[Any, Any], depth: int) -> bool:
    if find_formats(strip_wrapper_parts(str(key)) for key in entry):
        return True
    return depth > 0 and any(_holds_swin(inner, depth - 1) for inner in entry.values() if isinstance(inner, dict))


def extract_swin(
    tensors: dict[str, Tensor],
    prefer: str = 'backbone.',
    prefix: Optional[str] = None,
    keeps_norm: bool = False,
    family: Optional[str] = None,
) -> SwinWeights:
    """Return the weights of the Swin backbone among `tensors`, under our names and in our orders.

    Of several backbones, the first of these is taken: at `prefix`, at `prefer`, an averaged one (EMA, teacher), at the
    shortest prefix.

    Args:
        keeps_norm: True: `norm3` is an output norm. False: in a file of mmpretrain's classifier, `norm3` is the
            classifier's last norm.
        family: family of Swin. Default: any.

    Raises:
        CheckpointError: if no Swin is found, weights are no floating numbers, or a bias table is for another window
            than the file names.
    """
    format, prefix = _choose_prefix(tensors, prefer, prefix, family)
    outer_prefix = find_outer_prefix(prefix)  # where a head is
    short_names = {key: key.removeprefix(prefix if key.startswith(prefix) else outer_prefix) for key in tensors}
    names = {short_names[key] for key in tensors if key.startswith(prefix)}
    format = _tell_apart(format, names, set(short_names.values()), keeps_norm)
    weights = SwinWeights(format, prefix)
    for key, name in short_names.items():
        renamed, is_inside = find_our_name(name, format) or '', key.startswith(prefix)
        if is_inside and INDEX_TABLES.search(key):
            weights.index_tables.append(key)
            _note_window(weights, renamed, tensors[key])
        elif renamed.startswith('head.') or (is_inside and renamed.startswith('norm.')):
            weights.classifier[renamed] = tensors[key]
            weights.classifier_names.setdefault(renamed.partition('.')[0], []).append(key)
        elif is_inside and renamed:
            weights.backbone[renamed] = tensors[key]
        else:
            (weights.unknown if is_inside else weights.outside).append(key)
    all_weights = {**weights.backbone, **weights.classifier}
    check_floating(all_weights)
    check_axes(all_weights)
    weights.backbone = convert_to_ours(weights.backbone, format)
    _flatten_position_map(weights)
    _note_sizes(weights, read_sizes(getattr(tensors, '_metadata', {}).get(prefix.rstrip('.'))))
    check_tables(weights.backbone, weights.window_sizes)
    return weights


def _choose_prefix(
    names: Collection[str], prefer: str, asked: Optional[str], family: Optional[str]
) -> tuple[Format, str]:
    """Return the format and the prefix of a Swin backbone; see `extract_swin`."""
    any_family = find_formats(names)
    formats = {prefix: format for prefix, format in any_family.items() if family in (None, format.family)}
    if not formats:
        if any_family:
            other = next(iter(any_family.values())).family
            raise CheckpointError(f'it holds a {other}, whose weights fit no {family}')
        raise CheckpointError(
            f'it holds no weight of a Swin Transformer under a known name; its first names are {list(names)[:5]}'
        )
    if asked is not None:
        asked = f'{asked.rstrip(".")}.'.lstrip('.')
        for candidate in (asked, strip_wrapper_parts(asked)):
            inside = [name.removeprefix(candidate) for name in names if name.startswith(candidate)]
            format = find_formats(inside).get('')
            if format is not None and family in (None, format.family):
                return format, candidate
        raise CheckpointError(f'it holds no Swin Transformer at prefix {asked!r}, but at {sorted(formats)}')
    best = min(formats, key=lambda prefix: (prefix != prefer, not _AVERAGED.search(prefix), len(prefix)))
    return formats[best], best


def _note_window(weights: SwinWeights, name: str, table: Tensor) -> None:
    """Store the window of an index table or of a table of coordinates."""
    window = None
    if name.endswith('relative_position_index'):
        name, window = name.replace('_index', '_bias_table'), infer_window_of_index(table)
    elif name.endswith('relative_coords_table') and table.dim() == 4 and table.numel():
        rows, columns = table.shape[1:3]
        weights.window_sizes.setdefault(name.replace('coords', 'position_bias'), ((rows + 1) // 2, (columns + 1) // 2))
        pretrained_window = infer_window_of_coordinates(table)
        if pretrained_window:
            weights.pretrained_window_sizes[name.replace('relative_coords_table', 'logit_scale')] = pretrained_window
    if window:
        weights.window_sizes[name] = window


def _note_sizes(weights: SwinWeights, sizes: StoredSizes) -> None:
    """Store the sizes of the metadata. They override those of index tables."""
    for name, window_sizes, stored in (
        (BIAS_TABLE, weights.window_sizes, sizes.window_sizes),
        (LOGIT_SCALE, weights.pretrained_window_sizes, sizes.pretrained_window_sizes),
    ):
        for key in weights.backbone:
            block = re.match(r'stages\.(\d{1,3})\.blocks\.\d+\.', key)
            if block and (window := dict(enumerate(stored)).get(int(block[1]))):
                window_sizes[f'{block[0]}{name}'] = window
    weights.map_size = sizes.map_size or weights.map_size


def find_formats(names: Iterable[str]) -> dict[str, Format]:
    """Return the format of each Swin backbone by the prefix of its names.

    Markers of other blocks tell the prefix of a backbone that lacks the marker of its first block.
    """
    swins: dict[str, Format] = {}
    lacking: dict[str, Format] = {}
    for key in names:
        if key.endswith(_MARKER_ENDS):
            starts = [0, *(dot.end() for dot in re.finditer(r'\.', key))]
            for start, format in itertools.product(starts, ALL_FORMATS):
                renamed, marker = find_our_name(key[start:], format), MARKERS[format.family]
                if renamed and _NUMBERS.sub('0', renamed) == marker:
                    (swins if renamed == marker else lacking)[key[:start]] = format
                    break
    return swins or lacking


def _tell_apart(format: Format, backbone_names: set[str], all_names: set[str], keeps_norm: bool) -> Format:
    """Tell origins with the same names of blocks apart."""
    others = {other.name: other for other in ALL_FORMATS if other.family == format.family}
    mergings = [key for key in backbone_names if '.downsample.' in key]
    begins_with_merging = bool(mergings) and not any(key.startswith('layers.0.') for key in mergings)
    if format.name == 'official' and (begins_with_merging or (not mergings and 'head.fc.weight' in all_names)):
        return others.get('timm', format)
    if format.name == 'mmdet' and not keeps_norm and ends_in_classifier(backbone_names, all_names):
        return others.get('mmpretrain', format)
    return format


def ends_in_classifier(backbone_names: Collection[str], all_names: Container[str]) -> bool:
    """Return whether the last norm in a model of mmpretrain or timm is no output norm: of a classifier or SimMIM.

    A norm of another stage is an output norm, and then all are.
    """
    stages, norms = (
        {int(match[1]) for match in map(re.compile(rf'{owner}(\d{{1,3}})\.').match, backbone_names) if match}
        for owner in (r'stages\.', 'norm')
    )
    return norms <= {max(stages, default=-1)} and ('head.fc.weight' in all_names or 'mask_token' in backbone_names)


def find_outer_prefix(prefix: str) -> str:
    """Return the prefix of the model around a backbone: `model.` for `model.backbone.`."""
    return ''.join(prefix.rstrip('.').rpartition('.')[:2])


def _flatten_position_map(weights: SwinWeights) -> None:
    """Flatten the absolute position embedding of the official detectors, (1, C, H, W), to (1, H * W, C)."""
    embedding = weights.backbone.get('absolute_pos_embed')
    if embedding is not None and embedding.dim() == 4:
        weights.map_size = (embedding.shape[2], embedding.shape[3])
        weights.backbone['absolute_pos_embed'] = embedding.flatten(2).transpose(1, 2).contiguous()
