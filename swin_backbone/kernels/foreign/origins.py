"""The Swin blocks of each origin: names of weights, arguments of `forward`, windows.

An origin is a package, or the code that a package copied. The names of the weights (`checkpoints/formats.py`) and the
arguments of `forward` identify an origin, so copies of a package's code have its origin.

Layout: G windows of one image, N places of a window.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from ...checkpoints import formats
from ...checkpoints.formats import Format, find_our_name
from ...models.windows import Windows
from ...modes import cached_table, needs_torch_op
from ...sizes import Size
from ..swin.blocks import ATTENTION_PREFIX, LINEARS, LOGIT_SCALE, NORMS
from .calls import CallArgs, list_argument_names, list_modules

Names = dict[str, str]  # from our names of a block's tensors to the names in the block
BLOCK, POSITION_INDEX = 'stages.0.blocks.0.', f'{ATTENTION_PREFIX}relative_position_index'  # our names
REQUIRED_NAMES = {POSITION_INDEX, *(f'{name}.weight' for name in (*LINEARS[1:], *NORMS[:2]))}


class Origin(NamedTuple):
    """The block of one origin. Strings of several names are separated by spaces."""

    name: str
    format: Format  # of checkpoints: the names of weights
    block_prefix: str  # of the names of a block's tensors in the format
    arguments: str  # of `forward`, without OPTIONAL_ARGUMENTS
    read_windows: Callable[[Any, CallArgs, Size], Optional[Windows]]  # of block, arguments, (H, W); None: no library
    drop_paths: str = 'drop_path drop_path'  # modules behind attention and MLP; '': the rates must be 0
    pads_first: bool = True  # see `BlockSettings`


def read_windows(block: Any, call_args: CallArgs, size: Size) -> Windows:
    """Return the windows of a block that pads the map, then rolls."""
    owner = block if hasattr(block, 'window_size') else block.attn
    return Windows(*size, _make_pair(owner.window_size), _make_pair(owner.shift_size))


def _make_pair(size: Union[int, Iterable[int]]) -> Size:
    height, width = size if isinstance(size, Iterable) else (size, size)
    return height, width


def _read_toolbox(block: Any, call_args: CallArgs, size: Size) -> Optional[Windows]:
    windows = read_windows(block, call_args, size)
    if getattr(block.attn, 'pad_small_map', True) or min(size) > block.attn.window_size:  # only mmpretrain shrinks
        return windows
    return windows._replace(shift=(0, 0)) if min(size) == block.attn.window_size else None


def _read_detection(block: Any, call_args: CallArgs, size: Size) -> Optional[Windows]:
    windows, mask_GNN = read_windows(block, call_args, size), call_args['mask_matrix']
    if not any(windows.shift):
        return windows
    if mask_GNN is None or needs_torch_op():  # a graph cannot compare masks
        return None
    return windows if torch.equal(mask_GNN != 0, find_masked_places(windows)) else None


@cached_table
def find_masked_places(windows: Windows) -> Tensor:
    """Return where attention is masked in shifted windows, (G, N, N), on the CPU."""
    masked_G1NN: Any = windows.make_mask(torch.device('cpu'))
    return masked_G1NN[:, 0]


def _read_timm(block: Any, call_args: CallArgs, size: Size) -> Optional[Windows]:
    windows = read_windows(block, call_args, size)
    height, width = block.input_resolution
    has_mask = any(windows.shift) and not getattr(block, 'dynamic_mask', False)
    built_windows = windows._replace(height=height, width=width)
    return None if has_mask and windows.count_windows() != built_windows.count_windows() else windows


def _read_torchvision(block: Any, call_args: CallArgs, size: Size) -> Windows:
    windows = read_windows(block, call_args, size)
    rows, columns = (0 if n <= w else s for n, w, s in zip(size, windows.window_size, windows.shift))
    return windows._replace(shift=(rows, columns))


def _read_transformers(block: Any, call_args: CallArgs, size: Size) -> Optional[Windows]:
    if not call_args.get('always_partition', True):
        block.set_shift_and_window_size(size)
    config = getattr(block.attention, 'config', None)  # only sdpa returns no weights
    return read_windows(block, call_args, size) if getattr(config, '_attn_implementation', 'sdpa') == 'sdpa' else None


_OPENMMLAB = Origin('OpenMMLab', formats.MMDET, BLOCK, 'x hw_shape', _read_toolbox, 'attn.drop ffn.dropout_layer')
_OFFICIAL_DETECTOR = Origin(
    'official detection code', formats.OFFICIAL, 'layers.0.blocks.0.', 'x mask_matrix', _read_detection
)
_OFFICIAL_CLASSIFIER = _OFFICIAL_DETECTOR._replace(
    name='official classification code', arguments='x', read_windows=read_windows
)
_TRANSFORMERS = Origin(
    'transformers',
    formats.HUGGING_FACE,
    'encoder.layers.0.blocks.0.',
    'hidden_states input_dimensions',
    _read_transformers,
)
BLOCK_ORIGINS = (
    _OPENMMLAB._replace(format=formats.OWN_V2, drop_paths=''),  # drops a branch before the norm
    _OPENMMLAB,
    _OFFICIAL_CLASSIFIER._replace(
        name='timm', read_windows=_read_timm, drop_paths='drop_path1 drop_path2', pads_first=False
    ),
    _OFFICIAL_DETECTOR,
    _OFFICIAL_CLASSIFIER,
    Origin(
        'torchvision', formats.TORCHVISION, 'features.1.0.', 'x', _read_torchvision, 'stochastic_depth stochastic_depth'
    ),
    _TRANSFORMERS._replace(format=formats.HUGGING_FACE_V2),
    _TRANSFORMERS._replace(drop_paths='drop_path'),
)


def find_origin(block: Any) -> Optional[tuple[Origin, Names]]:
    """Return the origin of a block, and our name of each tensor with the name in the block; None: no known block."""
    for origin in BLOCK_ORIGINS:
        has_drop_paths = all(hasattr(block, path.partition('.')[0]) for path in origin.drop_paths.split())
        if list_argument_names(block) == origin.arguments.split() and has_drop_paths:
            names = _find_names(block, origin)
            if REQUIRED_NAMES <= names.keys() and (LOGIT_SCALE in names or origin.format.family == formats.SWIN_V1):
                return origin, names
    return None


def _find_names(block: nn.Module, origin: Origin) -> Names:
    """Return our name of each tensor of a block, with the name in the block."""
    names: Names = {}
    for path, module in list_modules(block).items():
        for attribute in (*module._parameters, *module._buffers):
            ours = find_our_name(f'{origin.block_prefix}{path}.{attribute}', origin.format)
            if ours:
                names[ours.removeprefix(BLOCK)] = f'{path}.{attribute}'
    return names
