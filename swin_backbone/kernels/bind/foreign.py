"""The layers of each origin: their structure, an example input, and their computation by the compiled library.

The names of the weights (`checkpoints/formats.py`) and the arguments of `forward` identify an origin, so copies of a
package's code have its origin. `accelerate.py` compares each computation with the original.

Layout: B batch, T = H*W tokens of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

import inspect
import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, Optional

import torch
from mmengine.utils import to_2tuple
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...checkpoints import formats
from ...checkpoints.formats import Format, columns_to_channels, name_here, to_here
from ...models.attention import cosine_scale
from ...models.windows import Windows
from ...modes import linear_dtype
from ...positions import Size
from ...replace import refuse
from ..native.availability import TINY, Stages, is_stored
from ..native.layers import Block, BlockSettings, BlockWeights, Projection, can_compute_block
from ..native.layers import run as run_operator
from ..native.memory import cache_of, can_read
from .block import ATTENTION, FIELDS, LINEARS, LOGIT_SCALE, NORMS, TABLE, continuous_table, qkv_bias
from .patches import NORM, normalise
from .structure import can_read_map, forward_by_torch, is_as_built, modules_inside, norm_values, products_dtype

RECORD = '_swin_backbone_record'  # the attribute of an accelerated layer
Values = dict[str, Any]  # arguments of a call, by name
Names = dict[str, str]  # from our names of a block's tensors to the names in the block
OPTIONAL = {'output_attentions', 'head_mask', 'always_partition'}  # of some blocks of transformers
SETTINGS = 'approximate', 'add_identity', 'scaling'  # of an activation, mmcv's FFN, and attention of transformers
RATES = 'attn_drop_prob', 'attention_dropout', 'dropout'  # of attention layers
MERGINGS = (['x', 'input_size'], ['x', 'H', 'W'], ['x'], ['input_feature', 'input_dimensions'])
BLOCK, INDEX = 'stages.0.blocks.0.', f'{ATTENTION}relative_position_index'  # our names
REQUIRED = {INDEX, *(f'{name}.weight' for name in (*LINEARS[1:], *NORMS[:2]))}


class Origin(NamedTuple):
    """The block of one origin. Strings of several names are separated by spaces."""

    name: str
    format: Format  # of checkpoints: the names of weights
    block: str  # name of a block in the format
    arguments: str  # of `forward`, without OPTIONAL
    windows: Callable[[Any, Values, Size], Optional[Windows]]  # of block, arguments, (H, W); None: no library
    drop_paths: str = 'drop_path drop_path'  # modules behind attention and MLP; '': the rates must be 0


class Record(NamedTuple):
    """The computation of a layer by the compiled library."""

    compute: Callable[[Any, 'Record', Values], Any]  # returns the output; None: call the original
    kinds: dict[str, type[nn.Module]]  # of the modules inside, when the layer was accelerated
    settings: list[Any]  # of these modules
    channels: int  # of the input
    names: Names  # of a block
    origin: Any = None  # of a block: `Origin`
    stages: Stages = TINY  # of the Swin around the layer


def _read_windows(block: Any, values: Values, size: Size) -> Windows:
    """Return the windows of a block that pads the map, then rolls."""
    owner = block if hasattr(block, 'window_size') else block.attn
    return Windows(*size, tuple(to_2tuple(owner.window_size)), tuple(to_2tuple(owner.shift_size)))


def _read_toolbox(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _read_windows(block, values, size)
    if getattr(block.attn, 'pad_small_map', True) or min(size) > block.attn.window_size:  # only mmpretrain shrinks
        return windows
    return windows._replace(shift=(0, 0)) if min(size) == block.attn.window_size else None


def _read_detection(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _read_windows(block, values, size)
    mask_LNN, given_LNN = _find_mask(windows), values['mask_matrix']
    is_known = mask_LNN is None or (given_LNN is not None and torch.equal(given_LNN == 0, mask_LNN))
    return windows if is_known else None


@lru_cache(maxsize=8)
def _find_mask(windows: Windows) -> Optional[Tensor]:
    mask_L1NN = windows.mask(torch.device('cpu'))
    return None if mask_L1NN is None else mask_L1NN[:, 0]


def _read_timm(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _read_windows(block, values, size)._replace(pads_first=False)
    height, width = block.input_resolution
    has_mask = any(windows.shift) and not getattr(block, 'dynamic_mask', False)
    return None if has_mask and windows.counts() != windows._replace(height=height, width=width).counts() else windows


def _read_torchvision(block: Any, values: Values, size: Size) -> Windows:
    windows = _read_windows(block, values, size)
    rows, columns = (0 if n <= w else s for n, w, s in zip(size, windows.window_size, windows.shift))
    return windows._replace(shift=(rows, columns))


def _read_transformers(block: Any, values: Values, size: Size) -> Optional[Windows]:
    if not values.get('always_partition', True):
        block.set_shift_and_window_size(size)
    config = getattr(block.attention, 'config', None)  # only sdpa returns no weights
    return _read_windows(block, values, size) if getattr(config, '_attn_implementation', 'sdpa') == 'sdpa' else None


_TOOLBOX = Origin('OpenMMLab', formats.MMDET, BLOCK, 'x hw_shape', _read_toolbox, 'attn.drop ffn.dropout_layer')
_OFFICIAL = Origin('official detection code', formats.OFFICIAL, 'layers.0.blocks.0.', 'x mask_matrix', _read_detection)
_FIXED = _OFFICIAL._replace(name='official classification code', arguments='x', windows=_read_windows)
_TRANSFORMERS = Origin(
    'transformers',
    formats.HUGGING_FACE,
    'encoder.layers.0.blocks.0.',
    'hidden_states input_dimensions',
    _read_transformers,
)
BLOCKS = (
    _TOOLBOX._replace(format=formats.OWN_V2, drop_paths=''),  # drops a branch before the norm
    _TOOLBOX,
    _FIXED._replace(name='timm', windows=_read_timm, drop_paths='drop_path1 drop_path2'),
    _OFFICIAL,
    _FIXED,
    Origin(
        'torchvision', formats.TORCHVISION, 'features.1.0.', 'x', _read_torchvision, 'stochastic_depth stochastic_depth'
    ),
    _TRANSFORMERS._replace(format=formats.HUGGING_FACE_V2),
    _TRANSFORMERS._replace(drop_paths='drop_path'),
)


def find_layer(module: Any) -> Optional[Record]:
    """Return the computation of a layer of a Swin; None for other modules."""
    arguments = _list_arguments(module)
    built = {name: type(one) for name, one in modules_inside(module)}, _settings(module)
    if isinstance(getattr(module, 'reduction', None), nn.Linear) and arguments in MERGINGS:
        return Record(compute_merging, *built, module.reduction.in_features // 4, {})
    if isinstance(getattr(module, 'projection', None), nn.Conv2d) and arguments in (['x'], ['pixel_values']):
        return Record(compute_embedding, *built, module.projection.in_channels, {})
    if type(module) is nn.LayerNorm:
        return Record(compute_norm, *built, module.normalized_shape[-1], {})
    for origin in BLOCKS:
        has_drop_paths = all(hasattr(module, path.partition('.')[0]) for path in origin.drop_paths.split())
        if arguments == origin.arguments.split() and has_drop_paths:
            names = _names_in_block(module, origin)
            if REQUIRED <= names.keys() and (LOGIT_SCALE in names or origin.format.family == formats.V1):
                channels = next(len(one.weight) for one in module.modules() if isinstance(one, nn.LayerNorm))
                return Record(compute_block, *built, channels, names, origin)
    return None


def _names_in_block(block: nn.Module, origin: Origin) -> Names:
    """Return our name of each tensor of a block, with the name in the block."""
    names: Names = {}
    for path, one in modules_inside(block):
        for attribute in (*one._parameters, *one._buffers):
            ours = name_here(f'{origin.block}{path}.{attribute}', origin.format)
            if ours:
                names[ours.removeprefix(BLOCK)] = f'{path}.{attribute}'
    return names


def can_run(layer: Any, x: Any, raise_error: bool = False) -> bool:
    """See `replace.Replacement`: the layer is as it was when it was accelerated."""
    record: Record = vars(layer)[RECORD]
    if not isinstance(x, Tensor) or not can_read_map(x, raise_error):
        return refuse('native', 'The first argument is no tensor.', raise_error)
    if not is_as_built(layer, record.kinds, raise_error):
        return False
    if _settings(layer) != record.settings:
        return refuse('native', f'One of {", ".join(SETTINGS)} has changed.', raise_error)
    if any(owner.training and getattr(owner, name) for owner, name in rates_in(layer, record)):
        return refuse('native', 'The compiled library has no dropout, and a dropout rate is above 0.', raise_error)
    return True


def compute_block(block: Any, record: Record, values: Values) -> Any:
    x_BHWC, origin = _find_map(block, values), record.origin
    if x_BHWC is None or values.get('output_attentions') or values.get('head_mask') is not None:
        return None
    windows = origin.windows(block, values, (x_BHWC.shape[1], x_BHWC.shape[2]))
    modules = dict(modules_inside(block))
    owners = {ours: modules[path.rpartition('.')[0]] for ours, path in record.names.items()}
    tensors = {ours: getattr(owners[ours], path.rpartition('.')[2]) for ours, path in record.names.items()}
    derive = partial(_derive, origin.format, [*tensors])
    with torch.no_grad():
        weights = derive(*tensors.values())
    h, N = weights.position_bias_hNN.shape[:2]
    if windows is None or N != math.prod(windows.window_size):
        return None
    if not (can_read(weights) and can_compute_block(weights, h, windows.window_size)):
        return None
    dtype, C = products_dtype(block, x_BHWC, *tensors.values()), x_BHWC.shape[3]
    scale = 1.0 if LOGIT_SCALE in tensors else getattr(owners[INDEX], 'scale', (C // h) ** -0.5)
    eps = tuple(owners[f'{name}.weight'].eps for name in NORMS if f'{name}.weight' in owners)
    random_state = torch.get_rng_state() if torch.is_grad_enabled() else None
    stores = torch.is_grad_enabled() and not getattr(block, 'with_cp', False) and is_stored(dtype, C, record.stages)
    drop_path_2B = _drop_path_factors(block, origin, x_BHWC)
    operator = Block(BlockSettings(scale, eps), windows, dtype, cache_of(block), drop_path_2B, stores)
    (_, x), *others = values.items()
    by_torch = partial(_by_torch, block, [*record.names.values()], dict(others), x.shape, random_state)
    y_BHWC = run_operator(operator, by_torch, x_BHWC.float().contiguous(), *tensors.values(), derive=derive)
    y = y_BHWC.view(x.shape).to(x_BHWC.dtype)
    if origin.format.name != 'hf':
        return y
    return (y, None) if hasattr(block.attention, 'o_proj') else (y,)  # a pair since release 5


def _derive(format: Format, names: list[str], *tensors: Any) -> BlockWeights:
    """Return the library's weights from the tensors of a block, which have our names."""
    w = to_here({name: tensor for name, tensor in zip(names, tensors) if tensor is not None}, format)
    derived: Values = dict(position_bias_hNN=_position_bias(w))
    if LOGIT_SCALE in w:
        bias_3C = w.get(f'{ATTENTION}qkv.bias')
        if bias_3C is not None:  # the key of V2 has no bias
            bias_3C = bias_3C.unflatten(0, (3, -1)) * bias_3C.new_tensor([[1.0], [0.0], [1.0]])
        derived |= dict(
            qkv_bias=qkv_bias(w) if bias_3C is None else bias_3C.flatten(), cosine_scale_h=cosine_scale(w[LOGIT_SCALE])
        )
    return BlockWeights(**{**{field: w.get(name) for field, name in FIELDS.items()}, **derived})


def _by_torch(
    layer: Any, names: list[str], values: Values, shape: torch.Size, random_state: Any, x: Tensor, *tensors: Any
) -> Tensor:
    """Return the first tensor of the layer's own forward, which takes `x` in the given shape.

    Args:
        names: of the tensors in the layer.
        values: the arguments after the first.
    """

    def forward(x: Tensor) -> Tensor:
        y: Tensor = tree_leaves(type(layer).forward(layer, x.reshape(shape), **values))[0]
        return y

    return forward_by_torch(layer, names, random_state, x, *tensors, forward=forward)


def _settings(layer: nn.Module) -> list[Any]:
    return [vars(one).get(name) for _, one in modules_inside(layer) for name in SETTINGS]


def rates_in(layer: nn.Module, record: Record) -> list[tuple[Any, str]]:
    """Return owner and attribute of each rate that must be 0 in training: dropout, and drop path of some origins."""
    names = (*RATES, 'drop_prob') if record.origin and not record.origin.drop_paths else RATES
    rates = [(one, name) for _, one in modules_inside(layer) for name in names if vars(one).get(name)]
    return rates + [(one, 'p') for _, one in modules_inside(layer) if isinstance(one, nn.Dropout)]


def _position_bias(w: dict[str, Tensor]) -> Tensor:
    """Return the relative position bias (h, N, N)."""
    if LOGIT_SCALE in w:
        table_Rh = continuous_table(w, w[f'{ATTENTION}relative_coords_table']).flatten(0, -2)
    else:
        table_Rh = w[TABLE]
    N = math.isqrt(w[INDEX].numel())
    return table_Rh[w[INDEX].flatten()].view(N, N, -1).permute(2, 0, 1).contiguous()


def _drop_path_factors(block: nn.Module, origin: Origin, x_BHWC: Tensor) -> Optional[Tensor]:
    """Return the factors of both branches, (2, B), drawn by the original's modules; None: all are 1."""
    modules = [block.get_submodule(name) for name in origin.drop_paths.split()]
    if all(type(module) is nn.Identity or not module.training for module in modules):
        return None
    ones_B11 = x_BHWC.new_ones(len(x_BHWC), 1, 1, dtype=torch.float32)
    return torch.stack([*(module(ones_B11).flatten() for module in modules), ones_B11.flatten()][:2])


def compute_merging(module: Any, record: Record, values: Values) -> Any:
    x_BHWC, (*norm, eps), channels = _find_map(module, values), norm_values(module.norm), module.reduction.in_features
    tensors: list[Any] = [module.reduction.weight, module.reduction.bias, *norm]
    if x_BHWC is None or module.reduction.bias is not None or not can_read(tensors):
        return None
    is_unfold = hasattr(module, 'sampler')

    def derive(*tensors: Optional[Tensor]) -> list[Optional[Tensor]]:
        if is_unfold:
            return [*tensors]  # the norm of V2 is behind the reduction
        return [columns_to_channels(w) if w is not None and w.shape[-1] == channels else w for w in tensors]

    is_post_norm = norm[0] is not None and len(norm[0]) != channels
    (_, x), *others = values.items()
    operator = Projection(True, eps, is_post_norm, products_dtype(module, x_BHWC, *tensors), cache_of(module))
    y_BHWC = run_operator(
        operator,
        partial(_by_torch, module, ['reduction.weight', 'reduction.bias', *NORM], dict(others), x.shape, None),
        x_BHWC.float().contiguous(),
        *tensors,
        derive=derive,
    )
    y = y_BHWC if x.dim() == 4 else y_BHWC.flatten(1, 2)
    return (y, tuple(y_BHWC.shape[1:3])) if is_unfold else y.to(linear_dtype(x_BHWC))


def compute_embedding(module: Any, record: Record, values: Values) -> Any:
    (x,), conv, (*norm, eps) = values.values(), module.projection, norm_values(getattr(module, 'norm', None))
    is_patches = (conv.stride, conv.padding, conv.dilation, conv.groups) == (conv.kernel_size, (0, 0), (1, 1), 1)
    if not is_patches or not can_read([conv.weight, conv.bias, *norm]):
        return None
    tensors = conv.weight, conv.bias, *norm
    operator = Projection(False, eps, True, products_dtype(module, x, *tensors), cache_of(module))
    by_torch = partial(_by_torch, module, ['projection.weight', 'projection.bias', *NORM], {}, x.shape, None)
    y_BHWC = run_operator(operator, by_torch, x.float(), *tensors)
    # OpenMMLab's output norms round
    y = y_BHWC.flatten(1, 2) if 'x' in values else y_BHWC.flatten(1, 2).to(linear_dtype(x))
    return y, tuple(y_BHWC.shape[1:3])


def compute_norm(norm: Any, record: Record, values: Values) -> Any:
    """Return tokens (B, T, C) in the memory order (B, C, T), of which the original makes a map without a copy."""
    x_BTC = values['input']
    if x_BTC.dim() != 3 or not can_read([norm.weight, norm.bias]):
        return None
    y_BCT = normalise(None, x_BTC[:, :, None], norm)[..., 0]
    return y_BCT.transpose(1, 2).to(linear_dtype(x_BTC))


_signature_of = cache(inspect.signature)


def _list_arguments(module: Any) -> list[str]:
    """Return the names of the arguments of `forward`, except those of OPTIONAL."""
    _, *parameters = _signature_of(type(module).forward).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in OPTIONAL]


def bind(module: nn.Module, args: Any, kwargs: Any) -> Values:
    """Return the arguments of a call by name, with defaults and with those of `**kwargs`."""
    bound = _signature_of(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    _, *values = bound.arguments.items()
    return {**{name: value for name, value in values if name != 'kwargs'}, **bound.arguments.get('kwargs', {})}


def _find_map(module: Any, values: Values) -> Optional[Tensor]:
    """Return the first argument as a map (B, H, W, C); None: the size is unknown or wrong."""
    x: Tensor = next(iter(values.values()))
    if x.dim() == 4:
        return x
    size = next((values[name] for name in ('hw_shape', 'input_size', 'input_dimensions') if name in values), None)
    owner = values if 'H' in values else vars(module)
    H, W = size or getattr(module, 'input_resolution', None) or (owner.get('H'), owner.get('W'))
    if x.dim() != 3 or H is None or W is None or x.shape[1] != int(H) * int(W):
        return None
    return x.reshape(len(x), int(H), int(W), x.shape[-1])


def make_example(module: Any, record: Record, generator: torch.Generator) -> list[Any]:
    """Return random arguments for a copy of a layer."""
    names = _list_arguments(module)
    if record.compute is compute_embedding:
        height, width = module.projection.kernel_size
        return [torch.randn(2, record.channels, 5 * height + 1, 7 * width + 1, generator=generator)]
    is_map = names == ['x'] and (not hasattr(module, 'input_resolution') or hasattr(module, 'drop_path1'))  # of timm
    Wh, Ww = _read_windows(module, {}, (1, 1)).window_size if record.origin else (4, 4)
    size = 2 * Wh + 1, Ww + max(1, Ww // 2)
    if hasattr(module, 'set_input_size'):
        module.set_input_size(size, (Wh, Ww))
    if names == ['x']:
        size = getattr(module, 'input_resolution', size)
    values: Values = {'H': size[0], 'W': size[1], 'hw_shape': size, 'input_size': size, 'input_dimensions': size}
    if 'mask_matrix' in names:
        module.H, module.W = size
        mask_LNN = _find_mask(_read_windows(module, {}, size))
        values['mask_matrix'] = None if mask_LNN is None else torch.where(mask_LNN, 0.0, -100.0)
    shape = size if is_map else (math.prod(size),)
    return [torch.randn(2, *shape, record.channels, generator=generator), *(values[name] for name in names[1:])]
