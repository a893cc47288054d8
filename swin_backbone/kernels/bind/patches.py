"""Patch embedding, patch merging and output norms by the compiled library.

Layout: B batch, C channels, H W height and width.
"""

from functools import partial
from typing import Any, Union

from torch import Tensor, nn

from ...models.layers import PatchEmbed, PatchMerging
from ...replace import is_changed, keep_methods, read_modules
from ..native.availability import products_of
from ..native.layers import OutputNormComputation, ProjectionComputation
from ..native.memory import cache_of
from ..native.plans import Call, Layer, plan_module
from .single_layer import forward_by_torch

NORM = ['norm.weight', 'norm.bias']
keep_methods([PatchEmbed, PatchMerging, nn.Conv2d, nn.Linear, nn.LayerNorm])


def read_projection(layer: Any, x: Tensor) -> Union[Layer, str]:
    """Return the `Layer` of patch embedding or patch merging, or in a sentence why there is none."""
    merges = isinstance(layer, PatchMerging)
    name, kind = ('reduction', nn.Linear) if merges else ('projection', nn.Conv2d)
    norm_kind = nn.Identity if type(layer.norm) is nn.Identity else nn.LayerNorm
    modules = read_modules(layer, {name: kind, 'norm': norm_kind})
    if isinstance(modules, str):
        return modules
    linear, norm, post_norm = modules[name], modules['norm'], not merges or layer.post_norm
    weight, eps = linear.weight, getattr(norm, 'eps', None)  # an identity has no eps
    if x.dim() != 4:
        return f'The compiled library takes a batch of four dimensions, not {list(x.shape)}.'
    if weight is None or weight.dim() != (2 if merges else 4):
        return f'The weight of {type(layer).__name__} is not as it was built.'
    if merges and layer.stride != 2:
        return f'The compiled library merges patches with a stride of 2, not {layer.stride}.'
    if merges and linear.bias is not None:
        return 'The compiled library has no bias in patch merging, and the reduction has one.'
    sides = tuple(weight.shape[2:])
    if not merges and (tuple(layer.patch_size), linear.stride, linear.padding, linear.dilation, linear.groups) != (
        *(sides, sides, (0, 0), (1, 1), 1),
    ):
        return f'The compiled library takes patches that do not overlap, not {linear}.'
    normed = len(weight) if post_norm else 4 * x.shape[3]
    if eps is not None and norm.normalized_shape != (normed,):
        return f'The compiled library normalises {normed} numbers, not {list(norm.normalized_shape)}.'
    parameters = weight, linear.bias, *(getattr(norm, leaf, None) for leaf in ('weight', 'bias'))
    dtype, has_gradients = products_of(layer, x, *parameters)
    computation = ProjectionComputation(merges, eps, post_norm, dtype, cache_of(layer), has_gradients)
    by_torch = partial(forward_by_torch, [f'{name}.weight', f'{name}.bias', *NORM])
    return Layer(computation, by_torch, parameters)


plan_projection = partial(plan_module, read_projection)


def plan_output_norm(_: Any, x_BHWC: Tensor, norm: Any) -> Union[Call, str, None]:
    """See `replace.Replacement`. A stage without an output norm has nothing to compute: torch copies the map."""
    return None if type(norm) is nn.Identity else plan_module(read_output_norm, norm, x_BHWC)


def read_output_norm(norm: Any, x_BHWC: Tensor) -> Union[Layer, str]:
    """Return the `Layer` of an output norm, or in a sentence why there is none."""
    is_plain = type(norm) is nn.LayerNorm and not is_changed(norm)
    if not is_plain or norm.normalized_shape != tuple(x_BHWC.shape[3:]):
        return f'The output norm is not a plain LayerNorm over {x_BHWC.shape[3]} channels, as it was built.'
    return norm_layer(norm)


def norm_layer(norm: nn.LayerNorm) -> Layer:
    """Return the `Layer` of a norm of tokens with a map as its output."""
    by_torch = partial(forward_by_torch, ['weight', 'bias'], forward=_normalise)
    return Layer(OutputNormComputation(norm.eps), by_torch, (norm.weight, norm.bias))


def _normalise(norm: nn.LayerNorm, x_BHWC: Tensor) -> Tensor:
    normed = nn.functional.layer_norm(x_BHWC, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return normed.permute(0, 3, 1, 2)
