"""Patch embedding, patch merging and output norms by the compiled library.

Layout: B batch, C channels, H W height and width.
"""

from functools import partial
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from ...replace import refuse
from ..native.layers import OutputNorm, Projection
from ..native.layers import run as run_operator
from ..native.memory import cache_of, can_read
from .structure import can_read_map, forward_by_torch, is_as_built, modules_inside, norm_values, products_dtype

NORM = ['norm.weight', 'norm.bias']


class Parts(NamedTuple):
    """What the library needs of a patch embedding or a patch merging."""

    layer: Any
    tensors: list[Optional[Tensor]]  # weight and bias of the linear layer, weight and bias of the norm
    eps: Optional[float]  # of the norm; None: no norm


def _read(layer: Any, x: Optional[Tensor], linear: str, kind: type[nn.Module], raise_error: bool) -> Optional[Parts]:
    """Return the parts of a layer if the library can read them; `linear` is the name of the linear layer."""
    kinds = {linear: kind, 'norm': nn.Identity if type(layer.norm) is nn.Identity else nn.LayerNorm}
    if not (can_read_map(layer, x, raise_error) and is_as_built(layer, modules_inside(layer), kinds, raise_error)):
        return None
    module, (*vectors, eps) = getattr(layer, linear), norm_values(layer.norm)
    parts = Parts(layer, [module.weight, module.bias, *vectors], eps)
    return parts if can_read(parts.tensors, raise_error) else None


def can_embed(layer: Any, image_BCHW: Optional[Tensor], raise_error: bool = False) -> Any:
    """See `replace.Replacement`; without an image: whether the library computes the layer as it is."""
    parts, conv = _read(layer, image_BCHW, 'projection', nn.Conv2d, raise_error), layer.projection
    if parts and (conv.stride, conv.padding, conv.dilation, conv.groups) != (conv.weight.shape[2:], (0, 0), (1, 1), 1):
        return refuse('native', f'The compiled library takes patches that do not overlap, not {conv}.', raise_error)
    return parts


def embed(parts: Parts, image_BCHW: Tensor) -> Tensor:
    """Run a patch embedding, see `PatchEmbed.forward`."""
    dtype = products_dtype(parts.layer, image_BCHW, *parts.tensors)
    operator = Projection(False, parts.eps, True, dtype, cache_of(parts.layer))
    by_torch = partial(forward_by_torch, parts.layer, ['projection.weight', 'projection.bias', *NORM], None)
    return run_operator(operator, by_torch, image_BCHW.float(), *parts.tensors)


def can_merge(layer: Any, x_BHWC: Optional[Tensor], raise_error: bool = False) -> Any:
    """See `replace.Replacement`; without a map: whether the library computes the layer as it is."""
    parts = _read(layer, x_BHWC, 'reduction', nn.Linear, raise_error)
    if parts and layer.stride != 2:
        reason = f'The compiled library merges patches with a stride of 2, not {layer.stride}.'
        return refuse('native', reason, raise_error)
    if parts and parts.tensors[1] is not None:
        reason = 'The compiled library merges patches without a bias, and the reduction has one.'
        return refuse('native', reason, raise_error)
    return parts


def merge(parts: Parts, x_BHWC: Tensor) -> Tensor:
    """Run a patch merging, see `PatchMerging.forward`."""
    layer = parts.layer
    dtype = products_dtype(layer, x_BHWC, *parts.tensors)
    operator = Projection(True, parts.eps, layer.post_norm, dtype, cache_of(layer))
    by_torch = partial(forward_by_torch, layer, ['reduction.weight', 'reduction.bias', *NORM], None)
    return run_operator(operator, by_torch, x_BHWC.float().contiguous(), *parts.tensors)


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
    return run_operator(OutputNorm(norm.eps), by_torch, x_BHWC.float().contiguous(), norm.weight, norm.bias)
