"""The layers of each origin: their structure, an example input, and their computation by the compiled library.

Structure and attribute names identify an origin, so that copies of a package's code count as that package.
`swap.py` compares each computation with the original.

Layout: B batch, T = H*W tokens of a map, C channels, h heads, N places of a window.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ..backends.choose import linear_dtype
from ..backends.native import layers as native
from ..backends.native.availability import is_stored
from ..backends.native.operators import why_not_block
from ..backends.weight_cache import WeightCache
from ..windows.grid import Size, Windows

Arguments = tuple[Any, ...]


class Kind(NamedTuple):
    """One kind of layer of one origin."""

    origin: str
    layer: str  # 'block', 'merging' or 'embedding'
    matches: Callable[[Any], bool]
    parameters: Callable[[Any], Iterator[Optional[Tensor]]]  # all that `compute` reads
    example: Callable[[Any, torch.Generator], Arguments]
    compute: Callable[..., Any]  # (module, cache, *arguments); None: the original computes these arguments


class Parts(NamedTuple):
    """The modules and numbers of a V1 block of any origin."""

    norms: tuple[Any, Any]
    qkv: Any
    proj: Any
    fc1: Any
    activation: Any
    fc2: Any
    table_Rh: Tensor
    offset_index: Tensor
    heads: int
    scale: float
    window_size: Size
    shift: Size
    drop_paths: tuple[Any, Any]
    with_cp: bool = False


def parameters_of_block(p: Parts) -> Iterator[Optional[Tensor]]:
    """Yield the tensors that the library reads."""
    yield p.table_Rh
    for module in (*p.norms, p.qkv, p.proj, p.fc1, p.fc2):
        yield module.weight
        yield module.bias


def compute_block(p: Parts, x_BHWC: Tensor, cache: WeightCache) -> Optional[Tensor]:
    """Return the map (B, H, W, C) behind a block; None: the library cannot compute the block."""
    H, W, C = x_BHWC.shape[1:]
    places = p.window_size[0] * p.window_size[1]
    linear = [layer.weight for layer in (p.qkv, p.proj, p.fc1, p.fc2)]
    if why_not_block(linear, p.heads, p.window_size) or p.offset_index.numel() != places**2:
        return None
    weights = native.BlockWeights(
        *(p.norms[0].weight, p.norms[0].bias, p.qkv.weight, p.qkv.bias),
        p.table_Rh[p.offset_index.flatten()].view(places, places, -1).permute(2, 0, 1).contiguous(),
        *(p.proj.weight, p.proj.bias, p.norms[1].weight, p.norms[1].bias),
        *(p.fc1.weight, p.fc1.bias, p.fc2.weight, p.fc2.bias),
        drop_path_2B=_drop_path_factors(p.drop_paths, x_BHWC),
    )
    settings = native.BlockSettings(p.scale, (p.norms[0].eps, p.norms[1].eps))
    windows = Windows(H, W, p.window_size, p.shift)
    dtype = linear_dtype(x_BHWC)
    stores = torch.is_grad_enabled() and not p.with_cp and is_stored(dtype, C)
    return native.block(x_BHWC, weights, settings, windows, dtype, cache, stores)


def _drop_path_factors(drop_paths: tuple[Any, Any], x_BHWC: Tensor) -> Optional[Tensor]:
    """Return the factors of both branches, (2, B), from the original's own modules; None: 1.

    The modules draw the same random numbers as in the original computation.
    """
    if all(type(one) is nn.Identity or not one.training for one in drop_paths):
        return None
    ones_B11 = x_BHWC.new_ones(len(x_BHWC), 1, 1, dtype=torch.float32)
    return torch.stack([one(ones_B11).flatten() for one in drop_paths])


def _pair(value: Any) -> Size:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _has(module: Any, *names: str) -> bool:
    """Return whether a module has these attributes; a dotted name is a path."""
    for name in names:
        node = module
        for part in name.split('.'):
            if not hasattr(node, part):
                return False
            node = getattr(node, part)
    return True


def takes(module: Any, *names: str) -> bool:
    """Return whether these are the arguments of a module's `forward`, without `**kwargs`."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD][1:] == list(names)


def _tokens(x_BTC: Tensor, size: Any) -> Optional[Tensor]:
    H, W = (int(n) for n in size)
    return x_BTC.reshape(len(x_BTC), H, W, -1) if x_BTC.dim() == 3 and x_BTC.shape[1] == H * W else None


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _some_size(window_size: Size) -> Size:
    """Return a map's size with several windows of both axes and with padding."""
    return 2 * window_size[0] + 1, window_size[1] + max(1, window_size[1] // 2)


# mmdet and mmseg


def _mmdet_parts(block: Any) -> Parts:
    attn, ffn, w_msa = block.attn, block.ffn, block.attn.w_msa
    return Parts(
        (block.norm1, block.norm2),
        w_msa.qkv,
        w_msa.proj,
        *(ffn.layers[0][0], ffn.layers[0][1], ffn.layers[1]),
        *(w_msa.relative_position_bias_table, w_msa.relative_position_index, w_msa.num_heads, w_msa.scale),
        window_size=_pair(attn.window_size),
        shift=_pair(attn.shift_size),
        drop_paths=(attn.drop, ffn.dropout_layer),
        with_cp=bool(block.with_cp),
    )


def _is_mmdet_block(block: Any) -> bool:
    parts = 'norm1', 'attn.w_msa.relative_position_bias_table', 'attn.shift_size', 'attn.drop', 'ffn.layers', 'with_cp'
    if not _has(block, *parts, 'norm2', 'ffn.dropout_layer') or not takes(block, 'x', 'hw_shape'):
        return False
    return len(block.ffn.layers) == 3 and bool(block.ffn.add_identity)


def _mmdet_block(block: Any, cache: WeightCache, x: Tensor, hw_shape: Any) -> Any:
    x_BHWC = _tokens(x, hw_shape)
    y_BHWC = None if x_BHWC is None else compute_block(_mmdet_parts(block), x_BHWC, cache)
    return None if y_BHWC is None else y_BHWC.view(x.shape)


def _mmdet_example(block: Any, generator: torch.Generator) -> Arguments:
    p = _mmdet_parts(block)
    H, W = _some_size(p.window_size)
    return _random(generator, 2, H * W, p.proj.weight.shape[0]), (H, W)


def _is_mmdet_merging(module: Any) -> bool:
    if not _has(module, 'sampler.kernel_size', 'reduction', 'adap_padding.padding') or not takes(
        module, 'x', 'input_size'
    ):
        return False
    s = module.sampler
    plain = [_pair(one) for one in (s.kernel_size, s.stride, s.padding, s.dilation)] == [(2, 2), (2, 2), (0, 0), (1, 1)]
    return plain and module.adap_padding.padding == 'corner' and module.reduction.bias is None


def _mmdet_merging(module: Any, cache: WeightCache, x: Tensor, input_size: Any) -> Any:
    x_BHWC = _tokens(x, input_size)
    if x_BHWC is None:
        return None
    y_BHWC = native.merge(x_BHWC, module.reduction.weight, _norm(module.norm), False, linear_dtype(x_BHWC), cache)
    return y_BHWC.flatten(1, 2), tuple(y_BHWC.shape[1:3])


def _is_mmdet_embedding(module: Any) -> bool:
    if not _has(module, 'adap_padding.padding', 'projection', 'norm') or not takes(module, 'x'):
        return False
    return module.adap_padding.padding == 'corner' and _is_patch(module.projection)


def _is_patch(conv: Any) -> bool:
    return isinstance(conv, nn.Conv2d) and (conv.stride, conv.padding, conv.dilation, conv.groups) == (
        *(conv.kernel_size, (0, 0), (1, 1), 1),
    )


def _norm(norm: Any) -> tuple[Optional[Tensor], Optional[Tensor], Optional[float]]:
    return (None, None, None) if norm is None else (norm.weight, norm.bias, norm.eps)


def _embedding(module: Any, cache: WeightCache, x: Tensor) -> Any:
    conv = module.projection
    y_BHWC = native.embed(x, conv.weight, conv.bias, _norm(getattr(module, 'norm', None)), linear_dtype(x), cache)
    return y_BHWC.flatten(1, 2), tuple(y_BHWC.shape[1:3])


def _embedding_parameters(module: Any) -> Iterator[Optional[Tensor]]:
    yield from (module.projection.weight, module.projection.bias, *_norm(getattr(module, 'norm', None))[:2])


def _image(module: Any, generator: torch.Generator) -> Arguments:
    conv = module.projection
    return (_random(generator, 2, conv.in_channels, 5 * conv.kernel_size[0] + 1, 7 * conv.kernel_size[1] + 1),)


def _merging_parameters(module: Any) -> Iterator[Optional[Tensor]]:
    yield from (module.reduction.weight, *_norm(module.norm)[:2])


def _merging_example(module: Any, generator: torch.Generator) -> Arguments:
    return _random(generator, 2, 9 * 6, module.reduction.in_features // 4), (9, 6)


# The order of neighbours in microsoft/Swin-Transformer: columns, rows, channels


def _merge(module: Any, cache: WeightCache, x_BHWC: Tensor) -> Tensor:
    weight, bias, eps = _norm(module.norm)
    norm = _reordered(weight), _reordered(bias), eps
    reduction = _reordered(module.reduction.weight)
    assert reduction is not None
    return native.merge(x_BHWC, reduction, norm, False, linear_dtype(x_BHWC), cache)


def _reordered(weight: Optional[Tensor]) -> Optional[Tensor]:
    """Reorder the last dimension from (columns, rows, C) to the order of `nn.Unfold`."""
    if weight is None:
        return None
    axes = weight.dim() - 1
    moved: Tensor = weight.unflatten(axes, (2, 2, -1)).transpose(axes, axes + 2)
    return moved.flatten(axes).contiguous()


def _is_merging(module: Any) -> bool:
    if not _has(module, 'norm.eps', 'reduction.weight') or _has(module, 'sampler') or module.reduction.bias is not None:
        return False
    channels: int = module.reduction.in_features
    return channels % 4 == 0 and tuple(module.norm.normalized_shape) == (channels,)


# microsoft/Swin-Transformer and copies of its code


def _is_official_block(block: Any) -> bool:
    parts = 'attn.qkv', 'attn.scale', 'attn.relative_position_bias_table', 'mlp.fc1', 'mlp.act', 'mlp.fc2', 'norm1.eps'
    others = 'norm2.eps', 'shift_size', 'window_size', 'attn.proj', 'attn.num_heads', 'drop_path'
    return _has(block, *parts, *others) and takes(block, 'x', 'mask_matrix')


def _official_parts(block: Any) -> Parts:
    a, mlp, drop_path = block.attn, block.mlp, block.drop_path
    return Parts(
        (block.norm1, block.norm2),
        a.qkv,
        a.proj,
        *(mlp.fc1, mlp.act, mlp.fc2, a.relative_position_bias_table, a.relative_position_index, a.num_heads, a.scale),
        window_size=_pair(block.window_size),
        shift=_pair(block.shift_size),
        drop_paths=(drop_path, drop_path),
    )


def _official_block(block: Any, cache: WeightCache, x: Tensor, mask_matrix: Any) -> Any:
    p, x_BHWC = _official_parts(block), _tokens(x, (block.H, block.W))
    if x_BHWC is None:
        return None
    mask_L1NN = Windows(block.H, block.W, p.window_size, p.shift).mask(x.device)
    if mask_L1NN is not None and not torch.equal(mask_matrix == 0, mask_L1NN[:, 0]):
        return None  # a mask of another kind
    y_BHWC = compute_block(p, x_BHWC, cache)
    return None if y_BHWC is None else y_BHWC.view(x.shape)


def _official_example(block: Any, generator: torch.Generator) -> Arguments:
    p = _official_parts(block)
    block.H, block.W = _some_size(p.window_size)  # of a copy
    mask = Windows(block.H, block.W, p.window_size, p.shift).mask(torch.device('cpu'))
    weights = None if mask is None else torch.zeros(mask[:, 0].shape).masked_fill(~mask[:, 0], -100.0)
    return _random(generator, 2, block.H * block.W, p.proj.weight.shape[0]), weights


def _is_official_merging(module: Any) -> bool:
    return _is_merging(module) and takes(module, 'x', 'H', 'W')


def _official_merging(module: Any, cache: WeightCache, x: Tensor, H: Any, W: Any) -> Any:
    x_BHWC = _tokens(x, (H, W))
    return None if x_BHWC is None else _merge(module, cache, x_BHWC).flatten(1, 2)


def _official_merging_example(module: Any, generator: torch.Generator) -> Arguments:
    return _random(generator, 2, 9 * 6, module.reduction.in_features // 4), 9, 6


def _block(origin: str, matches: Any, parts: Callable[[Any], Parts], example: Any, compute: Any) -> Kind:
    return Kind(origin, 'block', matches, lambda module: parameters_of_block(parts(module)), example, compute)


def _merging(origin: str, matches: Any, example: Any, compute: Any) -> Kind:
    return Kind(origin, 'merging', matches, _merging_parameters, example, compute)


PARTS = {'mmdet': _mmdet_parts, 'official code': _official_parts}
KINDS = (
    _block('mmdet', _is_mmdet_block, _mmdet_parts, _mmdet_example, _mmdet_block),
    _block('official code', _is_official_block, _official_parts, _official_example, _official_block),
    _merging('mmdet', _is_mmdet_merging, _merging_example, _mmdet_merging),
    _merging('official code', _is_official_merging, _official_merging_example, _official_merging),
    Kind('mmdet', 'embedding', _is_mmdet_embedding, _embedding_parameters, _image, _embedding),
)
