"""Recognise the origin of a Swin by the names of its weights, and find the weights of its backbone."""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from ..windows.grid import Size
from .errors import CheckpointError
from .formats import (
    ALL,
    MMDET,
    MMPRETRAIN,
    MMPRETRAIN_V2,
    OFFICIAL,
    OFFICIAL_V2,
    OWN_V2,
    TIMM,
    TIMM_V2,
    V2,
    Format,
    name_here,
    to_here,
)
from .resize import window_of_coordinates, window_of_index

# Entries of a checkpoint with weights, averaged weights first (timm, DeiT). mmengine stores averaged weights in
# `state_dict` and the others in `ema_state_dict`.
CONTAINERS = ('state_dict_ema', 'model_ema', 'state_dict', 'model', 'ema_state_dict', 'module')
# Parts of names of layers inside torch.compile, FSDP and activation checkpointing.
WRAPPERS = {'_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Saved by some implementations, computed here.
INDEX_TABLES = re.compile(r'(^|\.)(relative_position_index|relative_coords_table|attn_mask)$')
OUTSIDE = 'outside the backbone'  # a reason to ignore
_AVERAGED = re.compile(r'(^|[._])(ema|teacher)')


@dataclass
class SwinWeights:
    """A Swin backbone under our names, in our orders."""

    format: Format
    prefix: str  # of the origin's names
    backbone: dict[str, Tensor] = field(default_factory=dict)
    classifier: dict[str, Tensor] = field(default_factory=dict)  # a classifier's `norm` and `head`
    ignored: dict[str, list[str]] = field(default_factory=dict)  # the origin's names, by reason
    # V1: window of each bias table with an index table; V2: window that scales the offsets, by the logit scale.
    windows: dict[str, Size] = field(default_factory=dict)
    map_size: Optional[Size] = None  # (height, width) of an absolute position embedding stored as a map


def tensors_of(loaded: Any) -> dict[str, Tensor]:
    """Return the named tensors in the contents of a file or in a state_dict.

    Names lose `module.` of data-parallel wrappers, and WRAPPERS.

    Raises:
        CheckpointError: without any tensor.
    """
    while isinstance(loaded, dict):
        inner = next((loaded[name] for name in CONTAINERS if isinstance(loaded.get(name), dict)), _container(loaded))
        if inner is None:
            break
        loaded = inner
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in 'fiub':  # of detectron2; in native byte order
                value = torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))
            if isinstance(value, Tensor):
                tensors[_outside_ddp(str(key))] = value.detach()
        # Versions of modules, as in torch. Some modules rename weights by version.
        versions = getattr(loaded, '_metadata', {})
        tensors._metadata = {_outside_ddp(name): of for name, of in versions.items()}  # type: ignore[attr-defined]
    if not tensors:
        inside = f'a dict with {list(loaded)[:5]}' if isinstance(loaded, dict) else f'a {type(loaded).__name__}'
        raise CheckpointError(f'it holds no weights: a dict of tensors was expected, it is {inside}')
    return tensors


def plain_name(key: str) -> str:
    """Return a name without WRAPPERS."""
    return '.'.join(part for part in key.split('.') if part not in WRAPPERS)


def _outside_ddp(key: str) -> str:
    return plain_name(key).removeprefix('module.')


def _container(loaded: dict[Any, Any]) -> Optional[dict[Any, Any]]:
    """Return the entry of a checkpoint with a Swin, averaged weights first."""
    entries = {str(name): value for name, value in loaded.items() if isinstance(value, dict)}
    found = [name for name, held in entries.items() if _prefixes(_outside_ddp(str(key)) for key in held)]
    return entries[min(found, key=lambda name: not _AVERAGED.search(name))] if found else None


def storage_fault(weights: Mapping[str, Tensor]) -> Optional[str]:
    """Describe a weight of a quantised dtype, whose scale torch would lose; None: all weights are floating numbers."""
    key = next((key for key, value in weights.items() if value.dtype not in FLOATING), None)
    if key is None:
        return None
    return (
        f'{key} is stored as {weights[key].dtype}, as of a quantised model, which says elsewhere by what it is scaled: '
        'save the model in float32, float16 or bfloat16'
    )


def holds_swin(tensors: dict[str, Tensor]) -> bool:
    """Return whether a Swin backbone of any origin is among `tensors`."""
    return bool(_prefixes(tensors))


def find_swin(
    tensors: dict[str, Tensor],
    prefer: str = 'backbone.',
    prefix: Optional[str] = None,
    is_own: bool = False,
    family: Optional[str] = None,
) -> SwinWeights:
    """Return the weights of the Swin backbone among `tensors`, under our names and in our orders.

    Of several backbones, the first of these is taken: at `prefix`, at `prefer`, an averaged one (EMA, teacher), at the
    shortest prefix.

    Args:
        is_own: the names are those of our model, with `norm3` the norm of an output.
        family: family of Swin. Default: any.

    Raises:
        CheckpointError: if no Swin is found, or weights are no floating numbers.
    """
    format, prefix = _choose_swin(tensors, prefer, prefix, family)
    short = {key: key.removeprefix(prefix) for key in tensors}
    if not is_own:
        format = _refine(format, {short[key] for key in tensors if key.startswith(prefix)}, set(short.values()))
    weights = SwinWeights(format, prefix)
    for key, name in short.items():
        here, is_inside, reason = name_here(name, format), key.startswith(prefix), None
        if is_inside and INDEX_TABLES.search(key):
            reason = 'index tables and masks'
            _note_window(weights, here or '', tensors[key])
        elif here and here.startswith(('head.', 'norm.')) and (is_inside or here.startswith('head.')):
            reason = 'classification head' if here.startswith('head.') else 'classification norm'
            weights.classifier[here] = tensors[key]
        elif here and is_inside:
            weights.backbone[here] = tensors[key]
        else:
            reason = 'no part of a Swin backbone' if is_inside else OUTSIDE
        if reason:
            weights.ignored.setdefault(reason, []).append(key)
    fault = storage_fault({**weights.backbone, **weights.classifier})
    if fault:
        raise CheckpointError(fault)
    weights.backbone = to_here(weights.backbone, format)
    _flatten_position_map(weights)
    return weights


def _choose_swin(names: Iterable[str], prefer: str, prefix: Optional[str], family: Optional[str]) -> tuple[Format, str]:
    """Return the format and the prefix of a Swin backbone; see `find_swin`."""
    any_family = _prefixes(names)
    formats = {at: format for at, format in any_family.items() if family in (None, format.family)}
    if not formats:
        if any_family:
            other = next(iter(any_family.values())).family
            raise CheckpointError(f'it holds a {other}, whose weights fit no {family}')
        raise CheckpointError(f'it holds no weight of a Swin Transformer; its first names are {list(names)[:5]}')
    if prefix is None:
        prefix = min(formats, key=lambda at: (at != prefer, not _AVERAGED.search(at), len(at)))
    elif (prefix := f'{prefix.rstrip(".")}.'.lstrip('.')) not in formats:
        raise CheckpointError(f'it holds no Swin Transformer at prefix {prefix!r}, but at {sorted(formats)}')
    return formats[prefix], prefix


def _note_window(weights: SwinWeights, here: str, table: Tensor) -> None:
    """Store the window of an index table or of a table of coordinates."""
    window = None
    if here.endswith('relative_position_index'):
        here, window = here.replace('_index', '_bias_table'), window_of_index(table)
    elif here.endswith('relative_coords_table'):
        here, window = here.replace('relative_coords_table', 'logit_scale'), window_of_coordinates(table)
    if window:
        weights.windows[here] = window


def _prefixes(names: Iterable[str]) -> dict[str, Format]:
    anchors = {format.anchor: format for format in ALL[::-1]}  # the first of formats with one anchor
    found = {}
    for key in names:
        for anchor, format in anchors.items():
            match = re.fullmatch(rf'((?:.+?\.)??)(?:{anchor})', key)
            if match:
                found[match[1]] = format
    return found


def _refine(format: Format, inside: set[str], everywhere: set[str]) -> Format:
    """Tell origins with the same names of blocks apart."""
    official, timm, own, mmpretrain = (OFFICIAL, TIMM, MMDET, MMPRETRAIN)
    if format.family == V2:
        official, timm, own, mmpretrain = (OFFICIAL_V2, TIMM_V2, OWN_V2, MMPRETRAIN_V2)
    if format.anchor == official.anchor:
        merges = [key for key in inside if '.downsample.' in key]
        at_the_end = any(re.match(r'layers[._]0\.downsample\.', key) for key in merges)
        is_timm = (merges and not at_the_end) or any(key.startswith('layers_') for key in inside)
        return timm if is_timm else official
    if format.anchor == own.anchor:
        is_mmpretrain = 'norm0.weight' not in inside and ('head.fc.weight' in everywhere or 'mask_token' in inside)
        return mmpretrain if is_mmpretrain else own
    return format


def _flatten_position_map(weights: SwinWeights) -> None:
    """Flatten the absolute position embedding of the official detectors, (1, C, H, W), to (1, H * W, C)."""
    embedding = weights.backbone.get('absolute_pos_embed')
    if embedding is not None and embedding.dim() == 4:
        weights.map_size = (embedding.shape[2], embedding.shape[3])
        weights.backbone['absolute_pos_embed'] = embedding.flatten(2).transpose(1, 2).contiguous()
