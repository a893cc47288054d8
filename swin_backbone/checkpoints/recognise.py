"""Whose checkpoint this is, and which of its tensors are a Swin backbone's: by names and shapes alone."""

import re
from collections import OrderedDict, defaultdict
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

# What may hold the weights in a training script's checkpoint, first the averaged ones (timm's, then DeiT's name). In
# mmengine's `state_dict` are the averaged ones already, and `ema_state_dict` has the others.
CONTAINERS = ('state_dict_ema', 'model_ema', 'state_dict', 'model', 'ema_state_dict', 'module')
# What torch.compile, FSDP and activation checkpointing put into the names of what is inside the layers that they wrap.
WRAPPERS = {'_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# What some implementations save and this one computes.
INDEX_TABLES = re.compile(r'(^|\.)(relative_position_index|relative_coords_table|attn_mask)$')
OUTSIDE = 'outside the backbone'  # a reason to ignore
_AVERAGED = re.compile(r'(^|[._])(ema|teacher)')


@dataclass
class SwinWeights:
    """The Swin backbone in a checkpoint, under its names here."""

    format: Format
    prefix: str  # of the backbone's names in the checkpoint: 'backbone.', 'module.encoder.', ...
    backbone: dict[str, Tensor]
    classifier: dict[str, Tensor]  # a classifier's `norm` and `head`
    ignored: dict[str, list[str]] = field(default_factory=dict)  # names in the checkpoint, by the reason
    # Of those bias tables whose index is in the checkpoint too; in Swin V2, of those logit scales whose table of
    # coordinates is, the window by which these are scaled.
    windows: dict[str, Size] = field(default_factory=dict)
    map_size: Optional[Size] = None  # of an absolute position embedding that is saved as a map


def tensors_of(loaded: Any) -> dict[str, Tensor]:
    """The named tensors in what a file held, without the `module.` that data-parallel wrappers put before them, and
    without WRAPPERS.

    Raises:
        CheckpointError: if there are none.
    """
    while isinstance(loaded, dict):
        inner = next((loaded[name] for name in CONTAINERS if isinstance(loaded.get(name), dict)), _container(loaded))
        if inner is None:
            break
        loaded = inner
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in 'fiub':  # detectron2's; in this machine's order
                value = torch.from_numpy(value.astype(value.dtype.newbyteorder('=')))
            if isinstance(value, Tensor):
                tensors[_outside_ddp(str(key))] = value.detach()
        # As torch does: the versions of modules, by which some rename.
        versions = getattr(loaded, '_metadata', {})
        tensors._metadata = {_outside_ddp(name): of for name, of in versions.items()}  # type: ignore[attr-defined]
    if not tensors:
        inside = f'a dict with {list(loaded)[:5]}' if isinstance(loaded, dict) else f'a {type(loaded).__name__}'
        raise CheckpointError(f'it holds no weights: a dict of tensors was expected, it is {inside}')
    return tensors


def plain_name(key: str) -> str:
    """The name of a tensor without those of what wraps layers around it."""
    return '.'.join(part for part in key.split('.') if part not in WRAPPERS)


def _outside_ddp(key: str) -> str:
    return plain_name(key).removeprefix('module.')


def _container(loaded: dict[Any, Any]) -> Optional[dict[Any, Any]]:
    """The entry of a checkpoint that holds a Swin under a name that a script gave it, first the averaged weights."""
    entries = {str(name): value for name, value in loaded.items() if isinstance(value, dict)}
    found = [name for name, held in entries.items() if _prefixes(_outside_ddp(str(key)) for key in held)]
    return entries[min(found, key=lambda name: not _AVERAGED.search(name))] if found else None


def storage_fault(weights: Mapping[str, Tensor]) -> Optional[str]:
    """Which weights are stored as numbers that torch would copy without what scales them; None: none."""
    key = next((key for key, value in weights.items() if value.dtype not in FLOATING), None)
    if key is None:
        return None
    return (
        f'{key} is stored as {weights[key].dtype}, as of a quantised model, which says elsewhere by what it is scaled: '
        'save the model in float32, float16 or bfloat16'
    )


def holds_swin(tensors: dict[str, Tensor]) -> bool:
    """Whether a Swin backbone of any origin is among `tensors`."""
    return bool(_prefixes(tensors))


def find_swin(
    tensors: dict[str, Tensor],
    prefer: str = 'backbone.',
    prefix: Optional[str] = None,
    is_own: bool = False,
    family: Optional[str] = None,
) -> SwinWeights:
    """The Swin backbone among `tensors`, the one at `prefix` if that is given.

    Else of several the one at the prefix `prefer`, or an averaged one (EMA, teacher), or that of the shortest prefix.

    Args:
        is_own: the model they are for has all these names itself, so `norm3` is the norm of an output.
        family: of Swin. Default: any.

    Raises:
        CheckpointError: if there is none, or its weights are no floating numbers.
    """
    any_family = _prefixes(tensors)
    found = {prefix: format for prefix, format in any_family.items() if family in (None, format.family)}
    if not found:
        if any_family:
            other = next(iter(any_family.values())).family
            raise CheckpointError(f'it holds a {other}, whose weights fit no {family}')
        raise CheckpointError(f'it holds no weight of a Swin Transformer; its first names are {list(tensors)[:5]}')
    if prefix is None:
        prefix = min(found, key=lambda prefix: (prefix != prefer, not _AVERAGED.search(prefix), len(prefix)))
    elif (prefix := f'{prefix.rstrip(".")}.'.lstrip('.')) not in found:
        raise CheckpointError(f'it holds no Swin Transformer at prefix {prefix!r}, but at {sorted(found)}')
    names = {key: key.removeprefix(prefix) for key in tensors}
    inside = {name for key, name in names.items() if key.startswith(prefix)}
    format = found[prefix] if is_own else _refine(found[prefix], inside, set(names.values()))

    backbone, classifier, ignored, windows = {}, {}, defaultdict(list), {}
    for key, value in tensors.items():
        here, is_inside = name_here(names[key], format), key.startswith(prefix)
        if is_inside and INDEX_TABLES.search(key):
            ignored['index tables and masks'].append(key)
            if here and key.endswith('relative_position_index'):
                windows[here.replace('_index', '_bias_table')] = window_of_index(value)
            elif here and key.endswith('relative_coords_table'):
                windows[here.replace('relative_coords_table', 'logit_scale')] = window_of_coordinates(value)
        elif here and here.startswith(('head.', 'norm.')) and (is_inside or here.startswith('head.')):
            classifier[here] = value
            ignored['classification head' if here.startswith('head.') else 'classification norm'].append(key)
        elif here and is_inside:
            backbone[here] = value
        else:
            ignored['no part of a Swin backbone' if is_inside else OUTSIDE].append(key)
    fault = storage_fault({**backbone, **classifier})
    if fault:
        raise CheckpointError(fault)
    known = {key: window for key, window in windows.items() if window}
    weights = SwinWeights(format, prefix, to_here(backbone, format), classifier, dict(ignored), known)
    _flatten_position_map(weights)
    return weights


def _prefixes(names: Iterable[str]) -> dict[str, Format]:
    anchors = {format.anchor: format for format in ALL[::-1]}  # of those that share an anchor, the first
    found = {}
    for key in names:
        for anchor, format in anchors.items():
            match = re.fullmatch(rf'((?:.+?\.)??)(?:{anchor})', key)
            if match:
                found[match[1]] = format
    return found


def _refine(format: Format, inside: set[str], everywhere: set[str]) -> Format:
    """Tell apart the origins that share their blocks' names."""
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
    """The official detectors save the absolute position embedding as a map (1, C, H, W): make it (1, H * W, C)."""
    embedding = weights.backbone.get('absolute_pos_embed')
    if embedding is not None and embedding.dim() == 4:
        weights.map_size = (embedding.shape[2], embedding.shape[3])
        weights.backbone['absolute_pos_embed'] = embedding.flatten(2).transpose(1, 2).contiguous()
