"""The layers of each origin: their structure, an example input, and their computation by the compiled library.

Attribute paths and the arguments of `forward` identify an origin, so copies of a package's code count as that package.
`swap.py` compares each computation with the original.

Layout: B batch, T = H*W tokens of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ..backends.choose import linear_dtype
from ..backends.cosine import cosine_scale
from ..backends.native import layers as native
from ..backends.native.availability import Stages, is_stored
from ..backends.native.memory import why_not_weights
from ..backends.weight_cache import WeightCache
from ..checkpoints.formats import columns_to_channels
from ..models.layers.layer import norm_values
from ..windows.grid import Size, Windows

Values = dict[str, Any]  # arguments of a call, by name
CPU = torch.device('cpu')
OPTIONAL = {'output_attentions', 'head_mask', 'always_partition'}  # of some blocks of transformers
MERGINGS = (['x', 'input_size'], ['x', 'H', 'W'], ['x'], ['input_feature', 'input_dimensions'])


class Origin(NamedTuple):
    """The block of one origin. Strings are attribute paths, separated by spaces."""

    name: str
    arguments: str  # of `forward`, without OPTIONAL
    windows: Callable[[Any, Values, Size], Optional[Windows]]  # of a map; None: the original computes
    sizes: str  # attributes that `windows` reads
    norms: str = 'norm1 norm2'
    attention: str = 'attn'  # the module with the position bias
    qkv: str = 'attn.qkv'  # one linear layer, or query, key and value
    proj: str = 'attn.proj'
    mlp: str = 'mlp.fc1 mlp.act mlp.fc2'
    drop_paths: str = 'drop_path drop_path'  # of attention, and of the MLP if any
    rates: str = ''  # in training, a rate above 0 leaves the block to the original
    is_map: bool = False  # whether a block computes maps (B, H, W, C), or tokens (B, T, C)
    output: Callable[[Tensor], Any] = lambda y: y  # of `forward`


class Record(NamedTuple):
    """State of an accelerated layer."""

    kind: str  # key in `LAYER_KINDS`
    types: tuple[type[nn.Module], ...]  # of the modules inside, when the layer was accelerated
    stages: Stages  # of the Swin around the layer
    cache: WeightCache


class Kind(NamedTuple):
    """One kind of layer."""

    layer: str  # 'block', 'merging' or 'embedding'
    matches: Callable[[Any], bool]
    compute: Callable[[Any, Record, Values], Any]  # None: call the original
    origin: Optional[Origin] = None  # of a block


# --- Windows ----------------------------------------------------------------------------------------------------------


def _pair(value: Any) -> Size:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _padded(block: Any, values: Values, size: Size) -> Windows:
    owner = block if hasattr(block, 'window_size') else block.attn
    return Windows(*size, _pair(owner.window_size), _pair(owner.shift_size))


def _mmpretrain(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _padded(block, values, size)
    if block.attn.pad_small_map or min(size) > block.attn.window_size:
        return windows
    return windows._replace(shift=(0, 0)) if min(size) == block.attn.window_size else None


def _detection(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _padded(block, values, size)
    mask_LNN, given_LNN = _mask(windows), values['mask_matrix']
    is_known = mask_LNN is None or (given_LNN is not None and torch.equal(given_LNN == 0, mask_LNN))
    return windows if is_known else None


@lru_cache(maxsize=8)
def _mask(windows: Windows) -> Optional[Tensor]:
    mask_L1NN = windows.mask(CPU)
    return None if mask_L1NN is None else mask_L1NN[:, 0]


def _timm(block: Any, values: Values, size: Size) -> Optional[Windows]:
    windows = _padded(block, values, size)._replace(pads_first=False)
    height, width = block.input_resolution
    has_mask = any(windows.shift) and not getattr(block, 'dynamic_mask', False)
    return None if has_mask and windows.counts() != windows._replace(height=height, width=width).counts() else windows


def _torchvision(block: Any, values: Values, size: Size) -> Windows:
    windows = _padded(block, values, size)
    rows, columns = (0 if n <= w else s for n, w, s in zip(size, windows.window_size, windows.shift))
    return windows._replace(shift=(rows, columns))


def _transformers(block: Any, values: Values, size: Size) -> Optional[Windows]:
    if not values.get('always_partition', True):
        block.set_shift_and_window_size(size)
    config = getattr(block.attention, 'config', None)  # only sdpa returns no weights
    return _padded(block, values, size) if getattr(config, '_attn_implementation', 'sdpa') == 'sdpa' else None


# --- Blocks of all origins --------------------------------------------------------------------------------------------

_OFFICIAL = Origin(
    name='official detection code',
    arguments='x mask_matrix',
    windows=_detection,
    sizes='window_size shift_size',
    rates='attn.attn_drop_prob',  # of BiRefNet
)
_MMDET = Origin(
    name='mmdet',
    arguments='x hw_shape',
    windows=_padded,
    sizes='attn.window_size attn.shift_size',
    attention='attn.w_msa',
    qkv='attn.w_msa.qkv',
    proj='attn.w_msa.proj',
    mlp='ffn.layers.0.0 ffn.layers.0.1 ffn.layers.1',
    drop_paths='attn.drop ffn.dropout_layer',
)
_TRANSFORMERS = Origin(
    name='transformers',
    arguments='hidden_states input_dimensions',
    windows=_transformers,
    sizes='window_size shift_size',
    norms='layernorm_before layernorm_after',
    attention='attention.self',
    qkv='attention.self.query attention.self.key attention.self.value',
    proj='attention.output.dense',
    mlp='intermediate.dense intermediate.intermediate_act_fn output.dense',
    drop_paths='drop_path',
    output=lambda y: (y,),
)
_FIXED = _OFFICIAL._replace(arguments='x', sizes='window_size shift_size input_resolution')
_MMPRETRAIN = _MMDET._replace(name='mmpretrain', windows=_mmpretrain, sizes=f'{_MMDET.sizes} attn.pad_small_map')
BLOCKS = (
    _MMPRETRAIN._replace(  # V2 drops a branch before the norm
        sizes=f'{_MMPRETRAIN.sizes} attn.w_msa.logit_scale',
        drop_paths='',
        rates='attn.drop.drop_prob ffn.dropout_layer.drop_prob',
    ),
    _MMPRETRAIN,
    _MMDET,
    _OFFICIAL,
    _FIXED._replace(name='timm', windows=_timm, drop_paths='drop_path1 drop_path2', is_map=True),
    _FIXED._replace(name='official classification code', windows=_padded),
    _OFFICIAL._replace(
        name='torchvision',
        arguments='x',
        windows=_torchvision,
        sizes='attn.window_size attn.shift_size',
        mlp='mlp.0 mlp.1 mlp.3',
        drop_paths='stochastic_depth stochastic_depth',
        rates='attn.attention_dropout attn.dropout',
        is_map=True,
    ),
    _TRANSFORMERS._replace(  # from release 5
        attention='attention.relative_position_bias',
        qkv='attention.q_proj attention.k_proj attention.v_proj',
        proj='attention.o_proj',
        mlp='mlp.fc1 mlp.activation_fn mlp.fc2',
        rates='attention.attention_dropout',
        output=lambda y: (y, None),
    ),
    _TRANSFORMERS._replace(drop_paths='drop_path drop_path', sizes='window_size shift_size attention.self.logit_scale'),
    _TRANSFORMERS,
)


def _parts(module: Any, paths: str) -> list[Any]:
    return [attrgetter(path)(module) for path in paths.split()]


def _is_block(origin: Origin, module: Any) -> bool:
    try:
        for paths in (origin.sizes, origin.norms, origin.qkv, origin.proj, origin.mlp, origin.drop_paths):
            _parts(module, paths)
        _parts(module, f'{origin.attention}.relative_position_index')
    except AttributeError:
        return False
    return _arguments(module) == origin.arguments.split()


def _compute_block(origin: Origin, block: Any, record: Record, values: Values) -> Any:
    x_BHWC = _map_of(block, values)
    if x_BHWC is None or values.get('output_attentions') or values.get('head_mask') is not None:
        return None
    if block.training and any(getattr(owner, name) for owner, name in _rates(origin, block)):
        return None
    windows = origin.windows(block, values, (x_BHWC.shape[1], x_BHWC.shape[2]))
    (attention, proj), (fc1, _, fc2) = _parts(block, f'{origin.attention} {origin.proj}'), _parts(block, origin.mlp)
    is_v2, places = hasattr(attention, 'logit_scale'), math.isqrt(attention.relative_position_index.numel())
    if windows is None or places != math.prod(windows.window_size):
        return None
    norms, bias_hNN = _parts(block, origin.norms), _position_bias(attention, places)
    qkv_weight, qkv_bias = _query_key_value(_parts(block, origin.qkv), attention)
    if is_v2 and hasattr(block, 'norm3'):
        norms.append(block.norm3)
    w1, b1, w2, b2, w3, b3 = [*(w for norm in norms for w in (norm.weight, norm.bias)), None, None][:6]
    weights = native.BlockWeights(
        *(qkv_weight, proj.weight, fc1.weight, fc2.weight, qkv_bias, proj.bias, fc1.bias, fc2.bias),
        *(w1, b1, w2, b2, w3, b3, bias_hNN, cosine_scale(attention.logit_scale) if is_v2 else None),
    )
    if native.why_not_block(weights, windows.window_size):
        return None
    weights = weights._replace(drop_path_2B=_drop_path_factors(_parts(block, origin.drop_paths), x_BHWC))
    dtype, C = linear_dtype(x_BHWC), x_BHWC.shape[3]
    scale = 1.0 if is_v2 else getattr(attention, 'scale', (C // len(bias_hNN)) ** -0.5)
    settings = native.BlockSettings(scale, tuple(norm.eps for norm in norms))
    stores = torch.is_grad_enabled() and not getattr(block, 'with_cp', False) and is_stored(dtype, C, record.stages)
    is_copied = x_BHWC.dtype != torch.float32  # then the output may take the copy's memory
    y_BHWC = native.block(x_BHWC, weights, settings, windows, dtype, record.cache, stores, is_copied)
    return origin.output(y_BHWC.view(next(iter(values.values())).shape).to(x_BHWC.dtype))


def _rates(origin: Optional[Origin], block: Any) -> Iterator[tuple[Any, str]]:
    """Yield owner and name of each rate."""
    for path in origin.rates.split() if origin else ():
        owner, _, name = path.rpartition('.')
        with suppress(AttributeError):
            yield from ((one, name) for one in _parts(block, owner) if hasattr(one, name))


def _query_key_value(layers: list[Any], attention: Any) -> tuple[Tensor, Optional[Tensor]]:
    """Return the weight (3C, C) and the bias (3C,) of query, key and value; the key of V2 has no bias."""
    biases = [layer.bias for layer in layers]
    if len(layers) == 1:
        if not hasattr(attention, 'logit_scale'):
            return layers[0].weight, biases[0]
        q_bias, v_bias = getattr(attention, 'q_bias', None), getattr(attention, 'v_bias', None)
        q_bias, _, v_bias = (q_bias, None, v_bias) if biases[0] is None else biases[0].chunk(3)
        biases = [q_bias, None, v_bias]
    weight = torch.cat([layer.weight for layer in layers])
    if all(bias is None for bias in biases):
        return weight, None
    return weight, torch.cat([weight.new_zeros(weight.shape[1]) if bias is None else bias for bias in biases])


def _position_bias(attention: Any, places: int) -> Tensor:
    """Return the relative position bias (h, N, N)."""
    if hasattr(attention, 'logit_scale'):
        mlp = getattr(attention, 'cpb_mlp', None) or attention.continuous_position_bias_mlp
        table_Rh = 16 * mlp(attention.relative_coords_table).flatten(0, -2).sigmoid().float()
    else:
        table_Rh = attention.relative_position_bias_table
    bias_NNh: Tensor = table_Rh[attention.relative_position_index.flatten()].view(places, places, -1)
    return bias_NNh.permute(2, 0, 1).contiguous()


def _drop_path_factors(drop_paths: list[Any], x_BHWC: Tensor) -> Optional[Tensor]:
    """Return the factors of both branches, (2, B), from the original's modules and random numbers; None: 1."""
    if all(type(module) is nn.Identity or not module.training for module in drop_paths):
        return None
    ones_B11 = x_BHWC.new_ones(len(x_BHWC), 1, 1, dtype=torch.float32)
    return torch.stack([*(module(ones_B11).flatten() for module in drop_paths), ones_B11.flatten()][:2])


# --- Patch merging and patch embedding --------------------------------------------------------------------------------


def _is_merging(module: Any) -> bool:
    linear = getattr(module, 'reduction', None)
    is_plain = isinstance(linear, nn.Linear) and linear.bias is None and hasattr(module, 'norm')
    return is_plain and _arguments(module) in MERGINGS


def _compute_merging(module: Any, record: Record, values: Values) -> Any:
    x_BHWC, weight = _map_of(module, values), module.reduction.weight
    norm_weight, norm_bias, eps = norm_values(module.norm)
    if x_BHWC is None or why_not_weights([weight, norm_weight, norm_bias]):
        return None
    is_post_norm = norm_weight is not None and len(norm_weight) != weight.shape[1]
    is_unfold = hasattr(module, 'sampler')
    if not is_unfold:
        weight = columns_to_channels(weight)
        if norm_weight is not None and norm_bias is not None and not is_post_norm:
            norm_weight, norm_bias = columns_to_channels(norm_weight), columns_to_channels(norm_bias)
    dtype = linear_dtype(x_BHWC)
    y_BHWC = native.merge(x_BHWC, weight, (norm_weight, norm_bias, eps), is_post_norm, dtype, record.cache).to(dtype)
    y = y_BHWC if next(iter(values.values())).dim() == 4 else y_BHWC.flatten(1, 2)
    return (y, tuple(y_BHWC.shape[1:3])) if is_unfold else y


def _is_embedding(module: Any) -> bool:
    conv = getattr(module, 'projection', None)
    if not isinstance(conv, nn.Conv2d) or _arguments(module) not in (['x'], ['pixel_values']):
        return False
    return (conv.stride, conv.padding, conv.dilation, conv.groups) == (conv.kernel_size, (0, 0), (1, 1), 1)


def _compute_embedding(module: Any, record: Record, values: Values) -> Any:
    (x,), conv = values.values(), module.projection
    norm = norm_values(module.norm if hasattr(module, 'norm') else nn.Identity())
    if why_not_weights([conv.weight, conv.bias, *norm[:2]]):
        return None
    y_BHWC = native.embed(x, conv.weight, conv.bias, norm, linear_dtype(x), record.cache).to(linear_dtype(x))
    return y_BHWC.flatten(1, 2), tuple(y_BHWC.shape[1:3])


# --- Arguments --------------------------------------------------------------------------------------------------------


_signature_of = cache(inspect.signature)


def _arguments(module: Any) -> list[str]:
    """Return the names of `forward`'s arguments without OPTIONAL."""
    _, *parameters = _signature_of(type(module).forward).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name not in OPTIONAL]


def bind(module: nn.Module, args: Any, kwargs: Any) -> Values:
    """Return the arguments of a call by name, with defaults and with those of `**kwargs`."""
    bound = _signature_of(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    _, *values = bound.arguments.items()
    return {**{name: value for name, value in values if name != 'kwargs'}, **bound.arguments.get('kwargs', {})}


def _map_of(module: Any, values: Values) -> Optional[Tensor]:
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


def channels_of(block: Any, kind: Kind) -> int:
    """Return the channels of a block."""
    assert kind.origin is not None  # of a block
    return len(attrgetter(kind.origin.proj)(block).weight)


def make_example(module: Any, kind: Kind, generator: torch.Generator) -> list[Any]:
    """Return random arguments for a copy of a layer."""
    names, origin = _arguments(module), kind.origin
    if kind.layer == 'embedding':
        channels, (height, width) = module.projection.in_channels, module.projection.kernel_size
        return [torch.randn(2, channels, 5 * height + 1, 7 * width + 1, generator=generator)]
    is_map = origin.is_map if origin else names == ['x'] and not hasattr(module, 'input_resolution')
    Wh, Ww = _padded(module, {}, (1, 1)).window_size if origin else (4, 4)
    size = 2 * Wh + 1, Ww + max(1, Ww // 2)
    for owner, name in _rates(origin, module):
        setattr(owner, name, 0.0)
    if hasattr(module, 'set_input_size'):
        module.set_input_size(size, (Wh, Ww))
    if names == ['x']:
        size = _pair(getattr(module, 'input_resolution', size))
    values: Values = {'H': size[0], 'W': size[1], 'hw_shape': size, 'input_size': size, 'input_dimensions': size}
    if 'mask_matrix' in names:
        module.H, module.W = size
        mask_LNN = _mask(_padded(module, {}, size))
        values['mask_matrix'] = None if mask_LNN is None else torch.where(mask_LNN, 0.0, -100.0)
    channels = channels_of(module, kind) if origin else module.reduction.in_features // 4
    shape = size if is_map else (math.prod(size),)
    return [torch.randn(2, *shape, channels, generator=generator), *(values[name] for name in names[1:])]


LAYER_KINDS = {
    **{
        f'block {i}': Kind('block', partial(_is_block, origin), partial(_compute_block, origin), origin)
        for i, origin in enumerate(BLOCKS)
    },
    'merging': Kind('merging', _is_merging, _compute_merging),
    'embedding': Kind('embedding', _is_embedding, _compute_embedding),
}
