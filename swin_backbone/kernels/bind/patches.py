"""Patch embedding, patch merging and output norms by the compiled library.

Layout: B batch, C channels, H W height and width.
"""

from functools import partial
from typing import Any, Union

from torch import Tensor, nn

from ...models.layers import PatchMerging
from ...replace import is_changed, read_modules
from ..native.availability import find_obstacle, products_of
from ..native.layers import OutputNormOperator, ProjectionOperator
from ..native.memory import Unfit, cache_of
from ..native.operators import Call, plan_swin_layer
from .structure import forward_by_torch

NORM = ['norm.weight', 'norm.bias']


def plan_projection(layer: Any, x: Tensor) -> Union[Call, str]:
    """See `replace.Replacement`; `x` is an image or a map."""
    reason, merges = find_obstacle(x, layer), isinstance(layer, PatchMerging)
    if reason is not None:
        return reason
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
    operator = ProjectionOperator(merges, eps, post_norm, dtype, cache_of(layer), has_gradients)
    by_torch = partial(forward_by_torch, layer, [f'{name}.weight', f'{name}.bias', *NORM])
    try:
        return plan_swin_layer(operator, by_torch, x.shape, *parameters)
    except Unfit as error:
        return str(error)


def plan_output_norm(stage: Any, x_BHWC: Tensor, norm: Any) -> Union[Call, str, None]:
    """See `replace.Replacement`. A stage without an output norm has nothing to compute: torch copies the map."""
    if type(norm) is nn.Identity:
        return None
    reason = find_obstacle(x_BHWC, stage)
    if reason is not None:
        return reason
    is_plain = type(norm) is nn.LayerNorm and not is_changed(norm)
    if not is_plain or norm.normalized_shape != tuple(x_BHWC.shape[3:]):
        return f'The output norm is not a plain LayerNorm over {x_BHWC.shape[3]} channels, as it was built.'
    return plan_norm(x_BHWC, norm)


def plan_norm(x_BHWC: Tensor, norm: nn.LayerNorm) -> Union[Call, str]:
    """Return the plan of a norm of tokens with a map as its output, or in a sentence why there is none."""

    def forward(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps).permute(0, 3, 1, 2)

    by_torch = partial(forward_by_torch, norm, ['weight', 'bias'], forward=forward)
    try:
        return plan_swin_layer(OutputNormOperator(norm.eps), by_torch, x_BHWC.shape, norm.weight, norm.bias)
    except Unfit as error:
        return str(error)
