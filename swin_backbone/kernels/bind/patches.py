"""Patch embedding, patch merging and output norms by the compiled library.

Layout: B batch, C channels, H W height and width.
"""

from functools import partial
from typing import Any, Optional

from torch import Tensor, nn

from ...compat import is_hooked
from ...replace import refuse
from ..native.layers import OutputNorm, Projection
from ..native.layers import run as run_operator
from ..native.memory import cache_of, can_read
from .structure import can_read_map, forward_by_torch, is_as_built, norm_values, products_dtype

NORM, NORM_KIND = ['norm.weight', 'norm.bias'], {'norm': nn.LayerNorm}


def can_embed(embed: Any, image_BCHW: Optional[Tensor], raise_error: bool = False) -> bool:
    """See `replace.Replacement`; without an image: whether the library computes the layer as it is."""
    kinds = {'projection': nn.Conv2d} if type(embed.norm) is nn.Identity else {**NORM_KIND, 'projection': nn.Conv2d}
    if not (can_read_map(image_BCHW, raise_error) and is_as_built(embed, kinds, raise_error)):
        return False
    conv = embed.projection
    if (conv.stride, conv.padding, conv.dilation, conv.groups) != (tuple(conv.weight.shape[2:]), (0, 0), (1, 1), 1):
        return refuse('native', f'The compiled library takes patches that do not overlap, not {conv}.', raise_error)
    return can_read([conv.weight, conv.bias, *norm_values(embed.norm)[:2]], raise_error)


def embed(layer: Any, image_BCHW: Tensor) -> Tensor:
    """Run a patch embedding, see `PatchEmbed.forward`."""
    *vectors, eps = norm_values(layer.norm)
    tensors = layer.projection.weight, layer.projection.bias, *vectors
    operator = Projection(False, eps, True, products_dtype(layer, image_BCHW, *tensors), cache_of(layer))
    by_torch = partial(forward_by_torch, layer, ['projection.weight', 'projection.bias', *NORM], None)
    return run_operator(operator, by_torch, image_BCHW.float(), *tensors)


def can_merge(merging: Any, x_BHWC: Optional[Tensor], raise_error: bool = False) -> bool:
    """See `replace.Replacement`; without a map: whether the library computes the layer as it is."""
    kinds = {'reduction': nn.Linear} if type(merging.norm) is nn.Identity else {**NORM_KIND, 'reduction': nn.Linear}
    if not (can_read_map(x_BHWC, raise_error) and is_as_built(merging, kinds, raise_error)):
        return False
    if merging.stride != 2:
        reason = f'The compiled library merges patches with a stride of 2, not {merging.stride}.'
        return refuse('native', reason, raise_error)
    if merging.reduction.bias is not None:
        reason = 'The compiled library merges patches without a bias, and the reduction has one.'
        return refuse('native', reason, raise_error)
    return can_read([merging.reduction.weight, *norm_values(merging.norm)[:2]], raise_error)


def merge(merging: Any, x_BHWC: Tensor) -> Tensor:
    """Run a patch merging, see `PatchMerging.forward`."""
    *vectors, eps = norm_values(merging.norm)
    tensors = merging.reduction.weight, None, *vectors
    operator = Projection(True, eps, merging.post_norm, products_dtype(merging, x_BHWC, *tensors), cache_of(merging))
    by_torch = partial(forward_by_torch, merging, ['reduction.weight', 'reduction.bias', *NORM], None)
    return run_operator(operator, by_torch, x_BHWC.float().contiguous(), *tensors)


def can_normalise(_pyramid: Any, x_BHWC: Tensor, norm: Any, raise_error: bool = False) -> bool:
    """See `replace.Replacement`; other norms than `nn.LayerNorm` are left to torch by all backends."""
    is_plain = type(norm) is nn.LayerNorm and not is_hooked(norm)
    return is_plain and can_read_map(x_BHWC) and can_read([norm.weight, norm.bias])


def normalise(_pyramid: Any, x_BHWC: Tensor, norm: Any) -> Tensor:
    """Normalise tokens, see `SwinPyramid.normalise_output`."""

    def forward(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps).permute(0, 3, 1, 2)

    by_torch = partial(forward_by_torch, norm, ['weight', 'bias'], None, forward=forward)
    return run_operator(OutputNorm(norm.eps), by_torch, x_BHWC.float().contiguous(), norm.weight, norm.bias)
