"""Patch embedding, patch merging and output norms by the compiled library.

Layout: B batch, C channels, H W height and width.
"""

from functools import partial
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from ...models.layers import PatchMerging
from ...replace import refuse
from ..native.layers import OutputNormOperator, ProjectionOperator, run_operator
from ..native.memory import cache_of, can_read
from .structure import can_read_map, forward_by_torch, is_as_built, modules_inside, norm_values, products_dtype

NORM = ['norm.weight', 'norm.bias']


class Parts(NamedTuple):
    """What the library needs of a patch embedding or a patch merging."""

    layer: Any
    merges: bool  # False: a patch embedding
    tensors: list[Optional[Tensor]]  # weight and bias of the linear layer, weight and bias of the norm
    eps: Optional[float]  # of the norm; None: no norm


def can_project(layer: Any, x: Optional[Tensor], raise_error: bool = False) -> Any:
    """See `replace.Replacement`; `x` is an image or a map. None: whether the library computes the layer as it is."""
    merges = isinstance(layer, PatchMerging)
    name, kind = ('reduction', nn.Linear) if merges else ('projection', nn.Conv2d)
    kinds = {name: kind, 'norm': nn.Identity if type(layer.norm) is nn.Identity else nn.LayerNorm}
    if not (can_read_map(layer, x, raise_error) and is_as_built(layer, modules_inside(layer), kinds, raise_error)):
        return False
    linear, (*vectors, eps), reason = getattr(layer, name), norm_values(layer.norm), None
    if merges and layer.stride != 2:
        reason = f'The compiled library merges patches with a stride of 2, not {layer.stride}.'
    elif merges and linear.bias is not None:
        reason = 'The compiled library merges patches without a bias, and the reduction has one.'
    elif not merges and (
        (linear.stride, linear.padding, linear.dilation, linear.groups) != (linear.weight.shape[2:], (0, 0), (1, 1), 1)
    ):
        reason = f'The compiled library takes patches that do not overlap, not {linear}.'
    if reason is not None:
        return refuse('native', reason, raise_error)
    tensors = [linear.weight, linear.bias, *vectors]
    return can_read(tensors, raise_error) and Parts(layer, merges, tensors, eps)


def project(parts: Parts, x: Tensor) -> Tensor:
    """Run a patch embedding or a patch merging, see `PatchEmbed.forward` and `PatchMerging.forward`."""
    layer, merges, tensors, eps = parts
    dtype = products_dtype(layer, x, *tensors)
    operator = ProjectionOperator(merges, eps, not merges or layer.post_norm, dtype, cache_of(layer))
    linear = 'reduction' if merges else 'projection'
    by_torch = partial(forward_by_torch, layer, [f'{linear}.weight', f'{linear}.bias', *NORM], None)
    x = x.float().contiguous() if merges else x.float()  # an image may have any strides
    return run_operator(operator, by_torch, x, *tensors)


def can_normalise(stage: Any, x_BHWC: Tensor, norm: Any, raise_error: bool = False) -> Any:
    """See `replace.Replacement`. A stage without an output norm has nothing to compute: torch copies the map."""
    if type(norm) is nn.Identity or not can_read_map(stage, x_BHWC, raise_error):
        return False
    is_plain = is_as_built(stage, {'the output norm': norm}, {'the output norm': nn.LayerNorm}, raise_error)
    return is_plain and can_read([norm.weight, norm.bias], raise_error) and stage


def normalise(_stage: Any, x_BHWC: Tensor, norm: Any) -> Tensor:
    """Normalise tokens, see `SwinStage.normalise_output`."""

    def forward(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps).permute(0, 3, 1, 2)

    by_torch = partial(forward_by_torch, norm, ['weight', 'bias'], None, forward=forward)
    return run_operator(OutputNormOperator(norm.eps), by_torch, x_BHWC.float().contiguous(), norm.weight, norm.bias)
